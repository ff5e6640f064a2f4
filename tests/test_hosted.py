"""Hosted mode: where the database is PostgreSQL's, nobody is anybody without saying who they are."""

from __future__ import annotations

import pytest
from django.conf import settings

from inclavate import accounts
from inclavate.models import ApiKey
from tests.asking import ask

pytestmark = [pytest.mark.database, pytest.mark.usefixtures("database")]

ANY = "7d444840-9dc0-41d1-b245-5ffdce74fad2"
OPEN = [("GET", "/health"), ("GET", "/v1/generations/capabilities")]
CLOSED = [
    ("GET", "/v1/models"),
    ("GET", "/v1/generations"),
    ("POST", "/v1/generations"),
    ("GET", f"/v1/generations/{ANY}"),
    ("GET", f"/v1/generations/{ANY}/events"),
    ("DELETE", f"/v1/generations/{ANY}"),
    ("GET", "/v1/artifacts"),
    ("POST", "/v1/artifacts"),
    ("GET", "/v1/artifacts/usage"),
    ("GET", f"/v1/artifacts/{ANY}"),
    ("GET", f"/v1/artifacts/{ANY}/meta"),
    ("DELETE", f"/v1/artifacts/{ANY}"),
    ("POST", "/v1/files"),
    ("GET", "/v1/files"),
    ("GET", f"/v1/files/{ANY}"),
    ("GET", f"/v1/files/{ANY}/content"),
    ("DELETE", f"/v1/files/{ANY}"),
    ("POST", "/v1/audio/speech"),
    ("POST", "/v1/audio/transcriptions"),
    ("POST", "/v1/audio/translations"),
    ("GET", "/"),
]


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_without_a_caller_a_hosted_deployment_answers_401_and_a_local_one_does_not(method: str, path: str) -> None:
    answer = ask(method, path, json={} if method == "POST" else None)
    assert (answer.status_code == 401) == settings.IS_HOSTED
    if settings.IS_HOSTED:
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(("method", "path"), OPEN)
def test_health_and_capabilities_are_open_to_all(method: str, path: str) -> None:
    assert ask(method, path).status_code == 200


hosted_only = pytest.mark.skipif("not __import__('django.conf').conf.settings.IS_HOSTED", reason="needs PostgreSQL")


@hosted_only
def test_a_key_lets_its_owner_in_until_it_is_revoked() -> None:
    ann = accounts.create_user("ann")
    key = accounts.create_key(ann, "laptop")
    bearer = {"Authorization": f"Bearer {key}"}
    assert ask("GET", "/v1/generations", headers=bearer).status_code == 200
    assert ApiKey.objects.get().last_used_at is not None
    assert key not in str(ApiKey.objects.values().get())
    assert accounts.revoke_key(ann, key[:8]) == 1
    answer = ask("GET", "/v1/generations", headers=bearer)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


@hosted_only
@pytest.mark.parametrize("value", ["Bearer", "Bearer  ", "Bearer ik-made-up", "Basic YTpi", "ik-made-up"])
def test_another_authorization_is_401(value: str) -> None:
    assert ask("GET", "/v1/artifacts", headers={"Authorization": value}).status_code == 401


@hosted_only
def test_an_account_that_was_switched_off_is_out_at_once() -> None:
    ann = accounts.create_user("ann")
    bearer = {"Authorization": f"Bearer {accounts.create_key(ann, '')}"}
    ann.user.is_active = False
    ann.user.save()
    assert ask("GET", "/v1/artifacts", headers=bearer).status_code == 401

"""What heads of requests may say: each header once and by its own name, and each path's own methods."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from django.test import override_settings

from inclavate import fleet
from inclavate.faces import boundary
from inclavate.faces.native import streams as native
from inclavate.faces.openai import streams as openai
from inclavate.generators import SPEECH, Capability
from inclavate.models import Job
from inclavate.urls import urlpatterns
from tests.asking import ask

pytestmark = [pytest.mark.database, pytest.mark.usefixtures("database")]

ANY = "7d444840-9dc0-41d1-b245-5ffdce74fad2"
SPEAKER = Capability("test-speaker", "audio", SPEECH, formats=("wav",))
BODY = {"model": "test-speaker", "modality": "audio", "params": {"text": "Hello."}}
PATHS = sorted(
    {
        re.sub(r"<\w+:\w+>|{\w+}", ANY, path)
        for path in [f"/{pattern.pattern}" for pattern in urlpatterns]
        + [route.path for route in (*native.routes, *openai.routes)]
    }
)


@pytest.fixture
def bearer() -> dict[str, str]:
    """What alice's requests carry where somebody must be told from others."""
    from inclavate import accounts

    return {"Authorization": f"Bearer {accounts.create_key(accounts.create_user('alice'), 'test')}"}


@pytest.fixture
def token() -> Iterator[None]:
    with override_settings(ADMIN_TOKEN="sesame"):
        yield


@pytest.mark.parametrize("path", ["/v1/generations", f"/v1/artifacts/{ANY}", "/health"])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Host", ["localhost", "localhost"]),
        ("Authorization", ["Bearer a", "Bearer b"]),
        ("Idempotency-Key", ["a", "b"]),
        ("Content-Type", ["application/json", "text/plain"]),
        ("Content-Length", ["0", "1"]),
        ("X-Admin-Token", ["a", "b"]),
        ("X-Content-Sha256", ["a", "b"]),
        ("Range", ["bytes=0-1", "bytes=2-3"]),
    ],
)
def test_a_header_that_must_come_once_is_refused_by_name_when_it_comes_twice(
    path: str, name: str, values: list[str]
) -> None:
    answer = ask("GET", path, headers=[(name, value) for value in values])
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert answer.json()["error"] == f"A request may have one {name} header; 2 came."


def test_a_name_with_underscores_is_no_other_headers_name(token: None) -> None:
    assert ask("GET", "/admin/verify", headers={"X_Admin_Token": "sesame"}).status_code == 403
    both = {"X_Admin_Token": "wrong", "X-Admin-Token": "sesame"}
    assert ask("GET", "/admin/verify", headers=both).status_code == 200


@pytest.mark.parametrize("key", ["é", "日本", "plain", "a,b"])
def test_a_key_of_the_header_in_utf_8_is_the_same_key_as_in_the_body(key: str, bearer: dict[str, str]) -> None:
    fleet.register("w1", 1, [SPEAKER])
    in_header = bearer | {"Idempotency-Key": key.encode()}
    first = ask("POST", "/v1/generations", json=BODY | {"idempotency_key": key}, headers=bearer)
    second = ask("POST", "/v1/generations", json=BODY, headers=in_header)
    both = ask("POST", "/v1/generations", json=BODY | {"idempotency_key": key}, headers=in_header)
    assert [answer.status_code for answer in (first, second, both)] == [202] * 3
    assert first.json()["id"] == second.json()["id"] == both.json()["id"]
    assert Job.objects.get().idempotency_key == key


def test_a_key_that_is_no_utf_8_stays_latin_1() -> None:
    assert boundary.idempotency_key("\xe9") == "é"
    assert boundary.idempotency_key("\xc3\xa9") == "é"


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "PROPFIND"])
@pytest.mark.parametrize("path", PATHS)
def test_a_method_that_no_path_has_is_405_on_each_whoever_asks(path: str, method: str) -> None:
    answer = ask(method, path)
    assert (answer.status_code, set(answer.json())) in [(405, {"error", "code"}), (405, {"error"})]
    allowed = answer.headers["allow"].split(", ")
    assert allowed == sorted(allowed)
    assert {"GET", "POST", "PUT", "DELETE"} & set(allowed)
    assert not {"OPTIONS", "TRACE"} & set(allowed)
    assert f"{method} is no method of {path}; {answer.headers['allow']} are." in answer.text


def test_the_least_number_of_64_bits_is_a_seed_and_the_next_is_not(bearer: dict[str, str]) -> None:
    fleet.register("w1", 1, [SPEAKER])
    answer = ask("POST", "/v1/generations", json=BODY | {"seed": -(2**63)}, headers=bearer)
    assert (answer.status_code, answer.json()["seed"]) == (202, -(2**63))
    assert Job.objects.get().seed == -(2**63)
    for seed in (-(2**63) - 1, 2**63):
        assert ask("POST", "/v1/generations", json=BODY | {"seed": seed}, headers=bearer).status_code == 400

"""Hosted mode: where the database is PostgreSQL's, nobody is anybody without saying who they are."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from django.conf import settings

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
    ("POST", "/v1/audio/speech"),
    ("POST", "/v1/audio/transcriptions"),
    ("GET", "/"),
]


def ask(method: str, path: str) -> httpx.Response:
    async def send() -> httpx.Response:
        from inclavate.asgi import application

        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            json = {} if method == "POST" else None
            return await client.request(method, path, json=json)

    return asyncio.run(send())


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_without_a_caller_a_hosted_deployment_answers_401_and_a_local_one_does_not(method: str, path: str) -> None:
    answer = ask(method, path)
    assert (answer.status_code == 401) == settings.IS_HOSTED
    if settings.IS_HOSTED:
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(("method", "path"), OPEN)
def test_health_and_capabilities_are_open_to_all(method: str, path: str) -> None:
    assert ask(method, path).status_code == 200

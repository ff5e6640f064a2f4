"""Asking the web application without a socket."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx


def ask(method: str, path: str, **request: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        from inclavate.asgi import application

        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **request)

    return asyncio.run(send())

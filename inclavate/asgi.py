"""The web process: one ASGI application, one port.

What streams or waits is a route of Starlette's and holds no thread while it does; the rest is Django's, run as WSGI
in the pool (why, with figures: docs/decisions/).
"""

from __future__ import annotations

import asyncio
import io
import logging
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import django
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

django.setup(set_prefix=False)

from django.conf import settings  # noqa: E402 - after setup
from django.core.wsgi import get_wsgi_application  # noqa: E402

from inclavate import errors, progress  # noqa: E402
from inclavate.faces import boundary  # noqa: E402
from inclavate.faces.native import streams as native  # noqa: E402
from inclavate.faces.openai import streams as openai  # noqa: E402

log = logging.getLogger("inclavate.access")

_wsgi = get_wsgi_application()


class Django:
    """Django as WSGI: the capped body is read first, then one hop into the pool makes the whole answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            body = await boundary.read_body(request)
        except (errors.InclavateError, ClientDisconnect) as error:
            await boundary.error_response(error, request.url.path)(scope, receive, send)
            return
        status, headers, content = await boundary.in_pool(_call_wsgi, _environ(scope, body))
        if status == 405 and not content:
            allow = dict(headers).get(b"allow", b"").decode()
            await _method_not_allowed(request, allow)(scope, receive, send)
            return
        sized = [*headers, (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": sized})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else content})


def _environ(scope: Scope, body: bytes) -> dict[str, Any]:
    host, port = scope.get("server") or ("", 0)
    environ: dict[str, Any] = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": scope["path"].encode().decode("latin-1"),
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "SERVER_NAME": host,
        "SERVER_PORT": str(port),
        "REMOTE_ADDR": (scope.get("client") or ("",))[0],
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope["scheme"],
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    for raw_name, raw_value in scope["headers"]:
        # Else `X_Admin_Token`, which no proxy in front guards, would pass for X-Admin-Token.
        if b"_" in raw_name:
            continue
        name = raw_name.decode("latin-1").upper().replace("-", "_")
        key = name if name == "CONTENT_TYPE" else f"HTTP_{name}"
        if name not in ("CONTENT_LENGTH", "TRANSFER_ENCODING"):
            value = raw_value.decode("latin-1")
            environ[key] = f"{environ[key]},{value}" if key in environ else value
    return environ


def _call_wsgi(environ: dict[str, Any]) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    started: dict[str, Any] = {}

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: object = None) -> None:
        started["status"] = int(status.split(" ", 1)[0])
        started["headers"] = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in headers]

    answer: Iterable[bytes] = _wsgi(environ, start_response)  # type: ignore[arg-type]
    try:
        content = b"".join(answer)
    finally:
        if hasattr(answer, "close"):
            answer.close()
    return started["status"], [pair for pair in started["headers"] if pair[0] != b"content-length"], content


def _method_not_allowed(request: Request, allow: str) -> Response:
    error = boundary.method_not_allowed(request.method, request.url.path, allow)
    return boundary.error_response(error, request.url.path, {"Allow": allow})


class _Refusal:
    """An application, since only these are given every method there is."""

    def __init__(self, allow: str) -> None:
        self._allow = allow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _method_not_allowed(Request(scope), self._allow)(scope, receive, send)


def _other_methods(path: str, routes: Iterable[Route]) -> Route:
    """Every method that none of these routes answers at this path."""
    allow = ", ".join(sorted({method for route in routes if route.path == path for method in route.methods or ()}))

    return Route(path, _Refusal(allow))


class Gate:
    """What every request passes: its id, the Host and Origin check, and a line in the log."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = boundary.request_id(headers.get("x-request-id"))
        began, status = time.monotonic(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            boundary.check_head(headers)
            boundary.check_query(scope["query_string"])
            await self._app(scope, receive, send_with_id)
        except errors.InclavateError as error:
            if not status:
                await boundary.error_response(error, scope["path"])(scope, receive, send_with_id)
                return
            # It began as another answer: the connection ends before that is whole, and the client sees it.
            log.warning("an answer was broken off: %s: %s %s", error.code, error.message, request_id)
        finally:
            took = (time.monotonic() - began) * 1000
            # As ASCII: a path's newline or escape must not write lines of its own.
            log.info("%s %s %s %.0f ms %s", scope["method"], ascii(scope["path"])[1:-1], status, took, request_id)


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    receiving = asyncio.create_task(progress.bus.run(), name="progress bus")
    yield
    receiving.cancel()
    for threads in (boundary.pool, boundary.store_pool):
        threads.shutdown(wait=False, cancel_futures=True)


async def _unexpected(request: Request, error: Exception) -> Response:
    return boundary.error_response(error, request.url.path)


async def _static_error(request: Request, error: Exception) -> Response:
    """Starlette's own errors come from the static files alone."""
    if isinstance(error, HTTPException) and error.status_code == 405:
        return _method_not_allowed(request, "GET, HEAD")
    return boundary.error_response(boundary.nothing_at(request.url.path), request.url.path)


django_app = Django()
_own = (*native.routes, Route("/v1/artifacts", django_app, methods=["GET"]), *openai.routes)


def _by_path(routes: Sequence[Route]) -> list[Route]:
    """Each path's routes, then its refusal: a word stays in front of the id that it could be taken for."""
    paths = dict.fromkeys(route.path for route in routes)
    return [route for path in paths for route in (*(r for r in routes if r.path == path), _other_methods(path, routes))]


_starlette = Starlette(
    routes=[
        # Words that would else be taken for an id.
        Route("/v1/generations/capabilities", django_app),
        Route("/v1/artifacts/usage", django_app),
        *_by_path(_own),
        Mount("/static", StaticFiles(directory=settings.BASE_DIR / "inclavate" / "static")),
    ],
    exception_handlers={Exception: _unexpected, HTTPException: _static_error},
    lifespan=_lifespan,
)
# Whatever path it is: a mount's pattern would stop at a newline.
_starlette.router.redirect_slashes = False
_starlette.router.default = django_app
application = Gate(_starlette)

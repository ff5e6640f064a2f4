"""Where a request becomes ours: request id, Host and Origin, the caller's owner, JSON, and any exception's envelope.

Used by both kinds of route: Starlette's own (they stream or wait) and Django's behind them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import wraps
from typing import IO, Any, TypeVar

import pydantic
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import OperationalError, close_old_connections
from django.http import HttpRequest, JsonResponse
from rest_framework import exceptions as drf
from rest_framework.authentication import BaseAuthentication
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import JSONParser
from rest_framework.request import Request as DrfRequest
from rest_framework.response import Response as DrfResponse
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from inclavate import accounts, errors
from inclavate.models import Owner

log = logging.getLogger(__name__)

R = TypeVar("R")
Shape = TypeVar("Shape", bound=pydantic.BaseModel)

OPENAI_PREFIXES = ("/v1/files", "/v1/audio", "/v1/chat", "/v1/models", "/v1/embeddings")
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_MAX_JSON_DEPTH = 64
_JSON_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    # A bool is an int to Python, and none to JSON.
    (bool, "true or false"),
    (str, "a string"),
    ((int, float), "a number"),
    (list, "an array"),
    (type(None), "null"),
)
# Of two, one part of us would read the first, another the last, a third both.
_SINGLE_HEADERS = (
    "Host",
    "Authorization",
    "Idempotency-Key",
    "Content-Type",
    "Content-Length",
    "X-Admin-Token",
    "X-Content-Sha256",
    "Range",
)

# -- threads -----------------------------------------------------------------------------------------------------------

# Every database connection of a web process belongs to one of these threads. What waits for the store has threads of
# its own: a store that does not answer holds all of them, and jobs must be submitted and watched all the same.
pool = ThreadPoolExecutor(max_workers=settings.WEB_THREADS, thread_name_prefix="web")
store_pool = ThreadPoolExecutor(max_workers=settings.WEB_THREADS, thread_name_prefix="store")


async def in_pool(function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Call what blocks, and does not ask the store, in the pool."""
    return await _in_thread_of(pool, function, *args, **kwargs)


async def at_store(function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Call what reads, writes or deletes bytes in the store's pool."""
    return await _in_thread_of(store_pool, function, *args, **kwargs)


async def _in_thread_of(threads: ThreadPoolExecutor, function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    def call() -> R:
        close_old_connections()
        try:
            return function(*args, **kwargs)
        finally:
            close_old_connections()

    return await asyncio.get_running_loop().run_in_executor(threads, call)


# -- who and from where ------------------------------------------------------------------------------------------------


def request_id(offered: str | None) -> str:
    """The caller's id where it is a plain word, else a new one."""
    return offered if offered and _REQUEST_ID.fullmatch(offered) else str(uuid.uuid4())


def check_head(headers: Headers) -> None:
    """What comes before anything else. Raises `Forbidden`, `InvalidRequest`, `UnsupportedBody`."""
    for name in _SINGLE_HEADERS:
        if (count := len(headers.getlist(name))) > 1:
            raise errors.InvalidRequest(f"A request may have one {name} header; {count} came.", param=name)
    if "host" not in headers:
        raise errors.InvalidRequest("A request must have a Host header; none came.", param="Host")
    check_host(headers["host"], headers.get("origin"))
    coding = headers.get("transfer-encoding", "chunked")
    if coding.lower() != "chunked":
        raise errors.UnsupportedBody(f"Send the body chunked at most, not {coding[:40]}.", param="Transfer-Encoding")
    encoding = headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise errors.UnsupportedBody(f"Send the body as it is, not {encoding[:40]}-encoded.", param="Content-Encoding")


def check_query(query: bytes) -> None:
    """Raises `InvalidRequest` for what no database takes as text."""
    if b"%00" in query or b"\0" in query:
        raise errors.InvalidRequest("The query may not hold NUL (%00).", param="query")


def check_host(host: str, origin: str | None) -> None:
    """Refuse a name or a page that is not ours: DNS rebinding and other sites' scripts. Raises `Forbidden`."""
    allowed = {h.strip("[]").lower() for h in settings.ALLOWED_HOSTS}
    if _hostname(host) not in allowed and "*" not in allowed:
        raise errors.Forbidden(f"The host {host!r} is not one that this server answers to (INCLAVATE_ALLOWED_HOSTS).")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        raise errors.Forbidden(f"The origin {origin!r} is not this server's own.")


def _hostname(host: str) -> str | None:
    """The name in a Host header; None where it is no plain name or address with a port."""
    match = re.fullmatch(r"\[([0-9a-f:.]+)\](:[0-9]{1,5})?|([^\[\]:@/\s]+)(:[0-9]{1,5})?", host.lower())
    return match and (match[1] or match[3])


def parse_id(text: str, name: str = "id") -> uuid.UUID:
    """Raises `InvalidRequest` unless it is a lower-case UUID."""
    if not _ID.fullmatch(text):
        raise errors.InvalidRequest(f"{name}: {text[:80]!r} is no id; ids are lower-case UUIDs.", param=name)
    return uuid.UUID(text)


def parse_count(query: Mapping[str, str], name: str, default: int, low: int, high: int = 2**62) -> int:
    """A whole number of the query; clamped to `high`, refused below `low`."""
    text = query.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"-?[0-9]{1,100}", text):
        raise errors.InvalidRequest(f"{name} must be a whole number, not {text[:40]!r}.", param=name)
    value = int(text)
    if value < low:
        raise errors.InvalidRequest(f"{name} must be at least {low}, not {value}.", param=name)
    return min(value, high)


def idempotency_key(in_header: str | None, in_body: str | None = None) -> str | None:
    """The key of a request, from the header's text (as HTTP libraries give it, in Latin-1) or the body.

    Raises `InvalidRequest`.
    """
    if in_header is not None:
        # What is sent today is UTF-8, and must equal the same key in a body; what is not stays as it came.
        with suppress(UnicodeError):
            in_header = in_header.encode("latin-1").decode("utf-8")
    if in_header is not None and in_body is not None and in_header != in_body:
        raise errors.InvalidRequest(
            "The header Idempotency-Key and the field idempotency_key differ.", param="idempotency_key"
        )
    key = in_body if in_header is None else in_header
    if key is not None and not (1 <= len(key) <= 255 and key.isprintable()):
        came = f"{len(key)} came" if key.isprintable() else "some of those that came are not"
        raise errors.InvalidRequest(
            f"idempotency_key must be 1 to 255 printable characters; {came}.", param="idempotency_key"
        )
    return key


# -- JSON in -----------------------------------------------------------------------------------------------------------


def parse_json(body: bytes) -> dict[str, Any]:
    """A JSON object whose every string and number the database can hold. Raises `InvalidRequest`."""
    if not body.strip():
        raise errors.InvalidRequest("The body is not JSON: it is empty.", param="body")
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise errors.InvalidRequest(f"The body is not JSON: {error}.", param="body") from None
    if not isinstance(value, dict):
        kind = next(name for types, name in _JSON_KINDS if isinstance(value, types))
        raise errors.InvalidRequest(f"The body must be a JSON object, not {kind}.", param="body")
    _check_values(value, "", 0)
    return value


def _too_deep() -> errors.InvalidRequest:
    return errors.InvalidRequest(f"The body is nested deeper than {_MAX_JSON_DEPTH}.", param="body")


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON number")


def _check_values(value: Any, where: str, depth: int) -> None:
    if depth > _MAX_JSON_DEPTH:
        raise _too_deep()
    match value:
        case str():
            _check_text(value, where)
        case float() if not math.isfinite(value):
            raise errors.InvalidRequest(f"{where}: a number is out of range.", param=where)
        case int() if not -(2**63) <= value < 2**63:
            raise errors.InvalidRequest(f"{where}: a whole number is out of range (64 bits).", param=where)
        case dict():
            for key, item in value.items():
                _check_text(key, where or "body")
                _check_values(item, f"{where}.{key}" if where else key, depth + 1)
        case list():
            for item in value:
                _check_values(item, where, depth + 1)


def _check_text(text: str, where: str) -> None:
    if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise errors.InvalidRequest(f"{where}: text may hold neither NUL nor half of a surrogate pair.", param=where)


def validate(shape: type[Shape], data: Mapping[str, Any]) -> Shape:
    """The typed request. Raises `InvalidRequest` for the first field that is wrong."""
    try:
        return shape.model_validate(data)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"]) or "body"
        raise errors.InvalidRequest(_sentence(name, first), param=name) from None


def _sentence(name: str, problem: Any) -> str:
    match problem["type"]:
        case "missing":
            return f"{name} is required."
        case "extra_forbidden":
            return f"{name} is no field of this request."
        case _:
            came = json.dumps(problem["input"], ensure_ascii=False, default=repr)
            return f"{name}: {problem['msg']}; {came if len(came) <= 60 else came[:57] + '…'} came."


async def read_body(request: Request) -> bytes:
    """The body, in memory and capped. Raises `PayloadTooLarge`."""
    limit = settings.MAX_BODY_BYTES
    check_announced(request, limit)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise errors.PayloadTooLarge(f"The body may have at most {limit:,} bytes; more came.", param="body")
    return bytes(body)


def check_announced(request: Request, limit: int) -> None:
    """Refuse at once what says itself that it is too large. Raises `PayloadTooLarge`."""
    text = request.headers.get("content-length", "")
    if text.isdecimal() and (len(text) > 18 or int(text) > limit):
        raise errors.PayloadTooLarge(
            f"The body may have at most {limit:,} bytes; {text[:30]} were announced.", param="body"
        )


async def read_json(request: Request) -> dict[str, Any]:
    check_json_type(request.headers.get("content-type", ""))
    return parse_json(await read_body(request))


def check_json_type(content_type: str) -> None:
    essence = content_type.partition(";")[0].strip().lower()
    if essence != "application/json":
        raise errors.UnsupportedBody(
            f"Send the body as application/json, not {essence[:80] or 'without a Content-Type'}.", param="Content-Type"
        )


# -- errors out --------------------------------------------------------------------------------------------------------


def as_ours(error: BaseException) -> errors.InclavateError:
    """Any exception as one of ours; what nobody foresaw is logged and becomes `internal`."""
    match error:
        case errors.InclavateError():
            return error
        case ClientDisconnect():
            return errors.InvalidRequest("The client closed the connection before its request was whole.")
        case drf.APIException() if error.status_code < 500:
            return errors.InvalidRequest(str(error.detail))
        case OperationalError():
            log.error("the database does not answer: %s", error)
            return errors.Unavailable("The database does not answer; try again later.", retry_after=5)
        case DatabaseError():
            log.exception("a query failed", exc_info=error)
        case _:
            log.exception("unexpected", exc_info=error)
    return errors.InclavateError("Something went wrong on our side; the log has it under this x-request-id.")


_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def envelope(error: errors.InclavateError, path: str, code: str | None = None) -> dict[str, Any]:
    """The body of an error, as the face that `path` belongs to writes it."""
    code = code or error.code
    if not path.startswith(OPENAI_PREFIXES):
        return {"error": error.message, "code": code}
    kind = "server_error" if error.status >= 500 else _OPENAI_TYPES.get(error.status, "invalid_request_error")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": code}}


def error_headers(error: errors.InclavateError) -> dict[str, str]:
    """SDKs retry 409, 429 and 5xx by themselves: say where that helps, and when."""
    headers = {}
    never = errors.JobError | errors.StillRunning | errors.QuotaExhausted | errors.NotConfigured
    if error.status == 409 or isinstance(error, never):
        headers["x-should-retry"] = "false"
    if error.retryable:
        headers["Retry-After"] = str(error.retry_after or 5)
    if isinstance(error, errors.RangeNotSatisfiable):
        headers["Content-Range"] = f"bytes */{error.size}"
    if isinstance(error, errors.Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def method_not_allowed(method: str, path: str, allow: str) -> errors.MethodNotAllowed:
    return errors.MethodNotAllowed(f"{method} is no method of {path[:200]}; {allow} are.")


def error_response(error: BaseException, path: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    ours = as_ours(error)
    return JSONResponse(envelope(ours, path), ours.status, error_headers(ours) | dict(headers or {}))


# -- adaptors ----------------------------------------------------------------------------------------------------------

Endpoint = Callable[[Request, Owner], Awaitable[Response]]


def endpoint(function: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """A Starlette route of ours: the caller's owner comes in, an error goes out in its envelope."""

    @wraps(function)
    async def route(request: Request) -> Response:
        try:
            owner = await in_pool(accounts.identify, request.headers.get("authorization"))
            return await function(request, owner)
        except Exception as error:  # noqa: BLE001 - the boundary: every error gets its envelope
            return error_response(error, request.url.path)

    return route


class Authentication(BaseAuthentication):
    """DRF's `request.user` is our `Owner`."""

    def authenticate(self, request: DrfRequest) -> tuple[Any, None]:
        return accounts.identify(request.headers.get("Authorization")), None


class AlwaysJSON(BaseContentNegotiation):
    """SDKs send Accept headers that name no JSON (application/octet-stream); an answer beats a 406."""

    def select_parser(self, request: DrfRequest, parsers: Any) -> Any:
        check_json_type(request.content_type)
        return parsers[0]

    def select_renderer(self, request: DrfRequest, renderers: Any, format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


class StrictJSONParser(JSONParser):
    def parse(self, stream: IO[Any], media_type: str | None = None, parser_context: Any = None) -> dict[str, Any]:
        return parse_json(stream.read())


def answer_exception(error: Exception, context: Mapping[str, Any]) -> DrfResponse:
    """DRF's EXCEPTION_HANDLER."""
    ours = as_ours(error)
    if isinstance(error, drf.MethodNotAllowed):
        request, allowed = context["request"], context["view"].allowed_methods
        ours = method_not_allowed(request.method, request.path, ", ".join(allowed))
    return DrfResponse(envelope(ours, context["request"].path), ours.status, headers=error_headers(ours))


def nothing_at(path: str) -> errors.NotFound:
    return errors.NotFound(f"There is nothing at {path[:200]}.")


def not_found(request: HttpRequest, exception: Exception | None = None) -> JsonResponse:
    """Django's handler404."""
    error = nothing_at(request.path)
    return JsonResponse(envelope(error, request.path), status=404)


def server_error(request: HttpRequest) -> JsonResponse:
    """Django's handler500: the exception itself is in the log."""
    error = errors.InclavateError("Something went wrong on our side; the log has it under this x-request-id.")
    return JsonResponse(envelope(error, request.path), status=500)

"""The native API's routes that stream or wait: they hold no thread while they do, and never a body in memory."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from email.utils import format_datetime, parsedate_to_datetime
from urllib.parse import quote

from django.conf import settings
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from inclavate import artifacts, errors, jobs
from inclavate.faces import watch
from inclavate.faces.boundary import endpoint, in_pool, parse_count, parse_id
from inclavate.faces.native import shapes
from inclavate.faces.transfers import Upload, iterate
from inclavate.models import Artifact, Job, Owner

_PING_SECONDS = 15.0
_CANCEL_WAIT_SECONDS = 2.0
_MAX_WAIT_SECONDS = 60
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]{1,100}/[\w!#$&^.+-]{1,100}(\s*;[\x20-\x7e]*)?", re.ASCII)
_MAX_MEDIA_TYPE = 255
_INERT = re.compile(r"(audio|video)/[\w.+-]+|image/(png|jpeg|webp|gif|bmp|tiff|avif)|text/plain", re.ASCII)
_RANGE = re.compile(r"\s*([0-9]*)\s*-\s*([0-9]*)\s*", re.ASCII)

# -- jobs --------------------------------------------------------------------------------------------------------------


@endpoint
async def poll(request: Request, owner: Owner) -> Response:
    job = await in_pool(jobs.get, owner, parse_id(request.path_params["id"]))
    if wait := parse_count(request.query_params, "wait", 0, 0, _MAX_WAIT_SECONDS):
        async with watch.watching(job) as watched:
            await watched.over(wait)
            job = watched.job
    included = {"params": job.params} if request.query_params.get("include") == "params" else {}
    return JSONResponse(shapes.job_json(job) | included)


@endpoint
async def cancel(request: Request, owner: Owner) -> Response:
    job = await in_pool(jobs.cancel, owner, parse_id(request.path_params["id"]))
    async with watch.watching(job) as watched:
        await watched.over(_CANCEL_WAIT_SECONDS)
        return JSONResponse(shapes.job_json(watched.job))


@endpoint
async def events(request: Request, owner: Owner) -> Response:
    job = await in_pool(jobs.get, owner, parse_id(request.path_params["id"]))
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    if request.method == "HEAD":
        answer = Response(headers=headers, media_type="text/event-stream")
        # It would be a stream's, which nobody knows.
        del answer.headers["content-length"]
        return answer
    return StreamingResponse(_events(job), media_type="text/event-stream", headers=headers)


async def _events(job: Job) -> AsyncIterator[bytes]:
    async with watch.watching(job) as watched:
        seen = watched.job.revision
        yield watched.rendered(shapes.job_event)
        while not watched.is_over or watched.job.revision > seen:
            if await watched.newer(seen, _PING_SECONDS):
                seen = watched.job.revision
                yield watched.rendered(shapes.job_event)
            elif watch.is_stopping():
                # Without the end's mark: the client comes back, to another process or to the next one.
                return
            elif not watched.is_gone:
                yield b": ping\n"
        yield b"data: [DONE]\n\n"


# -- artifacts ---------------------------------------------------------------------------------------------------------


@endpoint
async def upload(request: Request, owner: Owner) -> Response:
    media_type = request.headers.get("content-type") or "application/octet-stream"
    if len(media_type) > _MAX_MEDIA_TYPE or not _MEDIA_TYPE.fullmatch(media_type):
        raise errors.InvalidRequest(
            f"Content-Type must be a media type of at most {_MAX_MEDIA_TYPE} characters.", param="Content-Type"
        )
    incoming = Upload(owner, media_type, settings.MAX_UPLOAD_BYTES)
    async with incoming:
        await incoming.begin(_announced_bytes(request))
        async for chunk in request.stream():
            await incoming.write(chunk)
        artifact = await incoming.finish()
    return JSONResponse(shapes.artifact_json(artifact), 201)


def _announced_bytes(request: Request) -> int:
    text = request.headers.get("content-length", "0")
    return int(text) if text.isdecimal() else 0


@endpoint
async def download(request: Request, owner: Owner) -> Response:
    """GET and HEAD, with single ranges and conditions (RFC 9110)."""
    artifact = await in_pool(artifacts.get, owner, parse_id(request.path_params["id"]))
    if artifact.state != Artifact.State.READY:
        raise errors.NotReady(f"Artifact {artifact.pk} is {artifact.state}, not ready.")
    headers = _headers(artifact)
    if _matches(request.headers.get("if-none-match"), headers["ETag"]):
        return Response(status_code=304, headers={name: headers[name] for name in ("ETag", "Last-Modified")})
    wanted = _range(request, artifact, headers)
    start, stop = wanted or (0, artifact.size)
    headers["Content-Length"] = str(stop - start)
    if wanted:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{artifact.size}"
    status = 206 if wanted else 200
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    chunks = await in_pool(artifacts.read, artifact, start, stop)
    return StreamingResponse(iterate(chunks), status, headers)


def _headers(artifact: Artifact) -> dict[str, str]:
    essence = artifact.media_type.partition(";")[0].strip().lower()
    is_inert = _INERT.fullmatch(essence) is not None
    return {
        "Content-Type": artifact.media_type if is_inert else "application/octet-stream",
        "Content-Disposition": content_disposition(artifact.filename or str(artifact.pk)),
        "X-Content-Type-Options": "nosniff",
        "Accept-Ranges": "bytes",
        "ETag": f'"{artifact.digest}"',
        "Last-Modified": format_datetime(artifact.created_at, usegmt=True),
    }


def content_disposition(filename: str) -> str:
    """An attachment whose name any client reads (RFC 6266): plain ASCII, and UTF-8 where that is not all of it."""
    plain = "".join(c if c.isascii() and c.isprintable() and c not in '"\\%' else "_" for c in filename)
    named = f'attachment; filename="{plain}"'
    return named if plain == filename else f"{named}; filename*=UTF-8''{quote(filename, safe='')}"


def _matches(condition: str | None, etag: str) -> bool:
    tags = {tag.strip().removeprefix("W/") for tag in (condition or "").split(",")}
    return "*" in tags or etag in tags


def _range(request: Request, artifact: Artifact, headers: dict[str, str]) -> tuple[int, int] | None:
    """The range asked for as (start, stop), None for all. Raises `InvalidRequest`, `RangeNotSatisfiable`."""
    text = request.headers.get("range")
    if text is None or not _if_range(request.headers.get("if-range"), artifact, headers):
        return None
    unit, _, spec = text.partition("=")
    if unit.strip().lower() != "bytes":
        return None
    if "," in spec or re.fullmatch(r"\s*-\s*[0-9]+\s*", spec):
        raise errors.RangeNotSatisfiable("Only a single range with a start is served.", size=artifact.size)
    match = _RANGE.fullmatch(spec)
    if not match or not match[1] or (match[2] and _position(match[2]) < _position(match[1])):
        raise errors.InvalidRequest(f"Range: {text[:80]!r} is no range; write bytes=START-END.", param="Range")
    start = _position(match[1])
    if start >= artifact.size:
        raise errors.RangeNotSatisfiable(f"The object ends before byte {start}.", size=artifact.size)
    return start, min(_position(match[2]) + 1, artifact.size) if match[2] else artifact.size


def _position(digits: str) -> int:
    """However many digits: beyond twenty it is past the end of anything."""
    return int(digits.lstrip("0")[:20] or "0")


def _if_range(condition: str | None, artifact: Artifact, headers: dict[str, str]) -> bool:
    if condition is None or condition == headers["ETag"]:
        return True
    try:
        return artifact.created_at.replace(microsecond=0) == parsedate_to_datetime(condition)
    except (ValueError, TypeError):
        return False


@endpoint
async def delete(request: Request, owner: Owner) -> Response:
    await in_pool(artifacts.delete, owner, parse_id(request.path_params["id"]))
    return Response(status_code=204)


routes = [
    Route("/v1/generations/{id}", poll, methods=["GET"]),
    Route("/v1/generations/{id}", cancel, methods=["DELETE"]),
    Route("/v1/generations/{id}/events", events, methods=["GET"]),
    Route("/v1/artifacts", upload, methods=["POST"]),
    Route("/v1/artifacts/{id}", download, methods=["GET"]),
    Route("/v1/artifacts/{id}", delete, methods=["DELETE"]),
]

"""The native API's routes that stream or wait: they hold no thread while they do, and never a body in memory."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from django.conf import settings
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from inclavate import artifacts, errors, jobs
from inclavate.faces import watch
from inclavate.faces.boundary import at_store, endpoint, in_pool, parse_count, parse_id
from inclavate.faces.native import archive, parts, shapes
from inclavate.faces.transfers import Upload, announced_digest, respond
from inclavate.models import Job, Owner

_PING_SECONDS = 15.0
_CANCEL_WAIT_SECONDS = 2.0
_MAX_WAIT_SECONDS = 60
_MAX_MEDIA_TYPE = 255


async def health(request: Request) -> Response:
    """Of this process alone: no thread and no other server is asked."""
    return JSONResponse({"ok": True, "version": settings.VERSION})


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
    if len(media_type) > _MAX_MEDIA_TYPE or not re.fullmatch(shapes.MEDIA_TYPE, media_type):
        raise errors.InvalidRequest(
            f"Content-Type must be a media type of at most {_MAX_MEDIA_TYPE} characters.", param="Content-Type"
        )
    incoming = Upload(owner, media_type, settings.MAX_UPLOAD_BYTES, announced_digest(request))
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
    return await respond(request, await in_pool(artifacts.get, owner, parse_id(request.path_params["id"])))


@endpoint
async def delete(request: Request, owner: Owner) -> Response:
    await at_store(artifacts.delete, owner, parse_id(request.path_params["id"]))
    return Response(status_code=204)


routes = [
    Route("/health", health, methods=["GET"]),
    Route("/v1/generations/{id}", poll, methods=["GET"]),
    Route("/v1/generations/{id}", cancel, methods=["DELETE"]),
    Route("/v1/generations/{id}/events", events, methods=["GET"]),
    Route("/v1/artifacts", upload, methods=["POST"]),
    *archive.routes,
    *parts.routes,
    Route("/v1/artifacts/{id}", download, methods=["GET"]),
    Route("/v1/artifacts/{id}", delete, methods=["DELETE"]),
]

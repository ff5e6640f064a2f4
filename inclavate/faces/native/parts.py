"""Uploads that come in parts: in any order, again if need be, and on to the end days later."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from inclavate import artifacts, errors
from inclavate.faces.boundary import (
    at_store,
    check_announced,
    check_json_type,
    endpoint,
    in_pool,
    parse_id,
    parse_json,
    read_body,
    read_json,
    validate,
)
from inclavate.faces.native import shapes
from inclavate.faces.transfers import Batches, announced_digest
from inclavate.models import Owner, PartedUpload


@endpoint
async def begin(request: Request, owner: Owner) -> Response:
    asked = validate(shapes.PartedUploadRequest, await read_json(request))
    upload = await at_store(artifacts.begin_parts, owner, asked.media_type, asked.size_bytes, asked.digest or "")
    return JSONResponse(shapes.parts_json(await at_store(artifacts.parts, upload)), 201)


@endpoint
async def look(request: Request, owner: Owner) -> Response:
    return JSONResponse(shapes.parts_json(await at_store(artifacts.parts, await _upload(request, owner))))


@endpoint
async def give_up(request: Request, owner: Owner) -> Response:
    await at_store(artifacts.give_up_parts, await _upload(request, owner))
    return Response(status_code=204)


@endpoint
async def put(request: Request, owner: Owner) -> Response:
    upload = await _upload(request, owner)
    number = _number(request.path_params["number"])
    size = artifacts.part_size(upload, number)
    check_announced(request, size)
    draft = await at_store(artifacts.PartDraft, upload, number, announced_digest(request))
    batches = Batches(draft.write)
    try:
        async for chunk in request.stream():
            await batches.add(chunk)
        await batches.flush()
        await at_store(draft.finish)
    finally:
        batches.drop()
        await at_store(draft.abandon)
    return JSONResponse({"number": number, "size_bytes": size})


@endpoint
async def complete(request: Request, owner: Owner) -> Response:
    """Reads the whole back to check it, a step in the pool at a time: five gibibytes must not keep a thread."""
    body = await read_body(request)
    if body:
        check_json_type(request.headers.get("content-type", ""))
    asked = validate(shapes.CompletionRequest, parse_json(body) if body else {})
    assembly = await at_store(artifacts.Assembly, await _upload(request, owner), asked.digest or "")
    try:
        while await at_store(assembly.step):
            pass
        artifact = await at_store(assembly.finish)
    finally:
        await at_store(assembly.close)
    return JSONResponse(shapes.artifact_json(artifact), 201)


async def _upload(request: Request, owner: Owner) -> PartedUpload:
    return await in_pool(artifacts.get_parts, owner, parse_id(request.path_params["id"]))


def _number(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        raise errors.InvalidRequest(f"number must be a part's number from 1, not {text[:40]!r}.", param="number")
    return int(text)


_UPLOAD = "/v1/artifacts/uploads/{id}"
routes = [
    Route("/v1/artifacts/uploads", begin, methods=["POST"]),
    Route(_UPLOAD, look, methods=["GET"]),
    Route(_UPLOAD, give_up, methods=["DELETE"]),
    Route(_UPLOAD + "/parts/{number}", put, methods=["PUT"]),
    Route(_UPLOAD + "/complete", complete, methods=["POST"]),
]

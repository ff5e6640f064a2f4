"""OpenAI's files: a view of artifacts, not a second store. A file is an artifact under the same id."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from inclavate import artifacts, errors
from inclavate.faces.boundary import at_store, endpoint, in_pool, parse_count, parse_id, validate
from inclavate.faces.openai import shapes
from inclavate.faces.openai.forms import FilePart, FormReader
from inclavate.faces.transfers import Upload, announced_digest, respond
from inclavate.models import Artifact, Owner

_MAX_BYTES = 64 * 2**20


@endpoint
async def create(request: Request, owner: Owner) -> Response:
    upload = Upload(owner, "application/octet-stream", _MAX_BYTES, announced_digest(request), field="file")
    async with upload:

        async def begin(part: FilePart, fields: Mapping[str, str]) -> None:
            # What can be refused is refused before 64 MiB of it have come.
            if "purpose" in fields:
                shapes.check_purpose(fields["purpose"])
            shapes.check_filename(part.filename)
            shapes.check_media_type(part.media_type)
            await upload.begin(filename=part.filename, media_type=part.media_type)

        form = await FormReader(request, _MAX_BYTES, begin, upload.write).read()
        if form.file is None:
            raise errors.InvalidRequest("file is required: what to keep.", param="file")
        if not upload.size:
            raise errors.InvalidRequest("file: it has zero bytes; there is nothing to keep.", param="file")
        asked = validate(shapes.FileRequest, form.fields)
        shapes.check_purpose(asked.purpose)
        artifact = await upload.finish(asked.purpose, asked.expires_after)
    return JSONResponse(shapes.file_json(artifact), 201)


@endpoint
async def listing(request: Request, owner: Owner) -> Response:
    # In the pool as a whole: writing ten thousand rows as JSON would keep everyone else waiting.
    return await in_pool(_listing, owner, request.query_params)


def _listing(owner: Owner, query: Mapping[str, str]) -> Response:
    asked = validate(shapes.FileQuery, dict(query))
    asked.check()
    page = artifacts.page_of_files(
        owner,
        limit=parse_count(query, "limit", 100, 1, 10_000),
        after=parse_id(asked.after, "after") if asked.after is not None else None,
        purpose=asked.purpose,
        is_oldest_first=asked.order == "asc",
    )
    return JSONResponse(shapes.files_json(page))


@endpoint
async def retrieve(request: Request, owner: Owner) -> Response:
    return JSONResponse(shapes.file_json(await _file(request, owner)))


@endpoint
async def content(request: Request, owner: Owner) -> Response:
    return await respond(request, await _file(request, owner))


async def _file(request: Request, owner: Owner) -> Artifact:
    return await in_pool(artifacts.get, owner, parse_id(request.path_params["id"]))


@endpoint
async def delete(request: Request, owner: Owner) -> Response:
    file_id = parse_id(request.path_params["id"])
    await at_store(artifacts.delete, owner, file_id)
    return JSONResponse({"id": str(file_id), "object": "file", "deleted": True})


routes = [
    Route("/v1/files", create, methods=["POST"]),
    Route("/v1/files", listing, methods=["GET"]),
    Route("/v1/files/{id}", retrieve, methods=["GET"]),
    Route("/v1/files/{id}/content", content, methods=["GET"]),
    Route("/v1/files/{id}", delete, methods=["DELETE"]),
]

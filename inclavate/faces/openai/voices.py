"""Voices that callers save, and those that everybody may use. OpenAI's own shapes, with more fields."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from inclavate import errors, voices
from inclavate.faces.boundary import at_store, endpoint, in_pool, parse_id, validate
from inclavate.faces.openai import shapes
from inclavate.faces.openai.forms import FilePart, FormReader
from inclavate.faces.transfers import Upload
from inclavate.models import Owner

# `audio_sample` is what OpenAI's SDKs send.
_CLIP_FIELDS = ("file", "audio_sample")


@endpoint
async def create(request: Request, owner: Owner) -> Response:
    upload = Upload(owner, "application/octet-stream", settings.MAX_CLIP_BYTES, field="file")
    async with upload:

        async def begin(part: FilePart, fields: Mapping[str, str]) -> None:
            shapes.check_filename(part.filename)
            shapes.check_media_type(part.media_type)
            await upload.begin(filename=part.filename, media_type=part.media_type)

        form = await FormReader(request, settings.MAX_CLIP_BYTES, begin, upload.write, _CLIP_FIELDS).read()
        asked = validate(shapes.VoiceRequest, form.fields)
        new = asked.new_voice()
        if (form.file is None) == (asked.artifact is None):
            raise errors.InvalidRequest("Send the clip either as file or, by its id, as artifact.", param="file")
        if asked.artifact is not None:
            voice = await at_store(voices.keep_copy, owner, new, parse_id(asked.artifact, "artifact"))
        else:
            voice = await upload.hand_over(lambda draft: voices.keep(new, draft))
    return JSONResponse(await in_pool(_voice_json, owner, voice.pk), 201)


def _voice_json(owner: Owner, voice_id: uuid.UUID) -> dict[str, Any]:
    return shapes.voice_json(voices.get(owner, voice_id), voices.models_for_clips())


@endpoint
async def listing(request: Request, owner: Owner) -> Response:
    return JSONResponse(await in_pool(_listing, owner))


def _listing(owner: Owner) -> dict[str, Any]:
    models = voices.models_for_clips()
    mine = [shapes.voice_json(voice, models) for voice in voices.saved(owner)]
    return {"object": "list", "data": [*mine, *map(shapes.common_voice_json, voices.common())], "has_more": False}


@endpoint
async def retrieve(request: Request, owner: Owner) -> Response:
    return JSONResponse(await in_pool(_voice_json, owner, parse_id(request.path_params["id"])))


@endpoint
async def delete(request: Request, owner: Owner) -> Response:
    voice_id = parse_id(request.path_params["id"])
    await at_store(voices.delete, owner, voice_id)
    return JSONResponse({"id": str(voice_id), "object": "audio.voice.deleted", "deleted": True})


routes = [
    Route("/v1/audio/voices", create, methods=["POST"]),
    Route("/v1/audio/voices", listing, methods=["GET"]),
    Route("/v1/audio/voices/{id}", retrieve, methods=["GET"]),
    Route("/v1/audio/voices/{id}", delete, methods=["DELETE"]),
]

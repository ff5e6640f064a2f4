"""The OpenAI-compatible routes of Starlette's: a job, and the wait for its end. They hold no thread while they wait."""

from __future__ import annotations

from django.conf import settings
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from inclavate import artifacts, errors, jobs
from inclavate.faces.boundary import at_store, endpoint, in_pool, read_json, validate
from inclavate.faces.openai import files, live, shapes, transcription, voices, waiting
from inclavate.faces.transfers import content_disposition, filename, iterate
from inclavate.models import Owner


@endpoint
async def speech(request: Request, owner: Owner) -> Response:
    asked = validate(shapes.SpeechRequest, await read_json(request))
    submission = asked.submission(request.headers.get("idempotency-key"))
    job, _ = await in_pool(jobs.submit, owner, submission)
    if asked.stream_format is not None:
        return await live.speech(request, owner, job, asked.stream_format)
    job, refused = await waiting.settle(request, owner, job, settings.SPEECH_SYNC_TIMEOUT_SECONDS)
    if refused is not None:
        return refused
    try:
        output = await in_pool(waiting.output, owner, job)
    except errors.ArtifactGone as error:
        return waiting.refusal(request, job, error)
    chunks = await at_store(artifacts.read, output)
    headers = waiting.headers(job, output) | {
        "Content-Length": str(output.size),
        "Content-Disposition": content_disposition(filename(output)),
    }
    return StreamingResponse(iterate(chunks), 200, headers, media_type=output.media_type)


routes = [
    Route("/v1/audio/speech", speech, methods=["POST"]),
    Route("/v1/audio/transcriptions", transcription.transcribe, methods=["POST"]),
    Route("/v1/audio/translations", transcription.translate, methods=["POST"]),
    *voices.routes,
    *files.routes,
]

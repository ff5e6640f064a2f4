"""The OpenAI-compatible audio routes: a job, and the wait for its end. They hold no thread while they wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from django.conf import settings
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from inclavate import artifacts, errors, fleet, jobs
from inclavate.faces.boundary import at_store, endpoint, in_pool, read_json, validate
from inclavate.faces.openai import files, live, shapes, voices, waiting
from inclavate.faces.openai.forms import FilePart, FormReader
from inclavate.faces.transfers import Upload, content_disposition, filename, iterate
from inclavate.generators import TRANSCRIBE
from inclavate.models import Artifact, Owner

_MAX_TRANSCRIPT_BYTES = 4 * 2**20


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
    output = await in_pool(waiting.output, owner, job)
    if isinstance(output, errors.ArtifactGone):
        return waiting.refusal(request, job, output)
    chunks = await at_store(artifacts.read, output)
    headers = waiting.headers(job, output) | {
        "Content-Length": str(output.size),
        "Content-Disposition": content_disposition(filename(output)),
    }
    return StreamingResponse(iterate(chunks), 200, headers, media_type=output.media_type)


@endpoint
async def transcribe(request: Request, owner: Owner) -> Response:
    upload = Upload(owner, "application/octet-stream", settings.MAX_CLIP_BYTES, field="file")
    async with upload:
        asked, clip = await _receive(request, upload)
        submission = asked.submission(clip, request.headers.get("idempotency-key"))
        is_new = False
        try:
            job, is_new = await in_pool(jobs.submit, owner, submission)
        finally:
            if not is_new:
                await at_store(artifacts.delete, owner, clip.pk)
    job, refused = await waiting.settle(request, owner, job, settings.TRANSCRIPTION_SYNC_TIMEOUT_SECONDS)
    if refused is not None:
        return refused
    output = await in_pool(waiting.output, owner, job)
    if isinstance(output, errors.ArtifactGone):
        return waiting.refusal(request, job, output)
    text = b"".join(
        [chunk async for chunk in iterate(await at_store(artifacts.read, output, 0, _MAX_TRANSCRIPT_BYTES))]
    )
    if asked.response_format == "text":
        return Response(text, 200, waiting.headers(job, output), media_type="text/plain")
    return JSONResponse({"text": text.decode()}, 200, waiting.headers(job, output))


async def _receive(request: Request, upload: Upload) -> tuple[shapes.TranscriptionRequest, Artifact]:
    """The form's fields, and its file kept as a transient artifact. Raises what a bad form deserves."""

    async def begin(part: FilePart, fields: Mapping[str, str]) -> None:
        await upload.begin(filename=part.filename[: shapes.MAX_FILENAME], is_transient=True)

    form = await FormReader(request, settings.MAX_CLIP_BYTES, begin, upload.write).read()
    if form.file is None:
        raise errors.InvalidRequest("file is required: the clip to transcribe.", param="file")
    if not upload.size:
        raise errors.InvalidRequest("file: it has zero bytes; there is nothing to transcribe.", param="file")
    asked = validate(shapes.TranscriptionRequest, form.fields)
    asked.check_format()
    accepted = await in_pool(_accepted_types, asked.model)
    _check_type(form.file.media_type, await upload.sniffed_type(), accepted)
    return asked, await upload.finish()


def _accepted_types(model: str) -> set[str]:
    """The contract's types and the model's own; those alone where nobody offers the model any more (a replay)."""
    try:
        return shapes.AUDIO_TYPES | set(fleet.find(model, task=TRANSCRIBE).media_types)
    except errors.NoGenerator:
        return shapes.AUDIO_TYPES


def _check_type(declared: str, sniffed: str | None, accepted: Iterable[str]) -> None:
    """The declared type must be one of ours, and the bytes must be too: they decide what it is."""
    if not declared:
        raise errors.InvalidRequest("file: the part has no Content-Type; say what container it is.", param="file")
    for what, came in (("is declared as", declared), ("looks like", sniffed or "no audio at all")):
        if came not in accepted and came != "application/octet-stream":
            raise errors.InvalidRequest(
                f"file: it {what} {came[:80]}, which cannot be transcribed; send one of {', '.join(sorted(accepted))}.",
                param="file",
            )


routes = [
    Route("/v1/audio/speech", speech, methods=["POST"]),
    Route("/v1/audio/transcriptions", transcribe, methods=["POST"]),
    *voices.routes,
    *files.routes,
]

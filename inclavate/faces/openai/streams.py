"""The OpenAI-compatible audio routes: a job, and the wait for its end. They hold no thread while they wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress

from django.conf import settings
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from inclavate import artifacts, errors, fleet, jobs
from inclavate.faces import watch
from inclavate.faces.boundary import at_store, endpoint, error_response, in_pool, read_json, validate
from inclavate.faces.openai import files, shapes, voices
from inclavate.faces.openai.forms import FilePart, FormReader
from inclavate.faces.transfers import Upload, iterate
from inclavate.generators import TRANSCRIBE
from inclavate.models import Artifact, Job, Owner, State

_MAX_TRANSCRIPT_BYTES = 4 * 2**20


@endpoint
async def speech(request: Request, owner: Owner) -> Response:
    asked = validate(shapes.SpeechRequest, await read_json(request))
    submission = asked.submission(request.headers.get("idempotency-key"))
    job, _ = await in_pool(jobs.submit, owner, submission)
    job, refused = await _settle(request, owner, job, settings.SPEECH_SYNC_TIMEOUT_SECONDS)
    if refused is not None:
        return refused
    output = await in_pool(_output, owner, job)
    if isinstance(output, errors.ArtifactGone):
        return _refusal(request, job, output)
    chunks = await at_store(artifacts.read, output)
    headers = _headers(job, output) | {"Content-Length": str(output.size)}
    return StreamingResponse(iterate(chunks), 200, headers, media_type=output.media_type)


@endpoint
async def transcribe(request: Request, owner: Owner) -> Response:
    upload = Upload(owner, "application/octet-stream", settings.MAX_CLIP_BYTES)
    async with upload:
        asked, clip = await _receive(request, upload)
        submission = asked.submission(clip, request.headers.get("idempotency-key"))
        is_new = False
        try:
            job, is_new = await in_pool(jobs.submit, owner, submission)
        finally:
            if not is_new:
                await at_store(artifacts.delete, owner, clip.pk)
    job, refused = await _settle(request, owner, job, settings.TRANSCRIPTION_SYNC_TIMEOUT_SECONDS)
    if refused is not None:
        return refused
    output = await in_pool(_output, owner, job)
    if isinstance(output, errors.ArtifactGone):
        return _refusal(request, job, output)
    text = b"".join(
        [chunk async for chunk in iterate(await at_store(artifacts.read, output, 0, _MAX_TRANSCRIPT_BYTES))]
    )
    if asked.response_format == "text":
        return Response(text, 200, _headers(job, output), media_type="text/plain")
    return JSONResponse({"text": text.decode()}, 200, _headers(job, output))


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


# -- waiting -----------------------------------------------------------------------------------------------------------


async def _settle(request: Request, owner: Owner, job: Job, timeout: float) -> tuple[Job, Response | None]:
    """Wait for the job's end; with it, the answer where there is no output to give. A client that goes away
    cancels its job, unless it can come back for it by its key, or said that it will."""
    async with watch.watching(job) as watched:
        over = asyncio.create_task(watched.over(timeout))
        gone = asyncio.create_task(_disconnected(request))
        try:
            await asyncio.wait({over, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            gone.cancel()
        job = watched.job
        if not watched.is_over and gone.done() and not over.done() and not _keeps(request):
            await in_pool(_cancel, owner, job)
        if job.state == State.COMPLETED:
            return job, None
        return job, _refusal(request, job, _end(job, timeout))


def _refusal(request: Request, job: Job, error: errors.InclavateError) -> Response:
    return error_response(error, request.url.path, {"x-dppan-job-id": str(job.pk)})


async def _disconnected(request: Request) -> None:
    """Returns when the client has closed the connection; the body has been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _keeps(request: Request) -> bool:
    return "idempotency-key" in request.headers or request.headers.get("x-inclavate-on-disconnect") == "keep"


def _cancel(owner: Owner, job: Job) -> None:
    with suppress(errors.AlreadyFinished, errors.NotFound):
        jobs.cancel(owner, job.pk)


class _Ended(errors.JobError):
    """How a job ended, with the job's own code."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def _end(job: Job, timeout: float) -> errors.InclavateError:
    match job.state:
        case State.FAILED:
            code = job.error_code or "internal"
            return _Ended(errors.status_of(code), code, f"Job {job.pk} failed: {job.error_message}")
        case State.CANCELLED:
            return _Ended(409, "cancelled", f"Job {job.pk} was cancelled.")
        case State.EXPIRED:
            return _Ended(504, "expired", f"Job {job.pk} did not end before its deadline.")
        case _ if watch.is_stopping():
            return errors.StillRunning(
                f"This server is stopping, and job {job.pk} goes on; poll GET /v1/generations/{job.pk}."
            )
        case _:
            return errors.StillRunning(
                f"The wait of {timeout:g} s ran out, and job {job.pk} goes on; poll GET /v1/generations/{job.pk}."
            )


def _output(owner: Owner, job: Job) -> Artifact | errors.ArtifactGone:
    try:
        return artifacts.get(owner, jobs.first_output(job))
    except errors.NotFound:
        return errors.ArtifactGone(f"The output of job {job.pk} was deleted.")


def _headers(job: Job, output: Artifact) -> dict[str, str]:
    return {"x-dppan-artifact-id": str(output.pk), "x-dppan-job-id": str(job.pk)}


routes = [
    Route("/v1/audio/speech", speech, methods=["POST"]),
    Route("/v1/audio/transcriptions", transcribe, methods=["POST"]),
    *voices.routes,
    *files.routes,
]

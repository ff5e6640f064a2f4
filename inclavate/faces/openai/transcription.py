"""`POST /v1/audio/transcriptions` and `/v1/audio/translations`: a clip, a job, and the words that were said."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from django.conf import settings
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from inclavate import artifacts, errors, fleet, jobs, subtitles
from inclavate.faces.boundary import at_store, endpoint, in_pool, validate
from inclavate.faces.openai import live, shapes, waiting
from inclavate.faces.openai.forms import FilePart, FormReader
from inclavate.faces.transfers import Upload, iterate
from inclavate.generators import TRANSCRIBE
from inclavate.models import Artifact, Job, Owner
from inclavate.transcripts import GRANULARITIES, Transcript

_MAX_TEXT_BYTES = 4 * 2**20
_MAX_TIMES_BYTES = 64 * 2**20
_LISTS = ("timestamp_granularities", "include")


@endpoint
async def transcribe(request: Request, owner: Owner) -> Response:
    return await _hear(request, owner, translate=False)


@endpoint
async def translate(request: Request, owner: Owner) -> Response:
    return await _hear(request, owner, translate=True)


async def _hear(request: Request, owner: Owner, *, translate: bool) -> Response:
    upload = Upload(owner, "application/octet-stream", settings.MAX_CLIP_BYTES, field="file")
    async with upload:
        asked, clip, timestamps = await _receive(request, upload)
        submission = asked.submission(clip, request.headers.get("idempotency-key"), timestamps, translate=translate)
        is_new = False
        try:
            job, is_new = await in_pool(jobs.submit, owner, submission)
        finally:
            if not is_new:
                await at_store(artifacts.delete, owner, clip.pk)
    if asked.streams:
        return await live.transcript(request, owner, job)
    job, refused = await waiting.settle(request, owner, job, settings.TRANSCRIPTION_SYNC_TIMEOUT_SECONDS)
    return refused or await _answer(request, owner, job, asked, "translate" if translate else "transcribe")


async def _answer(request: Request, owner: Owner, job: Job, asked: shapes.TranscriptionRequest, task: str) -> Response:
    """What a completed job heard, in the format that was asked for. The artifact that it names is always the text."""
    try:
        text_artifact = await in_pool(waiting.output, owner, job)
        text = (await _read(text_artifact, _MAX_TEXT_BYTES)).decode()
        headers = waiting.headers(job, text_artifact)
        if asked.response_format == "text":
            return Response(text, 200, headers, media_type="text/plain")
        if asked.response_format == "json":
            return JSONResponse({"text": text}, 200, headers)
        transcript = Transcript.parse(await _read(await in_pool(waiting.output, owner, job, 1), _MAX_TIMES_BYTES))
    except errors.ArtifactGone as error:
        return waiting.refusal(request, job, error)
    if asked.response_format == "verbose_json":
        return JSONResponse(shapes.verbose_json(transcript, text, asked.granularities, task), 200, headers)
    shown = subtitles.render(transcript.cues(), asked.response_format)
    return Response(shown, 200, headers, media_type=subtitles.MEDIA_TYPES[asked.response_format])


async def _read(artifact: Artifact, limit: int) -> bytes:
    return b"".join([chunk async for chunk in iterate(await at_store(artifacts.read, artifact, 0, limit))])


async def _receive(request: Request, upload: Upload) -> tuple[shapes.TranscriptionRequest, Artifact, Collection[str]]:
    """The form's fields, its file kept as a transient artifact, and the times that the model gives. Raises what a bad
    form deserves."""

    async def begin(part: FilePart, fields: Mapping[str, str]) -> None:
        await upload.begin(filename=part.filename[: shapes.MAX_FILENAME], is_transient=True)

    reader = FormReader(request, settings.MAX_CLIP_BYTES, begin, upload.write, list_fields=_LISTS)
    form = await reader.read()
    if form.file is None:
        raise errors.InvalidRequest("file is required: the clip to transcribe.", param="file")
    if not upload.size:
        raise errors.InvalidRequest("file: it has zero bytes; there is nothing to transcribe.", param="file")
    asked = validate(shapes.TranscriptionRequest, {**form.fields, **form.lists})
    accepted, timestamps = await in_pool(_offered, asked.model)
    asked.check(timestamps)
    _check_type(form.file.media_type, await upload.sniffed_type(), accepted)
    return asked, await upload.finish(), timestamps


def _offered(model: str) -> tuple[set[str], Collection[str]]:
    """The types of clips, the contract's and the model's own, and the times that it gives; where nobody offers the
    model any more, what a job may have been asked for that is replayed."""
    try:
        capability = fleet.find(model, task=TRANSCRIBE)
    except errors.NoGenerator:
        return shapes.AUDIO_TYPES, GRANULARITIES
    return shapes.AUDIO_TYPES | set(capability.media_types), capability.timestamps


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

"""Outputs that are read while they are made: `stream_format` of `POST /v1/audio/speech`, `stream` of transcriptions.

Its bytes come from the job's run over `sounds`, and what is left once the job is complete from its artifact. They are
of one run: where that run is lost, the stream ends with an error, for the next one says the same words at other places.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from django.conf import settings
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from inclavate import artifacts, errors, sounds
from inclavate.faces import watch
from inclavate.faces.boundary import at_store, envelope, in_pool, pool
from inclavate.faces.openai import waiting
from inclavate.faces.transfers import iterate
from inclavate.models import Job, Owner, State

_PING_SECONDS = 15.0
_TURN_SECONDS = 1.0
_FOR_EVER_SECONDS = 30 * 86400.0
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def speech(request: Request, owner: Owner, job: Job, stream_format: str) -> Response:
    """The answer, which begins with the first sound; what goes wrong before it is a plain error."""
    hearing = Hearing(request, owner, job, settings.SPEECH_SYNC_TIMEOUT_SECONDS)

    def begun(first: bytes) -> StreamingResponse:
        if stream_format == "sse":
            return _event_stream(_SpeechEvents(), first, hearing, request, job)
        return StreamingResponse(_bytes(first, hearing), 200, _headers(job), media_type=hearing.media_type)

    return await _from_the_first(request, job, hearing, begun)


async def transcript(request: Request, owner: Owner, job: Job) -> Response:
    """The same for a transcription's text, as OpenAI's events."""
    hearing = Hearing(request, owner, job, settings.TRANSCRIPTION_SYNC_TIMEOUT_SECONDS)
    return await _from_the_first(
        request, job, hearing, lambda first: _event_stream(_TranscriptEvents(), first, hearing, request, job)
    )


async def _from_the_first(
    request: Request, job: Job, hearing: Hearing, begun: Callable[[bytes], StreamingResponse]
) -> Response:
    try:
        first = await anext(hearing.sound)
    except errors.InclavateError as error:
        return waiting.refusal(request, job, error)
    except StopAsyncIteration:
        first = b""
    except _Gone:
        return Response()
    return begun(first)


def _headers(job: Job) -> dict[str, str]:
    return {"x-dppan-job-id": str(job.pk), **_STREAM_HEADERS}


class _Gone(Exception):
    """The caller closed the connection."""


class Hearing:
    """One caller who listens to one job."""

    def __init__(self, request: Request, owner: Owner, job: Job, timeout_seconds: float) -> None:
        self.media_type = "application/octet-stream"
        self.sound = self._sound()
        self._request = request
        self._owner = owner
        self._job = job
        self._timeout_seconds = timeout_seconds
        self._fence: int | None = None
        self._heard = 0

    async def _sound(self) -> AsyncIterator[bytes]:
        """The bytes of the output. Raises `InclavateError` for a job that ends otherwise, or whose run is lost.

        A caller who goes away cancels the job, as on the routes that wait for its end.
        """
        try:
            async with watch.watching(self._job) as watched, sounds.listening(self._job.pk) as listener:
                async for data in self._while_running(watched, listener):
                    yield data
                self._job = watched.job
            async for data in self._rest():
                yield data
        except (GeneratorExit, asyncio.CancelledError, _Gone):
            if not self._job.is_terminal and not waiting.keeps(self._request):
                # Not awaited: whoever is cancelled may wait for nothing.
                pool.submit(waiting.cancel, self._owner, self._job)
            raise

    async def _while_running(self, watched: watch.Watched, listener: sounds.Listener) -> AsyncIterator[bytes]:
        until = asyncio.get_running_loop().time() + self._timeout_seconds
        over = asyncio.create_task(watched.over(_FOR_EVER_SECONDS))
        gone = asyncio.create_task(waiting.disconnected(self._request))
        try:
            while not over.done():
                chunk = await _first_of(listener.next(_TURN_SECONDS), over, gone)
                if gone.done():
                    raise _Gone
                if chunk is not None and self._is_next(chunk, watched.job):
                    self._heard += len(chunk.data)
                    yield chunk.data
                self._check_run(watched.job)
                if self._fence is None and asyncio.get_running_loop().time() > until:
                    raise waiting.ended(watched.job, self._timeout_seconds)
        finally:
            over.cancel()
            gone.cancel()

    def _is_next(self, chunk: sounds.Chunk, job: Job) -> bool:
        """Whether the chunk goes on where the last one stopped. Raises `_lost()` for one of a later run."""
        if self._fence is None and chunk.offset == 0 and chunk.fence >= job.fence:
            self._fence, self.media_type = chunk.fence, chunk.media_type
        if self._fence is not None and chunk.fence > self._fence:
            raise self._lost()
        return chunk.fence == self._fence and chunk.offset == self._heard

    def _check_run(self, job: Job) -> None:
        # What is known of the job may be older than the chunk, and of a run before it.
        is_back = self._fence is not None and job.fence == self._fence and job.state == State.QUEUED
        if is_back or (self._fence is not None and job.fence > self._fence):
            raise self._lost()

    def _lost(self) -> errors.InclavateError:
        return errors.Unavailable(
            f"The run of job {self._job.pk} that was heard was lost; the job runs again, and its output will be whole: "
            f"poll GET /v1/generations/{self._job.pk}."
        )

    async def _rest(self) -> AsyncIterator[bytes]:
        """What was not heard while it was made."""
        if self._job.state != State.COMPLETED:
            raise waiting.ended(self._job, self._timeout_seconds)
        self._check_run(self._job)
        output = await in_pool(waiting.output, self._owner, self._job)
        self.media_type = output.media_type
        async for data in iterate(await at_store(artifacts.read, output, self._heard)):
            yield data


async def _first_of(chunk: Coroutine[Any, Any, sounds.Chunk | None], *others: asyncio.Task[Any]) -> sounds.Chunk | None:
    """The chunk, or None if another came to its end first."""
    listening = asyncio.create_task(chunk)
    try:
        await asyncio.wait({listening, *others}, return_when=asyncio.FIRST_COMPLETED)
        return listening.result() if listening.done() else None
    finally:
        listening.cancel()


async def _bytes(first: bytes, hearing: Hearing) -> AsyncIterator[bytes]:
    """An error breaks the connection off: nobody takes what came for the whole."""
    yield first
    with suppress(_Gone):
        async for data in hearing.sound:
            yield data


class _Told(Protocol):
    """What events tell of bytes that come; each may be none, or several."""

    def delta(self, data: bytes) -> list[dict[str, Any]]: ...

    def done(self) -> list[dict[str, Any]]: ...


class _SpeechEvents:
    def delta(self, data: bytes) -> list[dict[str, Any]]:
        return [{"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()}]

    def done(self) -> list[dict[str, Any]]:
        # No engine of ours counts tokens.
        usage = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
        return [{"type": "speech.audio.done", "usage": usage}]


class _TranscriptEvents:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text: list[str] = []

    def delta(self, data: bytes) -> list[dict[str, Any]]:
        text = self._decoder.decode(data)
        self._text.append(text)
        return [{"type": "transcript.text.delta", "delta": text}] if text else []

    def done(self) -> list[dict[str, Any]]:
        return [{"type": "transcript.text.done", "text": "".join(self._text)}]


def _event_stream(told: _Told, first: bytes, hearing: Hearing, request: Request, job: Job) -> StreamingResponse:
    events = _events(told, first, hearing, request.url.path)
    return StreamingResponse(events, 200, _headers(job), media_type="text/event-stream")


async def _events(told: _Told, first: bytes, hearing: Hearing, path: str) -> AsyncIterator[bytes]:
    """OpenAI's events, with a comment where nothing comes for long."""
    try:
        yield _joined(told.delta(first))
        async for data in _with_pauses(hearing.sound):
            yield b": ping\n" if data is None else _joined(told.delta(data))
    except errors.InclavateError as error:
        yield _event({"type": "error", **envelope(error, path)})
    except _Gone:
        return
    else:
        yield _joined(told.done())
    yield b"data: [DONE]\n\n"


async def _with_pauses(sound: AsyncIterator[bytes]) -> AsyncIterator[bytes | None]:
    """The same, and None each time that nothing came for `_PING_SECONDS`."""
    following: asyncio.Task[bytes] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(anext(sound))
            done, _ = await asyncio.wait({following}, timeout=_PING_SECONDS)
            if not done:
                yield None
                continue
            task, following = following, None
            try:
                yield task.result()
            except StopAsyncIteration:
                return
    finally:
        if following is not None:
            following.cancel()


def _joined(events: list[dict[str, Any]]) -> bytes:
    return b"".join(map(_event, events))


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"

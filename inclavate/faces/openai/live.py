"""Outputs that are read while they are made: `stream_format` of `POST /v1/audio/speech`, `stream` of transcriptions.

Its bytes come from the job's run over `sounds`, and what is left once the job is complete from its artifact. They are
of one run: where that run is lost, the stream ends with an error, for the next one says the same words at other places.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, aclosing, suppress
from typing import Any, Protocol

from django.conf import settings
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

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
        return _Heard(hearing, _bytes(first, hearing), _headers(job), hearing.media_type)

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
    with ExitStack() as leaving:
        leaving.callback(hearing.leave)
        try:
            first = await hearing.next() or b""
        except errors.InclavateError as error:
            return waiting.refusal(request, job, error)
        except _Gone:
            return Response()
        leaving.pop_all()
    return begun(first)


def _headers(job: Job) -> dict[str, str]:
    return {"x-dppan-job-id": str(job.pk), **_STREAM_HEADERS}


class _Heard(StreamingResponse):
    """A stream whose hearing ends with it, however it ends."""

    def __init__(
        self, hearing: Hearing, content: AsyncIterator[bytes], headers: dict[str, str], media_type: str
    ) -> None:
        super().__init__(content, 200, headers, media_type)
        self._hearing = hearing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._hearing.leave()


class _Gone(Exception):
    """The caller closed the connection."""


class Hearing:
    """One caller who listens to one job, until `leave`.

    The sound is drawn by tasks of its own: whoever listens may be cancelled anywhere, and more than once, which would
    leave generators half closed.
    """

    def __init__(self, request: Request, owner: Owner, job: Job, timeout_seconds: float) -> None:
        self.media_type = "application/octet-stream"
        self._sound = self._all()
        self._following: asyncio.Task[bytes | None] | None = None
        self._has_ended = False
        self._request = request
        self._owner = owner
        self._job = job
        self._timeout_seconds = timeout_seconds
        self._fence: int | None = None
        self._heard = 0

    async def next(self, seconds: float | None = None) -> bytes | None:
        """What comes next, None at the end. Raises `TimeoutError` where nothing came in that time, and `InclavateError`
        for a job that ends otherwise, or whose run is lost.
        """
        following = self._following or asyncio.create_task(self._draw())
        self._following = following
        if not (await asyncio.wait({following}, timeout=seconds))[0]:
            raise TimeoutError
        self._following = None
        return following.result()

    def leave(self) -> None:
        """Listen no more. It cancels a job that goes on, as on the routes that wait for its end; it waits for nothing,
        as whoever is cancelled may not.
        """
        if not self._has_ended and not waiting.keeps(self._request):
            pool.submit(waiting.cancel, self._owner, self._job)
        closing = asyncio.create_task(self._close())
        _closing.add(closing)
        closing.add_done_callback(_closing.discard)

    async def _close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._sound.aclose()

    async def _draw(self) -> bytes | None:
        try:
            return await anext(self._sound, None)
        except _Gone:
            raise
        except Exception:
            self._has_ended = True
            raise

    async def _all(self) -> AsyncGenerator[bytes]:
        """The bytes of the output."""
        async with watch.watching(self._job) as watched, sounds.listening(self._job.pk) as listener:
            async with aclosing(self._while_running(watched, listener)) as running:
                async for data in running:
                    yield data
            self._job = watched.job
        async for data in self._rest():
            yield data
        self._has_ended = True

    async def _while_running(self, watched: watch.Watched, listener: sounds.Listener) -> AsyncGenerator[bytes]:
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


_closing: set[asyncio.Task[None]] = set()


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
        while (data := await hearing.next()) is not None:
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
    return _Heard(hearing, events, _headers(job), "text/event-stream")


async def _events(told: _Told, first: bytes, hearing: Hearing, path: str) -> AsyncIterator[bytes]:
    """OpenAI's events, with a comment where nothing comes for long."""
    data: bytes | None = first
    try:
        while data is not None:
            yield _joined(told.delta(data))
            while True:
                try:
                    data = await hearing.next(_PING_SECONDS)
                    break
                except TimeoutError:
                    yield b": ping\n"
    except errors.InclavateError as error:
        yield _event({"type": "error", **envelope(error, path)})
    except _Gone:
        return
    else:
        yield _joined(told.done())
    yield b"data: [DONE]\n\n"


def _joined(events: list[dict[str, Any]]) -> bytes:
    return b"".join(map(_event, events))


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"

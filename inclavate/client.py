"""A typed client of the native HTTP API. Plain Python: address, key and timeouts are arguments.

    ClientError
    ├─ Unreachable        nothing answers there, or the connection was cut and stayed cut
    │  └─ BadAnswer       something answers there, but not as Inclavate does
    ├─ Refused            an answer of 4xx or 5xx: status, code, message
    ├─ NoModel            no model for this task is ready
    └─ JobFailed          the job ended as failed, cancelled or expired

No other exception than these, and `OSError` for the caller's own files, leaves a method.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar
from urllib.parse import quote, urlsplit

import httpx

FINAL_STATES = frozenset({"completed", "failed", "cancelled", "expired"})
CHUNK_BYTES = 256 * 1024
# A stream that was cut this often without news is given up for polling (a proxy that buffers, say).
STREAM_TRIES = 3
LONGEST_PAUSE_SECONDS = 30.0

T = TypeVar("T")


class ClientError(Exception):
    """Anything that went wrong with the server or on the way to it; `str()` is one sentence for a person."""


class Unreachable(ClientError):
    """`is_unsent`: the request certainly did not reach the server."""

    def __init__(self, message: str, *, is_unsent: bool = False) -> None:
        super().__init__(message)
        self.is_unsent = is_unsent


class BadAnswer(Unreachable):
    """An answer that no Inclavate would give."""


class Refused(ClientError):
    """`code` is one of the platform's words (`no_generator`, `queue_full`…), or `http_<status>` where none came.
    `job_id` is set where a synchronous route leaves a job behind."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_seconds: float | None = None,
        may_retry: bool = False,
        job_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_seconds = retry_after_seconds
        self.may_retry = may_retry
        self.job_id = job_id


class NoModel(ClientError):
    pass


class JobFailed(ClientError):
    def __init__(self, job: Job) -> None:
        reason = job.error_message or {"cancelled": "It was cancelled.", "expired": "Its deadline passed."}.get(
            job.state
        )
        code = f" ({job.error_code})" if job.error_code else ""
        super().__init__(f"Job {job.id} {job.state}{code}: {reason or 'no reason was given.'}")
        self.job = job


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the server last told it. Times are aware, UTC; `progress_fraction` is 0..1 within the stage.
    `revision` grows with every change and is known only of jobs that came from an event stream."""

    id: str
    state: str
    modality: str = ""
    model: str = ""
    seed: int | None = None
    priority: int = 0
    params: Mapping[str, Any] | None = None
    input_artifacts: tuple[str, ...] = ()
    output_artifacts: tuple[str, ...] = ()
    artifacts_deleted: int = 0
    progress_stage: str | None = None
    progress_fraction: float | None = None
    cancel_requested: bool = False
    attempts: Any = None
    notes: tuple[Any, ...] = ()
    error_code: str | None = None
    error_message: str | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    expires_at: datetime | None = None
    revision: int | None = None

    @property
    def is_finished(self) -> bool:
        return self.state in FINAL_STATES


@dataclass(frozen=True, slots=True)
class JobPage:
    """Jobs, newest first; `is_truncated` where the server has more."""

    jobs: tuple[Job, ...]
    is_truncated: bool


@dataclass(frozen=True, slots=True)
class Artifact:
    """Bytes that the server keeps. `digest` is the SHA-256 of the whole, in hex."""

    id: str
    media_type: str = "application/octet-stream"
    size_bytes: int = 0
    digest: str = ""
    state: str = ""
    filename: str | None = None
    purpose: str | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Generator:
    """A model as capabilities describe it. `speed_range` is (min, max); durations divide by the speed."""

    model: str
    modality: str
    task: str = ""
    kind: str | None = None
    ready: bool = True
    voices: tuple[str, ...] = ()
    builtin_voices: tuple[str, ...] = ()
    requires_speaker: bool = False
    requires_reference_text: bool = False
    speed_range: tuple[float, float] | None = None
    languages: tuple[str, ...] = ()
    limits: Mapping[str, Any] | None = None
    formats: tuple[str, ...] = ()
    sample_rate: int | None = None
    streams: bool = False
    timestamps: tuple[str, ...] = ()
    media_types: tuple[str, ...] = ()
    input_modalities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Health:
    ok: bool
    version: str = ""


@dataclass(frozen=True, slots=True)
class Transcript:
    text: str
    job_id: str | None = None
    artifact_id: str | None = None


@dataclass(frozen=True, slots=True)
class Speech:
    path: Path
    job_id: str | None = None
    artifact_id: str | None = None


def _tidy(name: str, value: Any) -> Any:
    """Lists become tuples, times become datetimes, {"min", "max"} a pair; what does not parse stays as it came."""
    if isinstance(value, list):
        return tuple(value)
    if name == "speed_range" and isinstance(value, dict) and {"min", "max"} <= value.keys():
        return (value["min"], value["max"])
    if name.endswith("_at") and isinstance(value, str):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            return None
    return value


def _build(kind: type[T], data: Any) -> T:
    """A dataclass from a JSON object. Unknown members are ignored and nulls are the defaults, so that a newer or
    an older server can be read."""
    if not isinstance(data, dict):
        raise BadAnswer(f"The server sent no {kind.__name__} but {str(data)[:80]!r}.")
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    try:
        return kind(**{name: _tidy(name, value) for name, value in data.items() if name in known and value is not None})
    except TypeError as error:
        raise BadAnswer(f"The server sent an incomplete {kind.__name__}: {error}.") from None


def _rows(data: Any, member: str) -> list[Any]:
    rows = data.get(member) if isinstance(data, dict) else None
    if not isinstance(rows, list):
        raise BadAnswer(f"The server's answer has no list {member!r}.")
    return rows


@dataclass(frozen=True, slots=True)
class ServerEvent:
    data: str
    event: str = "message"
    id: str = ""


class EventParser:
    """A parser of `text/event-stream` that is fed bytes in any pieces and does no I/O of its own."""

    _LINE_END = re.compile(rb"\r\n|\n|\r")

    def __init__(self) -> None:
        self._pending = b""
        self._is_at_start = True
        self._is_after_cr = False
        self._data: list[str] = []
        self._event = ""
        self._id = ""

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that this chunk completes. An event without its closing blank line never comes out."""
        return [event for line in self._lines(chunk) if (event := self._take(line)) is not None]

    def _lines(self, chunk: bytes) -> Iterator[str]:
        if self._is_after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]  # The other half of a \r\n, in two chunks.
        elif not chunk:
            return
        buffer = self._pending + chunk
        self._is_after_cr = buffer.endswith(b"\r")
        start = 0
        for end in self._LINE_END.finditer(buffer):
            yield self._decoded(buffer[start : end.start()])
            start = end.end()
        self._pending = buffer[start:]

    def _decoded(self, line: bytes) -> str:
        text = line.decode("utf-8", "replace")
        if self._is_at_start:
            self._is_at_start = False
            return text.removeprefix("\ufeff")
        return text

    def _take(self, line: str) -> ServerEvent | None:
        if line == "":
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                self._data.append(value)
            case "event":
                self._event = value
            case "id" if "\0" not in value:
                self._id = value
        return None

    def _dispatch(self) -> ServerEvent | None:
        data, event = self._data, self._event
        self._data, self._event = [], ""
        return ServerEvent("\n".join(data), event or "message", self._id) if data else None


class _Watch:
    """What a watcher has seen of a job, to tell news from repeats and from what is older."""

    def __init__(self) -> None:
        self._job: Job | None = None
        self._revision = -1

    def is_news(self, job: Job) -> bool:
        if job.revision is not None:
            if job.revision <= self._revision:
                return False
            self._revision = job.revision
        # A polled job has no revision, and the stream may repeat it with one.
        bare = replace(job, revision=None)
        is_news, self._job = bare != self._job, bare
        return is_news


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds, from either form of the header."""
    value = response.headers.get("Retry-After", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _refusal(response: httpx.Response) -> ClientError:
    """The exception for an answer that is not 2xx, from either envelope; the body has been read."""
    status = response.status_code
    if status < 400:
        where = response.headers.get("Location", "")
        return BadAnswer(
            f"The server answered {status} where a result was due" + (f" (it points to {where})." if where else ".")
        )
    try:
        error = response.json()
    except ValueError:
        error = None
    error = error if isinstance(error, dict) else {}
    inner = error.get("error")
    if isinstance(inner, dict):
        error, inner = inner, inner.get("message")
    job_id = response.headers.get("x-dppan-job-id")
    return Refused(
        status,
        str(error.get("code") or f"http_{status}"),
        str(inner or f"The server answered {status} {response.reason_phrase}".strip() + "."),
        param=error.get("param"),
        retry_after_seconds=_retry_after(response),
        may_retry=status in (429, 502, 503, 504) and not job_id and response.headers.get("x-should-retry") != "false",
        job_id=job_id,
    )


def guess_media_type(path: Path) -> str:
    """By the name where that is plain; otherwise the server looks at the bytes."""
    return {".wav": "audio/wav", ".mp3": "audio/mpeg"}.get(path.suffix.lower(), "application/octet-stream")


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _path_of(*segments: str) -> str:
    return "/" + "/".join(quote(segment, safe="") for segment in segments)


def _backoff(attempt: int) -> float:
    """0.25, 0.5, 1, 2 … 5 s, each less up to half at random, so that clients cut together do not return together."""
    return min(5.0, 0.25 * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)


class Client:
    """One server. Safe to use from several threads; close it, or use it in a `with`.

    A request that may be repeated (every read, and every submit, through its idempotency key) is tried up to `tries`
    times on connection errors, 429, 502, 503 and 504. `patience_seconds` is how long a watched job's server may be
    away. `sync_timeout_seconds` is for the audio routes, which answer when the job is done. Proxy variables of
    the environment are not read.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        timeout_seconds: float = 30.0,
        stream_timeout_seconds: float = 45.0,
        sync_timeout_seconds: float = 300.0,
        tries: int = 5,
        patience_seconds: float = 60.0,
        poll_seconds: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        _check_url(self.base_url)
        self._tries = tries
        self._patience_seconds = patience_seconds
        self._poll_seconds = poll_seconds
        self._sleep = sleep
        connect = min(10.0, timeout_seconds)
        self._stream_timeout = httpx.Timeout(stream_timeout_seconds, connect=connect)
        self._sync_timeout = httpx.Timeout(sync_timeout_seconds, connect=connect)
        self._http = httpx.Client(
            base_url=self.base_url,
            headers={"User-Agent": "inclavate-client"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {}),
            timeout=httpx.Timeout(timeout_seconds, connect=connect),
            trust_env=False,
        )

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # What the server is and has

    def health(self) -> Health:
        """Tried once, so that one knows at once whether the server is there."""
        return _build(Health, self._ask("GET", "/health"))

    def models(self) -> tuple[str, ...]:
        return tuple(str(row.get("id")) for row in _rows(self._read("/v1/models"), "data"))

    def capabilities(self) -> tuple[Generator, ...]:
        rows = _rows(self._read("/v1/generations/capabilities"), "generators")
        return tuple(_build(Generator, row) for row in rows)

    def first_ready(self, task: str) -> Generator:
        """The first model that can do `task` now. Raises `NoModel`, saying whether one is only not up."""
        offered = [generator for generator in self.capabilities() if generator.task == task]
        for generator in offered:
            if generator.ready:
                return generator
        if offered:
            names = ", ".join(generator.model for generator in offered)
            raise NoModel(f"No {task} model is ready: {names} is known here, but no worker that offers it is running.")
        raise NoModel(f"No {task} model is offered by {self.base_url}.")

    # Jobs

    def submit(
        self,
        model: str,
        modality: str,
        params: Mapping[str, Any],
        *,
        seed: int | None = None,
        input_artifacts: tuple[str, ...] | list[str] = (),
        deadline_seconds: int | None = None,
        priority: int | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Queue a job. The same `idempotency_key` gives the first job back; without one, one is made."""
        body = _given(
            model=model,
            modality=modality,
            params=dict(params),
            seed=seed,
            input_artifacts=list(input_artifacts) or None,
            deadline_seconds=deadline_seconds,
            priority=priority,
            idempotency_key=idempotency_key or str(uuid.uuid4()),
        )
        return _build(Job, self._retrying(lambda: self._ask("POST", "/v1/generations", json=body)))

    def job(self, job_id: str) -> Job:
        return _build(Job, self._read(_path_of("v1", "generations", job_id)))

    def jobs(self, limit: int = 100, offset: int = 0) -> JobPage:
        data = self._read("/v1/generations", params={"limit": limit, "offset": offset})
        return JobPage(tuple(_build(Job, row) for row in _rows(data, "generations")), bool(data.get("truncated")))

    def cancel(self, job_id: str) -> Job:
        """Ask the job to stop; the answer says how it stands. Raises `Refused` (409 `already_finished`)."""
        return _build(Job, self._retrying(lambda: self._ask("DELETE", _path_of("v1", "generations", job_id))))

    def events(self, job_id: str) -> Iterator[Job]:
        """The job at each change, newest last, until it is finished.

        A cut stream is attached again; where streams cannot be had, the job is polled. Nothing is told twice, and
        nothing older after something newer. Raises `Unreachable` once the server was away for `patience_seconds`.
        """
        watch, trouble, seen_at = _Watch(), 0, time.monotonic()
        while True:
            problem: ClientError = Unreachable(f"The stream of job {job_id} ended before the job did.")
            source = self._stream(job_id) if trouble < STREAM_TRIES else self._poll(job_id)
            with closing(source):
                try:
                    for job in source:
                        seen_at = time.monotonic()
                        if watch.is_news(job):
                            trouble = 0
                            yield job
                        if job.is_finished:
                            return
                except Unreachable as error:
                    problem = error
                except Refused as error:
                    if error.status < 500 and not error.may_retry:
                        raise
                    problem = error
            trouble += 1
            if time.monotonic() - seen_at > self._patience_seconds:
                raise problem
            self._sleep(_backoff(trouble))

    def wait(self, job_id: str, on_progress: Callable[[Job], None] | None = None) -> Job:
        """The completed job. `on_progress` gets every change. Raises `JobFailed` for any other end."""
        for job in self.events(job_id):
            if on_progress is not None:
                on_progress(job)
        if job.state != "completed":
            raise JobFailed(job)
        return job

    # Artifacts

    def upload(self, source: Path | str | BinaryIO, media_type: str | None = None) -> Artifact:
        """Send a file, or what is left of an open one, in pieces. Tried again only where nothing reached the server."""
        opened = Path(source).open("rb") if isinstance(source, Path | str) else nullcontext(source)
        if media_type is None:
            media_type = (
                guess_media_type(Path(source)) if isinstance(source, Path | str) else "application/octet-stream"
            )
        with opened as file:
            start, headers = 0, {"Content-Type": media_type}
            if file.seekable():
                start = file.tell()
                headers["Content-Length"] = str(file.seek(0, 2) - start)

            def send() -> Any:
                if file.seekable():
                    file.seek(start)
                return self._ask(
                    "POST", "/v1/artifacts", content=iter(lambda: file.read(CHUNK_BYTES), b""), headers=headers
                )

            return _build(Artifact, self._retrying(send, is_repeatable=False) if file.seekable() else send())

    def artifact(self, artifact_id: str) -> Artifact:
        return _build(Artifact, self._read(_path_of("v1", "artifacts", artifact_id, "meta")))

    def delete_artifact(self, artifact_id: str) -> None:
        self._retrying(lambda: self._ask("DELETE", _path_of("v1", "artifacts", artifact_id)))

    def read_text(self, artifact_id: str) -> str:
        """A small text artifact, whole."""

        def fetch() -> str:
            with self._open("GET", _path_of("v1", "artifacts", artifact_id)) as response:
                return response.read().decode("utf-8", "replace")

        return self._retrying(fetch)

    def download(self, artifact_id: str, path: Path | str) -> Path:
        """Write the artifact to `path`, which appears, or is replaced, only when all of it is there and is whole."""
        with _written_beside(Path(path)) as file:
            self._fetch(artifact_id, file)
        return Path(path)

    # Audio

    def speech(
        self,
        text: str,
        path: Path | str,
        *,
        model: str,
        voice: str | None = None,
        speed: float | None = None,
        language: str | None = None,
        response_format: str | None = None,
        idempotency_key: str | None = None,
    ) -> Speech:
        """Speak `text` into the file `path` by one request. Raises `JobFailed` where the job did."""
        body = _given(
            model=model, input=text, voice=voice, speed=speed, language=language, response_format=response_format
        )
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        with _written_beside(Path(path)) as file:

            def speak() -> Speech:
                _empty(file)
                with self._open(
                    "POST", "/v1/audio/speech", json=body, headers=headers, timeout=self._sync_timeout
                ) as response:
                    for chunk in response.iter_bytes():
                        file.write(chunk)
                    return Speech(Path(path), *_ids_of(response))

            try:
                return self._retrying(speak)
            except Refused as error:
                job = self._left_job(error)
            _empty(file)
            self._fetch(job.output_artifacts[0], file)
        return Speech(Path(path), job.id, job.output_artifacts[0])

    def transcribe(
        self,
        path: Path | str,
        model: str,
        *,
        language: str | None = None,
        prompt: str | None = None,
        media_type: str | None = None,
        idempotency_key: str | None = None,
    ) -> Transcript:
        """What is said in the file. `language` is a filter: another one heard gives an empty text. Raises
        `JobFailed` where the job did."""
        source = Path(path)
        form = _given(model=model, language=language, prompt=prompt)
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        with source.open("rb") as file:
            clip = (source.name, file, media_type or guess_media_type(source))

            def send() -> Transcript:
                request = {"data": form, "files": {"file": clip}, "headers": headers, "timeout": self._sync_timeout}
                with self._open("POST", "/v1/audio/transcriptions", **request) as response:
                    response.read()
                    return Transcript(str(_json_of(response).get("text", "")), *_ids_of(response))

            try:
                return self._retrying(send)
            except Refused as error:
                job = self._left_job(error)
        return Transcript(self.read_text(job.output_artifacts[0]), job.id, job.output_artifacts[0])

    # How it is done

    def _left_job(self, error: Refused) -> Job:
        """The completed job that a synchronous route left behind: its wait ran out, the job goes on."""
        if error.job_id is None:
            raise error
        job = self.wait(error.job_id)
        if not job.output_artifacts:
            raise error
        return job

    def _stream(self, job_id: str) -> Iterator[Job]:
        headers = {"Accept": "text/event-stream"}
        path = _path_of("v1", "generations", job_id, "events")
        parser = EventParser()
        with self._open("GET", path, headers=headers, timeout=self._stream_timeout) as response:
            if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
                raise BadAnswer("The server answered without an event stream.")
            for chunk in response.iter_bytes():
                for event in parser.feed(chunk):
                    if event.data == "[DONE]":
                        return
                    yield _job_of(event)

    def _poll(self, job_id: str) -> Iterator[Job]:
        while True:
            yield self.job(job_id)
            self._sleep(self._poll_seconds)

    def _fetch(self, artifact_id: str, file: BinaryIO) -> None:
        """All of an artifact into an open, empty file. After a cut it goes on where it was, if the bytes are the same."""
        etag = ""

        def fetch_rest() -> None:
            nonlocal etag
            start = file.tell() if etag else 0
            headers = {"Accept-Encoding": "identity"}
            if start:
                headers |= {"Range": f"bytes={start}-", "If-Range": etag}
            with self._open("GET", _path_of("v1", "artifacts", artifact_id), headers=headers) as response:
                is_rest = response.status_code == 206
                if is_rest and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                    raise BadAnswer("The server sent another range than was asked for.")
                if not is_rest:
                    _empty(file)
                etag = response.headers.get("ETag", "")
                for chunk in response.iter_bytes():
                    file.write(chunk)

        self._retrying(fetch_rest, progress=file.tell)
        _check_digest(file, etag)

    def _read(self, path: str, **request: Any) -> Any:
        return self._retrying(lambda: self._ask("GET", path, **request))

    def _ask(self, method: str, path: str, **request: Any) -> Any:
        """One request, its JSON; None where there is no body."""
        with self._open(method, path, **request) as response:
            return _json_of(response) if response.read() else None

    @contextmanager
    def _open(self, method: str, path: str, **request: Any) -> Iterator[httpx.Response]:
        """One request, its successful answer with the body still to be read. All that httpx raises ends here."""
        try:
            with self._http.stream(method, path, **request) as response:
                if not response.is_success:
                    response.read()
                    raise _refusal(response)
                yield response
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise Unreachable(f"{self.base_url} cannot be reached: {_reason(error)}.", is_unsent=True) from error
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL) as error:
            raise Unreachable(f"The connection to {self.base_url} was lost: {_reason(error)}.") from error

    def _retrying(
        self, action: Callable[[], T], *, is_repeatable: bool = True, progress: Callable[[], int] = lambda: 0
    ) -> T:
        """`action`, again where that can help. The tries count anew whenever `progress` moved."""
        attempt = 0
        while True:
            before = progress()
            try:
                return action()
            except (Unreachable, Refused) as error:
                attempt = 1 if progress() > before else attempt + 1
                pause = _pause_before_retry(error, attempt, is_repeatable)
                if attempt >= self._tries or pause is None:
                    raise
            self._sleep(pause)


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise Unreachable(f"{url!r} is no address of a server; one looks like http://127.0.0.1:8001.", is_unsent=True)


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    return re.sub(r"^\[Errno -?\d+\] ", "", str(error)).rstrip(".").lower() or type(error).__name__


def _pause_before_retry(error: Unreachable | Refused, attempt: int, is_repeatable: bool) -> float | None:
    """Seconds to wait before the request is sent again; None where that cannot help or must not be."""
    if isinstance(error, Refused):
        pause = error.retry_after_seconds
        if not error.may_retry or (pause is not None and pause > LONGEST_PAUSE_SECONDS):
            return None
        # 502 and 504 come from a gateway, which may well have passed the request on.
        if not is_repeatable and error.status not in (429, 503):
            return None
        return _backoff(attempt) if pause is None else pause
    if isinstance(error, BadAnswer) or not (is_repeatable or error.is_unsent):
        return None
    return _backoff(attempt)


def _json_of(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        raise BadAnswer(f"The answer from {response.url.host} is not JSON; is this an Inclavate?") from None


def _job_of(event: ServerEvent) -> Job:
    try:
        job = _build(Job, json.loads(event.data))
    except ValueError:
        raise BadAnswer("An event of the job's stream is not JSON.") from None
    return replace(job, revision=int(event.id)) if event.id.isdecimal() else job


def _ids_of(response: httpx.Response) -> tuple[str | None, str | None]:
    return response.headers.get("x-dppan-job-id"), response.headers.get("x-dppan-artifact-id")


def _empty(file: BinaryIO) -> None:
    file.seek(0)
    file.truncate()


def _check_digest(file: BinaryIO, etag: str) -> None:
    """An artifact's ETag is its SHA-256; a gateway may have put another in its place, which says nothing."""
    expected = etag.strip('"')
    if not re.fullmatch(r"[0-9a-f]{64}", expected):
        return
    file.seek(0)
    if hashlib.file_digest(file, "sha256").hexdigest() != expected:
        raise BadAnswer("What was downloaded is not what the server keeps: its SHA-256 differs.")


@contextmanager
def _written_beside(target: Path) -> Iterator[BinaryIO]:
    """A temporary file in the target's folder that takes its place once the block is done, and goes away otherwise."""
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with partial.open("x+b") as file:
            yield file
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)

"""A typed client of the native HTTP API. Plain Python: address, key and timeouts are arguments.

    with Client("http://127.0.0.1:8001") as client:
        job = client.submit("piper-joe", "audio", {"text": "Hello."})
        job = client.wait(job.id, on_progress=lambda job: print(job.progress_stage))
        client.download(job.output_artifacts[0], "hello.wav")

What it raises is in `inclavate.client.errors`.
"""

from __future__ import annotations

import hashlib
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from io import BufferedRandom
from pathlib import Path
from typing import IO, Any, Self, TypeVar
from urllib.parse import quote

import httpx

from inclavate.client.errors import BadAnswer, ClientError, JobFailed, NoModel, Refused, Unreachable
from inclavate.client.files import CHUNK_BYTES, rewindable, size_of_rest, written_to
from inclavate.client.shapes import Artifact, Generator, Health, Job, JobPage, Speech, Transcript, build
from inclavate.client.streams import EventParser, Watch, job_of
from inclavate.client.transport import Transport, backoff, json_of

__all__ = [
    "Artifact",
    "BadAnswer",
    "Client",
    "ClientError",
    "Generator",
    "Health",
    "Job",
    "JobFailed",
    "JobPage",
    "NoModel",
    "Refused",
    "Speech",
    "Transcript",
    "Unreachable",
    "guess_media_type",
]

# A stream that was cut this often without news is given up for polling (a proxy that buffers, say).
STREAM_TRIES = 3

T = TypeVar("T")


def guess_media_type(path: Path) -> str:
    """By the name where that is plain; otherwise the server looks at the bytes."""
    return {".wav": "audio/wav", ".mp3": "audio/mpeg"}.get(path.suffix.lower(), "application/octet-stream")


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _path_of(*segments: str) -> str:
    return "/" + "/".join(quote(segment, safe="", errors="surrogatepass") for segment in segments)


def _built(kind: type[T], data: Any) -> T:
    try:
        return build(kind, data)
    except ValueError as error:
        raise BadAnswer(f"The server sent something else than was asked for: {error}.") from None


def _rows(data: Any, member: str) -> list[dict[str, Any]]:
    rows = data.get(member) if isinstance(data, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadAnswer(f"The server's answer has no list of objects {member!r}.")
    return rows


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
        self._patience_seconds = patience_seconds
        self._poll_seconds = poll_seconds
        connect = min(10.0, timeout_seconds)
        self._stream_timeout = httpx.Timeout(stream_timeout_seconds, connect=connect)
        self._sync_timeout = httpx.Timeout(sync_timeout_seconds, connect=connect)
        timeout = httpx.Timeout(timeout_seconds, connect=connect)
        self._transport = Transport(base_url.rstrip("/"), api_key, timeout, tries, sleep)

    def close(self) -> None:
        self._transport.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # What the server is and has

    def health(self) -> Health:
        """Tried once, so that one knows at once whether the server is there."""
        return _built(Health, self._transport.ask("GET", "/health"))

    def models(self) -> tuple[str, ...]:
        return tuple(str(row.get("id")) for row in _rows(self._call("GET", "/v1/models"), "data"))

    def capabilities(self) -> tuple[Generator, ...]:
        rows = _rows(self._call("GET", "/v1/generations/capabilities"), "generators")
        return tuple(_built(Generator, row) for row in rows)

    def first_ready(self, task: str) -> Generator:
        """The first model that can do `task` now. Raises `NoModel`, saying whether one is only not up."""
        offered = [generator for generator in self.capabilities() if generator.task == task]
        for generator in offered:
            if generator.ready:
                return generator
        if offered:
            names = ", ".join(generator.model for generator in offered)
            raise NoModel(f"No {task} model is ready: {names} is known here, but no worker that offers it is running.")
        raise NoModel(f"No {task} model is offered by {self._transport.base_url}.")

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
        return _built(Job, self._call("POST", "/v1/generations", json=body))

    def job(self, job_id: str) -> Job:
        return _built(Job, self._call("GET", _path_of("v1", "generations", job_id)))

    def jobs(self, limit: int = 100, offset: int = 0) -> JobPage:
        data = self._call("GET", "/v1/generations", params={"limit": limit, "offset": offset})
        return JobPage(tuple(_built(Job, row) for row in _rows(data, "generations")), bool(data.get("truncated")))

    def cancel(self, job_id: str) -> Job:
        """Ask the job to stop; the answer says how it stands. Raises `Refused` (409 `already_finished`)."""
        return _built(Job, self._call("DELETE", _path_of("v1", "generations", job_id)))

    def events(self, job_id: str) -> Iterator[Job]:
        """The job at each change, newest last, until it is finished.

        A cut stream is attached again; where streams cannot be had, the job is polled. Nothing is told twice, and
        nothing older after something newer. Raises `Unreachable` once the server was away for `patience_seconds`.
        """
        watch, trouble, seen_at = Watch(), 0, time.monotonic()
        while True:
            problem: ClientError = Unreachable(f"The stream of job {job_id} ended before the job did.")
            try:
                for job in self._stream(job_id) if trouble < STREAM_TRIES else self._poll(job_id):
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
            self._transport.sleep(backoff(trouble))

    def wait(self, job_id: str, on_progress: Callable[[Job], None] | None = None) -> Job:
        """The completed job. `on_progress` gets every change. Raises `JobFailed` for any other end."""
        for job in self.events(job_id):
            if on_progress is not None:
                on_progress(job)
        if job.state != "completed":
            raise JobFailed(job)
        return job

    # Artifacts

    def upload(self, source: Path | str | IO[bytes], media_type: str | None = None) -> Artifact:
        """Send a file, or what is left of an open one, in pieces; a pipe is read to its end first. Sent again only
        where nothing reached the server."""
        if isinstance(source, Path | str):
            with Path(source).open("rb") as opened:
                return self.upload(opened, media_type or guess_media_type(Path(source)))
        with rewindable(source) as file:
            start = file.tell()
            headers = {
                "Content-Type": media_type or "application/octet-stream",
                "Content-Length": str(size_of_rest(file)),
            }

            def send() -> Artifact:
                file.seek(start)
                return self._send_bytes(file, headers)

            return self._transport.retrying(send, is_repeatable=False)

    def _send_bytes(self, file: IO[bytes], headers: Mapping[str, str]) -> Artifact:
        pieces = iter(lambda: file.read(CHUNK_BYTES), b"")
        return _built(Artifact, self._transport.ask("POST", "/v1/artifacts", content=pieces, headers=headers))

    def artifact(self, artifact_id: str) -> Artifact:
        return _built(Artifact, self._call("GET", _path_of("v1", "artifacts", artifact_id, "meta")))

    def delete_artifact(self, artifact_id: str) -> None:
        self._call("DELETE", _path_of("v1", "artifacts", artifact_id))

    def read_text(self, artifact_id: str) -> str:
        """A small text artifact, whole."""

        def fetch() -> str:
            with self._transport.open("GET", _path_of("v1", "artifacts", artifact_id)) as response:
                return response.read().decode("utf-8", "replace")

        return self._transport.retrying(fetch)

    def download(self, artifact_id: str, path: Path | str) -> Path:
        """Write the artifact to `path`, once all of it is there and is whole. A file appears, or is replaced (at the
        end of symbolic links); a device or a FIFO is written to."""
        with written_to(path) as file:
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
        with written_to(path) as file:

            def speak() -> Speech:
                _empty(file)
                with self._transport.open(
                    "POST", "/v1/audio/speech", json=body, headers=headers, timeout=self._sync_timeout
                ) as response:
                    for chunk in response.iter_bytes():
                        file.write(chunk)
                    return Speech(Path(path), *_ids_of(response))

            try:
                return self._transport.retrying(speak)
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
        with source.open("rb") as opened, rewindable(opened) as file:
            clip = (source.name, file, media_type or guess_media_type(source))

            def send() -> Transcript:
                request = {"data": form, "files": {"file": clip}, "headers": headers, "timeout": self._sync_timeout}
                with self._transport.open("POST", "/v1/audio/transcriptions", **request) as response:
                    response.read()
                    job_id, artifact_id = _ids_of(response)
                    return replace(_built(Transcript, json_of(response)), job_id=job_id, artifact_id=artifact_id)

            try:
                return self._transport.retrying(send)
            except Refused as error:
                job = self._left_job(error)
        return Transcript(self.read_text(job.output_artifacts[0]), job.id, job.output_artifacts[0])

    # How it is done

    def _left_job(self, error: Refused) -> Job:
        """The completed job that a synchronous route left behind: its wait ran out, the job goes on."""
        if error.job_id is None or error.code in ("idempotency_mismatch", "artifact_gone"):
            raise error
        job = self.wait(error.job_id)
        if not job.output_artifacts:
            raise error
        return job

    def _stream(self, job_id: str) -> Iterator[Job]:
        headers = {"Accept": "text/event-stream"}
        path = _path_of("v1", "generations", job_id, "events")
        parser = EventParser()
        with self._transport.open("GET", path, headers=headers, timeout=self._stream_timeout) as response:
            if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
                raise BadAnswer("The server answered without an event stream.")
            for chunk in response.iter_bytes():
                for event in parser.feed(chunk):
                    if event.data == "[DONE]":
                        return
                    yield job_of(event)

    def _poll(self, job_id: str) -> Iterator[Job]:
        while True:
            yield self.job(job_id)
            self._transport.sleep(self._poll_seconds)

    def _fetch(self, artifact_id: str, file: BufferedRandom) -> None:
        """All of an artifact into an open, empty file. After a cut it goes on where it was."""
        etag = ""

        def fetch_rest() -> None:
            nonlocal etag
            start = file.tell() if etag else 0
            headers = {"Accept-Encoding": "identity"}
            if start:
                headers |= {"Range": f"bytes={start}-", "If-Range": etag}
            with self._transport.open("GET", _path_of("v1", "artifacts", artifact_id), headers=headers) as response:
                is_rest = response.status_code == 206
                if is_rest and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                    raise BadAnswer("The server sent another range than was asked for.")
                if not is_rest:
                    _empty(file)
                etag = response.headers.get("ETag", "")
                for chunk in response.iter_bytes():
                    file.write(chunk)

        self._transport.retrying(fetch_rest, progress=file.tell)
        _check_digest(file, etag)

    def _call(self, method: str, path: str, **request: Any) -> Any:
        """The JSON of a request that may be repeated."""
        return self._transport.retrying(lambda: self._transport.ask(method, path, **request))


def _ids_of(response: httpx.Response) -> tuple[str | None, str | None]:
    return response.headers.get("x-dppan-job-id"), response.headers.get("x-dppan-artifact-id")


def _empty(file: BufferedRandom) -> None:
    file.seek(0)
    file.truncate()


def _check_digest(file: BufferedRandom, etag: str) -> None:
    """An artifact's ETag is its SHA-256; a gateway may have put another in its place, which says nothing."""
    expected = etag.strip('"')
    if not re.fullmatch(r"[0-9a-f]{64}", expected):
        return
    file.seek(0)
    if hashlib.file_digest(file, "sha256").hexdigest() != expected:
        raise BadAnswer("What was downloaded is not what the server keeps: its SHA-256 differs.")

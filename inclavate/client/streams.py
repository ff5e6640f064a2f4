"""Event streams, without their I/O: bytes to events, events to news."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from inclavate.client.errors import BadAnswer
from inclavate.client.shapes import Job, build


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


def job_of(event: ServerEvent) -> Job:
    """The job that an event carries, with the event's id as its revision."""
    try:
        job = build(Job, json.loads(event.data))
    except ValueError as error:
        raise BadAnswer(f"An event of the job's stream cannot be read: {error}.") from None
    return replace(job, revision=int(event.id)) if event.id.isdecimal() else job


class Watch:
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

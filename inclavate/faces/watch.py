"""A job's changes, for everyone in this process who waits for them: SSE streams and synchronous routes alike.

However many watch a job, it is read once and subscribed to once. A message that carries progress needs no read; any
other makes one. Rows are read anyway every few seconds (messages may be lost), and once a second while the bus is down.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from django.db import Error as DatabaseError

from inclavate import jobs, progress
from inclavate.faces.boundary import in_pool
from inclavate.models import Job

log = logging.getLogger(__name__)

_POLL_SECONDS = 5.0
_POLL_SECONDS_WITHOUT_BUS = 1.0


class Watched:
    """One job that somebody watches. `job` is the latest known; `is_gone` once its row was deleted."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.is_gone = False
        self.watchers = 0
        self._changed = asyncio.Event()
        self._stale = asyncio.Event()
        self._rendered: dict[object, tuple[int, bytes]] = {}

    @property
    def is_over(self) -> bool:
        return self.is_gone or self.job.is_terminal

    async def newer(self, than: int, timeout: float) -> bool:
        """Wait for a revision above `than`; False if the row goes, the process stops or the seconds pass first."""
        return await self._until(lambda: self.job.revision > than, timeout)

    async def over(self, timeout: float) -> bool:
        """Wait for the job's end; False if the row goes, the process stops or the seconds pass first."""
        return await self._until(lambda: self.job.is_terminal, timeout)

    async def _until(self, is_so: Callable[[], bool], timeout: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not (is_so() or self.is_gone or _stopping.is_set()):
                    await self._changed.wait()
        return is_so()

    def rendered(self, shape: Callable[[Job], bytes]) -> bytes:
        """`shape(job)`, made once a revision for all who watch."""
        revision, text = self._rendered.get(shape, (-1, b""))
        if revision != self.job.revision:
            text = shape(self.job)
            self._rendered[shape] = (self.job.revision, text)
        return text

    async def follow(self) -> None:
        """Keep `job` fresh until its end."""
        async with progress.bus.listening(self.job.pk, self._hear):
            while not self.is_over:
                self._stale.clear()
                await self._read()
                if not self.is_over:
                    await self._wait_for_news()

    async def _read(self) -> None:
        try:
            row = await in_pool(jobs.latest, self.job.pk)
        except DatabaseError as error:
            log.warning("job %s could not be read for its watchers: %s", self.job.pk, error)
            return
        if row is None:
            self.is_gone = True
        elif row.revision > self.job.revision:
            self.job = row
        else:
            return
        self.tell()

    async def _wait_for_news(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_POLL_SECONDS if progress.bus.is_up else _POLL_SECONDS_WITHOUT_BUS):
                await self._stale.wait()

    def _hear(self, message: progress.Message) -> None:
        revision = message["revision"]
        if revision <= self.job.revision:
            return
        # Only the very next revision may be applied to what is known; after a gap the row has to be read.
        if "stage" not in message or revision != self.job.revision + 1:
            self._stale.set()
            return
        self.job.stage, self.job.fraction = message["stage"], message["fraction"]
        self.job.revision = revision
        self.tell()

    def tell(self) -> None:
        """Wake everyone who waits."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


_stopping = threading.Event()
_watched: dict[uuid.UUID, tuple[Watched, asyncio.Task[None]]] = {}


@asynccontextmanager
async def watching(job: Job) -> AsyncIterator[Watched]:
    """Watch a job that the caller may see; never changes it."""
    if job.pk not in _watched:
        watched = Watched(job)
        _watched[job.pk] = watched, asyncio.create_task(watched.follow(), name=f"watch {job.pk}")
    watched, task = _watched[job.pk]
    watched.watchers += 1
    try:
        yield watched
    finally:
        watched.watchers -= 1
        if not watched.watchers:
            del _watched[job.pk]
            task.cancel()


def stop() -> None:
    """The process stops: whoever waits is let go. Call it in the event loop."""
    _stopping.set()
    for watched, _ in list(_watched.values()):
        watched.tell()


def is_stopping() -> bool:
    return _stopping.is_set()

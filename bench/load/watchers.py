"""Watchers: many open event streams in one process, which notes when each event came to each of them."""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from typing import Any, cast

from bench.lines import Command, answer_in_loop

_ID = re.compile(rb"^id: (\d+)$", re.MULTILINE)
_OPENED_AT_ONCE = 50
_PATIENCE_SECONDS = 30.0
# How long after the last event the count is taken for whole.
_QUIET_SECONDS = 0.5


class Crowd:
    def __init__(self) -> None:
        # job -> revision -> when it came, once for each watcher
        self.came: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.watchers: list[_Watcher] = []
        self.last_at = time.monotonic()

    async def handle(self, command: Command) -> Any:
        match command["do"]:
            case "open":
                return await self.open(command["port"], command["streams"])
            case "collect":
                return await self.collect()
            case _:
                return await self.end()

    async def open(self, port: int, streams: list[tuple[str, str]]) -> int:
        """One watcher for each (job, request); returns once each has its first event."""
        gate = asyncio.Semaphore(_OPENED_AT_ONCE)

        async def open_one(job: str, request: str) -> None:
            async with gate, asyncio.timeout(_PATIENCE_SECONDS):
                watcher = _Watcher(self, job, request.encode("latin-1"))
                self.watchers.append(watcher)
                await asyncio.get_running_loop().create_connection(lambda: watcher, "127.0.0.1", port)
                await watcher.opened

        await asyncio.gather(*(open_one(job, request) for job, request in streams))
        self.came.clear()
        return len(self.watchers)

    async def collect(self) -> dict[str, dict[int, list[int]]]:
        """What came since the streams were open, once no more comes."""
        while time.monotonic() - self.last_at < _QUIET_SECONDS:
            await asyncio.sleep(0.1)
        return self.came

    async def end(self) -> int:
        """Once the server has ended every stream; how many there were."""
        await asyncio.wait([watcher.closed for watcher in self.watchers], timeout=_PATIENCE_SECONDS)
        ended = sum(watcher.is_whole for watcher in self.watchers)
        self.watchers.clear()
        self.came.clear()
        return ended


class _Watcher(asyncio.Protocol):
    def __init__(self, crowd: Crowd, job: str, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.is_whole = False
        self._came = crowd.came
        self._crowd = crowd
        self._job = job
        self._request = request
        self._rest = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        self._crowd.last_at = now / 1e9
        lines, _, self._rest = (self._rest + data).rpartition(b"\n")
        for revision in _ID.findall(lines):
            self._came[self._job][int(revision)].append(now)
            if not self.opened.done():
                self.opened.set_result(None)
        if b"data: [DONE]" in lines:
            self.is_whole = True
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set_result(None)
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("a stream ended before its first event"))


if __name__ == "__main__":
    answer_in_loop(Crowd().handle)

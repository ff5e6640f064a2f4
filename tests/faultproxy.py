"""A TCP proxy on loopback that misbehaves by command, for what lies behind it: an S3 server in the chaos run."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from enum import Enum
from typing import Any, Self

_READ_BYTES = 64 * 1024
# Past the headers of a request or an answer, and short of a WAV file's end.
CUT_AFTER_BYTES = 4096
_UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n"
    b"Connection: close\r\n\r\n%s"
)
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Mode(Enum):
    PASS = "pass"
    REFUSE = "refuse"  # as a server that is down: the connection is reset at once
    UNAVAILABLE = "503"  # each request is read and answered 503
    CUT = "cut"  # the connection is reset after `CUT_AFTER_BYTES` in either direction
    STALL = "stall"  # the connection stands open, and nothing comes


class FaultProxy:
    """Runs inside its `with`, in a thread of its own. `set` may come from any thread."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._mode = Mode.PASS
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)
        self.port = 0
        self.counts = dict.fromkeys(Mode, 0)

    def __enter__(self) -> Self:
        self._thread.start()
        server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *error: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def set(self, mode: Mode) -> None:
        """From now on, and for what is open too: connections of another mode are reset."""
        self._call(self._change(mode))

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _change(self, mode: Mode) -> None:
        self._mode = mode
        for writer in self._open:
            writer.transport.abort()

    async def _close(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mode = self._mode
        self.counts[mode] += 1
        self._open.add(writer)
        try:
            # Cancelled at the end: asyncio's own callback would complain of a task that ends so.
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
                await self._behaviour(mode)(reader, writer)
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    def _behaviour(self, mode: Mode) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        match mode:
            case Mode.REFUSE:
                return _reset
            case Mode.UNAVAILABLE:
                return _answer_unavailable
            case Mode.STALL:
                return _wait_until_gone
        return self._forward

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        limit = CUT_AFTER_BYTES if self._mode is Mode.CUT else None
        behind_reader, behind_writer = await asyncio.open_connection(*self._target)
        ways = [
            asyncio.create_task(_pump(reader, behind_writer, limit)),
            asyncio.create_task(_pump(behind_reader, writer, limit)),
        ]
        try:
            # Both servers and clients of S3 close a whole connection, never half of one.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            await asyncio.gather(_flush(behind_writer), _flush(writer), return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None) -> None:
    passed = 0
    while chunk := await reader.read(_READ_BYTES):
        if limit is not None:
            chunk = chunk[: limit - passed]
        passed += len(chunk)
        writer.write(chunk)
        await writer.drain()
        if limit is not None and passed >= limit:
            return


async def _flush(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    return


async def _wait_until_gone(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(_READ_BYTES):
        pass


async def _answer_unavailable(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    if re.search(rb"(?im)^expect:\s*100-continue", head) is None:
        length = re.search(rb"(?im)^content-length:\s*(\d+)", head)
        await reader.readexactly(int(length[1]) if length else 0)
    writer.write(_UNAVAILABLE % (len(_SLOW_DOWN), _SLOW_DOWN))
    await writer.drain()
    # The client closes when it has read the answer; a reset before that could take it away.
    await _wait_until_gone(reader, writer)

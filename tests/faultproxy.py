"""A TCP proxy on loopback that misbehaves by command, for what lies behind it: an S3 server in tests and the chaos run.

`set` a mode, and all connections are of it; `inject` a fault, and some requests meet it.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
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
    CUT_REQUEST = "cut request"  # the server gets so much of the request, then the connection is closed
    CUT_ANSWER = "cut answer"  # the client gets so much of the answer, then the connection is reset
    LOSE_ANSWER = "lose answer"  # the server has done it all, and the client's connection is reset


@dataclass(frozen=True, slots=True)
class Fault:
    """What the next `times` requests meet in whose first line the pattern is found.

    `after_bytes` is where CUT, CUT_REQUEST and CUT_ANSWER cut, counted from the first byte of the head.
    """

    mode: Mode
    request: str = ""
    times: int = 1
    after_bytes: int = CUT_AFTER_BYTES


class FaultProxy:
    """Runs inside its `with`, in a thread of its own. `set` may come from any thread."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._mode = Mode.PASS
        self._fault: Fault | None = None
        self._faults_left = 0
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
        """From now on, and for what is open too: connections of another mode are reset. No fault is left."""
        self._call(self._change(mode, None))

    def inject(self, fault: Fault) -> None:
        """Let requests pass but for that, which takes the place of an earlier fault. Each connection has one request
        until `set`."""
        self._call(self._change(Mode.PASS, fault))

    @property
    def faults_left(self) -> int:
        """How many times the fault has not been met yet."""
        return self._faults_left

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _change(self, mode: Mode, fault: Fault | None) -> None:
        self._mode = mode
        self._fault = fault
        self._faults_left = fault.times if fault else 0
        for writer in self._open:
            writer.transport.abort()

    async def _close(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            # Cancelled at the end: asyncio's own callback would complain of a task that ends so.
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
                await (self._watch(reader, writer) if self._fault else self._behave(self._mode, reader, writer))
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _watch(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, which meets the fault or passes."""
        head = await reader.readuntil(b"\r\n\r\n")
        fault = self._fault
        if fault and self._faults_left and re.search(fault.request, head.partition(b"\r\n")[0].decode()):
            self._faults_left -= 1
            await self._behave(fault.mode, reader, writer, head, fault.after_bytes)
        else:
            await self._behave(Mode.PASS, reader, writer, head)

    async def _behave(
        self,
        mode: Mode,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        head: bytes = b"",
        after_bytes: int = CUT_AFTER_BYTES,
    ) -> None:
        """`head` has been read already."""
        self.counts[mode] += 1
        limits = {
            Mode.CUT: (after_bytes, after_bytes),
            Mode.CUT_REQUEST: (after_bytes, None),
            Mode.CUT_ANSWER: (None, after_bytes),
        }
        match mode:
            case Mode.REFUSE:
                _reset(writer)
            case Mode.UNAVAILABLE:
                await _answer_unavailable(reader, writer, head)
            case Mode.STALL:
                await _wait_until_gone(reader)
            case _:
                pump = _swallow if mode is Mode.LOSE_ANSWER else _pump
                await self._forward(reader, writer, _for_one(head), pump, limits.get(mode, (None, None)))

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        head: bytes,
        pump_back: Callable[..., Awaitable[None]],
        limits: tuple[int | None, int | None],
    ) -> None:
        behind_reader, behind_writer = await asyncio.open_connection(*self._target)
        there, back = limits
        ways = [
            asyncio.ensure_future(_pump(reader, behind_writer, there, head)),
            asyncio.ensure_future(pump_back(behind_reader, writer, back)),
        ]
        try:
            # Both servers and clients of S3 close a whole connection, never half of one.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            await asyncio.gather(_flush(behind_writer), _flush(writer), return_exceptions=True)


def _for_one(head: bytes) -> bytes:
    """The head of a request after which the server closes. S3's signatures do not cover this header."""
    return head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None, chunk: bytes = b""
) -> None:
    """`chunk` has been read already."""
    passed = 0
    while chunk := chunk or await reader.read(_READ_BYTES):
        if limit is not None:
            chunk = chunk[: limit - passed]
        passed += len(chunk)
        writer.write(chunk)
        await writer.drain()
        if limit is not None and passed >= limit:
            return
        chunk = b""


async def _swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: int | None) -> None:
    """All but the leave to send the body."""
    answer = await reader.readuntil(b"\r\n\r\n")
    if answer.startswith(b"HTTP/1.1 100"):
        writer.write(answer)
    while await reader.read(_READ_BYTES):
        pass
    _reset(writer)


async def _flush(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


def _reset(writer: asyncio.StreamWriter) -> None:
    # Without lingering it is a reset, whether all that came was read or not.
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _wait_until_gone(reader: asyncio.StreamReader) -> None:
    while await reader.read(_READ_BYTES):
        pass


async def _answer_unavailable(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
    head = head or await reader.readuntil(b"\r\n\r\n")
    if re.search(rb"(?im)^expect:\s*100-continue", head) is None:
        length = re.search(rb"(?im)^content-length:\s*(\d+)", head)
        await reader.readexactly(int(length[1]) if length else 0)
    writer.write(_UNAVAILABLE % (len(_SLOW_DOWN), _SLOW_DOWN))
    await writer.drain()
    # The client closes when it has read the answer; a reset before that could take it away.
    await _wait_until_gone(reader)

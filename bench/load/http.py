"""The load generator: HTTP/1.1 with keep-alive on raw sockets, one request in flight a connection.

A process of its own, so that its work is not counted as the server's; it says how much of a core it used, because
where that comes near one, it was the limit.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Iterator
from typing import Any, cast

from bench.lines import Command, answer_in_loop

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class _Run:
    """What all connections of one run share: the requests to send, until enough were sent or the time is over."""

    def __init__(self, command: Command) -> None:
        self.requests: Iterator[bytes] = itertools.cycle(text.encode("latin-1") for text in command["requests"])
        self.left: int = command.get("count", 10**9)
        self.ends_at = time.perf_counter() + command.get("seconds", 3600)
        self.nanoseconds: list[int] = []
        self.refused: list[str] = []

    def next_request(self) -> bytes | None:
        if self.left <= 0 or time.perf_counter() >= self.ends_at:
            return None
        self.left -= 1
        return next(self.requests)


class _Connection(asyncio.Protocol):
    def __init__(self, run: _Run) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._run = run
        self._answer = b""
        self._sent_at = 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        request = self._run.next_request()
        if request is None:
            self._transport.close()
            return
        self._sent_at = time.perf_counter_ns()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, gap, body = self._answer.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not gap or (length and len(body) < int(length[1])):
            return
        self._run.nanoseconds.append(time.perf_counter_ns() - self._sent_at)
        if not head.startswith(b"HTTP/1.1 20") or not length:
            self._run.refused.append(self._answer.decode("latin-1")[:500])
        self._answer = b""
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            self._run.refused.append(repr(error))
        self.closed.set_result(None)


async def run(command: Command) -> dict[str, Any]:
    """Do `requests` in turn over `connections`, for `seconds` or until `count` are done."""
    loop = asyncio.get_running_loop()
    this, cpu, began = _Run(command), time.process_time(), time.perf_counter()
    pairs = [
        await loop.create_connection(lambda: _Connection(this), "127.0.0.1", command["port"])
        for _ in range(command["connections"])
    ]
    await asyncio.wait([connection.closed for _, connection in pairs])
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
        "nanoseconds": this.nanoseconds,
        "refused": this.refused[:3],
    }


if __name__ == "__main__":
    answer_in_loop(run)

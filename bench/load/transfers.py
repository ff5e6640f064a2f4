"""Bodies over HTTP on raw sockets: sent from a file by sendfile, read into one buffer and forgotten.

A process of its own, for the reason that `load.http` is one.
"""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

from bench.lines import Command, answer

_CHUNK_BYTES = 256 * 1024
_BUFFER_BYTES = 2**20


def run(command: Command) -> dict[str, Any]:
    """Send `head` and, where there is one, `file`, over each of `connections` at the same time."""
    count, began, cpu = command["connections"], time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(_exchange, [command] * count))
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
        "answers": answers,
    }


def _exchange(command: Command) -> dict[str, Any]:
    """The JSON that answers an upload; of a download, how many bytes came. Raises `RuntimeError` for a refusal."""
    with socket.create_connection(("127.0.0.1", command["port"])) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(command["head"].encode("latin-1"))
        if "file" in command:
            _send(connection, Path(command["file"]), command["is_chunked"])
        with HTTPResponse(connection) as response:
            response.begin()
            if response.status not in (200, 201):
                raise RuntimeError(f"{response.status}: {response.read(500)!r}")
            answered: dict[str, Any] = json.load(response) if "file" in command else {"size_bytes": _drain(response)}
            return answered


def _send(connection: socket.socket, path: Path, is_chunked: bool) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        if not is_chunked:
            connection.sendfile(file)
            return
        for start in range(0, size, _CHUNK_BYTES):
            count = min(_CHUNK_BYTES, size - start)
            # The line goes with what follows it: neither it nor the end is a segment of its own.
            connection.sendall(b"%s%x\r\n" % (b"\r\n" if start else b"", count), socket.MSG_MORE)
            connection.sendfile(file, start, count)
        connection.sendall(b"\r\n0\r\n\r\n")


def _drain(response: HTTPResponse) -> int:
    size, buffer = 0, bytearray(_BUFFER_BYTES)
    while count := response.readinto(buffer):
        size += count
    return size


if __name__ == "__main__":
    answer(run)

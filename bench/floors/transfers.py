"""Bodies into files and out of them by a bare Starlette: the least that hashes, flushes and keeps the loop free."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

_BATCH_BYTES = 2**20
_READ_BYTES = 256 * 1024


class Files:
    """Files of a folder, by a name that each gets."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.routes = [
            Route("/files", self.receive, methods=["POST"]),
            Route("/files/{name}", self.send, methods=["GET"]),
            Route("/files/{name}", self.delete, methods=["DELETE"]),
        ]

    async def receive(self, request: Request) -> Response:
        loop, name = asyncio.get_running_loop(), uuid.uuid4().hex
        with io.FileIO(self._folder / name, "wb") as file:
            sink, batch = _Sink(file), bytearray()
            async for chunk in request.stream():
                batch += chunk
                if len(batch) >= _BATCH_BYTES:
                    full, batch = batch, bytearray()
                    await loop.run_in_executor(None, sink.write, full)
            await loop.run_in_executor(None, sink.finish, batch)
        return JSONResponse({"id": name, "size_bytes": sink.size, "digest": sink.hash.hexdigest()}, 201)

    async def send(self, request: Request) -> Response:
        path = self._folder / request.path_params["name"]
        return StreamingResponse(_chunks(path), headers={"Content-Length": str(path.stat().st_size)})

    async def delete(self, request: Request) -> Response:
        (self._folder / request.path_params["name"]).unlink()
        return Response(status_code=204)


class _Sink:
    def __init__(self, file: io.FileIO) -> None:
        self.hash = hashlib.sha256()
        self.size = 0
        self._file = file

    def write(self, batch: bytearray) -> None:
        self.hash.update(batch)
        self.size += self._file.write(batch)

    def finish(self, batch: bytearray) -> None:
        self.write(batch)
        os.fsync(self._file.fileno())


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    with io.FileIO(path) as file:
        while chunk := await loop.run_in_executor(None, file.read, _READ_BYTES):
            yield chunk

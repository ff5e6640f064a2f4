"""Sound on its way: what an engine has written of its output so far, from the worker to those who listen meanwhile.

Each listener has a list in Redis of its own, which the worker fills and the listener empties. A list holds at most
`MOST_BEHIND` chunks, so who listens slowly holds nobody up, and a worker whose Redis is away goes on: what a listener
has not heard by the job's end is in the output artifact, at the same place.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from django.conf import settings

log = logging.getLogger(__name__)

MOST_BEHIND = 64
_CHUNK_BYTES = 64 * 1024
# How often a worker looks who listens, and a listener says that it still does.
_LOOK_SECONDS = 0.25
_SAY_SECONDS = 5.0
_FORGOTTEN_SECONDS = 30
_HANGS_SECONDS = 2.0
_HEAD = struct.Struct(">QQB")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes at `offset` of the output of the job's run number `fence`."""

    fence: int
    offset: int
    media_type: str
    data: bytes

    def packed(self) -> bytes:
        kind = self.media_type.encode()[:255]
        return _HEAD.pack(self.fence, self.offset, len(kind)) + kind + self.data

    @classmethod
    def unpacked(cls, packed: bytes) -> Chunk:
        fence, offset, length = _HEAD.unpack_from(packed)
        start = _HEAD.size + length
        return cls(fence, offset, packed[_HEAD.size : start].decode(), packed[start:])


def _listeners_key(job_id: uuid.UUID) -> str:
    return f"inclavate:listeners:{job_id}"


# -- a worker's side ---------------------------------------------------------------------------------------------------


class Feed:
    """Feeds the growing output of one run to all who listen to its job. Redis is not waited for long."""

    def __init__(self, job_id: uuid.UUID, fence: int, path: Path, media_type: str) -> None:
        self._client = _client()
        self._listeners = _listeners_key(job_id)
        self._fence = fence
        self._path = path
        self._media_type = media_type
        self._heard: dict[bytes, int] = {}
        self._looked_at = 0.0

    def feed(self) -> None:
        """Pass on what was written since the last call. Call it a few times a second."""
        try:
            self._look()
            if self._heard:
                size = self._path.stat().st_size
                for listener, heard in self._heard.items():
                    self._heard[listener] = self._feed_one(listener, heard, size)
        except (redis.RedisError, OSError) as error:
            log.warning("sound was not passed on: %s", error)
            self._looked_at = time.monotonic() + _SAY_SECONDS
            self._heard = {}

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            found = self._client.smembers(self._listeners)
            # One that was forgotten while Redis was away begins anew, and takes no offset but the one that it expects.
            self._heard = {listener: self._heard.get(listener, 0) for listener in found}

    def _feed_one(self, listener: bytes, heard: int, size: int) -> int:
        room = MOST_BEHIND - self._client.llen(listener) if heard < size else 0
        with self._path.open("rb") as file:
            file.seek(heard)
            while room > 0 and (data := file.read(min(_CHUNK_BYTES, size - heard))):
                self._client.rpush(listener, Chunk(self._fence, heard, self._media_type, data).packed())
                self._client.expire(listener, _FORGOTTEN_SECONDS)
                heard += len(data)
                room -= 1
        return heard


_clients: dict[int, Any] = {}


def _client() -> Any:
    """One a process: its pool is safe for threads, and not for a fork."""
    if os.getpid() not in _clients:
        _clients[os.getpid()] = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=1, socket_connect_timeout=1)
    return _clients[os.getpid()]


# -- a web process's side ----------------------------------------------------------------------------------------------


class Listener:
    """One who listens to a job. Get one from `listening`."""

    def __init__(self, job_id: uuid.UUID, client: redis.asyncio.Redis) -> None:
        self._client: Any = client
        self._listeners = _listeners_key(job_id)
        self._list = f"inclavate:sound:{job_id}:{uuid.uuid4()}"
        self._said_at = -_SAY_SECONDS

    async def next(self, seconds: float) -> Chunk | None:
        """The next chunk; None where none came in that time, or Redis does not answer."""
        began = time.monotonic()
        try:
            # Redis keeps to the time that it is given, unless it hangs.
            async with asyncio.timeout(seconds + _HANGS_SECONDS):
                await self._say()
                found = await self._client.blpop([self._list], timeout=seconds)
        except (redis.RedisError, OSError) as error:
            log.warning("sound could not be listened to: %s", error)
            self._said_at = -_SAY_SECONDS
            await asyncio.sleep(max(0.0, seconds - (time.monotonic() - began)))
            return None
        return None if found is None else Chunk.unpacked(found[1])

    async def _say(self) -> None:
        if time.monotonic() - self._said_at >= _SAY_SECONDS:
            # In one: who is cut off between the two would never be forgotten.
            async with self._client.pipeline(transaction=True) as together:
                together.sadd(self._listeners, self._list)
                together.expire(self._listeners, _FORGOTTEN_SECONDS)
                await together.execute()
            self._said_at = time.monotonic()

    async def leave(self) -> None:
        with suppress(redis.RedisError, OSError):
            await self._client.srem(self._listeners, self._list)
            await self._client.delete(self._list)


@asynccontextmanager
async def listening(job_id: uuid.UUID) -> AsyncIterator[Listener]:
    """Listen to a job, also before it begins: each listener gets all of it, from the first byte on."""
    client = redis.asyncio.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=1)
    listener = Listener(job_id, client)
    try:
        yield listener
    finally:
        # Whoever is cancelled may not wait, and leaves all the same.
        leaving = asyncio.create_task(_leave(listener, client))
        _leaving.add(leaving)
        leaving.add_done_callback(_leaving.discard)
        await asyncio.shield(leaving)


_leaving: set[asyncio.Task[None]] = set()


async def _leave(listener: Listener, client: redis.asyncio.Redis) -> None:
    await listener.leave()
    await client.aclose()

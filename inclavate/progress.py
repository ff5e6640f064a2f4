"""The progress bus: what changed about a job, told to whoever watches it. Lossy by design; the row is the truth.

A message is `{"revision": n}`, with `stage` and `fraction` where nothing else changed; without them the reader
looks at the row.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

import redis
import redis.asyncio
from django.conf import settings

log = logging.getLogger(__name__)

Message = dict[str, Any]
Listener = Callable[[Message], None]


class Bus(Protocol):
    def publish(self, job_id: uuid.UUID, message: Message) -> None:
        """Tell whoever listens. Never raises, and never waits for long."""

    @property
    def is_up(self) -> bool:
        """Whether messages arrive at present; where not, watchers read the row."""

    async def run(self) -> None:
        """Receive messages until cancelled; started once by a process that watches."""

    def listening(self, job_id: uuid.UUID, listener: Listener) -> Any:
        """An async context in which `listener` is called for each message of that job."""


class MemoryBus:
    """Within one process, for tests."""

    is_up = True

    def __init__(self) -> None:
        self._listeners: dict[str, Listener] = {}
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def publish(self, job_id: uuid.UUID, message: Message) -> None:
        with self._lock:
            listener = self._listeners.get(str(job_id))
        if listener and self._loop:
            self._loop.call_soon_threadsafe(listener, message)

    async def run(self) -> None:
        await asyncio.Event().wait()

    @asynccontextmanager
    async def listening(self, job_id: uuid.UUID, listener: Listener) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        with self._lock:
            self._listeners[str(job_id)] = listener
        try:
            yield
        finally:
            with self._lock:
                del self._listeners[str(job_id)]


class RedisBus:
    """Pub/sub: one connection a process however many jobs it watches, a channel a watched job."""

    _RETRY_SECONDS = 0.5

    def __init__(self, url: str) -> None:
        self._url = url
        self._sender = redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1)
        self._listeners: dict[str, Listener] = {}
        self._pubsub: redis.asyncio.client.PubSub | None = None

    def publish(self, job_id: uuid.UUID, message: Message) -> None:
        try:
            self._sender.publish(_channel(job_id), json.dumps(message))
        except redis.RedisError as error:
            log.warning("progress of job %s was not published: %s", job_id, error)

    @property
    def is_up(self) -> bool:
        return self._pubsub is not None

    async def run(self) -> None:
        while True:
            client = redis.asyncio.Redis.from_url(self._url, socket_connect_timeout=1)
            pubsub = client.pubsub(ignore_subscribe_messages=True)
            try:
                # redis-py reads only once something is subscribed to; this channel never has a message.
                await pubsub.subscribe("inclavate:idle", *self._listeners)
                self._pubsub = pubsub
                async for message in pubsub.listen():
                    self._deliver(message)
            except (redis.RedisError, OSError) as error:
                log.warning("the progress bus is down, watchers read rows: %s", error)
            finally:
                self._pubsub = None
                with suppress(redis.RedisError, OSError):
                    await pubsub.aclose()  # type: ignore[no-untyped-call]
                    await client.aclose()
            await asyncio.sleep(self._RETRY_SECONDS)

    def _deliver(self, message: dict[str, Any]) -> None:
        channel = message["channel"].decode()
        if listener := self._listeners.get(channel):
            listener(json.loads(message["data"]))

    @asynccontextmanager
    async def listening(self, job_id: uuid.UUID, listener: Listener) -> AsyncIterator[None]:
        channel = _channel(job_id)
        self._listeners[channel] = listener
        await self._tell("subscribe", channel)
        try:
            yield
        finally:
            del self._listeners[channel]
            await self._tell("unsubscribe", channel)

    async def _tell(self, verb: str, channel: str) -> None:
        if self._pubsub is not None:
            with suppress(redis.RedisError, OSError):
                await getattr(self._pubsub, verb)(channel)


def _channel(job_id: uuid.UUID) -> str:
    return f"inclavate:job:{job_id}"


bus: Bus = RedisBus(settings.REDIS_URL)

"""A bare subscriber: when a message that was published reaches another process."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import django

django.setup(set_prefix=False)

import redis.asyncio  # noqa: E402
from django.conf import settings  # noqa: E402

from bench.lines import Command, answer_in_loop  # noqa: E402


class Subscriber:
    def __init__(self) -> None:
        self._came: dict[str, dict[int, list[int]]] = {}
        self._listening: asyncio.Task[None] | None = None

    async def handle(self, command: Command) -> Any:
        if command["do"] == "listen":
            pubsub = redis.asyncio.Redis.from_url(settings.REDIS_URL).pubsub(ignore_subscribe_messages=True)
            await pubsub.subscribe(*(f"inclavate:job:{job}" for job in command["jobs"]))
            self._listening = asyncio.create_task(self._listen(pubsub))
        elif self._listening is not None:
            self._listening.cancel()
        came, self._came = self._came, {}
        return came

    async def _listen(self, pubsub: redis.asyncio.client.PubSub) -> None:
        async for message in pubsub.listen():
            now = time.monotonic_ns()
            job = message["channel"].decode().rpartition(":")[2]
            self._came.setdefault(job, {})[json.loads(message["data"])["revision"]] = [now]


if __name__ == "__main__":
    answer_in_loop(Subscriber().handle)

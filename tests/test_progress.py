"""The progress bus: one suite for the real one and for the one in memory."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from inclavate.progress import Bus, MemoryBus, RedisBus
from tests import servers

BUSES: dict[str, Callable[[], Bus]] = {"memory": MemoryBus, "redis": lambda: RedisBus(settings.REDIS_URL)}


@pytest.fixture(params=BUSES)
def bus(request: pytest.FixtureRequest) -> Bus:
    return BUSES[request.param]()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(bounded())


@asynccontextmanager
async def running(bus: Bus) -> AsyncIterator[None]:
    task = asyncio.create_task(bus.run())
    try:
        await until(lambda: bus.is_up)
        yield
    finally:
        task.cancel()


async def until(what: Callable[[], Any]) -> None:
    while not what():
        await asyncio.sleep(0.005)


async def publish_until_heard(bus: Bus, job: uuid.UUID, heard: list[Any]) -> None:
    """A subscription takes effect a moment after it was sent."""
    while not heard:
        await asyncio.to_thread(bus.publish, job, {"revision": 1})
        await asyncio.sleep(0.005)


def test_a_listener_hears_its_own_job_in_order_and_no_other(bus: Bus) -> None:
    async def scenario() -> None:
        mine, other, heard = uuid.uuid4(), uuid.uuid4(), []
        async with running(bus), bus.listening(mine, heard.append):
            await publish_until_heard(bus, mine, heard)
            for revision in range(2, 20):
                await asyncio.to_thread(bus.publish, other, {"revision": 1000})
                await asyncio.to_thread(bus.publish, mine, {"revision": revision, "stage": "x", "fraction": None})
            await until(lambda: heard[-1]["revision"] == 19)
        revisions = [message["revision"] for message in heard]
        assert revisions == sorted(revisions)
        assert set(revisions) == set(range(1, 20))

    run(scenario)


def test_after_leaving_nothing_more_is_heard(bus: Bus) -> None:
    async def scenario() -> None:
        job, heard, later = uuid.uuid4(), [], []
        async with running(bus):
            async with bus.listening(job, heard.append):
                await publish_until_heard(bus, job, heard)
            count = len(heard)
            async with bus.listening(job, later.append):
                await publish_until_heard(bus, job, later)
            assert len(heard) == count

    run(scenario)


def test_publishing_without_a_listener_is_nothing(bus: Bus) -> None:
    bus.publish(uuid.uuid4(), {"revision": 1})


def test_a_bus_without_its_server_says_so_and_raises_nothing(tmp_path: Path) -> None:
    bus = RedisBus(f"unix://{tmp_path}/nobody.sock")
    bus.publish(uuid.uuid4(), {"revision": 1})
    assert not bus.is_up


def test_a_bus_finds_its_server_again_and_hears_as_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        job, heard = uuid.uuid4(), []
        with servers.valkey(tmp_path) as url:
            bus = RedisBus(url)
            task = asyncio.create_task(bus.run())
            listening = bus.listening(job, heard.append)
            await until(lambda: bus.is_up)
            await listening.__aenter__()
            await publish_until_heard(bus, job, heard)
        await until(lambda: not bus.is_up)
        heard.clear()
        with servers.valkey(tmp_path):
            await publish_until_heard(bus, job, heard)
            assert bus.is_up
            await listening.__aexit__(None, None, None)
            task.cancel()

    run(scenario)

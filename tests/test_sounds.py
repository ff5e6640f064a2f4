"""Sound from a worker's file to those who listen, over a real Valkey."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

from inclavate import sounds
from inclavate.sounds import Chunk, Feed, Listener

WHOLE = os.urandom(200_000)


def hearing(scenario: Callable[[Listener, Feed, Path], Awaitable[None]], folder: Path) -> None:
    """One who listens to a job whose file is empty yet."""
    job_id, path = uuid.uuid4(), folder / "sound"
    path.write_bytes(b"")

    async def run() -> None:
        async with sounds.listening(job_id) as listener:
            assert await listener.next(0.01) is None
            await scenario(listener, Feed(job_id, 3, path, "audio/flac"), path)

    asyncio.run(run())


async def heard(listener: Listener) -> list[Chunk]:
    chunks = []
    while chunk := await listener.next(0.1):
        chunks.append(chunk)
    return chunks


def test_what_grows_is_heard_in_order_and_once(tmp_path: Path) -> None:
    async def scenario(listener: Listener, feed: Feed, path: Path) -> None:
        chunks: list[Chunk] = []
        for end in (10, 10, 150_000, 200_000):
            path.write_bytes(WHOLE[:end])
            feed.feed()
            chunks += await heard(listener)
        assert b"".join(chunk.data for chunk in chunks) == WHOLE
        assert [chunk.offset for chunk in chunks] == [0, 10, 65546, 131082, 150_000]
        assert {(chunk.fence, chunk.media_type) for chunk in chunks} == {(3, "audio/flac")}

    hearing(scenario, tmp_path)


def test_one_who_does_not_take_what_came_is_sent_no_more_than_a_bound(tmp_path: Path) -> None:
    async def scenario(listener: Listener, feed: Feed, path: Path) -> None:
        whole = os.urandom((sounds.MOST_BEHIND + 10) * 64 * 1024)
        path.write_bytes(whole)
        for _ in range(3):
            feed.feed()
        behind = await heard(listener)
        assert len(behind) == sounds.MOST_BEHIND
        feed.feed()
        rest = await heard(listener)
        assert b"".join(chunk.data for chunk in behind + rest) == whole

    hearing(scenario, tmp_path)


def test_nothing_is_left_in_redis_of_one_who_has_left(tmp_path: Path) -> None:
    async def scenario(listener: Listener, feed: Feed, path: Path) -> None:
        path.write_bytes(WHOLE)
        feed.feed()

    before = set(sounds._client().keys("inclavate:*"))
    hearing(scenario, tmp_path)
    assert set(sounds._client().keys("inclavate:*")) <= before


def test_one_who_comes_late_hears_it_from_the_start(tmp_path: Path) -> None:
    job_id, path = uuid.uuid4(), tmp_path / "sound"
    path.write_bytes(WHOLE)
    feed = Feed(job_id, 1, path, "audio/wav")
    feed.feed()

    async def run() -> None:
        async with sounds.listening(job_id) as first, sounds.listening(job_id) as second:
            for listener in (first, second):
                assert await listener.next(0.01) is None
                await asyncio.to_thread(_until_looked, feed)
                assert b"".join(chunk.data for chunk in await heard(listener)) == WHOLE

    asyncio.run(run())


def _until_looked(feed: Feed) -> None:
    feed._looked_at = 0.0
    feed.feed()


def test_a_worker_whose_redis_is_away_goes_on(tmp_path: Path) -> None:
    (tmp_path / "sound").write_bytes(WHOLE)
    feed = Feed(uuid.uuid4(), 1, tmp_path / "sound", "audio/wav")
    feed._client = sounds.redis.Redis.from_url(f"unix://{tmp_path}/nobody.sock")
    feed.feed()
    feed.feed()

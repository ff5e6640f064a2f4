"""Those who listen to speech while it is made, and go away at any moment: in one process, over a real Valkey."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from inclavate import fleet, jobs, sounds
from inclavate.faces.openai import live
from inclavate.models import Job, Owner, State
from tests.driving import until
from tests.engines import Tone

MODEL = Tone.describe("tone", {})
SOUND = b"RIFF" + bytes(1000)


@pytest.fixture
def job(alice: Owner) -> Job:
    fleet.register("w1", 1, [MODEL])
    jobs.submit(alice, jobs.Submission(MODEL.model, "audio", {"text": "hello"}))
    claim = jobs.claim(MODEL.queue, "w1")
    assert claim is not None
    return claim.job


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Nothing is ended by being found as garbage, some day."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Caller:
    """A connection, as the web server has it. It closes `steps` steps of the loop after `after` messages came."""

    def __init__(self, job: Job, stream_format: str, after: int, steps: int, **headers: str) -> None:
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._scope = {"type": "http", "asgi": {"spec_version": "2.3"}, "path": "/v1/audio/speech", "headers": raw}
        self._job = job
        self._format = stream_format
        self._steps = steps
        self._missing = after
        self._is_due = asyncio.Event()
        self._is_closed = asyncio.Event()
        self.messages: list[Message] = []
        if not after:
            self._is_due.set()

    async def ask(self, owner: Owner) -> None:
        closing = asyncio.create_task(self._close())
        request = Request(self._scope, self._receive)
        response = await live.speech(request, owner, self._job, self._format)
        await response(self._scope, self._receive, self._send)
        await closing

    async def _close(self) -> None:
        await self._is_due.wait()
        for _ in range(self._steps):
            await asyncio.sleep(0)
        self._is_closed.set()

    async def _receive(self) -> Message:
        await self._is_closed.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.messages.append(message)
        await asyncio.sleep(0)
        self._missing -= 1
        if self._missing == 0:
            self._is_due.set()


async def fed(job: Job, path: Path) -> None:
    """A worker whose file grows, for ever."""
    feed = sounds.Feed(job.pk, job.fence, path, "audio/wav")
    with path.open("ab") as file:
        while True:
            file.write(SOUND)
            file.flush()
            await asyncio.to_thread(feed.feed)
            await asyncio.sleep(0.01)


async def hear(caller: Caller, owner: Owner, job: Job, path: Path) -> list[dict[str, Any]]:
    """What the loop had to complain of, until all is done that hearing began."""
    wrong: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: wrong.append(context))
    feeding = asyncio.create_task(fed(job, path))
    async with asyncio.timeout(30):
        await caller.ask(owner)
    feeding.cancel()
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.wait(rest, timeout=30)
    return wrong


def state(job: Job) -> tuple[str, bool]:
    job.refresh_from_db()
    return job.state, job.cancel_requested


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("stream_format", ["audio", "sse"])
@pytest.mark.parametrize("after", [0, 1, 2, 4])
@pytest.mark.parametrize("steps", [*range(12), 20, 40, 80])
def test_whenever_a_listener_leaves_his_job_is_cancelled_and_nothing_is_left_open(
    alice: Owner, job: Job, tmp_path: Path, stream_format: str, after: int, steps: int
) -> None:
    before = set(sounds._client().keys("inclavate:*"))
    caller = Caller(job, stream_format, after, steps)
    assert asyncio.run(hear(caller, alice, job, tmp_path / "sound")) == []
    until(lambda: state(job) == (State.RUNNING, True))
    assert len(caller.messages) >= after
    # At once; or, where the connection was lost as well, once a listener that says nothing is forgotten.
    until(lambda: set(sounds._client().keys("inclavate:*")) <= before)

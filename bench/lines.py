"""How a helper process talks: a line of JSON in, a line of JSON out, until its stdin ends."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

Command = dict[str, Any]


def say(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def answer(handle: Callable[[Command], Any]) -> None:
    """Say that this process is ready, then answer each command with what `handle` makes of it."""
    say("ready")
    for line in sys.stdin:
        say(handle(json.loads(line)))


def answer_in_loop(handle: Callable[[Command], Awaitable[Any]]) -> None:
    """The same in an event loop, which runs on between commands."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        say("ready")
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            say(await handle(json.loads(line)))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())

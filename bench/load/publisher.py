"""A worker's side of watched jobs, without an engine: claims them, reports progress by the verb, completes them.

It notes when each message goes to the bus.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

import django

django.setup(set_prefix=False)

from bench.lines import Command, answer  # noqa: E402
from inclavate import jobs, progress  # noqa: E402

_NAME = "bench-publisher"


class Stamped:
    """A bus that notes when each message was handed to it: job -> revision -> time."""

    def __init__(self, bus: progress.Bus) -> None:
        self.sent: dict[str, dict[int, int]] = {}
        self._bus = bus

    def publish(self, job_id: uuid.UUID, message: progress.Message) -> None:
        self.sent.setdefault(str(job_id), {})[message["revision"]] = time.monotonic_ns()
        self._bus.publish(job_id, message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)


class Publisher:
    def __init__(self) -> None:
        self._bus = Stamped(progress.bus)
        self._claims: list[jobs.Claim] = []
        progress.bus = self._bus

    def handle(self, command: Command) -> Any:
        match command["do"]:
            case "claim":
                return self.claim(command["queue"], command["count"])
            case "report":
                return self.report(command["seconds"], command["interval_seconds"])
            case _:
                return self.complete()

    def claim(self, queue: str, count: int) -> list[str]:
        while len(self._claims) < count and (claim := jobs.claim(queue, _NAME)):
            self._claims.append(claim)
        return [str(claim.job.pk) for claim in self._claims]

    def report(self, seconds: float, interval_seconds: float) -> dict[str, dict[int, int]]:
        """A message a job each interval, the jobs one after another within it."""
        self._bus.sent = {}
        jobs.heartbeat(_NAME, [claim.job.pk for claim in self._claims])
        total = round(seconds / interval_seconds) * len(self._claims)
        began, step = time.monotonic(), interval_seconds / len(self._claims)
        for number in range(total):
            time.sleep(max(0.0, began + number * step - time.monotonic()))
            jobs.report(self._claims[number % len(self._claims)], "generating", number / total)
        return self._bus.sent

    def complete(self) -> int:
        done = sum(jobs.complete(claim, []) for claim in self._claims)
        self._claims = []
        return done


if __name__ == "__main__":
    answer(Publisher().handle)

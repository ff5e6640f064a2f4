"""A bare ring: `queue.ring` to a Celery worker, set much as ours is, whose task does nothing but say that it began."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from typing import IO, Any, cast

import django

django.setup(set_prefix=False)

from celery.exceptions import SecurityWarning  # noqa: E402

from bench.lines import Command, answer  # noqa: E402
from inclavate import queue  # noqa: E402
from tests.servers import die_with_parent  # noqa: E402

_QUEUE = "bench.floor"


def serve() -> None:
    """The worker. Each time is one line of its stdout."""

    def answer_ring(queue_name: str) -> None:
        # Celery has put its log in the place of sys.stdout.
        os.write(1, b"%d\n" % time.monotonic_ns())

    queue.app.task(name=queue.RING)(answer_ring)
    # The least: a worker that takes the next ring before it is done with this one.
    queue.app.conf.worker_disable_prefetch = False
    warnings.filterwarnings("ignore", category=SecurityWarning)
    worker = queue.app.Worker(
        hostname="bench-floor",
        pool="threads",
        concurrency=1,
        queues=[_QUEUE],
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        loglevel="WARNING",
        quiet=True,
    )
    worker.start()


class Ringer:
    def __init__(self) -> None:
        command = [sys.executable, "-m", "bench.floors.rings", "worker"]
        self._worker = subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=die_with_parent())
        self._began: IO[bytes] = cast(IO[bytes], self._worker.stdout)
        queue.ring(_QUEUE)
        self._next_start()

    def _next_start(self) -> int:
        return int(self._began.readline())

    def handle(self, command: Command) -> dict[str, Any]:
        return {"nanoseconds": self.one_by_one(command["single"]), "a second": self.burst(command["burst"])}

    def one_by_one(self, count: int) -> list[int]:
        taken = []
        for _ in range(count):
            rung_at = time.monotonic_ns()
            queue.ring(_QUEUE)
            taken.append(self._next_start() - rung_at)
            time.sleep(0.005)
        return taken

    def burst(self, count: int) -> float:
        """Rings answered a second, counted from the first ring to the last start."""
        began = time.monotonic_ns()
        for _ in range(count):
            queue.ring(_QUEUE)
        last = [self._next_start() for _ in range(count)][-1]
        return count / ((last - began) / 1e9)


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        serve()
    else:
        answer(Ringer().handle)

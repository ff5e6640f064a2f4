"""The Celery entry point: a message only says that there may be work."""

from __future__ import annotations

from inclavate import queue
from workers.runner import Runner


def install(runner: Runner) -> None:
    """Answer rings with this worker's runner."""
    queue.app.task(name=queue.RING)(runner.answer)

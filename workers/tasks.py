"""The Celery entry point: a message only says that there may be work."""

from __future__ import annotations

from inclavate import artifacts, queue
from workers.inspection import Inspector
from workers.runner import Runner


def install(runner: Runner, inspector: Inspector | None) -> None:
    """Answer rings with this worker's runner and, where it has one, inspector."""

    def answer(queue_name: str) -> None:
        if queue_name != artifacts.INSPECTIONS:
            runner.answer(queue_name)
        elif inspector is not None:
            inspector.answer()

    queue.app.task(name=queue.RING)(answer)

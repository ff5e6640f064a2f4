"""When jobs were created, started and completed, by their rows."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from bench.deployments import Deployment

PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.25

# Created, started, completed, in seconds; 0 for what is to come.
Times = tuple[float, float, float]


def newest_jobs(deployment: Deployment, model: str, count: int) -> list[Times]:
    """Of the newest jobs of a model."""
    rows = deployment.rows(
        "SELECT created_at, started_at, completed_at FROM inclavate_job "
        f"WHERE model = '{model}' ORDER BY created_at DESC LIMIT {count}"
    )
    return [(_instant(created), _instant(started), _instant(ended)) for created, started, ended in rows]


def until_done(
    deployment: Deployment, model: str, count: int, patience_seconds: float = PATIENCE_SECONDS
) -> list[Times]:
    """The same, once all of these jobs have ended. Raises `RuntimeError` where they do not."""
    deadline = time.monotonic() + patience_seconds
    while time.monotonic() < deadline:
        times = newest_jobs(deployment, model, count)
        if all(ended for _, _, ended in times):
            return times
        # Seldom: what is measured shares the machine with this.
        time.sleep(_LOOK_SECONDS)
    raise RuntimeError("the jobs were not done in time")


def _instant(value: Any) -> float:
    """SQLite has times as text."""
    if value is None:
        return 0.0
    return (datetime.fromisoformat(value) if isinstance(value, str) else value).timestamp()

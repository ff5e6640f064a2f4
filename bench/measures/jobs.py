"""Jobs from submit to done, and from submit to start, beside a bare ring and the engine called directly."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import psutil

from bench.deployments import RUN_MODEL, Deployment
from bench.figures import OURS, Comparison, Round, Section, percentile
from bench.measures.requests import raw, run_load, submission
from bench.plans import Plan
from bench.processes import Helper, cpu_seconds
from tests.driving import until

RING = "a bare ring to a task that does nothing"
ENGINE = "the engine called directly"
COLUMNS = {"a second": "a second", "p50 ms": "p50 ms", "p99 ms": "p99 ms", "CPU ms": "CPU ms a job, worker and engine"}
NOTES = (
    "One worker with one slot; the engine (a tone of 30 ms in one step) is warm. Jobs a second are from the first "
    "submit to the last end, by the rows' own times, and take in that the web process is submitting meanwhile.",
    "Submit to start is from the row's `created_at` to its `started_at`, one job at a time on an idle queue; the ring "
    "is from `queue.ring` to the first line of the task.",
)
_SUBMITTERS = 4
_PAUSE_SECONDS = 0.02


class Jobs:
    def __init__(self, deployment: Deployment, load: Helper, rings: Helper, engine: Helper, plan: Plan) -> None:
        self._deployment = deployment
        self._load = load
        self._rings = rings
        self._engine = engine
        self._plan = plan
        self._request = [raw("POST", "/v1/generations", deployment.headers, submission(RUN_MODEL))]
        self._made = 0
        # The first loads the engine.
        self._run(2, 1)

    def measure(self) -> Iterator[str | Section]:
        """What is being done, then the section."""
        whole = Comparison("jobs, end to end")
        starts = Comparison("submit to start, idle queue")
        for number in range(self._plan.rounds):
            yield f"jobs, round {number + 1}"
            rings = self._rings.ask(single=self._plan.starts, burst=self._plan.rings)
            whole.add(OURS, self._throughput())
            whole.add(RING, {"a second": rings["a second"]})
            whole.add(ENGINE, self._engine.ask(params=submission(RUN_MODEL)["params"], count=self._plan.rings))
            starts.add(OURS, self._starts())
            starts.add(RING, _spread([taken / 1e6 for taken in rings["nanoseconds"]]))
        yield Section("Jobs", COLUMNS, NOTES, [whole, starts])

    def _throughput(self) -> Round:
        worker = self._deployment.worker
        cpu = _cpu(worker)
        times = self._run(self._plan.jobs, _SUBMITTERS)
        seconds = max(ended for _, _, ended in times) - min(created for created, _, _ in times)
        return {"a second": len(times) / seconds, "CPU ms": (_cpu(worker) - cpu) * 1000 / len(times)}

    def _starts(self) -> Round:
        waited = []
        for _ in range(self._plan.starts):
            ((created, started, _),) = self._run(1, 1)
            waited.append((started - created) * 1000)
            # The worker rings once more after each job; let that pass.
            time.sleep(_PAUSE_SECONDS)
        return _spread(waited)

    def _run(self, count: int, submitters: int) -> list[tuple[float, float, float]]:
        """Submit so many jobs and wait for their end; when each was created, started and completed, in seconds."""
        run_load(self._load, self._deployment.port, self._request, submitters, count=count)
        self._made += count
        done = f"FROM inclavate_job WHERE model = '{RUN_MODEL}' AND state = 'completed'"
        until(lambda: self._deployment.rows(f"SELECT count(*) {done}")[0][0] == self._made)
        rows = self._deployment.rows(
            f"SELECT created_at, started_at, completed_at {done} ORDER BY created_at DESC LIMIT {count}"
        )
        return [(_instant(created), _instant(started), _instant(ended)) for created, started, ended in rows]


def _spread(milliseconds: list[float]) -> Round:
    return {"p50 ms": percentile(milliseconds, 0.5), "p99 ms": percentile(milliseconds, 0.99)}


def _instant(value: Any) -> float:
    """SQLite has times as text."""
    return (datetime.fromisoformat(value) if isinstance(value, str) else value).timestamp()


def _cpu(worker: psutil.Process) -> float:
    return cpu_seconds(worker, with_children=True)

"""Jobs from submit to done, and from submit to start, beside a bare ring and the engine called directly."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx

from bench.deployments import RUN_MODEL, Deployment
from bench.figures import OURS, Comparison, Round, Section, percentile
from bench.measures.requests import raw, run_load, submission
from bench.plans import Plan
from bench.processes import Helper, cpu_seconds
from bench.rows import newest_jobs, until_done

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
_PAUSE_SECONDS = 0.15


class Jobs:
    def __init__(self, deployment: Deployment, load: Helper, rings: Helper, engine: Helper, plan: Plan) -> None:
        self._deployment = deployment
        self._load = load
        self._rings = rings
        self._engine = engine
        self._plan = plan
        self._request = [raw("POST", "/v1/generations", deployment.headers, submission(RUN_MODEL))]
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{deployment.port}", headers=dict(deployment.headers), timeout=60
        )
        # The first loads the engine.
        self._start_one()

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
        cpu = cpu_seconds(worker, with_children=True)
        run_load(self._load, self._deployment.port, self._request, _SUBMITTERS, count=self._plan.jobs)
        times = until_done(self._deployment, RUN_MODEL, self._plan.jobs)
        seconds = max(ended for _, _, ended in times) - min(created for created, _, _ in times)
        spent = cpu_seconds(worker, with_children=True) - cpu
        return {"a second": len(times) / seconds, "CPU ms": spent * 1000 / len(times)}

    def _starts(self) -> Round:
        waited = []
        for _ in range(self._plan.starts):
            waited.append(self._start_one())
            # The worker rings once more after each job, and is not idle until it has answered that.
            time.sleep(_PAUSE_SECONDS)
        return _spread(waited)

    def _start_one(self) -> float:
        """Submit a job and wait for its end; how long it waited for its start, in milliseconds."""
        job = self._http.post("/v1/generations", json=submission(RUN_MODEL)).raise_for_status().json()["id"]
        ended = self._http.get(f"/v1/generations/{job}?wait=30").raise_for_status().json()
        if ended["state"] != "completed":
            raise RuntimeError(f"a job ended otherwise: {ended}")
        ((created, started, _),) = newest_jobs(self._deployment, RUN_MODEL, 1)
        return (started - created) * 1000


def _spread(milliseconds: list[float]) -> Round:
    return {"p50 ms": percentile(milliseconds, 0.5), "p99 ms": percentile(milliseconds, 0.99)}

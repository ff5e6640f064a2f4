"""Watchers of running jobs, beside a bare subscriber of the same messages and a bare stream of as many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import cycle, islice
from typing import Any

import psutil

from bench.deployments import WATCHED_MODEL, Deployment
from bench.figures import OURS, Comparison, Round, Section, percentile
from bench.measures.requests import raw, run_load, submission
from bench.plans import Plan
from bench.processes import Helper, cpu_seconds, memory_bytes

BUS = "Redis, publish to subscribe"
STREAM = "a bare Starlette stream"
COLUMNS = {
    "p50 ms": "p50 ms",
    "p99 ms": "p99 ms",
    "delivered": "delivered",
    "CPU us": "CPU µs a delivery, web",
    "kB": "kB a watcher, web",
    "server cores": "cores used, web",
    "client cores": "cores used, watchers",
}
JOBS = 10
INTERVAL_SECONDS = 0.5
NOTES = (
    f"All watch the same {JOBS} running jobs, each of which reports every {INTERVAL_SECONDS:g} s. Latency is from the "
    "publish in another process, by the verb that workers use, to the watcher's socket read. The bare subscriber hears "
    "the same messages at the same time; the bare stream serves as many watchers of its own, of messages as long.",
    "Memory is what the web process has above its size before any watcher came; `delivered` is the share of all events "
    "that reached their watchers (a watcher that is behind gets only the newest).",
)

Times = Mapping[str, Mapping[str, Any]]


class Watchers:
    def __init__(
        self, deployment: Deployment, floor: Helper, floor_port: int, helpers: Mapping[str, Helper], plan: Plan
    ) -> None:
        self._deployment = deployment
        self._load = helpers["load"]
        self._publisher = helpers["publisher"]
        self._crowd = helpers["watchers"]
        self._bus = helpers["bus"]
        self._plan = plan
        self._streams = {
            OURS: (deployment.port, deployment.web, "/v1/generations/{}/events", deployment.headers),
            STREAM: (floor_port, floor.usage, "/stream/{}", {}),
        }
        # A first round of few: what is only made once is not counted as a watcher's.
        for who in self._streams:
            self._round(who, JOBS, 1.0, {OURS: 0, STREAM: 0})

    def measure(self) -> Iterator[str | Section]:
        """What is being done, then the section."""
        comparisons = []
        before = {who: memory_bytes(stream[1]) for who, stream in self._streams.items()}
        for count in self._plan.watchers:
            comparison = Comparison(f"{count:,} watchers")
            for number in range(self._plan.rounds):
                yield f"{count:,} watchers, round {number + 1}"
                ours, bus = self._round(OURS, count, self._plan.publish_seconds, before)
                comparison.add(OURS, ours)
                comparison.add(BUS, bus)
                comparison.add(STREAM, self._round(STREAM, count, self._plan.publish_seconds, before)[0])
            comparisons.append(comparison)
        yield Section("Watchers", COLUMNS, NOTES, comparisons)

    def _round(self, who: str, count: int, seconds: float, before: Mapping[str, int]) -> tuple[Round, Round]:
        """The watchers' figures, and those of the bare subscriber beside them."""
        port, web, path, headers = self._streams[who]
        jobs = self._begin_jobs()
        self._bus.ask(do="listen", jobs=jobs)
        watched = list(islice(cycle(jobs), count))
        opened = self._crowd.ask(
            do="open", port=port, streams=[(job, raw("GET", path.format(job), headers)) for job in watched]
        )
        kilobytes = (memory_bytes(web) - before[who]) / 1000 / opened
        figures = self._publish(web, seconds, count)
        heard = _latencies(self._sent, self._bus.ask(do="stop"))
        self._publisher.ask(do="complete")
        ended = self._crowd.ask(do="end")
        if ended != count:
            raise RuntimeError(f"{count - ended} of {count} streams did not end with [DONE]")
        return figures | {"kB": kilobytes}, _spread(heard)

    def _begin_jobs(self) -> list[str]:
        request = raw("POST", "/v1/generations", self._deployment.headers, submission(WATCHED_MODEL))
        run_load(self._load, self._deployment.port, [request], 1, count=JOBS)
        claimed: list[str] = self._publisher.ask(do="claim", queue=f"model.{WATCHED_MODEL}", count=JOBS)
        return claimed

    def _publish(self, web: psutil.Process, seconds: float, count: int) -> Round:
        cpu, client = cpu_seconds(web), cpu_seconds(self._crowd.usage)
        self._sent: Times = self._publisher.ask(do="report", seconds=seconds, interval_seconds=INTERVAL_SECONDS)
        came = self._crowd.ask(do="collect")
        spent = cpu_seconds(web) - cpu
        latencies = _latencies(self._sent, came)
        expected = sum(len(revisions) for revisions in self._sent.values()) * count / JOBS
        return _spread(latencies) | {
            "delivered": len(latencies) / expected,
            "CPU us": spent * 1e6 / len(latencies),
            "server cores": spent / seconds,
            "client cores": (cpu_seconds(self._crowd.usage) - client) / seconds,
        }


def _latencies(sent: Times, came: Times) -> list[float]:
    """Milliseconds from each message's publish to each time that it came."""
    return [
        (at - sent_at) / 1e6
        for job, revisions in sent.items()
        for revision, sent_at in revisions.items()
        for at in came.get(job, {}).get(revision, ())
    ]


def _spread(milliseconds: list[float]) -> Round:
    return {"p50 ms": percentile(milliseconds, 0.5), "p99 ms": percentile(milliseconds, 0.99)}

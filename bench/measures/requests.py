"""Submits and polls over HTTP, beside plain Django views behind the same bridge, and a bare echo."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from bench.deployments import PARKED_MODEL, Deployment
from bench.figures import OURS, Comparison, Round, Section, percentile
from bench.plans import Plan
from bench.processes import Helper, cpu_seconds, machine_busy_seconds

INSERT = "a plain view: one insert, one commit"
READ = "a plain view: one indexed read"
ECHO = "a bare Starlette echo"
COLUMNS = {
    "a second": "a second",
    "p50 ms": "p50 ms",
    "p99 ms": "p99 ms",
    "CPU ms": "CPU ms a request, web",
    "server cores": "cores used, web",
    "client cores": "cores used, load",
    "machine cores": "cores used, all",
}
NOTES = (
    "Each connection has one request in flight. Submitted jobs are of a model that nobody runs meanwhile, so that only "
    'the submit is measured; polls ask for such jobs in turn. CPU is that of the web process alone; "all" '
    "is what every process of the machine used meanwhile, others' work included.",
)
_ROWS_READ = 50


@dataclass(frozen=True)
class Target:
    """What is asked of whom."""

    who: str
    port: int
    web: psutil.Process
    requests: list[str]


def raw(method: str, path: str, headers: Mapping[str, str], body: Any = None) -> str:
    """A request as it goes over the wire."""
    content = "" if body is None else json.dumps(body)
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *(f"{k}: {v}" for k, v in headers.items())]
    if content:
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join(lines) + f"\r\n\r\n{content}"


def submission(model: str) -> dict[str, Any]:
    return {"model": model, "modality": "audio", "params": {"text": "one", "steps": 1}}


def run_load(load: Helper, port: int, requests: list[str], connections: int, **until: float) -> dict[str, Any]:
    """What the load generator counted. Raises `RuntimeError` where a request was refused."""
    done: dict[str, Any] = load.ask(port=port, requests=requests, connections=connections, **until)
    if done["refused"] or not done["nanoseconds"]:
        raise RuntimeError(f"requests were refused: {done['refused']}")
    return done


class Requests:
    def __init__(self, deployment: Deployment, floor: Helper, floor_port: int, load: Helper, plan: Plan) -> None:
        self._load = load
        self._plan = plan
        own, theirs = deployment.port, floor_port
        submit = [raw("POST", "/v1/generations", deployment.headers, submission(PARKED_MODEL))]
        note = raw("POST", "/notes", {}, {"text": "one"})
        self._targets = {
            "submit": Target(OURS, own, deployment.web, submit),
            INSERT: Target(INSERT, theirs, floor.usage, [note]),
            ECHO: Target(ECHO, theirs, floor.usage, [raw("POST", "/echo", {}, submission(PARKED_MODEL))]),
        }
        for target in self._targets.values():
            run_load(load, target.port, target.requests, 8, count=_ROWS_READ)
        parked = f"inclavate_job WHERE model = '{PARKED_MODEL}'"
        polls = [raw("GET", f"/v1/generations/{i}", deployment.headers) for i in _ids(deployment, parked)]
        reads = [raw("GET", f"/notes/{i}", {}) for i in _ids(deployment, "floors_note")]
        self._targets["poll"] = Target(OURS, own, deployment.web, polls)
        self._targets[READ] = Target(READ, theirs, floor.usage, reads)
        for name in ("poll", READ):
            run_load(load, self._targets[name].port, self._targets[name].requests, 8, count=_ROWS_READ)

    def measure(self) -> Iterator[str | Section]:
        """What is being done, then the section."""
        comparisons = []
        for connections in self._plan.connections:
            submits = Comparison(f"submit, {connections} at a time")
            polls = Comparison(f"poll, {connections} at a time")
            for number in range(self._plan.rounds):
                yield f"requests, {connections} at a time, round {number + 1}"
                echo = self._round(self._targets[ECHO], connections)
                for comparison, ours, floor in ((submits, "submit", INSERT), (polls, "poll", READ)):
                    comparison.add(OURS, self._round(self._targets[ours], connections))
                    comparison.add(floor, self._round(self._targets[floor], connections))
                polls.add(ECHO, echo)
            comparisons += [submits, polls]
        yield Section("Requests", COLUMNS, NOTES, comparisons)

    def _round(self, target: Target, connections: int) -> Round:
        cpu, busy = cpu_seconds(target.web), machine_busy_seconds()
        done = run_load(self._load, target.port, target.requests, connections, seconds=self._plan.load_seconds)
        spent, seconds = cpu_seconds(target.web) - cpu, done["seconds"]
        milliseconds = [taken / 1e6 for taken in done["nanoseconds"]]
        return {
            "connections": connections,
            "a second": len(milliseconds) / seconds,
            "p50 ms": percentile(milliseconds, 0.5),
            "p99 ms": percentile(milliseconds, 0.99),
            "CPU ms": spent * 1000 / len(milliseconds),
            "server cores": spent / seconds,
            "client cores": done["cpu_seconds"] / seconds,
            "machine cores": (machine_busy_seconds() - busy) / seconds,
        }


def _ids(deployment: Deployment, rows: str) -> list[str]:
    """SQLite has them without hyphens."""
    found = deployment.rows(f"SELECT id FROM {rows} LIMIT {_ROWS_READ}")
    return [str(uuid.UUID(str(row[0]))) for row in found]

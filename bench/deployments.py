"""What is measured: the whole platform as processes, in local mode on SQLite and in hosted mode on PostgreSQL."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from tests import hosted, platforms
from tests.driving import until

RUN_MODEL = "bench-tone"
PARKED_MODEL = "bench-parked"
WATCHED_MODEL = "bench-watched"
PIPER = "piper-joe"
KOKORO = "kokoro-82m"
SHIPPED_MODELS = str(platforms.ROOT / "config" / "models.toml")

# As shipped, but for limits that would end a measurement.
SETTINGS: dict[str, Any] = {
    "MODELS_FILE": str(Path(__file__).with_name("models.toml")),
    "WORKER_MODELS": RUN_MODEL,
    "MAX_QUEUED_JOBS": "1000000",
    "MAX_QUEUED_JOBS_PER_OWNER": "1000000",
    "MAX_RUNNING_JOBS_PER_OWNER": "0",
    "SWEEP_SECONDS": "5",
    "HEARTBEAT_SECONDS": "5",
    "LEASE_SECONDS": "20",
    "DRAIN_SECONDS": "1",
}

# What speaks is of the shipped catalog, and a whole answer may take many minutes.
_SPEECH = {
    "MODELS_FILE": SHIPPED_MODELS,
    "WORKER_MODELS": f"{PIPER} {KOKORO}",
    "SPEECH_SYNC_TIMEOUT_SECONDS": "3600",
}


@dataclass(frozen=True)
class Deployment:
    """One that runs. `environment` is for processes that are to work on the same database and Valkey."""

    database: str
    folder: Path
    port: int
    headers: Mapping[str, str]
    web: psutil.Process
    worker: psutil.Process
    environment: Mapping[str, str]
    rows: Callable[[str], list[Any]]


@contextmanager
def on_sqlite(folder: Path, **settings: str) -> Iterator[Deployment]:
    """`inclavate up`."""
    with _local(folder, SETTINGS | settings) as deployment:
        _park(deployment.environment, deployment.rows)
        yield deployment


@contextmanager
def speaking(folder: Path, **settings: str) -> Iterator[Deployment]:
    """`inclavate up` with the speech engines that are shipped."""
    with _local(folder, SETTINGS | _SPEECH | settings) as deployment:
        yield deployment


@contextmanager
def another_worker(deployment: Deployment) -> Iterator[psutil.Process]:
    """One more of the deployment's, with the same models."""
    command = [sys.executable, "manage.py", "worker", "--name", "another"]
    worker = hosted.Part("worker", 2, command, deployment.environment, deployment.folder / "another.log")
    worker.start()
    try:
        yield psutil.Process(worker.process.pid)
    finally:
        worker.end()


@contextmanager
def _local(folder: Path, settings: dict[str, Any]) -> Iterator[Deployment]:
    with platforms.running(folder, **settings) as platform:
        environment = platforms.environment(platform.data_dir, **settings)
        web, worker = platform.part("web"), platform.part("worker")
        port = urlsplit(platform.url).port or 0
        yield Deployment("SQLite", folder, port, {}, web, worker, environment, platform.rows)


@contextmanager
def on_postgres(folder: Path) -> Iterator[Deployment]:
    """A web process, a worker and a sweeper on a PostgreSQL that flushes each commit; the store is a folder."""
    objects = (folder / "objects").as_uri()
    with hosted.running(folder, webs=1, workers=1, is_durable=True, STORE_URL=objects, **SETTINGS) as platform:
        key = platform.new_key("bench")
        _park(platform.environment, platform.rows)
        web, worker = (psutil.Process(part.process.pid) for part in (platform.webs[0], platform.workers[0]))
        port, headers = urlsplit(platform.urls[0]).port or 0, {"Authorization": f"Bearer {key}"}
        yield Deployment("PostgreSQL", folder, port, headers, web, worker, platform.environment, platform.rows)


DEPLOYMENTS = {"sqlite": on_sqlite, "postgres": on_postgres}


def _park(environment: Mapping[str, str], rows: Callable[[str], list[Any]]) -> None:
    """Have a worker offer the parked models and go: they are taken for a day, and wait."""
    command = [sys.executable, "manage.py", "worker", "--name", "parked"]
    command += ["--model", PARKED_MODEL, "--model", WATCHED_MODEL]
    worker = subprocess.Popen(command, cwd=platforms.ROOT, env=dict(environment), stderr=subprocess.DEVNULL)
    try:
        until(lambda: len(rows("SELECT model FROM inclavate_offer")) == 3)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(timeout=30)

"""The whole platform as processes, started as users start it, with test engines beside the real ones."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests import servers
from tests.driving import until

ROOT = Path(__file__).parent.parent


@dataclass
class Platform:
    url: str
    data_dir: Path
    up: subprocess.Popen[bytes]
    log: Path

    @property
    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60)

    def part(self, name: str) -> psutil.Process:
        """The running part: web, worker or sweeper."""
        return until(lambda: next((p for p in psutil.Process(self.up.pid).children() if _runs(p, name)), None))

    def submit(self, **fields: Any) -> dict[str, Any]:
        with self.http as http:
            answer = http.post("/v1/generations", json=fields)
            assert answer.status_code == 202, answer.text
            return answer.json()

    def job(self, job_id: str) -> dict[str, Any]:
        with self.http as http:
            return http.get(f"/v1/generations/{job_id}").json()

    def until_state(self, job_id: str, *states: str) -> dict[str, Any]:
        """The job, once it is in one of these states."""

        def look() -> dict[str, Any] | None:
            job = self.job(job_id)
            assert job["state"] in states or job["state"] in ("queued", "running"), job
            return job if job["state"] in states else None

        return until(look)

    def rows(self, query: str, *values: Any) -> list[Any]:
        """What a query of the platform's database gives."""
        with closing(sqlite3.connect(self.data_dir / "inclavate.sqlite3", timeout=30)) as database, database:
            return database.execute(query, values).fetchall()

    def give_to_a_stranger(self, job_id: str, artifact_id: str) -> None:
        """Make a job and its output another owner's."""
        self.rows("INSERT OR IGNORE INTO inclavate_owner (name, webhook_secret) VALUES ('bob', '')")
        for table, key in (("job", job_id), ("artifact", artifact_id)):
            owner = "(SELECT id FROM inclavate_owner WHERE name = 'bob')"
            self.rows(f"UPDATE inclavate_{table} SET owner_id = {owner} WHERE id = ?", key.replace("-", ""))

    def counts(self) -> tuple[int, int, int]:
        """Jobs, artifacts and stored files once nothing runs: what a refused request must leave as it was."""
        until(lambda: self.rows("SELECT sum(queued + running) FROM inclavate_turn") in ([(0,)], [(None,)]))
        with self.http as http:
            jobs = len(http.get("/v1/generations?limit=1000").json()["generations"])
            artifacts = len(http.get("/v1/artifacts?limit=1000").json()["artifacts"])
        files = sum(path.is_file() for path in (self.data_dir / "objects").rglob("*"))
        return jobs, artifacts, files


def _runs(process: psutil.Process, name: str) -> bool:
    """Whether it is that part; one that only waits to be reaped is not."""
    with suppress(psutil.Error):
        return name in process.cmdline()
    return False


# For routes that pass no params of ours on: ten seconds a job.
SLOW_MODEL = """
[models."test-tone-slow"]
engine = "tests.engines:Tone"
steps = 100
step_seconds = 0.1
"""


def environment(data_dir: Path, **settings: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("INCLAVATE_", "DPPAN_"))}
    return kept | {f"INCLAVATE_{k}": v for k, v in settings.items()} | {"INCLAVATE_DATA_DIR": str(data_dir)}


def models_file(folder: Path) -> Path:
    """The shipped catalog and the test engines' in one."""
    path = folder / "models.toml"
    shipped = (ROOT / "config" / "models.toml").read_text("utf-8")
    path.write_text(shipped + (ROOT / "tests" / "models.toml").read_text("utf-8") + SLOW_MODEL, "utf-8")
    return path


@contextmanager
def running(folder: Path, data_dir: Path | None = None, **settings: str) -> Iterator[Platform]:
    """`inclavate up`, ready, until the context ends."""
    folder.mkdir(parents=True, exist_ok=True)
    port = settings.pop("PORT", None) or str(servers.free_port())
    quick = {"SWEEP_SECONDS": "0.5", "HEARTBEAT_SECONDS": "0.5", "LEASE_SECONDS": "5", "LOG_LEVEL": "INFO"}
    env = environment(
        data_dir or folder / "data", **quick | {"PORT": port, "MODELS_FILE": str(models_file(folder))} | settings
    )
    log = folder / "up.log"
    with log.open("ab") as output:
        up = subprocess.Popen(
            [sys.executable, "-m", "inclavate.cli", "up"], cwd=ROOT, env=env, stdout=output, stderr=output
        )
    platform = Platform(f"http://127.0.0.1:{port}", data_dir or folder / "data", up, log)
    try:
        until(lambda: _is_ready(platform))
        yield platform
    finally:
        if up.poll() is None:
            up.send_signal(signal.SIGTERM)
        up.wait(timeout=30)


def _is_ready(platform: Platform) -> bool:
    assert platform.up.poll() is None, platform.log.read_text("utf-8")
    try:
        with platform.http as http:
            generators = http.get("/v1/generations/capabilities").json()["generators"]
    except (httpx.HTTPError, ValueError):
        return False
    return any(generator["ready"] for generator in generators)

"""Hosted mode as plain processes: the set that docker-compose.yml names, without an engine for containers.

PostgreSQL, Valkey, an S3 server behind a fault proxy, and web processes, workers and sweepers, each with a data folder
of its own, as on machines of their own.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import httpx
import psutil
import psycopg

from tests import platforms, servers
from tests.driving import TEST_MODELS, engines_of, until
from tests.faultproxy import FaultProxy

STOP_SECONDS = 30
# Short, so that what waits for them is met within a test.
QUICK = {"LEASE_SECONDS": "4", "HEARTBEAT_SECONDS": "0.5", "SWEEP_SECONDS": "0.5", "DRAIN_SECONDS": "1"}


@dataclass
class Part:
    """A web process, worker or sweeper; what dies is started again by whoever watches over it."""

    role: str
    index: int
    command: list[str]
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        """In the thread that is to outlive it."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                cwd=platforms.ROOT,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
                preexec_fn=servers.die_with_parent(),
            )

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def engines(self) -> list[psutil.Process]:
        """A worker's engine processes, in the order of their start."""
        return engines_of(self.process.pid)

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.is_running:
            self.process.send_signal(how)
            # One that is stopped gets no other signal than SIGKILL.
            self.process.send_signal(signal.SIGCONT)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass
class Hosted:
    folder: Path
    environment: Mapping[str, str]
    postgres: servers.Server
    valkey: servers.Server
    proxy: FaultProxy
    webs: list[Part] = field(default_factory=list)
    workers: list[Part] = field(default_factory=list)
    sweepers: list[Part] = field(default_factory=list)

    @property
    def parts(self) -> list[Part]:
        return [*self.webs, *self.workers, *self.sweepers]

    @property
    def urls(self) -> list[str]:
        """Of the web processes."""
        return [f"http://127.0.0.1:{web.environment['INCLAVATE_PORT']}" for web in self.webs]

    def http(self, key: str, web: int = 0) -> httpx.Client:
        """A client of one web process, with an API key."""
        return httpx.Client(base_url=self.urls[web], headers={"Authorization": f"Bearer {key}"}, timeout=60)

    def manage(self, *words: str) -> str:
        """What a command of ours printed."""
        command = [sys.executable, "manage.py", *words]
        done = subprocess.run(
            command, cwd=platforms.ROOT, env=dict(self.environment), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def new_key(self, owner: str) -> str:
        """An API key of a new account."""
        self.manage("createuser", owner)
        return self.manage("apikey", "create", owner)

    def rows(self, query: str, *values: Any) -> list[Any]:
        """What a query of the platform's database gives."""
        with psycopg.connect(self.postgres.url) as connection:
            found = connection.execute(query, values)
            return found.fetchall() if found.description else []

    def empty_valkey(self) -> None:
        """End it, and start it again with nothing in it."""
        self.valkey.end(signal.SIGKILL)
        for path in (self.folder / "valkey" / "appendonlydir").glob("*"):
            path.unlink()
        self.valkey.start()

    def until_ready(self) -> None:
        until(lambda: all(_is_healthy(url) for url in self.urls))
        ready = "SELECT count(*) FROM inclavate_worker WHERE stopped_at IS NULL AND pid = ANY(%s)"
        pids = [worker.process.pid for worker in self.workers]
        until(lambda: self.rows(ready, pids) == [(len(pids),)])

    def end_parts(self) -> None:
        for part in self.parts:
            part.end()

    def logs(self) -> str:
        """The last lines of each process, for a test that failed."""
        return "\n".join(f"== {log.name}\n{log.read_text('utf-8', 'replace')[-3000:]}" for log in self._logs())

    def _logs(self) -> list[Path]:
        return sorted(self.folder.glob("*.log"))


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def running(
    folder: Path, *, webs: int = 2, workers: int = 2, sweepers: int = 1, is_durable: bool = False, **settings: str
) -> Iterator[Hosted]:
    """The whole set, ready, until the context ends. Begin it in the main thread."""
    for name in ("postgres", "valkey", "s3"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        postgres = stack.enter_context(servers.postgres_server(folder / "postgres", is_durable=is_durable))
        valkey = stack.enter_context(servers.valkey_server(folder / "valkey"))
        store_url, proxy = _behind_proxy(stack, stack.enter_context(servers.s3_rclone(folder / "s3")))
        shared = {
            "DATABASE_URL": postgres.url,
            "REDIS_URL": valkey.url,
            "STORE_URL": store_url,
            "SECRET_KEY": "only for tests",
            "MODELS_FILE": str(TEST_MODELS),
        }
        environment = platforms.environment(folder / "data", **QUICK | shared | settings)
        hosted = Hosted(folder, environment, postgres, valkey, proxy)
        hosted.manage("migrate", "--verbosity", "0")
        for role, count in (("web", webs), ("worker", workers), ("sweeper", sweepers)):
            getattr(hosted, f"{role}s").extend(_part(hosted, role, index) for index in range(count))
        stack.callback(hosted.end_parts)
        for part in hosted.parts:
            part.start()
        hosted.until_ready()
        yield hosted


def _behind_proxy(stack: ExitStack, store_url: str) -> tuple[str, FaultProxy]:
    """The store's URL with the proxy in the place of its server."""
    endpoint = parse_qs(urlsplit(store_url).query)["endpoint"][0]
    host, port = urlsplit(endpoint).hostname, urlsplit(endpoint).port
    assert host
    assert port
    proxy = stack.enter_context(FaultProxy(host, port))
    return store_url.replace(quote(endpoint, safe=""), quote(f"http://127.0.0.1:{proxy.port}", safe="")), proxy


def _part(hosted: Hosted, role: str, index: int) -> Part:
    name = f"{role}-{index}"
    own = {"INCLAVATE_DATA_DIR": str(hosted.folder / name), "INCLAVATE_PORT": str(servers.free_port())}
    command = [sys.executable, "manage.py", role]
    return Part(role, index, command, dict(hosted.environment) | own, hosted.folder / f"{name}.log")

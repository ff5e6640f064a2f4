"""`inclavate up` and its supervisor, as real processes that are really killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests import platforms

READY_SECONDS = 180
# Ten are promised; a machine that others use may take twice as long.
STOP_SECONDS = 20


def wait_for(what: Callable[[], object], seconds: float = READY_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"waited {seconds} s"
        time.sleep(0.02)


class Process:
    """A process whose output is read as it comes, and all that it ever started."""

    def __init__(self, argv: list[str], **variables: str) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("INCLAVATE_")}
        env |= {f"INCLAVATE_{name}": value for name, value in variables.items()}
        self.popen = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.pid = self.popen.pid
        self.lines: list[str] = []
        self.started: set[psutil.Process] = set()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout
        for line in self.popen.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def said(self, text: str, times: int = 1) -> bool:
        assert self.popen.poll() is None or text in self.output, self.output
        return self.output.count(text) >= times

    def descendants(self) -> set[psutil.Process]:
        """Those alive; remembered, since whoever outlives its parent is nobody's child any more."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.started |= set(psutil.Process(self.pid).children(recursive=True))
        return {process for process in self.started if _lives(process)}

    def part(self, word: str) -> psutil.Process:
        return next(p for p in self.descendants() if word in p.cmdline() and p.ppid() == self.pid)

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        code = self.popen.wait(seconds)
        self._reader.join(5)
        return code

    def clear_up(self) -> None:
        left = self.descendants()
        if self.popen.poll() is None:
            self.popen.kill()
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.popen.wait()


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def running(argv: list[str], **variables: str) -> Iterator[Process]:
    process = Process(argv, **variables)
    try:
        yield process
    finally:
        process.clear_up()


# The supervisor, with parts of our own.

SLEEP = "import time; time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); {SLEEP}"
PARENT = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}]).wait()"
SUPERVISE = """
import fcntl, logging, os, sys
from inclavate.supervisor import Part, Supervisor

def part(name, *words, **options):
    return Part(name, [sys.executable, "-c", *words], dict(os.environ), has_died=has_died, **options)

def has_died(instance):
    print("died:", instance, flush=True)

logging.basicConfig(level="INFO")
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
supervisor = Supervisor(pass_fds=[lock.fileno()])
try:
    for each in [PARTS]:
        supervisor.start(each)
    supervisor.run()
finally:
    supervisor.stop()
"""


@contextlib.contextmanager
def supervising(folder: Path, *parts: str) -> Iterator[Process]:
    with running([sys.executable, "-c", SUPERVISE.replace("PARTS", ", ".join(parts)), str(folder / "lock")]) as process:
        wait_for(lambda: process.said(" started, pid", times=len(parts)))
        process.descendants()
        yield process


def test_a_part_that_keeps_dying_starts_again_after_longer_and_longer_pauses(tmp_path: Path) -> None:
    with supervising(tmp_path, 'part("short", "pass")') as supervisor:
        wait_for(lambda: supervisor.said("starts again", times=4))
        pauses = [line.rpartition(" in ")[2] for line in supervisor.lines if "starts again" in line]
        assert pauses[:4] == ["0.5 s", "1.0 s", "2.0 s", "4.0 s"]


def test_a_killed_part_starts_again_under_a_new_name_and_the_old_name_is_told(tmp_path: Path) -> None:
    with supervising(tmp_path, f'part("sleeper", {SLEEP!r}, "{{instance}}")') as supervisor:
        name = f"{socket.gethostname()}-{supervisor.pid}"
        killed_at = time.monotonic()
        supervisor.part(f"{name}-1").kill()
        wait_for(lambda: supervisor.said("sleeper started", times=2))
        assert time.monotonic() - killed_at >= 0.5
        assert supervisor.said(f"died: {name}-1")
        assert supervisor.part(f"{name}-2").is_running()


def test_what_a_part_started_ends_with_it(tmp_path: Path) -> None:
    with supervising(tmp_path, f'part("parent", {PARENT!r})') as supervisor:
        wait_for(lambda: len(supervisor.descendants()) == 2)
        parent = supervisor.part(PARENT)
        (child,) = supervisor.descendants() - {parent}
        parent.kill()
        wait_for(lambda: not _lives(child))


def test_a_part_that_will_not_stop_is_killed_before_the_next_stage_is_told(tmp_path: Path) -> None:
    stubborn, server = f'part("stubborn", {STUBBORN!r}, stop_seconds=0.3)', f'part("server", {SLEEP!r}, stage=1)'
    with supervising(tmp_path, stubborn, server) as supervisor:
        wait_for(lambda: supervisor.said("deaf"))
        supervisor.popen.send_signal(signal.SIGTERM)
        assert supervisor.wait() == 0
        ends = [line.rpartition(" after")[0].rpartition(":")[2] for line in supervisor.lines if "was ended by" in line]
        assert ends == ["stubborn was ended by SIGKILL", "server was ended by SIGTERM"]


def test_a_second_signal_kills_at_once(tmp_path: Path) -> None:
    with supervising(tmp_path, f'part("stubborn", {STUBBORN!r}, stop_seconds=600)') as supervisor:
        wait_for(lambda: supervisor.said("deaf"))
        supervisor.popen.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            supervisor.wait(0.5)
        supervisor.popen.send_signal(signal.SIGINT)
        assert supervisor.wait() == 0
        assert not supervisor.descendants()


def test_parts_end_when_their_supervisor_is_killed_and_hold_its_lock_until_then(tmp_path: Path) -> None:
    sleeper, stubborn = f'part("sleeper", {SLEEP!r}, "sleeper")', f'part("stubborn", {STUBBORN!r}, "stubborn")'
    with supervising(tmp_path, sleeper, stubborn) as supervisor, (tmp_path / "lock").open("a") as lock:
        wait_for(lambda: supervisor.said("deaf"))
        sleeping, deaf = supervisor.part("sleeper"), supervisor.part("stubborn")
        supervisor.popen.kill()
        wait_for(lambda: not _lives(sleeping))
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        deaf.kill()
        wait_for(lambda: not _lives(deaf))
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


# The whole platform.


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@contextlib.contextmanager
def up(data: Path, **variables: str) -> Iterator[Process]:
    with running([sys.executable, "-m", "inclavate.cli", "up"], DATA_DIR=str(data), **variables) as process:
        yield process


def is_answered(port: str) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
    except httpx.TransportError:
        return False


def begin_job(port: str, steps: int) -> str:
    """The address of a job that runs, for a tenth of a second a step."""
    params = {"text": "Some words.", "steps": steps, "step_seconds": 0.1}
    body = {"modality": "audio", "model": "test-tone", "params": params}
    answer = httpx.post(f"http://127.0.0.1:{port}/v1/generations", json=body)
    assert answer.status_code == 202, answer.text
    job = f"http://127.0.0.1:{port}/v1/generations/{answer.json()['id']}"
    wait_for(lambda: httpx.get(job).json()["progress_stage"] == "generating")
    return job


def wait_until_ready(process: Process, port: str) -> None:
    wait_for(lambda: process.said(f"Inclavate is ready: http://127.0.0.1:{port}"))
    process.descendants()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, Path, str]]:
    data, port = tmp_path_factory.mktemp("up") / "data", free_port()
    with up(data, PORT=port, URL="http://elsewhere.test:9") as process:
        wait_until_ready(process, port)
        yield process, data, port


def test_it_announces_where_it_listens_and_not_where_clients_are_sent(whole: tuple[Process, Path, str]) -> None:
    process, _, port = whole
    assert process.said(f"Inclavate is ready: http://127.0.0.1:{port} ")
    assert "elsewhere.test" not in process.output


def test_a_second_start_on_the_same_data_is_refused_and_names_the_first(whole: tuple[Process, Path, str]) -> None:
    first, data, _ = whole
    with up(data, PORT=free_port()) as second:
        assert second.wait(READY_SECONDS) == 3
        assert f"process {first.pid} holds it" in second.output
        assert "Traceback" not in second.output


def test_a_killed_web_process_is_replaced_and_answers_again(whole: tuple[Process, Path, str]) -> None:
    process, _, port = whole
    web = process.part("web")
    web.kill()
    wait_for(lambda: not _lives(web))
    wait_for(lambda: is_answered(port))
    assert process.part("web").pid != web.pid


def test_a_killed_worker_is_replaced_under_another_name(whole: tuple[Process, Path, str]) -> None:
    process, data, _ = whole
    worker = process.part("worker")
    name = worker.cmdline()[-1]
    engines = worker.children(recursive=True)
    worker.kill()
    wait_for(lambda: process.said(f"jobs of worker {name} handed back"))
    wait_for(lambda: not any(map(_lives, engines)))

    def living() -> list[str]:
        with contextlib.closing(sqlite3.connect(f"file:{data}/inclavate.sqlite3?mode=ro", uri=True)) as database:
            rows = database.execute("SELECT name FROM inclavate_worker WHERE stopped_at IS NULL").fetchall()
        return [row[0] for row in rows]

    wait_for(lambda: len(living()) == 1 and living() != [name])


def test_only_its_user_can_read_what_it_keeps(whole: tuple[Process, Path, str]) -> None:
    _, data, _ = whole
    modes = {path.name: path.stat().st_mode & 0o777 for path in (data, data / "run", data / "secret_key")}
    assert modes == {"data": 0o700, "run": 0o700, "secret_key": 0o600}


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_everything_and_hands_the_job_back(tmp_path: Path, signum: signal.Signals) -> None:
    data, port = tmp_path / "a folder" / ("d" * (150 - len(str(tmp_path)) - 10)), free_port()
    with up(data, PORT=port, MODELS_FILE=str(platforms.models_file(tmp_path))) as process:
        wait_until_ready(process, port)
        begin_job(port, steps=600)
        assert len(process.descendants()) >= 5
        process.popen.send_signal(signum)
        assert process.wait(STOP_SECONDS) == 0, process.output
        assert not process.descendants()
        assert "SIGKILL" not in process.output
        assert "Traceback" not in process.output
        assert len(str(data)) == 150
    with contextlib.closing(sqlite3.connect(data / "inclavate.sqlite3")) as database:
        assert database.execute("SELECT state, attempts FROM inclavate_job").fetchall() == [("queued", 0)]


def test_a_killed_up_leaves_nothing_and_can_be_started_again_at_once(tmp_path: Path) -> None:
    port, models = free_port(), str(platforms.models_file(tmp_path))
    with up(tmp_path / "data", PORT=port, MODELS_FILE=models) as first:
        wait_until_ready(first, port)
        job = begin_job(port, steps=30)
        first.descendants()
        first.popen.kill()
        with up(tmp_path / "data", PORT=port, MODELS_FILE=models) as second:
            wait_until_ready(second, port)
            assert not first.descendants()
            wait_for(lambda: httpx.get(job).json()["state"] == "completed")
            second.popen.send_signal(signal.SIGTERM)
            assert second.wait() == 0


# What stops it from starting: a sentence, and no traceback.


def refusal(data: Path, **variables: str) -> str:
    with up(data, **variables) as process:
        assert process.wait(READY_SECONDS) not in (0, None)
        assert "Traceback" not in process.output
        assert not process.descendants()
        return process.output


def test_a_port_that_is_no_number_is_named(tmp_path: Path) -> None:
    assert "INCLAVATE_PORT must be a number" in refusal(tmp_path, PORT="eighty")


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert f"Cannot listen on 127.0.0.1:{port}: Address already in use" in refusal(tmp_path, PORT=port)


def test_a_data_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert f"The data folder {tmp_path}/file/data cannot be used" in refusal(tmp_path / "file" / "data")


def test_a_database_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "inclavate.sqlite3")) as database:
        database.execute("CREATE TABLE django_migrations (id INTEGER PRIMARY KEY, app TEXT, name TEXT, applied TEXT)")
        database.execute("INSERT INTO django_migrations VALUES (1, 'inclavate', '9999_from_the_future', '2040-01-01')")
        database.commit()
        assert "newer Inclavate: it has the migration 9999_from_the_future" in refusal(tmp_path, PORT=free_port())
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        assert tables == [("django_migrations",)]


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "inclavate.sqlite3").write_text("A poem, not a database, and a long one at that. " * 100)
    assert f"The database {tmp_path}/inclavate.sqlite3 cannot be used" in refusal(tmp_path, PORT=free_port())

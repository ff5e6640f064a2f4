"""Engine processes: started, kept while they are of use, and ended. Thread-safe; a `Host` itself is for one thread."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from inclavate.errors import EngineCrashed, InferenceFailed, NoGenerator, OutOfMemory
from inclavate.generators import Input
from workers.catalog import Catalog, Entry
from workers.child import MAX_REPORT_BYTES

END_SECONDS = 2.0
_SEND_SECONDS = 10
_MAX_FILENAME = 255
_ROOT = Path(__file__).resolve().parent.parent
_KEPT_VARIABLES = frozenset({"PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "XDG_CACHE_HOME", "PYTHONPATH"})
_KEPT_PREFIXES = ("LC_", "LD_", "OMP_", "OPENBLAS_", "MKL_", "CUDA_", "NVIDIA_")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineJob:
    """What an engine is asked to do. `workdir` is an empty folder that exists."""

    params: Mapping[str, Any]
    inputs: Sequence[Input]
    seed: int | None
    workdir: Path


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model is in memory."""


@dataclass(frozen=True, slots=True)
class Progress:
    stage: str
    fraction: float | None


@dataclass(frozen=True, slots=True)
class Step:
    """The engine passed a `check()`: it is alive. At most four a second."""


@dataclass(frozen=True, slots=True)
class Note:
    text: str


@dataclass(frozen=True, slots=True)
class Growing:
    """The first output's file, under the job's workdir, while it is written."""

    path: Path
    media_type: str


@dataclass(frozen=True, slots=True)
class Produced:
    """An output file under the job's workdir, complete."""

    path: Path
    media_type: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    filename: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """The job's last event: it is complete."""


@dataclass(frozen=True, slots=True)
class CancelledByRequest:
    """The job's last event: the engine stopped because it was asked to."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The job's last event; `code` and `message` as of an `errors.JobError`."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class DiedIdle:
    """The job's last event: the process had died before it heard of the job, which another one can run."""


Event: TypeAlias = Loaded | Progress | Step | Note | Growing | Produced | Done | CancelledByRequest | Failed | DiedIdle


class Host:
    """One engine process with its model. Get one from `Hosts.session`."""

    def __init__(self, entry: Entry, environment: Mapping[str, str]) -> None:
        self.model = entry.model
        self.idle_since = 0.0
        self._job = 0
        self._workdir = Path()
        self._is_busy = False
        self._is_usable = True
        self._has_heard = True
        self._oom_kills_before = 0
        self._was_killed = False
        self._kill_lock = threading.Lock()
        self._process, self._connection = _start(environment)
        self._send({"do": "load", "engine": entry.engine, "options": dict(entry.options)})

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_reusable(self) -> bool:
        """Whether it is between jobs, alive and in a known state."""
        return self._is_usable and not self._is_busy and not self._has_exited()

    def run(self, job: EngineJob) -> None:
        """Start a job; it runs once the model is loaded. Then `poll` until its last event."""
        if self._is_busy:
            raise RuntimeError("this engine process already runs a job")
        self._job += 1
        self._is_busy = True
        # A new process is not asked twice: what kills it, kills the next one too.
        self._has_heard = self._job == 1
        self._oom_kills_before = _oom_kills()
        self._workdir = job.workdir.resolve()
        self._send(
            {
                "do": "generate",
                "job": self._job,
                "params": dict(job.params),
                "inputs": [[str(given.path), given.media_type] for given in job.inputs],
                "seed": job.seed,
                "workdir": str(job.workdir),
            }
        )

    def poll(self, timeout: float) -> Event | None:
        """The next event, or None after `timeout` seconds without one. A dead process is a `Failed` or `DiedIdle`."""
        try:
            if not self._connection.poll(timeout):
                return None
            frame = self._connection.recv_bytes(MAX_REPORT_BYTES)
        except (EOFError, OSError):
            return self._crashed()
        try:
            return self._event(json.loads(frame))
        except (ValueError, KeyError, TypeError):
            logger.exception("Engine process %s of %s sent what is no report", self.pid, self.model)
            return self._abandon(Failed(EngineCrashed.code, "The engine process sent a report that cannot be read."))

    def cancel(self) -> None:
        """Ask the running job to stop at its next check."""
        self._send({"do": "cancel", "job": self._job})

    def kill(self) -> None:
        """End the process, and what it started, at once. Safe at any time, from any thread, and twice."""
        self._was_killed = True
        self._end_process()

    def _end_process(self) -> None:
        self._is_usable = False
        with self._kill_lock:
            # Until it is reaped its number is nobody else's, so the signal meets its group and no other.
            if self._process.returncode is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def ask_to_end(self) -> None:
        """Ask an idle process to unload and end; `end` waits for it."""
        self._is_usable = False
        self._send({"do": "unload"})

    def end(self, deadline: float) -> None:
        """Wait for the end until `deadline` (monotonic seconds), then kill."""
        self._await_exit(deadline)
        self.kill()
        self._connection.close()

    def _has_exited(self) -> bool:
        """Whether it is dead, without reaping it (see `kill`)."""
        if self._process.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            # Another thread killed and reaped it just now.
            return True

    def _await_exit(self, deadline: float) -> None:
        while not self._has_exited() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _send(self, command: dict[str, Any]) -> None:
        try:
            self._connection.send_bytes(json.dumps(command).encode())
        except OSError:
            # Dead, or not reading any more: the next poll says so.
            self._end_process()

    def _event(self, report: dict[str, Any]) -> Event:
        self._has_heard = True
        match report["say"]:
            case "loaded":
                return Loaded()
            case "progress":
                fraction = report["fraction"]
                return Progress(str(report["stage"]), None if fraction is None else float(fraction))
            case "step":
                return Step()
            case "note":
                return Note(str(report["text"]))
            case "growing":
                return self._growing(report)
            case "output":
                path = self._output_path(report)
                if isinstance(path, Failed):
                    return path
                filename = _plain_name(str(report.get("filename", "")))
                return Produced(path, str(report["media_type"]), dict(report["facts"]), filename)
            case "done":
                return self._finish(Done())
            case "cancelled":
                return self._finish(CancelledByRequest())
            case "failed":
                failed = Failed(str(report["code"]), str(report["message"]))
                return self._finish(failed) if report["is_clean"] is True else self._abandon(failed)
            case other:
                raise ValueError(f"unknown report {other!r}")

    def _growing(self, report: dict[str, Any]) -> Growing | Step | Failed:
        path = self._path_inside(report)
        if path is None:
            return self._misplaced()
        # An engine that gives up removes its file, perhaps before this is read; why is in its next report.
        return Growing(path, str(report["media_type"])) if path.is_file() else Step()

    def _output_path(self, report: dict[str, Any]) -> Path | Failed:
        path = self._path_inside(report)
        return path if path is not None and path.is_file() else self._misplaced()

    def _path_inside(self, report: dict[str, Any]) -> Path | None:
        # The engine may have been talked into anything by its input; what it names is published.
        real = Path(str(report["path"])).resolve()
        return real if real.is_relative_to(self._workdir) else None

    def _misplaced(self) -> Failed:
        return self._abandon(Failed(InferenceFailed.code, "The engine named an output that is not in its work folder."))

    def _finish(self, last: Done | CancelledByRequest | Failed) -> Done | CancelledByRequest | Failed:
        self._is_busy = False
        return last

    def _abandon(self, failed: Failed) -> Failed:
        self._is_busy = False
        self.kill()
        return failed

    def _crashed(self) -> Failed | DiedIdle:
        was_killed = self._was_killed
        self._await_exit(time.monotonic() + END_SECONDS)
        has_exited = self._has_exited()
        self._abandon(Failed(EngineCrashed.code, ""))
        if not self._has_heard and not was_killed:
            return DiedIdle()
        returncode = self._process.returncode if has_exited and not was_killed else None
        logger.warning("Engine process %s of %s: %s", self.pid, self.model, _obituary(returncode))
        if returncode == -signal.SIGKILL and _oom_kills() > self._oom_kills_before:
            return Failed(OutOfMemory.code, "The system killed the engine process for want of memory.")
        return Failed(EngineCrashed.code, _obituary(returncode))


def _plain_name(text: str) -> str:
    """A file's name without a path, a control character or half a surrogate pair in it; empty for none."""
    plain = "".join("_" if unicodedata.category(c)[0] == "C" or c in "/\\" else c for c in text)
    return plain[:_MAX_FILENAME] if plain.strip(". ") else ""


class Hosts:
    """All engine processes of a worker. `environment` is the worker's own; a child gets only what it needs of it."""

    def __init__(self, catalog: Catalog, idle_seconds: float, environment: Mapping[str, str]) -> None:
        self._catalog = catalog
        self._idle_seconds = idle_seconds
        self._environment = child_environment(environment)
        self._lock = threading.Lock()
        self._idle: list[Host] = []
        self._in_use: set[Host] = set()
        self._is_closed = False

    @contextmanager
    def session(self, model: str) -> Iterator[Host]:
        """A process of that model for oneself: an idle one, or a new one that has begun to load.

        Raises `NoGenerator` for a model that is not in the catalog, `EngineCrashed` where no process can be started.
        """
        host = self._take(model)
        try:
            yield host
        finally:
            self._give_back(host)

    def reap_idle(self) -> None:
        """End what was idle for longer than `idle_seconds`, or died. Call every few seconds; takes up to 2 s."""
        before = time.monotonic() - self._idle_seconds
        with self._lock:
            ending = [host for host in self._idle if host.idle_since <= before or not host.is_reusable]
            self._idle = [host for host in self._idle if host not in ending]
        _end_all(ending)

    def close(self) -> None:
        """End every process within 2 s, those in use too; no session begins after."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            in_use = list(self._in_use)
        for host in in_use:
            host.kill()
        _end_all(idle)

    def _take(self, model: str) -> Host:
        if model not in self._catalog.models:
            raise NoGenerator(f"This worker has no model {model!r}.")
        with self._lock:
            if self._is_closed:
                raise InferenceFailed("The worker is ending.")
            host = next((host for host in self._idle if host.model == model and host.is_reusable), None)
            if host is None:
                host = Host(self._catalog.models[model], self._environment)
            else:
                self._idle.remove(host)
            self._in_use.add(host)
        return host

    def _give_back(self, host: Host) -> None:
        with self._lock:
            self._in_use.discard(host)
            if host.is_reusable and not self._is_closed:
                host.idle_since = time.monotonic()
                self._idle.append(host)
                return
        host.end(0.0)


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What an engine needs of its worker's environment: no secret, no address, nothing that downloads."""
    kept = {k: v for k, v in environment.items() if k in _KEPT_VARIABLES or k.startswith(_KEPT_PREFIXES)}
    silent = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "ORT_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
    return kept | silent | {"PYTHONUNBUFFERED": "1"}


def _start(environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], Connection]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        # Celery sets a default timeout while it stops, and a socket with one does not block: its reader would take a
        # pause for the end.
        ours.setblocking(True)
        theirs.setblocking(True)
        # A child that does not read must not block the worker for ever.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_SECONDS, 0))
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "workers.child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=_ROOT,
                env=dict(environment),
                start_new_session=True,
            )
        except OSError as error:
            raise EngineCrashed(f"The engine process could not be started: {error.strerror}.") from error
        return process, Connection(ours.detach())


def _end_all(hosts: Sequence[Host]) -> None:
    deadline = time.monotonic() + END_SECONDS
    for host in hosts:
        host.ask_to_end()
    for host in hosts:
        host.end(deadline)


def _oom_kills() -> int:
    """How often the kernel has killed for want of memory since the machine started; 0 where it does not say."""
    with suppress(OSError), Path("/proc/vmstat").open(encoding="ascii") as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
    return 0


def _obituary(returncode: int | None) -> str:
    if returncode is None:
        return "The engine process was ended by its worker."
    if returncode == -signal.SIGKILL:
        return "The engine process was killed (signal SIGKILL, 9), often for want of memory."
    if returncode < 0:
        return f"The engine process ended with signal {signal.Signals(-returncode).name} ({-returncode})."
    return f"The engine process ended with exit code {returncode}."

"""Running one job on an engine process, and waiting for things with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from inclavate.generators import Cancelled, Input
from workers.hosts import CancelledByRequest, DiedIdle, Done, EngineJob, Event, Failed, Host, Hosts, Produced

TEST_MODELS = Path(__file__).with_name("models.toml")
PATIENCE_SECONDS = 180.0
T = TypeVar("T")


@dataclass
class LocalRun:
    """A run in this process. It stops at the check numbered `stop_at`, or at the report `stop_on`."""

    workdir: Path
    params: Mapping[str, Any] = field(default_factory=dict)
    inputs: Sequence[Input] = ()
    seed: int | None = None
    stop_at: int | None = None
    stop_on: tuple[str, float | None] | None = None
    checks: int = 0
    reported: list[tuple[str, float | None]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def check(self) -> None:
        self.checks += 1
        if self.checks == self.stop_at:
            raise Cancelled

    def progress(self, stage: str, fraction: float | None = None) -> None:
        self.check()
        if (stage, fraction) == self.stop_on:
            raise Cancelled
        self.reported.append((stage, fraction))

    def growing(self, path: Path, media_type: str) -> None:
        assert path.is_file(), "a worker takes a file that is not there for another's"
        self.grown = path, media_type

    def note(self, text: str) -> None:
        self.notes.append(text)


def until(what: Callable[[], T], seconds: float = PATIENCE_SECONDS) -> T:
    """The first true value of `what`, asked again and again until the deadline."""
    deadline = time.monotonic() + seconds
    while not (value := what()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return value


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def engines_of(pid: int) -> list[psutil.Process]:
    """The engine processes that a process started, in that order; not, say, those that look into an artifact."""
    with suppress(psutil.NoSuchProcess):
        return [child for child in psutil.Process(pid).children() if _is_engine(child)]
    return []


def _is_engine(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return "workers.child" in process.cmdline()
    return False


def events(host: Host) -> Iterator[Event]:
    """The running job's events up to its last."""
    while True:
        event = until(lambda: host.poll(0.25))
        yield event
        if isinstance(event, Done | CancelledByRequest | Failed | DiedIdle):
            return


def start(
    host: Host, workdir: Path, params: Mapping[str, Any], inputs: Sequence[Input] = (), seed: int | None = None
) -> None:
    workdir.mkdir(parents=True)
    host.run(EngineJob(params, inputs, seed, workdir))


def run_job(
    hosts: Hosts,
    model: str,
    workdir: Path,
    params: Mapping[str, Any],
    inputs: Sequence[Input] = (),
    seed: int | None = None,
) -> list[Event]:
    """All events of one job in a session of its own."""
    with hosts.session(model) as host:
        start(host, workdir, params, inputs, seed)
        return list(events(host))


def outputs(seen: Sequence[Event]) -> list[Produced]:
    return [event for event in seen if isinstance(event, Produced)]

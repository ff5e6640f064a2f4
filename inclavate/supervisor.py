"""A few processes kept alive by one that waits: started, started again when they die, stopped in stages.

One thread, which sleeps in `sigtimedwait`: the signals that matter are blocked, so none comes between two steps.
Linux only (PR_SET_PDEATHSIG, sigtimedwait).
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

log = logging.getLogger(__name__)

_IS_NOHUP = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, *(() if _IS_NOHUP else (signal.SIGHUP,)))
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 10.0
# A part that lived this long starts again as if it had never died.
SETTLED_SECONDS = 30.0

_SIGNALS = (*STOP_SIGNALS, signal.SIGCHLD)
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Part:
    """One process to keep alive.

    "{instance}" in `argv` becomes a name that is new at each start; `has_died` is told it when that process and its
    children are gone and it did not exit with 0. Parts of a lower `stage` are stopped, and gone, before those of a
    higher one are told to stop; what lives `stop_seconds` after that is killed.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    stage: int = 0
    stop_seconds: float = 8.0
    has_died: Callable[[str], None] | None = None


class Supervisor:
    """Make one, `start` parts, `run`, `stop`. From the first on, signals to stop wait until `run` or `stop` looks.

    Every part inherits `pass_fds`: a lock held by one of them is held as long as any part lives.
    """

    def __init__(self, pass_fds: Sequence[int] = ()) -> None:
        self._pass_fds = tuple(pass_fds)
        self._children: list[_Child] = []
        self._is_hurried = False
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def start(self, part: Part) -> None:
        """Raises `OSError` where the program cannot be run."""
        child = _Child(part, self._pass_fds)
        child.start()
        self._children.append(child)

    def is_running(self, name: str) -> bool:
        return any(child.part.name == name and not child.has_ended() for child in self._children)

    def instance(self, name: str) -> str:
        """The name that the part's present process was given."""
        return next(child.instance for child in self._children if child.part.name == name)

    def run(self, watch: Callable[[], float | None] | None = None) -> None:
        """Keep the parts alive until a signal to stop.

        `watch` is called at once, and again each time the seconds that it returned have passed, until it returns None.
        """
        watch_at = 0.0 if watch else math.inf
        while self._next_signal(min(watch_at, *(child.due_at for child in self._children))) not in STOP_SIGNALS:
            for child in self._children:
                child.tend()
            if watch and time.monotonic() >= watch_at:
                pause = watch()
                watch_at = math.inf if pause is None else time.monotonic() + pause

    def stop(self) -> None:
        """Stop every part. A signal to stop that comes meanwhile kills them all at once."""
        for stage in sorted({child.part.stage for child in self._children}):
            children = [child for child in self._children if child.part.stage == stage]
            for child in children:
                child.terminate()
            if not self._await_end(children, max(child.part.stop_seconds for child in children)):
                self._kill(children)

    def _kill(self, children: list[_Child]) -> None:
        for child in children:
            child.kill()
        if not self._await_end(children, 1.0):
            log.error("gave up waiting for %s", ", ".join(c.part.name for c in children if not c.has_ended()))

    def _await_end(self, children: list[_Child], seconds: float) -> bool:
        """Whether all of them ended in time, and nobody was in a hurry."""
        deadline = time.monotonic() + (0.0 if self._is_hurried else seconds)
        while [child for child in children if not child.has_ended()]:
            if time.monotonic() >= deadline:
                return False
            if self._next_signal(deadline) in STOP_SIGNALS:
                self._is_hurried = True
                return False
        return True

    def _next_signal(self, until: float) -> int | None:
        """Sleep until a signal comes (its number), or until that time of the monotonic clock (None)."""
        seconds = min(max(0.0, until - time.monotonic()), 3600.0)
        signalled = signal.sigtimedwait(_SIGNALS, seconds)
        return signalled.si_signo if signalled else None


class _Child:
    """A part's present process, and when the next one is due."""

    def __init__(self, part: Part, pass_fds: tuple[int, ...]) -> None:
        self.part = part
        self.instance = ""
        self.due_at = math.inf
        self._pass_fds = pass_fds
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._started_at = 0.0
        self._delay = FIRST_DELAY_SECONDS
        self._is_stopping = False

    def start(self) -> None:
        self._starts += 1
        self._started_at = time.monotonic()
        self.due_at = math.inf
        self.instance = f"{socket.gethostname()}-{os.getpid()}-{self._starts}"
        parent = os.getpid()
        self._process = subprocess.Popen(
            [word.replace("{instance}", self.instance) for word in self.part.argv],
            env=self.part.env,
            stdin=subprocess.DEVNULL,
            stdout=2,
            pass_fds=self._pass_fds,
            # A session of its own, so that Ctrl-C on the terminal reaches the supervisor alone.
            start_new_session=True,
            preexec_fn=lambda: _follow(parent),
        )
        log.info("%s started, pid %d", self.part.name, self._process.pid)

    def tend(self) -> None:
        """Notice an end, and start again once that is due."""
        if self.due_at == math.inf:
            if self.has_ended():
                self._schedule()
        elif time.monotonic() >= self.due_at:
            try:
                self.start()
            except OSError as error:
                log.error("%s cannot be started: %s", self.part.name, error)
                self._schedule()

    def has_ended(self) -> bool:
        """Whether no process of this part runs. The first to learn of an end clears up after it."""
        process = self._process
        if process is None:
            return True
        # Not reaped yet: until then its pid, which is its group's id too, is nobody else's.
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        _signal_group(process.pid, signal.SIGKILL)
        status = process.wait()
        self._process = None
        log.log(
            logging.WARNING if status and not self._is_stopping else logging.INFO,
            "%s %s after %.1f s",
            self.part.name,
            f"was ended by {signal.Signals(-status).name}" if status < 0 else f"exited with {status}",
            time.monotonic() - self._started_at,
        )
        if status and self.part.has_died:
            self.part.has_died(self.instance)
        return True

    def terminate(self) -> None:
        self._is_stopping = True
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """This process and, as none of them left its group, all that it started."""
        if self._process is not None:
            _signal_group(self._process.pid, signal.SIGKILL)

    def _schedule(self) -> None:
        now = time.monotonic()
        if now - self._started_at >= SETTLED_SECONDS:
            self._delay = FIRST_DELAY_SECONDS
        self.due_at = now + self._delay
        log.info("%s starts again in %.1f s", self.part.name, self._delay)
        self._delay = min(2 * self._delay, LONGEST_DELAY_SECONDS)


def _signal_group(group: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signum)


def _follow(parent: int) -> None:
    """In the new process: end when the parent does, however it ends; and hear the signals that the parent blocks."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())

"""The engine process: `python -m workers.child FD`. It loads one engine, runs its jobs one by one, and reports.

It talks over the socket FD in frames of JSON, never pickle: it reads what strangers uploaded, and must not be able to
make its parent run code. Commands are {"do": load | generate | cancel | unload, …}, reports {"say": progress | loaded |
step | note | growing | output | done | cancelled | failed, …}. It ends when the socket does.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import math
import os
import queue
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from inclavate.errors import InferenceFailed, JobError, OutOfMemory
from inclavate.generators import Cancelled, Generator, Input, Output
from workers.catalog import load_engine

STEP_SECONDS = 0.25
PROGRESS_SECONDS = 0.1
MAX_COMMAND_BYTES = 256 * 2**20
MAX_REPORT_BYTES = 2**20
_MAX_TEXT = 2000
_PATH = re.compile(r"""(['"])/[^'"]*\1|(?<![\w.])/[^\s'":,;)]+""")

logger = logging.getLogger(__name__)


class Reporter:
    """What the child says, whole frames from any thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def say(self, what: str, **values: Any) -> None:
        # NaN is no JSON, and PostgreSQL would refuse it where the facts are stored.
        frame = json.dumps({"say": what, **values}, allow_nan=False, default=_plain).encode()
        if len(frame) > MAX_REPORT_BYTES:
            raise InferenceFailed(f"The engine reported more than {MAX_REPORT_BYTES} bytes at once.")
        with self._lock:
            self._connection.send_bytes(frame)


def _plain(value: Any) -> Any:
    """A numpy number as a Python one: engines' facts are full of them."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON")


@dataclass
class Cancellation:
    """The last job that is to stop; jobs are numbered, so that a late request cannot hit the next one."""

    job: int = 0


class EngineRun:
    """`generators.Run` for one job."""

    def __init__(self, command: Mapping[str, Any], reporter: Reporter, cancellation: Cancellation) -> None:
        self.params: Mapping[str, Any] = command["params"]
        self.inputs: Sequence[Input] = [Input(Path(path), kind) for path, kind in command["inputs"]]
        self.seed: int | None = command["seed"]
        self.workdir = Path(command["workdir"])
        self._job: int = command["job"]
        self._reporter = reporter
        self._cancellation = cancellation
        self._stage = ""
        self._fraction = 0.0
        self._reported_at = self._stepped_at = -math.inf

    def check(self) -> None:
        if self._cancellation.job >= self._job:
            raise Cancelled
        now = time.monotonic()
        if now - self._stepped_at >= STEP_SECONDS:
            self._stepped_at = now
            self._reporter.say("step")

    def progress(self, stage: str, fraction: float | None = None) -> None:
        self.check()
        now = time.monotonic()
        is_new = stage != self._stage
        if is_new:
            self._stage, self._fraction = stage, 0.0
        elif fraction != 1.0 and now - self._reported_at < PROGRESS_SECONDS:
            return
        self._reported_at = now
        self._reporter.say("progress", stage=stage[:100], fraction=self._grown(fraction))

    def _grown(self, fraction: float | None) -> float | None:
        """Within 0..1, and never back within a stage, whatever the engine computes."""
        if fraction is None or not math.isfinite(fraction):
            return None
        self._fraction = max(self._fraction, min(1.0, float(fraction)))
        return self._fraction

    def growing(self, path: Path, media_type: str) -> None:
        self._reporter.say("growing", path=str(path), media_type=media_type)

    def note(self, text: str) -> None:
        self._reporter.say("note", text=text[:_MAX_TEXT])


class Child:
    """The main thread's side: commands in order, until `unload` or a failed load."""

    def __init__(self, connection: Connection) -> None:
        self._commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._cancellation = Cancellation()
        self._reporter = Reporter(connection)
        self._engine: Generator | None = None
        threading.Thread(target=self._listen, args=(connection,), daemon=True).start()

    def serve(self) -> None:
        while (command := self._commands.get())["do"] != "unload":
            if command["do"] == "load":
                if not self._attempt(self._load, command):
                    return
            else:
                self._attempt(self._generate, command)
        if self._engine is not None:
            self._engine.unload()

    def _listen(self, connection: Connection) -> None:
        while True:
            try:
                command = json.loads(connection.recv_bytes(MAX_COMMAND_BYTES))
            except (EOFError, OSError):
                _end_with_parent()
            if command["do"] == "cancel":
                self._cancellation.job = max(self._cancellation.job, command["job"])
            else:
                self._commands.put(command)

    def _attempt(self, do: Callable[[dict[str, Any]], None], command: dict[str, Any]) -> bool:
        """Whether it worked; where not, the failure has been reported."""
        try:
            do(command)
        except Cancelled:
            self._reporter.say("cancelled")
        except JobError as error:
            self._fail(error, is_clean=self._engine is not None)
        except MemoryError:
            logger.exception("The engine ran out of memory")
            self._fail(OutOfMemory("There was not enough memory for this job."), is_clean=False)
        except Exception as error:
            logger.exception("The engine failed")
            self._fail(InferenceFailed(describe_error(error)), is_clean=False)
        else:
            return True
        return False

    def _fail(self, error: JobError, *, is_clean: bool) -> None:
        self._reporter.say("failed", code=error.code, message=error.message[:_MAX_TEXT], is_clean=is_clean)

    def _load(self, command: dict[str, Any]) -> None:
        self._reporter.say("progress", stage="loading", fraction=0.0)
        engine = load_engine(command["engine"])()
        engine.load(command["options"])
        self._engine = engine
        self._reporter.say("loaded")

    def _generate(self, command: dict[str, Any]) -> None:
        assert self._engine is not None
        run = EngineRun(command, self._reporter, self._cancellation)
        run.check()
        for output in self._engine.generate(run):
            self._report_output(output)
        self._reporter.say("done")

    def _report_output(self, output: Output) -> None:
        facts = dict(output.facts)
        names = {"path": str(output.path), "media_type": output.media_type, "filename": output.filename}
        self._reporter.say("output", **names, facts=facts)


def describe_error(error: Exception) -> str:
    """An unforeseen error as a sentence without paths: its type and the first line of what it says."""
    first = str(error).strip().partition("\n")[0]
    said = _PATH.sub("(a path)", first)[:500]
    return (
        f"The engine failed: {type(error).__name__}: {said}" if said else f"The engine failed: {type(error).__name__}."
    )


def _end_with_parent() -> NoReturn:
    """End at once, with every process that the engine started; nobody is left to report to."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main() -> None:
    # Libraries print; standard output may be somebody's pipe.
    os.dup2(2, 1)
    faulthandler.enable()
    # Where memory runs out, an engine is what can be lost: it takes one job with it.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    Child(Connection(int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()

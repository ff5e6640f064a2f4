"""Helper processes, and what a process has used so far."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Self, cast

import psutil

from tests import servers
from tests.platforms import ROOT

ANSWER_SECONDS = 600.0
_LOOK_SECONDS = 0.02


class Helper:
    """`python -m MODULE`, which answers commands as `bench.lines` has it; it ends with its `with`."""

    def __init__(self, module: str, folder: Path, environment: Mapping[str, str], *words: str) -> None:
        self._log = folder / f"{module}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *words],
                cwd=ROOT,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                process_group=0,
                preexec_fn=servers.die_with_parent(),
            )
        self.usage = psutil.Process(self._process.pid)

    def ask(self, **command: Any) -> Any:
        """Its answer. Raises `RuntimeError` where none comes."""
        stdin = cast(IO[bytes], self._process.stdin)
        stdin.write(json.dumps(command).encode() + b"\n")
        stdin.flush()
        return self._read()

    def _read(self) -> Any:
        stdout = cast(IO[bytes], self._process.stdout)
        is_there, _, _ = select.select([stdout], [], [], ANSWER_SECONDS)
        line = stdout.readline() if is_there else b""
        if not line:
            raise RuntimeError(f"{self._log.stem} did not answer:\n{self._log.read_text('utf-8', 'replace')[-2000:]}")
        return json.loads(line)

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self._end)
            self._read()
            undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def _end(self) -> None:
        cast(IO[bytes], self._process.stdin).close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def cpu_seconds(process: psutil.Process, with_children: bool = False) -> float:
    """Of all its threads, in user and system mode; of its living descendants too where asked."""
    family = [process, *(process.children(recursive=True) if with_children else ())]
    return sum(sum(member.cpu_times()[:2]) for member in family)


def machine_busy_seconds() -> float:
    """What all processes of this machine have used."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def memory_bytes(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


class PeakMemory:
    """The most memory that a process has while this is entered, as far as a look each 20 ms shows."""

    def __init__(self, process: psutil.Process) -> None:
        self.bytes = 0
        self._process = process
        self._is_over = threading.Event()
        self._looking = threading.Thread(target=self._look)

    def _look(self) -> None:
        while True:
            self.bytes = max(self.bytes, memory_bytes(self._process))
            if self._is_over.wait(_LOOK_SECONDS):
                return

    def __enter__(self) -> Self:
        self._looking.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._looking.join()

"""What the processes hold after many speech jobs, and once an engine was idle for long enough."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import psutil

from bench import prose
from bench.deployments import PIPER
from bench.figures import OURS, Comparison, Round, Section
from bench.plans import Plan
from bench.processes import Helper, memory_bytes
from bench.rows import newest_jobs
from bench.speaking import Speaker
from tests.driving import engines_of, until

IDLE_SECONDS = 5.0
LOADED = "while it waited, and the setting"
_HELD = {"worker MiB": "MiB, worker", "engine MiB": "MiB, engine process"}
COLUMNS = _HELD | {"web MiB": "MiB, web"}
NOTES = (
    f"Resident sizes once nothing runs, after jobs of one sentence each with {PIPER}, all by the same engine process, "
    "in a deployment that had run none before.",
)
COLUMNS_IDLE = {"s": "seconds to its end"} | _HELD
NOTES_IDLE = (
    "From the end of the last job until the engine process is gone, with "
    f"`INCLAVATE_MODEL_IDLE_SECONDS={IDLE_SECONDS:g}`. A worker looks for idle engines at its heartbeat, each 5 s.",
)


class SpeechMemory:
    """In a deployment whose engines wait for `IDLE_SECONDS`, and that ran no job yet."""

    def __init__(self, speaker: Speaker, load: Helper, plan: Plan) -> None:
        self._speaker = speaker
        self._worker = speaker.deployment.worker
        self._load = load
        self._plan = plan

    def measure(self) -> Iterator[str | Section]:
        """What is being done, then the sections."""
        held: dict[int, Round] = {}
        for before, after in pairwise((0, *self._plan.memory_jobs)):
            yield f"speech, memory, jobs {before + 1} to {after}"
            self._speaker.batch(self._load, PIPER, prose.sentences(after - before))
            held[after] = self._held() | {"web MiB": _mebibytes(self._speaker.deployment.web)}
        last = max(held)
        comparison = Comparison(f"after {last} jobs")
        comparison.add(OURS, held.pop(last))
        for count, figures in held.items():
            comparison.add(f"after {count} jobs", figures)
        yield Section("Speech, memory", COLUMNS, NOTES, [comparison])
        yield from self._idle()

    def _idle(self) -> Iterator[str | Section]:
        comparison = Comparison("an idle engine")
        for number in range(self._plan.idle_rounds):
            yield f"speech, an idle engine, round {number + 1}"
            self._speaker.speak(PIPER, prose.SENTENCES[0])
            loaded = self._held() | {"s": IDLE_SECONDS}
            comparison.add(OURS, self._until_gone())
            comparison.add(LOADED, loaded)
        yield Section("Speech, an idle engine", COLUMNS_IDLE, NOTES_IDLE, [comparison])

    def _until_gone(self) -> Round:
        until(lambda: not engines_of(self._worker.pid))
        now = time.time()
        ((_, _, ended),) = newest_jobs(self._speaker.deployment, PIPER, 1)
        return self._held() | {"s": now - ended}

    def _held(self) -> Round:
        engines = engines_of(self._worker.pid)
        return {"worker MiB": _mebibytes(self._worker), "engine MiB": sum(map(_mebibytes, engines))}


def _mebibytes(process: psutil.Process) -> float:
    return memory_bytes(process) / 2**20

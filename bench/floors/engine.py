"""The engine called directly, job after job in one process: what is left of a job without the platform."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.lines import Command, answer
from inclavate.generators import Input
from tests.engines import Tone


@dataclass(frozen=True)
class DirectRun:
    params: Mapping[str, Any]
    workdir: Path
    inputs: Sequence[Input] = ()
    seed: int | None = None

    def progress(self, stage: str, fraction: float | None = None) -> None:
        pass

    def check(self) -> None:
        pass

    def growing(self, path: Path, media_type: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass


def handle(command: Command) -> dict[str, float]:
    engine = Tone()
    engine.load({})
    with tempfile.TemporaryDirectory() as folder:
        list(engine.generate(DirectRun(command["params"], Path(folder))))
        began = time.perf_counter()
        for _ in range(command["count"]):
            list(engine.generate(DirectRun(command["params"], Path(folder))))
    return {"a second": command["count"] / (time.perf_counter() - began)}


if __name__ == "__main__":
    answer(handle)

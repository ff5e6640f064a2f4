"""An engine in thirty lines: one beep a word. See "How to add an engine" in docs/ARCHITECTURE.md."""

import math
import struct
import wave
from collections.abc import Iterator, Mapping
from typing import Any

from inclavate.errors import UnsupportedInput
from inclavate.generators import SPEECH, Capability, Output, Run

RATE = 16_000


class Beeper:
    @classmethod
    def describe(cls, model: str, options: Mapping[str, Any]) -> Capability:
        return Capability(model=model, modality="audio", task=SPEECH, formats=("wav",), sample_rate=RATE)

    def load(self, options: Mapping[str, Any]) -> None:
        wave_at = (0.3 * math.sin(2 * math.pi * options["hertz"] * n / RATE) for n in range(RATE // 5))
        self._beep = b"".join(struct.pack("<h", round(32767 * sample)) for sample in wave_at)

    def generate(self, run: Run) -> Iterator[Output]:
        words = run.params["text"].split()
        if len(words) > 1000:
            raise UnsupportedInput(f"params.text may have at most 1,000 words here; {len(words):,} came.")
        with wave.open(str(run.workdir / "beeps.wav"), "wb") as sound:
            sound.setparams((1, 2, RATE, 0, "NONE", ""))
            for place in range(len(words)):
                run.progress("generating", place / len(words))  # raises Cancelled when the job is to stop
                sound.writeframes(self._beep + bytes(len(self._beep)))
        yield Output(run.workdir / "beeps.wav", "audio/wav", {"duration_seconds": 0.4 * len(words)})

    def unload(self) -> None:
        del self._beep

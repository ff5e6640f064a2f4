"""The speech engines' own libraries, called directly in a process of their own on the pieces that our splitter cuts."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from bench.deployments import KOKORO, PIPER, SHIPPED_MODELS
from bench.lines import Command, answer
from workers.catalog import load_catalog
from workers.text import Piece, sentences, split


class Engine(Protocol):
    sample_rate: int

    def cut(self, text: str) -> Iterator[Piece]:
        """The pieces that it is given when we use it."""

    def frames(self, words: str) -> int:
        """Speak them; how many samples that made."""


class Piper:
    def __init__(self, options: Mapping[str, Any]) -> None:
        from piper import PiperVoice

        self._voice = PiperVoice.load(options["voice"])
        self.sample_rate: int = self._voice.config.sample_rate

    def cut(self, text: str) -> Iterator[Piece]:
        return sentences(text)

    def frames(self, words: str) -> int:
        return sum(len(chunk.audio_float_array) for chunk in self._voice.synthesize(words))


class Kokoro:
    def __init__(self, options: Mapping[str, Any]) -> None:
        import kokoro_onnx
        from kokoro_onnx.config import SAMPLE_RATE

        self.sample_rate: int = SAMPLE_RATE
        with tempfile.NamedTemporaryFile(suffix=".onnx") as whole:
            for part in options["model"]:
                whole.write(Path(part).read_bytes())
            whole.flush()
            self._model = kokoro_onnx.Kokoro(whole.name, options["voices"], vocab_config=options["vocabulary"])
        self._style = self._model.get_voice_style(min(self._model.voices))

    def cut(self, text: str) -> Iterator[Piece]:
        return split(text)

    def frames(self, words: str) -> int:
        return len(self._model.create(words, self._style)[0])


ENGINES: dict[str, Callable[[Mapping[str, Any]], Engine]] = {PIPER: Piper, KOKORO: Kokoro}


@cache
def _engine(model: str) -> Engine:
    return ENGINES[model](load_catalog(Path(SHIPPED_MODELS)).models[model].options)


def handle(command: Command) -> dict[str, float]:
    """Speak `text`, or its first `pieces`."""
    engine = _engine(command["model"])
    began, cpu = time.perf_counter(), time.process_time()
    pieces = islice(engine.cut(command["text"]), command.get("pieces"))
    frames = sum(engine.frames(" ".join(piece.text.split())) for piece in pieces)
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
        "sound_seconds": frames / engine.sample_rate,
    }


if __name__ == "__main__":
    answer(handle)

"""The engines alone, as their own makers call them: the bare text, no platform, nothing of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import soundfile

from workers.catalog import load_catalog
from workers.engines.kokoro import Kokoro


def voice(models_file: Path, model: str, folder: Path) -> Callable[[str, Path], None]:
    """What speaks a text into a WAV file; `folder` is for files that it needs."""
    options = load_catalog(models_file).models[model].options
    return _kokoro(options, folder) if "vocabulary" in options else _piper(options)


def _piper(options: Mapping[str, Any]) -> Callable[[str, Path], None]:
    import wave

    from piper import PiperVoice

    loaded = PiperVoice.load(options["voice"])

    def speak(text: str, path: Path) -> None:
        with wave.open(str(path), "wb") as file:
            loaded.synthesize_wav(text, file)

    return speak


def _kokoro(options: Mapping[str, Any], folder: Path) -> Callable[[str, Path], None]:
    from kokoro_onnx import Kokoro as Model

    whole = folder / "kokoro.onnx"
    whole.write_bytes(b"".join(Path(part).read_bytes() for part in options["model"]))
    loaded = Model(str(whole), options["voices"], vocab_config=options["vocabulary"])
    name = Kokoro.describe("kokoro", options).builtin_voices[0]

    def speak(text: str, path: Path) -> None:
        samples, rate = loaded.create(text, name, lang="en-us")
        soundfile.write(path, samples, rate, subtype="PCM_16")

    return speak

"""Piper: text to speech on the CPU. Options: `voice` (an .onnx file with its .json beside it), `voice_name`, `gain`.

Piper itself is GPL-3.0-or-later; it is imported here and nowhere else, once a job needs it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inclavate.errors import InferenceFailed, UnsupportedInput
from inclavate.generators import SPEECH, Capability, Output, Run
from workers.sound import WavWriter
from workers.text import split

if TYPE_CHECKING:
    import numpy as np

SPEED_RANGE = (0.5, 2.0)
MAX_CHARACTERS = 1_000_000
# One sentence of 1,700 phonemes took 11 s without a check, and 1.2 GB: memory grows with the square.
MAX_PHONEMES = 400
# Voices peak at 0.35 to 0.7. One gain for all keeps the levels that the speaker chose; Piper's own normalising makes
# each sentence as loud as the last.
GAIN = 1.35
CEILING = 0.98
FADE_SECONDS = 0.01


class Piper:
    """One voice file. Speech has no seed: its noise is drawn inside the model."""

    @classmethod
    def describe(cls, model: str, options: Mapping[str, Any]) -> Capability:
        config = _read_config(options)
        return Capability(
            model=model,
            modality="audio",
            task=SPEECH,
            builtin_voices=tuple(_speakers(config, options)),
            speed_range=SPEED_RANGE,
            limits={"max_characters": MAX_CHARACTERS},
            formats=("wav",),
            sample_rate=config["audio"]["sample_rate"],
        )

    def load(self, options: Mapping[str, Any]) -> None:
        from piper import PiperVoice

        config = _read_config(options)
        self._speakers = _speakers(config, options)
        self._sample_rate: int = config["audio"]["sample_rate"]
        self._gain = float(options.get("gain", GAIN))
        self._voice = PiperVoice.load(options["voice"])

    def generate(self, run: Run) -> Iterator[Output]:
        text = _text(run.params)
        settings = self._settings(run.params)
        limit = _frame_limit(run.params, self._sample_rate)
        with WavWriter(run.workdir / "speech.wav", self._sample_rate) as wav:
            for samples in self._speak(run, text, settings):
                if wav.frames + len(samples) > limit:
                    wav.write(_faded(samples[: limit - wav.frames], self._sample_rate))
                    run.note(f"The speech was cut at max_duration_seconds, {wav.duration_seconds:g} s.")
                    break
                wav.write(samples)
            if wav.frames == 0:
                raise UnsupportedInput("params.text has nothing in it that can be spoken.")
            run.progress("generating", 1.0)
        facts = {"duration_seconds": wav.duration_seconds, "sample_rate": self._sample_rate, "channels": 1}
        yield Output(wav.path, "audio/wav", facts)

    def unload(self) -> None:
        del self._voice

    def _speak(self, run: Run, text: str, settings: Any) -> Iterator[np.ndarray]:
        """The samples of a few words after the other; checks, and reports progress by characters, in between."""
        import numpy as np

        done = 0
        for piece in (piece.text for piece in split(text)):
            parts = list(self._phonemes(piece))
            for place, phonemes in enumerate(parts):
                run.progress("generating", (done + len(piece) * place / len(parts)) / len(text))
                ids = self._voice.phonemes_to_ids(phonemes)
                samples = self._voice.phoneme_ids_to_audio(ids, settings)
                yield np.clip(np.atleast_1d(samples) * self._gain, -CEILING, CEILING)
            run.check()
            done += len(piece)

    def _phonemes(self, piece: str) -> Iterator[list[str]]:
        if not piece.strip():
            return
        for sentence in self._voice.phonemize(_speakable(piece)):
            yield from _split_phonemes(sentence)

    def _settings(self, params: Mapping[str, Any]) -> Any:
        from piper import SynthesisConfig

        voice = params.get("voice") or next(iter(self._speakers))
        if voice not in self._speakers:
            raise UnsupportedInput(
                f"params.voice must be one of {', '.join(self._speakers)}, not {voice!r}.", param="voice"
            )
        speed = params.get("speed", 1.0)
        low, high = SPEED_RANGE
        if not (_is_number(speed) and low <= speed <= high):
            raise UnsupportedInput(f"params.speed must be a number from {low} to {high}, not {speed!r}.", param="speed")
        wanted = params.get("response_format") or "wav"
        if wanted != "wav":
            raise UnsupportedInput(f"params.response_format must be wav, not {wanted!r}.", param="response_format")
        pace = self._voice.config.length_scale
        return SynthesisConfig(speaker_id=self._speakers[voice], length_scale=pace / speed)


def _read_config(options: Mapping[str, Any]) -> dict[str, Any]:
    path = Path(f"{options['voice']}.json")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InferenceFailed(f"The voice's configuration {path.name} cannot be read.") from error


def _speakers(config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, int | None]:
    """Name -> the speaker's number in the model; None where there is but one."""
    if config.get("num_speakers", 1) > 1 and config.get("speaker_id_map"):
        return dict(config["speaker_id_map"])
    return {options.get("voice_name") or config.get("dataset") or "default": None}


def _text(params: Mapping[str, Any]) -> str:
    text = params.get("text")
    if not isinstance(text, str):
        raise UnsupportedInput("params.text must be a string.", param="text")
    if len(text) > MAX_CHARACTERS:
        raise UnsupportedInput(f"params.text has {len(text)} characters; at most {MAX_CHARACTERS}.", param="text")
    return text


def _frame_limit(params: Mapping[str, Any], sample_rate: int) -> int:
    seconds = params.get("max_duration_seconds")
    if seconds is None:
        return 2**62
    if not (_is_number(seconds) and 0 < seconds < 1e9):
        raise UnsupportedInput(
            f"params.max_duration_seconds must be a number above 0, not {seconds!r}.", param="max_duration_seconds"
        )
    return max(1, round(seconds * sample_rate))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _speakable(piece: str) -> str:
    """What may be handed to the phonemizer: it refuses NUL and lone surrogates, and reads "[[" as phonemes to come."""
    return piece.replace("\0", " ").encode("utf-8", "ignore").decode().replace("[[", "[ [")


def _split_phonemes(phonemes: list[str]) -> Iterator[list[str]]:
    """Parts of at most MAX_PHONEMES, cut between words where there are any."""
    while len(phonemes) > MAX_PHONEMES:
        spaces = [place for place, phoneme in enumerate(phonemes[:MAX_PHONEMES]) if phoneme == " "]
        cut = spaces[-1] + 1 if spaces else MAX_PHONEMES
        yield phonemes[:cut]
        phonemes = phonemes[cut:]
    if phonemes:
        yield phonemes


def _faded(samples: np.ndarray, sample_rate: int) -> np.ndarray:
    import numpy as np

    length = min(len(samples), round(FADE_SECONDS * sample_rate))
    faded = samples.copy()
    faded[len(samples) - length :] *= np.linspace(1.0, 0.0, length)
    return faded

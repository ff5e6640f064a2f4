"""Piper: text to speech on the CPU. Options: `voice` (an .onnx file with its .json beside it, or a folder of such),
`voice_name` (what a file's only speaker is called), `voices_kept` (how many files are in memory at once; 3).

Piper itself is GPL-3.0-or-later; it is imported here and nowhere else, once a job needs it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inclavate import subtitles
from inclavate.errors import InferenceFailed
from inclavate.generators import DOCUMENTS, SPEECH, Capability, Output, Run
from workers.encoding import FORMATS
from workers.phonemes import readable_parts
from workers.speech import MAX_CHARACTERS, SpeechRequest, produce, read_request

if TYPE_CHECKING:
    import numpy as np
    from piper import PiperVoice, SynthesisConfig

SPEED_RANGE = (0.5, 2.0)
VOICES_KEPT = 3
# One sentence of 1,700 phonemes took 11 s without a check, and 1.2 GB: memory grows with the square.
MAX_PHONEMES = 400


@dataclass(frozen=True, slots=True)
class Speaker:
    """One voice: a file, and the speaker's number in it, None where there is but one."""

    path: Path
    number: int | None
    sample_rate: int
    language: str | None


class Piper:
    """Any number of voice files, each of one speaker or several. Speech has no seed: its noise is drawn inside the
    model.
    """

    @classmethod
    def describe(cls, model: str, options: Mapping[str, Any]) -> Capability:
        speakers = _speakers(options)
        languages = {name: speaker.language for name, speaker in speakers.items() if speaker.language}
        rates = {speaker.sample_rate for speaker in speakers.values()}
        return Capability(
            model=model,
            modality="audio",
            task=SPEECH,
            builtin_voices=tuple(speakers),
            # One language alone is said by `languages`.
            voice_languages=languages if len(set(languages.values())) > 1 else {},
            languages=tuple(sorted(set(languages.values()))) if len(languages) == len(speakers) else (),
            speed_range=SPEED_RANGE,
            limits={"max_characters": MAX_CHARACTERS},
            formats=FORMATS,
            media_types=DOCUMENTS,
            streams=True,
            subtitles=subtitles.FORMATS,
            sample_rate=rates.pop() if len(rates) == 1 else None,
        )

    def load(self, options: Mapping[str, Any]) -> None:
        self._capability = self.describe("this model", options)
        self._speakers = _speakers(options)
        self._kept = int(options.get("voices_kept", VOICES_KEPT))
        self._loaded: dict[Path, PiperVoice] = {}
        self._file(next(iter(self._speakers.values())).path)

    def generate(self, run: Run) -> Iterator[Output]:
        asked = read_request(run, self._capability)
        speaker = self._chosen(asked)
        yield from produce(run, asked, _PiperVoice(self._file(speaker.path), speaker, asked.speed))

    def unload(self) -> None:
        del self._loaded

    def _chosen(self, asked: SpeechRequest) -> Speaker:
        """The voice that was named, else the first that speaks the language, else the first."""
        if asked.voice is not None:
            return self._speakers[asked.voice]
        speakers = list(self._speakers.values())
        return next((speaker for speaker in speakers if asked.language in (None, speaker.language)), speakers[0])

    def _file(self, path: Path) -> PiperVoice:
        """A voice file in memory; the one that was least lately used makes room for it."""
        from piper import PiperVoice

        voice = self._loaded.pop(path, None) or PiperVoice.load(path)
        self._loaded[path] = voice
        while len(self._loaded) > max(1, self._kept):
            del self._loaded[next(iter(self._loaded))]
        return voice


class _PiperVoice:
    """A `speech.Voice`."""

    # The model itself is given one at a time.
    joins_sentences = False

    def __init__(self, voice: PiperVoice, speaker: Speaker, speed: float) -> None:
        from piper import SynthesisConfig

        self.sample_rate = speaker.sample_rate
        self.language = speaker.language or "en"
        self._voice = voice
        self._settings: SynthesisConfig = SynthesisConfig(
            speaker_id=speaker.number, length_scale=voice.config.length_scale / speed
        )

    def say(self, text: str) -> Iterator[np.ndarray]:
        for phonemes in self._phonemes(text):
            ids = self._voice.phonemes_to_ids(phonemes)
            yield self._voice.phoneme_ids_to_audio(ids, self._settings)

    def _phonemes(self, text: str) -> Iterator[list[str]]:
        # The phonemizer reads "[[" as phonemes to come.
        text = text.replace("[[", "[ [")
        is_espeak = self._voice.config.phoneme_type == "espeak"
        for part in readable_parts(text, self._heard) if is_espeak else [text]:
            for sentence in self._voice.phonemize(part):
                yield from _split_phonemes(sentence)

    def _heard(self, text: str) -> str:
        return " ".join("".join(sentence) for sentence in self._voice.phonemize(text))


def _speakers(options: Mapping[str, Any]) -> dict[str, Speaker]:
    """Every voice by its name. In a folder, that is its file's, and for one of several "file/speaker"."""
    path = Path(options["voice"])
    if not path.is_dir():
        return _speakers_of(path, options.get("voice_name"))
    files = sorted(path.glob("*.onnx"))
    if not files:
        raise InferenceFailed(f"The folder of voices {path.name} has no .onnx file in it.")
    found: dict[str, Speaker] = {}
    for file in files:
        inside = _speakers_of(file, file.stem)
        found |= {name if len(inside) == 1 else f"{file.stem}/{name}": speaker for name, speaker in inside.items()}
    return found


def _speakers_of(path: Path, name: str | None) -> dict[str, Speaker]:
    config = _read_config(path)
    try:
        rate, language = config["audio"]["sample_rate"], _language(config)
        if config.get("num_speakers", 1) > 1 and config.get("speaker_id_map"):
            return {each: Speaker(path, number, rate, language) for each, number in config["speaker_id_map"].items()}
        return {name or config.get("dataset") or "default": Speaker(path, None, rate, language)}
    except (KeyError, TypeError, AttributeError) as error:
        raise InferenceFailed(f"The voice's configuration {path.name}.json is not one of Piper's.") from error


def _read_config(path: Path) -> dict[str, Any]:
    config = path.with_name(f"{path.name}.json")
    try:
        return json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InferenceFailed(f"The voice's configuration {config.name} cannot be read.") from error


def _language(config: Mapping[str, Any]) -> str | None:
    """What the voice speaks, as "en-us", where its configuration says so."""
    spoken = config.get("espeak", {}).get("voice") if config.get("phoneme_type", "espeak") == "espeak" else None
    code = spoken or config.get("language", {}).get("code")
    return code.lower().replace("_", "-") if code else None


def _split_phonemes(phonemes: list[str]) -> Iterator[list[str]]:
    """Parts of at most MAX_PHONEMES, cut between words where there are any."""
    while len(phonemes) > MAX_PHONEMES:
        spaces = [place for place, phoneme in enumerate(phonemes[:MAX_PHONEMES]) if phoneme == " "]
        cut = spaces[-1] + 1 if spaces else MAX_PHONEMES
        yield phonemes[:cut]
        phonemes = phonemes[cut:]
    if phonemes:
        yield phonemes

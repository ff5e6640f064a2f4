"""Whisper through faster-whisper. Options: `path` (a CTranslate2 folder), `device`, `compute_type`, `cpu_threads`,
`beam_size`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inclavate.errors import InferenceFailed, UnsupportedInput
from inclavate.generators import TRANSCRIBE, Capability, Input, Output, Run
from workers.sound import duration_seconds, read_mono

if TYPE_CHECKING:
    import numpy as np

SAMPLE_RATE = 16_000
# Features and voice detection are computed for a whole block at once: blocks keep memory flat and cancels quick.
BLOCK_SECONDS = 120
CUT_SECONDS = 15
_CUT_WINDOW = SAMPLE_RATE // 10
# An English-only vocabulary is smaller by one: the token that says which language follows.
_MULTILINGUAL_TOKENS = 51_865
_LANGUAGE_TOKEN = re.compile(r"<\|([a-z]{2,3})\|>")
_AUDIO = (
    "wav",
    "x-wav",
    "wave",
    "vnd.wave",
    "mpeg",
    "mp3",
    "flac",
    "x-flac",
    "ogg",
    "opus",
    "webm",
    "mp4",
    "m4a",
    "x-m4a",
)
_MORE_AUDIO = ("aac", "x-aac", "aiff", "x-aiff")
_VIDEO = ("mp4", "webm", "quicktime", "x-matroska")


@dataclass
class Transcript:
    language: str | None = None
    parts: list[str] = field(default_factory=list)
    frames: int = 0

    @property
    def text(self) -> str:
        # Whisper's segments carry their own spaces, and none where the language has none.
        return "".join(self.parts).strip()


class Whisper:
    """Transcription of speech in any file that holds sound, however long."""

    @classmethod
    def describe(cls, model: str, options: Mapping[str, Any]) -> Capability:
        return Capability(
            model=model,
            modality="text",
            task=TRANSCRIBE,
            input_modalities=("audio",),
            languages=_languages(Path(options["path"])),
            media_types=tuple(f"audio/{kind}" for kind in _AUDIO + _MORE_AUDIO)
            + tuple(f"video/{kind}" for kind in _VIDEO),
        )

    def load(self, options: Mapping[str, Any]) -> None:
        path = Path(options["path"])
        # Given a name that is no folder, or a folder without its tokenizer, faster-whisper would go and download.
        if not (path / "model.bin").is_file() or not (path / "tokenizer.json").is_file():
            raise InferenceFailed("The model's folder lacks model.bin or tokenizer.json.")
        from faster_whisper import WhisperModel

        self._beam_size = int(options.get("beam_size", 5))
        self._model = WhisperModel(
            str(path),
            device=options.get("device", "cpu"),
            compute_type=options.get("compute_type", "default"),
            cpu_threads=int(options.get("cpu_threads", len(os.sched_getaffinity(0)))),
            local_files_only=True,
        )

    def generate(self, run: Run) -> Iterator[Output]:
        source = _only_input(run)
        wanted = _language(run.params)
        prompt = _optional_text(run.params, "prompt")
        run.progress("reading input", 0.0)
        total = duration_seconds(source.path, run.check)
        run.progress("understanding", 0.0)
        transcript = Transcript()
        for block in _blocks(source.path):
            self._transcribe(run, block, prompt, transcript, total)
        run.progress("publishing", 0.0)
        is_wanted = wanted is None or transcript.language in (None, wanted)
        path = run.workdir / "transcript.txt"
        path.write_text(transcript.text if is_wanted else "", encoding="utf-8")
        if not is_wanted:
            run.note(f"The speech is in {transcript.language!r}, not {wanted!r}: the transcript was left empty.")
        facts = {"language": transcript.language, "duration_seconds": transcript.frames / SAMPLE_RATE}
        yield Output(path, "text/plain", facts)

    def unload(self) -> None:
        del self._model

    def _transcribe(
        self, run: Run, block: np.ndarray, prompt: str | None, transcript: Transcript, total: float
    ) -> None:
        run.check()
        # Silent blocks come back at once from the voice filter; without it the model invents words for them.
        segments, info = self._model.transcribe(
            block,
            language=transcript.language,
            beam_size=self._beam_size,
            temperature=0.0,
            initial_prompt=prompt,
            condition_on_previous_text=False,
            vad_filter=True,
        )
        begin = transcript.frames / SAMPLE_RATE
        run.check()
        for segment in segments:
            transcript.language = info.language
            transcript.parts.append(segment.text)
            run.progress("understanding", min(1.0, (begin + float(segment.end)) / total) if total else None)
        transcript.frames += len(block)
        run.progress("understanding", min(1.0, transcript.frames / SAMPLE_RATE / total) if total else None)


def _languages(path: Path) -> tuple[str, ...]:
    """What the model can hear, from its vocabulary and tokenizer."""
    try:
        if _token_count(path) < _MULTILINGUAL_TOKENS:
            return ("en",)
        tokens = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    except (OSError, ValueError, KeyError) as error:
        raise InferenceFailed("The model's vocabulary cannot be read.") from error
    found = (_LANGUAGE_TOKEN.fullmatch(token["content"]) for token in tokens)
    return tuple(match[1] for match in found if match)


def _token_count(path: Path) -> int:
    if (vocabulary := path / "vocabulary.json").is_file():
        return len(json.loads(vocabulary.read_text(encoding="utf-8")))
    return len((path / "vocabulary.txt").read_text(encoding="utf-8").split("\n")) - 1


def _only_input(run: Run) -> Input:
    if len(run.inputs) != 1:
        raise UnsupportedInput(f"A transcription takes one input, not {len(run.inputs)}.", param="input_artifacts")
    return run.inputs[0]


def _optional_text(params: Mapping[str, Any], name: str) -> str | None:
    value = params.get(name)
    if value is not None and not isinstance(value, str):
        raise UnsupportedInput(f"params.{name} must be a string, not {value!r}.", param=name)
    return value or None


def _language(params: Mapping[str, Any]) -> str | None:
    """The language to let through, without its region: "en-US" lets English through."""
    language = _optional_text(params, "language")
    return re.split("[-_]", language.strip().lower())[0] if language else None


def _blocks(path: Path) -> Iterator[np.ndarray]:
    """The sound in blocks of at most BLOCK_SECONDS, cut where the last CUT_SECONDS of each are quietest."""
    import numpy as np

    limit = BLOCK_SECONDS * SAMPLE_RATE
    held: list[np.ndarray] = []
    size = 0
    for samples in read_mono(path, SAMPLE_RATE):
        held.append(samples)
        size += len(samples)
        while size >= limit:
            block = np.concatenate(held)
            cut = _quietest(block[:limit])
            yield block[:cut]
            held, size = [block[cut:]], len(block) - cut
    if size:
        yield np.concatenate(held)


def _quietest(block: np.ndarray) -> int:
    """The middle of the quietest 0.1 s in the end of the block."""
    import numpy as np

    start = len(block) - CUT_SECONDS * SAMPLE_RATE
    energy = np.convolve(np.square(block[start:], dtype=np.float64), np.ones(_CUT_WINDOW), mode="valid")
    return start + int(energy.argmin()) + _CUT_WINDOW // 2

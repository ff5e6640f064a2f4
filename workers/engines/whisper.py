"""Whisper through faster-whisper. Options: `path` (a CTranslate2 folder), `device`, `compute_type`, `cpu_threads`,
`beam_size`, `batch_size` (above 1, so many windows of a long recording are decoded at once: faster, and larger).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from inclavate.errors import InferenceFailed, UnsupportedInput
from inclavate.generators import TRANSCRIBE, Capability, Input, Output, Run, granularities
from inclavate.transcripts import GRANULARITIES, MEDIA_TYPE, WORD, Segment, Transcript, Word, in_order
from workers.sound import duration_seconds, read_mono

if TYPE_CHECKING:
    import faster_whisper
    import numpy as np

SAMPLE_RATE = 16_000
# Features and voice detection are computed for a whole block at once: blocks keep memory flat and cancels quick.
BLOCK_SECONDS = 120
CUT_SECONDS = 15
_CUT_WINDOW = SAMPLE_RATE // 10
# Below it there is but one window or two: nothing to decode at once.
_BATCHED_SECONDS = 60.0
# Whisper counts in frames of 10 ms.
_FRAMES_A_SECOND = 100
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


class Whisper:
    """Transcription of speech in any file that holds sound, however long."""

    @classmethod
    def describe(cls, model: str, options: Mapping[str, Any]) -> Capability:
        return Capability(
            model=model,
            modality="text",
            task=TRANSCRIBE,
            input_modalities=("audio",),
            languages=(languages := _languages(Path(options["path"]))),
            timestamps=GRANULARITIES,
            translates=len(languages) > 1,
            streams=True,
            media_types=tuple(f"audio/{kind}" for kind in _AUDIO + _MORE_AUDIO)
            + tuple(f"video/{kind}" for kind in _VIDEO),
        )

    def load(self, options: Mapping[str, Any]) -> None:
        path = Path(options["path"])
        # Given a name that is no folder, or a folder without its tokenizer, faster-whisper would go and download.
        if not (path / "model.bin").is_file() or not (path / "tokenizer.json").is_file():
            raise InferenceFailed("The model's folder lacks model.bin or tokenizer.json.")
        from faster_whisper import BatchedInferencePipeline, WhisperModel

        self._beam_size = int(options.get("beam_size", 5))
        self._model = WhisperModel(
            str(path),
            device=options.get("device", "cpu"),
            compute_type=options.get("compute_type", "default"),
            cpu_threads=int(options.get("cpu_threads", len(os.sched_getaffinity(0)))),
            local_files_only=True,
        )
        self._batch_size = int(options.get("batch_size", 1))
        self._batched = BatchedInferencePipeline(self._model)

    def generate(self, run: Run) -> Iterator[Output]:
        source = _only_input(run)
        asked = _Asked.of(run.params)
        run.progress("reading input", 0.0)
        total = duration_seconds(source.path, run.check)
        run.progress("understanding", 0.0)
        with _Hearing(run, asked, run.workdir / "transcript.txt") as hearing:
            for block in _blocks(source.path):
                self._hear(block, hearing, total)
                if hearing.is_unwanted:
                    break
            run.progress("publishing", 0.0)
        if hearing.is_unwanted:
            run.note(f"The speech is in {hearing.language!r}, not {asked.language!r}: the transcript was left empty.")
        transcript = hearing.transcript(total)
        facts = {"language": hearing.language, "duration_seconds": transcript.duration_seconds}
        yield Output(hearing.path, "text/plain", facts)
        if asked.granularities:
            path = run.workdir / "transcript.json"
            path.write_text(json.dumps(transcript.as_json(), ensure_ascii=False), encoding="utf-8")
            yield Output(path, MEDIA_TYPE, facts | {"segments": len(transcript.segments)})

    def unload(self) -> None:
        del self._batched, self._model

    def _hear(self, block: np.ndarray, hearing: _Hearing, total: float) -> None:
        run, asked = hearing.run, hearing.asked
        begin, length = hearing.frames / SAMPLE_RATE, len(block) / SAMPLE_RATE
        run.check()
        # Silent blocks come back at once from the voice filter; without it the model invents words for them.
        options: dict[str, Any] = {
            "language": hearing.language,
            "task": "translate" if asked.translate else "transcribe",
            "beam_size": self._beam_size,
            "temperature": 0.0,
            "initial_prompt": asked.prompt,
            "condition_on_previous_text": False,
            "vad_filter": True,
            "word_timestamps": WORD in asked.granularities,
        }
        if self._batch_size > 1 and length > _BATCHED_SECONDS:
            more = {"batch_size": self._batch_size, "without_timestamps": False}
            found, info = self._batched.transcribe(block, **options, **more)
        else:
            found, info = self._model.transcribe(block, **options)
        run.check()
        for segment in in_order((_segment(each, begin) for each in found), begin, begin + length):
            hearing.add(segment, info.language)
            if hearing.is_unwanted:
                return
            run.progress("understanding", min(1.0, segment.end / total) if total else None)
        hearing.frames += len(block)
        run.progress("understanding", min(1.0, hearing.frames / SAMPLE_RATE / total) if total else None)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a job asks for. `language` is one to let through, without its region: "en-US" lets English through."""

    language: str | None
    prompt: str | None
    granularities: frozenset[str]
    translate: bool

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Self:
        """Raises `UnsupportedInput`."""
        language, prompt = _optional_text(params, "language"), _optional_text(params, "prompt")
        wanted = granularities(params.get("timestamps"))
        if wanted is None or not wanted <= set(GRANULARITIES):
            raise UnsupportedInput("params.timestamps must be true, segment or word.", param="timestamps")
        code = re.split("[-_]", language.strip().lower())[0] if language else None
        return cls(code, prompt, wanted, params.get("translate") is True)


class _Hearing:
    """What was heard of a recording so far. Its text grows in `path`, so that it may be read meanwhile."""

    def __init__(self, run: Run, asked: _Asked, path: Path) -> None:
        self.run = run
        self.asked = asked
        self.path = path
        self.language: str | None = None
        self.frames = 0
        self._segments: list[Segment] = []
        self._file = path.open("w", encoding="utf-8", newline="")
        # Whisper's segments carry their own spaces, and none where the language has none; the text has none around it.
        self._spaces = ""

    @property
    def is_unwanted(self) -> bool:
        return self.asked.language not in (None, self.language) and self.language is not None

    def add(self, segment: Segment, language: str) -> None:
        if self.language is None:
            self.language = language
            if not self.is_unwanted:
                self.run.growing(self.path, "text/plain")
        if self.is_unwanted:
            return
        if self.asked.granularities:
            self._segments.append(segment)
        text = self._spaces + segment.text
        self._spaces = text[len(text.rstrip()) :]
        self._file.write(text.rstrip() if self._file.tell() else text.strip())
        self._file.flush()

    def transcript(self, duration_seconds: float) -> Transcript:
        """`duration_seconds` is what the file says of itself, for what was not heard to its end."""
        seconds = duration_seconds if self.is_unwanted else self.frames / SAMPLE_RATE
        return Transcript(self.language, seconds, tuple(self._segments))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        if error[0] is not None:
            self.path.unlink()


def _segment(found: faster_whisper.transcribe.Segment, begin: float) -> Segment:
    """With times from the start of the recording; numbers may be numpy's, which JSON does not take."""
    words = tuple(
        Word(begin + float(word.start), begin + float(word.end), word.word, round(float(word.probability), 4))
        for word in found.words or ()
    )
    figures = {
        "seek": int(found.seek) + round(begin * _FRAMES_A_SECOND),
        "tokens": [int(token) for token in found.tokens],
        "temperature": float(found.temperature or 0.0),
        "avg_logprob": round(float(found.avg_logprob), 4),
        "compression_ratio": round(float(found.compression_ratio), 4),
        "no_speech_prob": round(float(found.no_speech_prob), 4),
    }
    return Segment(begin + float(found.start), begin + float(found.end), found.text, words, figures)


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

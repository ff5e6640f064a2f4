"""What was heard and when: the second output of a transcription, and what is made of it.

Times are in seconds from the start of the recording. They are an engine's own; where it has none, there are none.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from inclavate.subtitles import Cue

MEDIA_TYPE = "application/json"
SEGMENT, WORD = "segment", "word"
GRANULARITIES = (SEGMENT, WORD)

# What a viewer can read: broadcasters ask for two lines of about 42 characters, on screen for at most 7 s.
LINE_CHARACTERS = 42
_CUE_CHARACTERS = 2 * LINE_CHARACTERS
_CUE_SECONDS = 7.0
# A silence that a cue does not go on through.
_PAUSE_SECONDS = 1.5
_MIN_CUE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Word:
    """`text` has its own spaces, and none where the language has none. `probability` is the engine's, 0..1."""

    start: float
    end: float
    text: str
    probability: float | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """Some words in a row; `figures` are what else the engine says of them (`avg_logprob`, `no_speech_prob`…)."""

    start: float
    end: float
    text: str
    words: tuple[Word, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        data = {"start": self.start, "end": self.end, "text": self.text, **self.figures}
        if self.words:
            data["words"] = [
                {"word": word.text, "start": word.start, "end": word.end, "probability": word.probability}
                for word in self.words
            ]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        known = ("start", "end", "text", "words")
        words = tuple(
            Word(word["start"], word["end"], word["word"], word.get("probability")) for word in data.get("words", ())
        )
        figures = {name: value for name, value in data.items() if name not in known}
        return cls(data["start"], data["end"], data["text"], words, figures)


@dataclass(frozen=True, slots=True)
class Transcript:
    """A whole recording of `duration_seconds`; `language` is a code, or None where nothing was said."""

    language: str | None
    duration_seconds: float
    segments: tuple[Segment, ...] = ()

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments).strip()

    @property
    def words(self) -> Iterator[Word]:
        return (word for segment in self.segments for word in segment.words)

    def as_json(self) -> dict[str, Any]:
        return {
            "language": self.language,
            "duration_seconds": self.duration_seconds,
            "segments": [segment.as_json() for segment in self.segments],
        }

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Reads what `as_json` gives, as JSON text."""
        said = json.loads(data)
        return cls(said["language"], said["duration_seconds"], tuple(map(Segment.from_json, said["segments"])))

    def cues(self) -> list[Cue]:
        """Subtitles that can be read: of at most two lines where the words' times are known, else one a segment."""
        cues: list[Cue] = []
        for segment in self.segments:
            for words in _cue_words(segment):
                _add(cues, Cue(words[0].start, words[-1].end, "".join(word.text for word in words).strip()))
        return [Cue(cue.start_seconds, cue.end_seconds, _wrapped(cue.text)) for cue in cues]


def in_order(segments: Iterable[Segment], begin: float, end: float) -> Iterator[Segment]:
    """The same, with times that never go back and stay within `begin`..`end`: engines err by some hundredths of a
    second where one window ends and the next begins."""
    now = begin

    def following(time: float) -> float:
        nonlocal now
        now = min(max(time, now), end)
        # Not rounded up: it would be past the end of the recording.
        return math.floor(now * 1000) / 1000

    for segment in segments:
        start = following(segment.start)
        words = tuple(
            Word(following(word.start), following(word.end), word.text, word.probability) for word in segment.words
        )
        yield Segment(start, following(segment.end), segment.text, words, segment.figures)


def _cue_words(segment: Segment) -> Iterator[list[Word]]:
    """The words of each cue; a segment without words is one."""
    held: list[Word] = []
    for word in segment.words or (Word(segment.start, segment.end, segment.text),):
        if held and not _fits(held, word):
            yield held
            held = []
        held.append(word)
    if held:
        yield held


def _fits(held: list[Word], word: Word) -> bool:
    if not word.text.strip():
        return True
    length = len("".join(each.text for each in held).strip()) + len(word.text.rstrip())
    is_pause = word.start - held[-1].end > _PAUSE_SECONDS
    return length <= _CUE_CHARACTERS and word.end - held[0].start <= _CUE_SECONDS and not is_pause


def _add(cues: list[Cue], cue: Cue) -> None:
    """With the cue before, where it is too short to be seen: players refuse one that ends as it begins."""
    if not cue.text:
        return
    if cues and cue.end_seconds - cue.start_seconds < _MIN_CUE_SECONDS:
        last = cues.pop()
        cue = Cue(last.start_seconds, max(last.end_seconds, cue.end_seconds), f"{last.text} {cue.text}")
    start = max(cue.start_seconds, cues[-1].end_seconds) if cues else cue.start_seconds
    cues.append(Cue(start, max(cue.end_seconds, start + _MIN_CUE_SECONDS), cue.text))


def _wrapped(text: str) -> str:
    """In lines that a player shows whole; words too long for one are cut."""
    return "\n".join(textwrap.wrap(text, LINE_CHARACTERS, break_on_hyphens=False))

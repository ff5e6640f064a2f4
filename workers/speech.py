"""Text to speech, as every engine does it: pieces of the text one by one, joined with pauses at an even loudness.

An engine is a `Voice`; `produce` makes a job's files of what it says, `speak` the bare samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from inclavate import subtitles
from inclavate.errors import InvalidRequest, UnsupportedInput
from inclavate.generators import DOCUMENTS, Capability, Check, Input, Output, Run, match_language
from inclavate.subtitles import Cue
from workers import documents
from workers.encoding import file_name, open_sound
from workers.lexicon import Lexicon
from workers.normalisation import readable, spoken
from workers.text import Boundary, Piece, sentences, split

if TYPE_CHECKING:
    import numpy as np

    Samples: TypeAlias = np.ndarray[Any, Any]

MAX_CHARACTERS = 1_000_000
PAUSE_SECONDS = {
    Boundary.PARAGRAPH: 0.7,
    Boundary.SENTENCE: 0.35,
    Boundary.CLAUSE: 0.15,
    Boundary.WORD: 0.04,
    Boundary.CUT: 0.0,
}
# Of the samples, where 1.0 is full scale; -1 dBFS is 0.891, and resampling may add a little.
PEAK = 0.87
# The loudness (root mean square while somebody speaks) that every piece is brought to; and how far, as a logarithm, a
# single one's gain may be from the usual, so that a breath is not raised to a shout.
_LOUDNESS = 0.1
_LEEWAY = math.log(2.5)
_REMEMBERED_SECONDS = 20.0
_WINDOW_SECONDS = 0.01
_SILENCE = 1e-4
_QUIET = 0.006
_LEAD_KEPT_SECONDS = 0.02
_TAIL_KEPT_SECONDS = 0.06
_EDGE_SECONDS = 0.004
_FADE_SECONDS = 0.02


class Voice(Protocol):
    """What an engine brings: one of its voices at one speed."""

    @property
    def sample_rate(self) -> int: ...

    @property
    def language(self) -> str:
        """The code of what it speaks, as "en-us"."""

    @property
    def joins_sentences(self) -> bool:
        """Whether several short sentences sound better said at once than one by one."""

    def say(self, text: str) -> Iterator[Samples]:
        """A few words (1..250 characters, or somewhat more) as float samples, mono, 1.0 being full scale, in one or
        several arrays; none where nothing in them can be spoken.
        """


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """What a speech job asks for, checked. `language` is one of the capability's, or None where there is no choice."""

    text: str = ""
    document: Input | None = None
    voice: str | None = None
    language: str | None = None
    speed: float = 1.0
    response_format: str = "wav"
    max_duration_seconds: float = math.inf
    lead_silence_seconds: float = 0.0
    tail_silence_seconds: float = 0.0
    subtitles: str | None = None
    normalize: bool = True
    lexicon: Mapping[str, str] = field(default_factory=dict)


def read_request(run: Run, capability: Capability) -> SpeechRequest:
    """The job's params, checked again: the model may have changed since it was submitted. Raises `UnsupportedInput`."""
    read = [given for given in run.inputs if given.media_type in DOCUMENTS]
    # The operator's words are among them now, for which no limit holds.
    params = {name: value for name, value in run.params.items() if name != "lexicon"}
    try:
        Check(
            capability,
            params,
            len(run.inputs) - len(read),
            "params.{}".format,
            document_count=len(read),
        ).run()
    except InvalidRequest as error:
        raise UnsupportedInput(error.message, param=error.param) from None
    given = {name: value for name in SpeechRequest.__slots__ if (value := run.params.get(name)) is not None}
    if capability.speed_range is None:
        given.pop("speed", None)
    if "language" in given:
        given["language"] = match_language(given["language"], capability.languages)
    return SpeechRequest(**given | {"document": read[0]} if read else given)


def produce(run: Run, asked: SpeechRequest, voice: Voice) -> Iterator[Output]:
    """The job's outputs: the sound in the format that was asked for, then the subtitles if they were; of a document,
    these for each chapter.
    """
    if asked.document is not None:
        run.progress("reading input")
        chapters = documents.chapters(asked.document.path, asked.document.media_type)
        yield from _read_aloud(run, asked, voice, list(chapters))
        return
    path = run.workdir / file_name("speech", asked.response_format)
    yield from _files(run, asked, voice, path, _Share(run), is_heard=True)


def _read_aloud(
    run: Run, asked: SpeechRequest, voice: Voice, chapters: Sequence[documents.Chapter]
) -> Iterator[Output]:
    total = sum(len(chapter.text) for chapter in chapters)
    before = outputs = 0
    for number, chapter in enumerate(chapters, 1):
        path = run.workdir / file_name(f"{number:03d}", asked.response_format)
        share = _Share(run, before / total, len(chapter.text) / total)
        try:
            for output in _files(run, replace(asked, text=chapter.text), voice, path, share):
                facts = {**output.facts, "chapter": number, "title": chapter.title}
                name = documents.file_name(number, chapter.title, output.path.suffix)
                yield replace(output, facts=facts, filename=name)
                outputs += 1
        except UnsupportedInput:
            run.note(f"Chapter {number} has nothing in it that can be spoken.")
        before += len(chapter.text)
    if not outputs:
        raise UnsupportedInput("The document has nothing in it that can be spoken.", param="input_artifacts")


@dataclass(frozen=True, slots=True)
class _Share:
    """What a text's own progress is of the whole job's."""

    run: Run
    start: float = 0.0
    size: float = 1.0

    def progress(self, fraction: float) -> None:
        self.run.progress("generating", self.start + self.size * fraction)


def _files(
    run: Run, asked: SpeechRequest, voice: Voice, path: Path, share: _Share, *, is_heard: bool = False
) -> Iterator[Output]:
    cues: list[Cue] = []
    with open_sound(path, asked.response_format, voice.sample_rate) as sound:
        for block in speak(run, asked, voice, cues.append, share):
            sound.write(block)
            if is_heard:
                # Not before: a text that cannot be spoken leaves no file.
                run.growing(path, sound.media_type)
                is_heard = False
    facts = {"duration_seconds": sound.duration_seconds, "sample_rate": sound.sample_rate, "channels": sound.channels}
    yield Output(path, sound.media_type, facts)
    if asked.subtitles is not None:
        path = path.with_suffix(f".{asked.subtitles}")
        path.write_text(subtitles.render(cues, asked.subtitles), encoding="utf-8", newline="\n")
        yield Output(path, subtitles.MEDIA_TYPES[asked.subtitles], {"cues": len(cues)})


def speak(
    run: Run,
    asked: SpeechRequest,
    voice: Voice,
    told: Callable[[Cue], object] = lambda cue: None,
    share: _Share | None = None,
) -> Iterator[Samples]:
    """The speech as float32 blocks of shape (frames,) at the voice's rate, each as soon as it is spoken.

    `told` is given the words of each block and when they are heard; `share` is the text's of the job, all of it where
    left out. Raises `UnsupportedInput` where nothing can be spoken, before any block.
    """
    share = share or _Share(run)
    track = _Track(asked, voice.sample_rate)
    level = _Level(voice.sample_rate)
    text = _readable(asked)
    lexicon = Lexicon(asked.lexicon)
    for piece in _pieces(text, asked, voice):
        share.progress(piece.start / len(text))
        sound = _sound(run, voice, _words(lexicon.apply(piece.text), asked, voice))
        if len(sound) and (blocks := track.place(level.even(sound))):
            told(Cue(track.start_seconds, track.end_seconds, " ".join(piece.text.split())))
            yield from blocks
        if track.is_full:
            run.note(f"The speech was cut at max_duration_seconds, {asked.max_duration_seconds:g} s.")
            break
        track.pause(piece.end)
    if track.is_empty:
        raise UnsupportedInput("The text has nothing in it that can be spoken.", param="text")
    share.progress(1.0)
    yield from track.finish()


# -- words -------------------------------------------------------------------------------------------------------------


def _readable(asked: SpeechRequest) -> str:
    """The whole text as it is read, and shown in subtitles."""
    # No phonemizer takes NUL or lone surrogates.
    text = asked.text.replace("\0", " ").encode("utf-8", "ignore").decode()
    return readable(text) if asked.normalize else text


def _pieces(text: str, asked: SpeechRequest, voice: Voice) -> Iterator[Piece]:
    """Single sentences where their times matter, else as much at once as sounds best; but the first comes by itself,
    for those who listen already.
    """
    language = _language(asked, voice)
    by_sentence = asked.subtitles is not None or asked.max_duration_seconds < math.inf or not voice.joins_sentences
    if by_sentence:
        yield from sentences(text, language=language)
        return
    first = _first_sentence(text, language)
    if first.text:
        yield first
    start = len(first.text)
    yield from (replace(piece, start=start + piece.start) for piece in split(text[start:], language=language))


def _first_sentence(text: str, language: str) -> Piece:
    """With the white space around it."""
    first = Piece("", 0, Boundary.PARAGRAPH)
    for piece in sentences(text, language=language):
        if first.text.strip() and piece.text.strip():
            break
        first = Piece(first.text + piece.text, 0, piece.end)
    return first


def _words(text: str, asked: SpeechRequest, voice: Voice) -> str:
    """What the engine is given of a piece, in one line."""
    return " ".join((spoken(text, _language(asked, voice)) if asked.normalize else text).split())


def _language(asked: SpeechRequest, voice: Voice) -> str:
    return asked.language or voice.language


# -- sound -------------------------------------------------------------------------------------------------------------


def _sound(run: Run, voice: Voice, words: str) -> Samples:
    """What the voice says, without the silence around it, beginning and ending at zero; empty where it says nothing."""
    import numpy as np

    parts: list[Samples] = []
    for part in voice.say(words) if words else ():
        run.check()
        parts.append(_faded(np.nan_to_num(np.asarray(part, np.float32).ravel()), voice.sample_rate))
    if not parts:
        return np.zeros(0, np.float32)
    return _faded(_trimmed(np.concatenate(parts), voice.sample_rate), voice.sample_rate)


def _trimmed(sound: Samples, sample_rate: int) -> Samples:
    """Without what is nearly silent at both ends, but for a breath of it; empty if all of it is."""
    import numpy as np

    width = _window(sample_rate)
    loudness = _loudness(sound, width)
    loud = np.flatnonzero(loudness > max(_SILENCE, _QUIET * float(loudness.max(initial=0.0))))
    if not len(loud):
        return sound[:0]
    start = max(0, int(loud[0]) * width - round(_LEAD_KEPT_SECONDS * sample_rate))
    return sound[start : (int(loud[-1]) + 1) * width + round(_TAIL_KEPT_SECONDS * sample_rate)]


def _loudness(sound: Samples, width: int) -> Samples:
    """The root mean square of each window of so many samples; the last may be filled up with silence."""
    import numpy as np

    filled = np.pad(sound, (0, -len(sound) % width)).reshape(-1, width)
    loudness: Samples = np.sqrt(np.mean(np.square(filled), axis=1))
    return loudness


def _window(sample_rate: int) -> int:
    return max(1, round(_WINDOW_SECONDS * sample_rate))


def _faded(
    sound: Samples, sample_rate: int, in_seconds: float = _EDGE_SECONDS, out_seconds: float = _EDGE_SECONDS
) -> Samples:
    """A copy that rises from zero and falls to it."""
    import numpy as np

    faded: Samples = sound.copy()
    rise, fall = (min(len(sound), round(seconds * sample_rate)) for seconds in (in_seconds, out_seconds))
    faded[:rise] *= np.linspace(0.0, 1.0, rise, dtype=np.float32)
    faded[len(sound) - fall :] *= np.linspace(1.0, 0.0, fall, dtype=np.float32)
    return faded


class _Level:
    """One gain a piece, so that nothing pumps: near what the last pieces had, and never over `PEAK`."""

    def __init__(self, sample_rate: int) -> None:
        self._width = _window(sample_rate)
        self._heard_seconds = 0.0
        self._usual = 0.0

    def even(self, sound: Samples) -> Samples:
        import numpy as np

        loudness = _loudness(sound, self._width)
        active = loudness[loudness > loudness.max() / 10]
        wanted = math.log(_LOUDNESS / math.sqrt(float(np.mean(np.square(active)))))
        seconds = len(active) * _WINDOW_SECONDS
        self._heard_seconds = min(self._heard_seconds + seconds, max(_REMEMBERED_SECONDS, seconds))
        self._usual += (wanted - self._usual) * seconds / self._heard_seconds
        gain = math.exp(min(max(wanted, self._usual - _LEEWAY), self._usual + _LEEWAY))
        evened: Samples = sound * np.float32(min(gain, PEAK / float(np.abs(sound).max())))
        return evened


class _Track:
    """Where sounds and pauses come to lie: how much there is, and how much more there may be."""

    def __init__(self, asked: SpeechRequest, sample_rate: int) -> None:
        self.is_empty = True
        self.is_full = False
        self._asked = asked
        self._rate = sample_rate
        self._frames = self._start = 0
        self._gap = self._frames_of(asked.lead_silence_seconds)
        self._tail = self._frames_of(asked.tail_silence_seconds)

    @property
    def start_seconds(self) -> float:
        """When the sound that was placed last begins."""
        return self._start / self._rate

    @property
    def end_seconds(self) -> float:
        return self._frames / self._rate

    def place(self, sound: Samples) -> list[Samples]:
        """The blocks to append: the pause that is due and the sound; none where it does not fit any more. A first one
        that is too long for the whole is cut short.
        """
        room = self._room()
        self.is_full = len(sound) > room
        if self.is_full and not self.is_empty:
            return []
        if self.is_full:
            sound = _faded(sound[: int(room)], self._rate, 0.0, _FADE_SECONDS)
        blocks = [self._silence(self._gap), sound]
        self._start = self._frames + self._gap
        self._frames = self._start + len(sound)
        self.is_empty, self._gap = False, 0
        return blocks

    def pause(self, end: Boundary) -> None:
        """Let the next sound wait for as long as the text's boundary asks."""
        if not self.is_empty:
            self._gap = max(self._gap, self._frames_of(PAUSE_SECONDS[end] / self._asked.speed))

    def finish(self) -> list[Samples]:
        return [self._silence(self._tail)]

    def _room(self) -> float:
        if self._asked.max_duration_seconds == math.inf:
            return math.inf
        longest = self._frames_of(self._asked.max_duration_seconds) - self._tail - self._gap - self._frames
        return max(longest, 1 if self.is_empty else 0)

    def _frames_of(self, seconds: float) -> int:
        return round(seconds * self._rate)

    def _silence(self, frames: int) -> Samples:
        import numpy as np

        return np.zeros(frames, np.float32)

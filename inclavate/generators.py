"""What a generator is, for whoever offers one, asks one or checks a request against one. Plain Python."""

from __future__ import annotations

import html
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from inclavate import errors

SCHEMA_VERSION = 1
MODALITIES = ("audio", "image", "video", "text")

# Tasks, as capabilities print them.
SPEECH = "text-to-speech"
MUSIC = "text-to-music"
TRANSCRIBE = "transcribe"
UNDERSTAND = "understand"

# Types of documents, for models that read them aloud.
PLAIN_TEXT = "text/plain"
MARKDOWN = "text/markdown"
HTML = "text/html"
EPUB = "application/epub+zip"
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
DOCUMENTS = (PLAIN_TEXT, MARKDOWN, HTML, EPUB, DOCX)


@dataclass(frozen=True, slots=True)
class Capability:
    """All that a face needs to describe a model or to check a request against it.

    `voices` are clips that this deployment registered, `builtin_voices` speakers in the weights; `voice_languages` says
    of a voice which language alone it speaks, `blends_voices` whether `voice` may mix some (`blend_of`). `languages` is
    empty where there is no choice. `speed_range` is (min, max), durations divide by it. `media_types` are those
    that `input_artifacts` may have beyond the contract's own.
    """

    model: str
    modality: str
    task: str
    voices: tuple[str, ...] = ()
    builtin_voices: tuple[str, ...] = ()
    blends_voices: bool = False
    voice_languages: Mapping[str, str] = field(default_factory=dict)
    requires_speaker: bool = False
    accepts_speaker: bool = False
    requires_reference_text: bool = False
    speed_range: tuple[float, float] | None = None
    languages: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    formats: tuple[str, ...] = ()
    sample_rate: int | None = None
    streams: bool = False
    honours_seed: bool = False
    timestamps: tuple[str, ...] = ()
    translates: bool = False
    subtitles: tuple[str, ...] = ()
    media_types: tuple[str, ...] = ()
    input_modalities: tuple[str, ...] = ()

    @property
    def documents(self) -> tuple[str, ...]:
        """The types of documents that it reads aloud."""
        return tuple(kind for kind in self.media_types if kind in DOCUMENTS) if self.task == SPEECH else ()

    @property
    def queue(self) -> str:
        """The queue that this model's jobs wait in."""
        return f"model.{self.model}"

    def as_json(self) -> dict[str, Any]:
        """Every field, for storing; `from_json` reads it back."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"schema": SCHEMA_VERSION} | {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Capability:
        """Unknown members are dropped: an older web process may meet a newer worker's offer."""
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known}
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Input:
    """One input artifact, as a file that the engine may read. `media_type` is what the bytes are."""

    path: Path
    media_type: str


@dataclass(frozen=True, slots=True)
class Output:
    """One finished file under `run.workdir`. `facts` are numbers about it (duration_seconds, sample_rate…), `filename`
    is what a download of it is called; empty, it has no name."""

    path: Path
    media_type: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    filename: str = ""


class Cancelled(BaseException):
    """Raised by `run.check()` once the job is to stop. Not an Exception, so that no engine swallows it by accident."""


class Run(Protocol):
    """One job, as an engine sees it."""

    @property
    def params(self) -> Mapping[str, Any]: ...

    @property
    def inputs(self) -> Sequence[Input]: ...

    @property
    def seed(self) -> int | None: ...

    @property
    def workdir(self) -> Path:
        """An empty folder of the job's own; outputs are written here."""

    def progress(self, stage: str, fraction: float | None = None) -> None:
        """Say how far `stage` is (0..1, or None where it cannot be known). Also a `check()`."""

    def check(self) -> None:
        """Call between frames, sentences, steps, tokens: raises `Cancelled` when the job is to stop."""

    def growing(self, path: Path, media_type: str) -> None:
        """Say that this file, the job's first output, which is there already, is written from its start on, so that
        what is in it may be heard. Only numbers in its header may change before its end.
        """

    def note(self, text: str) -> None:
        """Tell the user something about this job that is not an error, as one sentence."""


@runtime_checkable
class Generator(Protocol):
    """An engine. It lives in a process of its own; only `describe` runs elsewhere, and imports no model library.

    `load` and `generate` raise `errors.JobError` subclasses for what a user should read; anything else becomes
    `inference_failed`.
    """

    @classmethod
    def describe(cls, model: str, options: Mapping[str, Any]) -> Capability:
        """What the model can do, from its configuration alone."""

    def load(self, options: Mapping[str, Any]) -> None:
        """Bring the model into memory."""

    def generate(self, run: Run) -> Iterator[Output]:
        """Do the job; yield each output once its file is complete."""

    def unload(self) -> None:
        """Give the memory back."""


# -- what a request's words mean ---------------------------------------------------------------------------------------

MAX_BLENDED = 8
MAX_SILENCE_SECONDS = 10.0


def match_language(wanted: str, offered: Sequence[str]) -> str | None:
    """Which of `offered` a language code asks for: "en_US" means "en-us", or "en" where there is no closer one, and
    "en" the first of "en-gb", "en-us".
    """
    codes = {code.lower().replace("_", "-"): code for code in reversed(offered)}
    code = wanted.strip().lower().replace("_", "-")
    language = code.partition("-")[0]
    if found := codes.get(code) or codes.get(language):
        return found
    regional = (given for given in offered if given.lower().replace("_", "-").startswith(f"{language}-"))
    return next(regional, None) if code == language else None


def blend_of(voice: str) -> dict[str, float]:
    """The parts of a voice like "anna:0.6+ben:0.4", whose weights are made to sum to 1; a part without one has 1.

    Raises `ValueError` with a sentence.
    """
    parts = voice.split("+")
    if len(parts) > MAX_BLENDED:
        raise ValueError(f"a blend has at most {MAX_BLENDED} voices, not {len(parts)}.")
    weights: dict[str, float] = {}
    for part in parts:
        name, colon, number = (text.strip() for text in part.partition(":"))
        # One without a name is refused with the list of names.
        if name and name in weights:
            raise ValueError(f"{name!r} is in the blend twice.")
        weights[name] = _weight(part, number) if colon else 1.0
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def _weight(part: str, number: str) -> float:
    if not re.fullmatch(r"\d{1,6}(\.\d{0,12})?|\.\d{1,12}", number, re.ASCII) or not float(number):
        raise ValueError(
            f"a weight is a number above 0 and below 1,000,000, as in NAME:0.6+NAME:0.4; {part[:60]!r} has none."
        )
    return float(number)


def granularities(timestamps: object) -> frozenset[str] | None:
    """What times a transcription is asked for: none, "segment", "word" or several of them; true stands for "segment".
    None for what cannot be meant.
    """
    if timestamps is None or isinstance(timestamps, bool):
        return frozenset({"segment"} if timestamps else ())
    words = [timestamps] if isinstance(timestamps, str) else timestamps
    if isinstance(words, list | tuple) and all(isinstance(word, str) for word in words):
        return frozenset(words)
    return None


# -- checking a request against a capability ---------------------------------------------------------------------------

MAX_LEXICON_ENTRIES = 200
MAX_LEXICON_CHARACTERS = 100

# Keycaps, flags, pictures with skin tones or joined, and what stands before a selector of the coloured style.
_PICTURES = (
    "\u231a\u231b\u2328\u23cf\u23e9-\u23f3\u23f8-\u23fa\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe"
    "\u2600-\u266c\u2670-\u2775\u2794-\u27bf\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55"
    "\U0001f000-\U0001f0ff\U0001f170\U0001f171\U0001f17e\U0001f17f\U0001f18e\U0001f191-\U0001f19a"
    "\U0001f1e6-\U0001f1ff\U0001f201\U0001f202\U0001f21a\U0001f22f\U0001f232-\U0001f23a\U0001f250\U0001f251"
    "\U0001f260-\U0001f265\U0001f300-\U0001f6ff\U0001f780-\U0001f7ff\U0001f900-\U0001faff"
)
EMOJI = re.compile(
    f"(?:[0-9#*]\ufe0f?\u20e3|[{_PICTURES}]|[\u00a9\u00ae\u203c\u2049\u2100-\u2bff\u3030\u303d\u3297\u3299]\ufe0f)"
    "[\ufe0e\ufe0f\u200d\u20e3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*"
)
_SHORT_CHARACTERS = 2_000
_TAGS = re.compile(
    r"<!--.*?-->|<(script|style|template|svg)\b[^>]*>.*?</\1\s*>|</?(?:"
    r"a|abbr|article|aside|b|blockquote|body|br|button|caption|cite|code|dd|del|div|dl|dt|em|figure|footer|form|h[1-6]|head|"
    r"header|hr|html|i|iframe|img|input|ins|kbd|label|li|link|main|mark|meta|nav|ol|option|p|picture|pre|q|s|section|select|"
    r"small|source|span|strong|sub|sup|table|tbody|td|tfoot|th|thead|time|title|tr|u|ul|var|video|wbr"
    r")(?:[\s/][^<>]*)?>|!\[\s*\]\([^()]*\)",
    re.IGNORECASE | re.DOTALL,
)
# Letters to Unicode that show nothing.
_BLANK_LETTERS = frozenset("\u115f\u1160\u3164\uffa0")
_MARKUP = frozenset("<=>|~")
_SPOKEN_MARKS = frozenset("%‰‱&@§°©®")

_SAMPLING = {"temperature": (0.0, 2.0), "top_p": (0.0, 1.0), "top_k": (0, 100_000), "repetition_penalty": (0.0, 10.0)}


@dataclass(frozen=True, slots=True)
class Check:
    """The checks of one request; each raises `InvalidRequest` (or its contract's subclass) with a sentence.

    `name_of` says what a field of `params` is called on the route that it came by ("text" is "input" on OpenAI's).
    `input_count` counts the inputs that are no documents to be read aloud, `document_count` those that are.
    `saved_voices` are the caller's, which an unknown voice is told besides the model's.
    """

    capability: Capability
    params: Mapping[str, Any]
    input_count: int
    name_of: Callable[[str], str] = str
    document_count: int = 0
    saved_voices: Sequence[str] = ()

    def run(self) -> None:
        if self.capability.task in (SPEECH, MUSIC):
            self._audio()
        else:
            self._understanding()

    def _audio(self) -> None:
        capability = self.capability
        prompt = "text" if capability.task == SPEECH else "prompt"
        if self.document_count:
            self._document()
        else:
            self._prompt(prompt)
        self._language()
        self._choice("response_format", capability.formats or ("wav",))
        self._number("max_duration_seconds", 0.1, 86_400.0)
        for sampler, (low, high) in _SAMPLING.items():
            self._number(sampler, low, high)
        self._typed("normalize", bool, "true or false")
        self._typed("instruct", str, "a string")
        if capability.task == SPEECH:
            self._speaker()
            if capability.speed_range:
                self._number("speed", *capability.speed_range)
            self._typed("speed", (int, float), "a number")
            self._silences()
            self._lexicon()
            if self.params.get("subtitles") is not None and not capability.subtitles:
                raise self._invalid("subtitles", f"{capability.model} gives no subtitles; leave it out.")
            self._choice("subtitles", capability.subtitles)

    def _silences(self) -> None:
        names = ("lead_silence_seconds", "tail_silence_seconds")
        for name in names:
            self._number(name, 0.0, MAX_SILENCE_SECONDS)
        silence = sum(self.params.get(name) or 0.0 for name in names)
        longest = self.params.get("max_duration_seconds")
        if longest is not None and silence >= longest:
            raise self._invalid(
                "max_duration_seconds", f"{longest} s leave no room for speech beside {silence:g} s of silence."
            )

    def _lexicon(self) -> None:
        entries = self._typed("lexicon", dict, "an object of words and how each is said")
        if entries is None:
            return
        if len(entries) > MAX_LEXICON_ENTRIES:
            raise self._invalid("lexicon", f"It may have at most {MAX_LEXICON_ENTRIES} entries; {len(entries):,} came.")
        for word, said in entries.items():
            for part in (word, said):
                if not (isinstance(part, str) and 1 <= len(part) <= MAX_LEXICON_CHARACTERS and part.strip()):
                    raise self._invalid(
                        "lexicon",
                        f"A word and how it is said are strings of 1 to {MAX_LEXICON_CHARACTERS} characters, "
                        f"not blank; {_shown({word: said})} came.",
                    )

    def _prompt(self, prompt: str) -> None:
        self._text(prompt, required=True)
        text = self.params[prompt]
        if not can_be_spoken(text if self.params.get("normalize") is False else _without_markup(text)):
            raise self._invalid(
                prompt, f"It has nothing to speak: no letter, digit or spoken symbol in {_shown(text)}."
            )

    def _document(self) -> None:
        """Of a document every word is read, so there is nothing else to say."""
        if self.params.get("text") is not None:
            raise self._invalid("text", "A document came as well, whose text is read; send one of them.")
        if self.document_count > 1:
            raise errors.InvalidRequest(
                f"input_artifacts: One document is read at a time, not {self.document_count}.", param="input_artifacts"
            )

    def _speaker(self) -> None:
        capability = self.capability
        voice = self._typed("voice", str, "a string")
        if voice is not None:
            self._voice(voice)
        if self.input_count and not capability.accepts_speaker:
            raise errors.SpeakerUnsupported(
                f"{capability.model} cannot speak like a clip; leave out input_artifacts and speaker_artifact.",
                param="speaker_artifact",
            )
        if self.input_count > 1:
            raise self._invalid("speaker_artifact", f"One clip is the most, not {self.input_count}.")
        if self.input_count and voice in capability.voices:
            raise self._invalid("voice", f"{voice!r} is a clip of the deployment, and another came; send one.")
        if capability.requires_speaker and voice is None and not self.input_count:
            raise self._invalid("voice", f"{capability.model} needs a voice or a speaker_artifact.")
        self._reference_text()

    def _voice(self, voice: str) -> None:
        capability = self.capability
        known = (*capability.voices, *capability.builtin_voices)
        parts = [voice]
        if capability.blends_voices and voice not in known:
            try:
                parts = list(blend_of(voice))
            except ValueError as error:
                raise self._invalid("voice", f"In {_quoted(voice)}: {error}") from None
        for part in parts:
            if part not in known:
                offered = (*known, *self.saved_voices)
                there = f"it has {', '.join(offered)}" if offered else "it has none to choose"
                raise self._invalid("voice", f"{_quoted(part)} is no voice of {capability.model}; {there}.")
        language, spoken = self.params.get("language"), capability.voice_languages.get(voice)
        if language is not None and spoken is not None and match_language(language, [spoken]) is None:
            raise self._invalid("language", f"The voice {voice!r} speaks {spoken}, not {_quoted(language)}.")

    def _language(self) -> None:
        offered = self.capability.languages
        wanted = self._typed("language", str, "a string")
        if wanted is not None and offered and match_language(wanted, offered) is None:
            raise self._invalid("language", f"{_quoted(wanted)} is not one of {', '.join(offered)}.")

    def _reference_text(self) -> None:
        text = self._typed("reference_text", str, "a string")
        if self.params.get("voice") in self.capability.voices:
            if text is not None:
                raise self._invalid("reference_text", "The voice is the deployment's, as its words are; leave it out.")
        elif self.capability.requires_reference_text:
            if not (text or "").strip() or not self.input_count:
                raise self._invalid("reference_text", "A clip and the exact words said in it are required.")
        elif text is not None:
            raise self._invalid("reference_text", f"{self.capability.model} takes no reference text; leave it out.")

    def _understanding(self) -> None:
        if not self.input_count:
            raise errors.NoInput(
                f"{self.capability.model} needs at least one of input_artifacts.", param="input_artifacts"
            )
        self._text("prompt", required=False)
        if self.capability.task == UNDERSTAND and not str(self.params.get("prompt") or "").strip():
            raise errors.NoPrompt("params.prompt says what to look for; it must not be empty.", param="prompt")
        if self.capability.task == TRANSCRIBE and self.input_count > 1:
            raise errors.InvalidRequest(
                f"One clip is transcribed at a time; input_artifacts has {self.input_count}.", param="input_artifacts"
            )
        self._language()
        self._number("max_tokens", 1, 1_000_000)
        self._typed("thinking", bool, "true or false")
        self._timestamps()
        if self._typed("translate", bool, "true or false") and not self.capability.translates:
            raise self._invalid("translate", f"{self.capability.model} cannot translate into English.")

    def _timestamps(self) -> None:
        value, offered = self.params.get("timestamps"), self.capability.timestamps
        wanted = granularities(value)
        if wanted and not offered:
            raise self._invalid("timestamps", f"{self.capability.model} gives no timestamps; leave it out.")
        if wanted is None or not wanted <= set(offered):
            raise self._invalid("timestamps", f"It must be true or of {', '.join(offered)}, not {_shown(value)}.")

    def _text(self, field_name: str, *, required: bool) -> None:
        text = self._typed(field_name, str, "a string")
        if text is None and not required:
            return
        if text is None:
            raise self._invalid(field_name, "It is required.")
        if required and not text.strip():
            raise self._invalid(field_name, f"It must be text, and not blank; {_shown(text)} came.")
        limit = int(self.capability.limits.get("max_characters", 1_000_000))
        if len(text) > limit:
            raise self._invalid(field_name, f"It may have at most {limit:,} characters; {len(text):,} came.")

    def _choice(self, field_name: str, options: Sequence[str]) -> None:
        value = self._typed(field_name, str, "a string")
        if value is not None and options and value not in options:
            raise self._invalid(field_name, f"{_quoted(value)} is not one of {', '.join(options)}.")

    def _number(self, field_name: str, low: float, high: float) -> None:
        value = self._typed(field_name, (int, float), "a number")
        if value is not None and not low <= value <= high:
            raise self._invalid(field_name, f"It must be between {low} and {high}, not {value}.")

    def _typed(self, field_name: str, kind: type | tuple[type, ...], wanted: str) -> Any:
        value = self.params.get(field_name)
        # A bool is an int to Python, and none to JSON.
        if value is not None and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
            raise self._invalid(field_name, f"It must be {wanted}, not {_shown(value)}.")
        return value

    def _invalid(self, field_name: str, sentence: str) -> errors.InvalidRequest:
        name = self.name_of(field_name)
        return errors.InvalidRequest(f"{name}: {sentence}", param=name)


def _without_markup(text: str) -> str:
    """A short text without tags, comments, entities' names and pictures; one that is long has words as well, and what
    is to be spoken of it is found when it is spoken."""
    return html.unescape(_TAGS.sub(" ", text)) if len(text) <= _SHORT_CHARACTERS else text


def can_be_spoken(text: str) -> bool:
    """Whether it holds a letter, a digit or a symbol that has a name; emoji, punctuation and what marks up text alone
    make no sound.
    """
    return any(map(_is_spoken, set(EMOJI.sub("", text))))


def _is_spoken(character: str) -> bool:
    if character in _SPOKEN_MARKS:
        return True
    category = unicodedata.category(character)
    if category == "So":
        # "℃" and "™" are written with letters, "🅗" is one; "★" is but a picture.
        if "\U0001f150" <= character <= "\U0001f189":
            return True
        return any(unicodedata.category(c)[0] in "LN" for c in unicodedata.normalize("NFKC", character))
    if category == "Sm":
        return character not in _MARKUP
    return category == "Sc" or (category[0] in "LN" and character not in _BLANK_LETTERS)


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:59]}…")


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"

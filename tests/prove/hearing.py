"""How much of a text is found again in what was heard of it.

Both are brought to one spelling first, by the normaliser that Whisper is measured with: it knows nothing of ours. What
it leaves apart though it is the same words is in `_BEFORE` and `_AFTER`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cache

from rapidfuzz.distance import Levenshtein
from whisper_normalizer.english import EnglishTextNormalizer

# A sentence is found where so many of its words were heard, in order; and heard twice where so many more were.
FOUND = 0.6
DOUBLED = 0.4

_MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"
_BEFORE = (
    (r"@", " at "),
    (r"(?<=\w\w)\.(?=[a-z]\w)", " dot "),
    (r"\bo['’]clock\b", "oclock"),
    (r"\bkm/h\b", "kilometers per hour"),
    (r"°\s*c\b|\bdegrees c\b", " degrees celsius"),
    (r"(?<=[a-z])/(?=[a-z])", " slash "),
    (r"\be-mail\b", "email"),
)
_AFTER = (
    (r"\b([ap]) m\b", r"\1m"),
    (rf"\b({_MONTHS}) (\d+)(?:st|nd|rd|th)\b", r"\1 \2"),
    (r"\bkm\b", "kilometers"),
    (r"\bkg\b", "kilograms"),
    (r"\bsgt\b", "sergeant"),
    (r"\bapt\b", "apartment"),
    (r"\bave\b", "avenue"),
    (r"\bapprox\b", "approximately"),
    (r"\bii\b", "2"),
    (r"\bone\b", "1"),
    # "7:45", "7 45" and "745"; a telephone number's groups.
    (r"(?<=\d) (?=\d)", ""),
)


def words_of(text: str) -> list[str]:
    """The words as they may be compared, however figures, abbreviations and addresses are written."""
    text = _replaced(text.lower(), _BEFORE)
    return _replaced(_normaliser()(text), _AFTER).split()


def word_errors(said: str, heard: str) -> tuple[int, int]:
    """Words to change, drop or add; and how many were said."""
    wanted = words_of(said)
    return Levenshtein.distance(wanted, words_of(heard)), len(wanted)


def word_error_rate(said: str, heard: str) -> float:
    errors, count = word_errors(said, heard)
    return errors / count


def differences(said: str, heard: str) -> list[str]:
    """What was heard otherwise, as "harbor → harper"; a side is empty where words were dropped or added."""
    wanted, listened = words_of(said), words_of(heard)
    return [
        f"{' '.join(wanted[start:end])} → {' '.join(listened[there:until])}".strip()
        for tag, start, end, there, until in Levenshtein.opcodes(wanted, listened)
        if tag != "equal"
    ]


@dataclass(frozen=True, slots=True)
class Sentence:
    """One that names its own number, in words."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Heard:
    """What became of a sentence: the words in its place, the share of its own that are among them in order, how many
    came in between as a share of its own, and whether its number was heard.
    """

    sentence: Sentence
    words: str
    found: float
    extra: float
    has_number: bool
    is_elsewhere: bool

    @property
    def is_in_order(self) -> bool:
        return self.found >= FOUND and self.extra < DOUBLED and not self.is_elsewhere


def follow(sentences: Sequence[Sentence], heard: str) -> list[Heard]:
    """Each sentence's fate, by the cheapest way to change the words of all of them into those that were heard.

    A sentence is elsewhere where its number was not heard in it, but in the place of another one's.
    """
    fates = [_Fate(words_of(sentence.text), str(sentence.number)) for sentence in sentences]
    owner = [fate for fate in fates for _ in fate.said]
    said, listened = [word for fate in fates for word in fate.said], words_of(heard)
    for tag, start, end, there, until in Levenshtein.opcodes(said, listened):
        if tag == "insert":
            # Between two sentences they are the first one's.
            owner[max(0, start - 1)].add(listened[there:until])
        for place, word in zip(range(start, end), listened[there:until], strict=False):
            owner[place].take(said[place], word)
    strays = {fate.number_heard for fate in fates if fate.number_heard != fate.number}
    return [fate.told(sentence, strays) for fate, sentence in zip(fates, sentences, strict=True)]


@dataclass(slots=True)
class _Fate:
    said: list[str]
    number: str
    heard: list[str] = field(default_factory=list)
    same: int = 0
    more: int = 0
    number_heard: str | None = None

    def add(self, words: Sequence[str]) -> None:
        self.heard += words
        self.more += len(words)

    def take(self, said: str, word: str) -> None:
        self.heard.append(word)
        self.same += said == word
        if said == self.number:
            self.number_heard = word

    def told(self, sentence: Sentence, strays: Collection[str | None]) -> Heard:
        has_number = self.number_heard == self.number
        count = len(self.said)
        is_elsewhere = not has_number and self.number in strays
        return Heard(sentence, " ".join(self.heard), self.same / count, self.more / count, has_number, is_elsewhere)


def _replaced(text: str, replacements: Sequence[tuple[str, str]]) -> str:
    for pattern, replacement in replacements:
        text = re.sub(pattern, replacement, text)
    return text


@cache
def _normaliser() -> EnglishTextNormalizer:
    return EnglishTextNormalizer()

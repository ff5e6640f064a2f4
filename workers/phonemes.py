"""What espeak-ng can be given at once. It writes each word, and each clause, into room of a fixed size: what does not
fit it drops without a word, and many letters with full stops ("a.a.a.") make it write beyond its room, and crash.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

# Measured in a dozen of its languages: a crash takes 40 full stops, a loss 98 letters of a word or 390 of a clause.
# (The longest word that people write has 89.)
_MAX_STOPS = 20
_MAX_WORD_LETTERS = 95
_MAX_CLAUSE_LETTERS = 350
_RUN = re.compile(r"\S+")
_CLAUSE_END = re.compile(r"[.,;:!?]+")
_GAP = re.compile(r"\s+|[、，；：。！？]+")
# More than an address or a section's number has; each point becomes a word.
_POINTS = re.compile(r"(?:\d+\.){8}(?=\d)")
# Those within numbers make no crash.
_STOP = re.compile(r"(?<=[^\s\d.])\.\s*|(?<=\d)\.(?!\d)\s*")


def readable_parts(text: str, phonemize: Callable[[str], str]) -> Iterator[str]:
    """The text in parts that are read whole, one by one; nearly always it is one part, and as it was.

    `phonemize` gives a part's phonemes, with spaces between words. A run without a space that is too much for one word
    gets spaces; a text that is too much for one clause is cut.
    """
    text = _POINTS.sub(r"\g<0> ", text)
    start = 0
    for number, stop in enumerate(_STOP.finditer(text), 1):
        if number % _MAX_STOPS == 0 and stop.end() < len(text):
            yield from _read_whole(text[start : stop.end()], phonemize)
            start = stop.end()
    yield from _read_whole(text[start:], phonemize)


def _read_whole(text: str, phonemize: Callable[[str], str]) -> Iterator[str]:
    phonemes = phonemize(text)
    if _longest_word(phonemes) > _MAX_WORD_LETTERS:
        text = _RUN.sub(lambda run: _loosened(run[0], phonemize), text)
        phonemes = phonemize(text)
    # The words too, as some languages run them together.
    is_too_much = _longest_word(phonemes) > _MAX_WORD_LETTERS or _longest_clause(phonemes) > _MAX_CLAUSE_LETTERS
    if is_too_much and (middle := _middle(text)):
        yield from _read_whole(text[:middle], phonemize)
        yield from _read_whole(text[middle:], phonemize)
    else:
        yield text


def _loosened(run: str, phonemize: Callable[[str], str]) -> str:
    """The run with spaces in it, so that no word of it is too long."""
    if len(run) < 2 or _longest_word(phonemize(run)) <= _MAX_WORD_LETTERS:
        return run
    middle = len(run) // 2
    return f"{_loosened(run[:middle], phonemize)} {_loosened(run[middle:], phonemize)}"


def _longest_word(phonemes: str) -> int:
    return max(map(len, phonemes.split()), default=0)


def _longest_clause(phonemes: str) -> int:
    return max(map(len, _CLAUSE_END.split(phonemes)))


def _middle(text: str) -> int:
    """The end of the white space or mark nearest to the middle, else the middle itself; 0 where nothing can be cut."""
    length = len(text.rstrip())
    ends = [gap.end() for gap in _GAP.finditer(text, 0, length) if gap.start() and gap.end() < length]
    return min(ends, key=lambda end: abs(2 * end - length), default=length // 2)

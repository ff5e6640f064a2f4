"""Text in pieces that say how they end. Every cut is lossless: the pieces join to the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from workers.text import PIECE_CHARACTERS, split_text

_SENTENCE = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])\s*")
_CLOSERS = "\"'”’»)]"


class Boundary(Enum):
    """What ends a piece, from the longest pause to none; the end of the text ends a paragraph."""

    PARAGRAPH = "paragraph"
    SENTENCE = "sentence"
    CLAUSE = "clause"
    WORD = "word"
    CUT = "cut"


@dataclass(frozen=True, slots=True)
class Piece:
    """`text` with the white space that follows it; `start` is its offset into the whole text."""

    text: str
    start: int
    end: Boundary


def split(text: str, limit: int = PIECE_CHARACTERS, language: str = "en") -> Iterator[Piece]:
    """The text in order, in pieces of 1..`limit` characters that hold as many whole sentences as fit."""
    yield from _pieces(split_text(text, limit), len(text))


def sentences(text: str, limit: int = PIECE_CHARACTERS, language: str = "en") -> Iterator[Piece]:
    """The text in order, every sentence a piece of its own, those over `limit` characters in several."""
    parts = (part for piece in split_text(text, limit) for part in _sentences(piece))
    yield from _pieces(parts, len(text))


def _sentences(piece: str) -> Iterator[str]:
    ends = [match.end() for match in _SENTENCE.finditer(piece)]
    for start, end in zip([0, *ends], [*ends, len(piece)], strict=True):
        if start < end:
            yield piece[start:end]


def _pieces(texts: Iterator[str], length: int) -> Iterator[Piece]:
    start = 0
    for text in texts:
        is_last = start + len(text) == length
        yield Piece(text, start, Boundary.PARAGRAPH if is_last else _boundary(text))
        start += len(text)


def _boundary(text: str) -> Boundary:
    words = text.rstrip()
    if text[len(words) :].count("\n") > 1:
        return Boundary.PARAGRAPH
    match words.rstrip(_CLOSERS)[-1:]:
        case "." | "!" | "?" | "…" | "。" | "！" | "？":
            return Boundary.SENTENCE
        case "," | ";" | ":" | "–" | "—" | "、" | "，" | "；" | "：":
            return Boundary.CLAUSE
    return Boundary.WORD if text[-1:].isspace() else Boundary.CUT

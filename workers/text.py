"""Cutting text into pieces that an engine can speak one by one. Every cut is lossless: the pieces join to the text."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import regex
import sentencex

PIECE_CHARACTERS = 250

# The boundary library takes time with the square of its input on some hostile texts, so it sees no more at once.
_WINDOW_CHARACTERS = 1000
_PARAGRAPH = re.compile(r"\n\s*\n\s*|\u2029\s*")
_CLUSTER = regex.compile(r"\X")
_WORD_EDGE = regex.compile(r"(?w)\b")
_NUMBER = re.compile(r"\d+(?:[.,:/'’·_٫٬．，-]\d+|[\u00a0\u202f\u2009 ]\d{3}(?!\d))*")
_CLAUSE = re.compile(r"[,;:–—][\"'”’»)\]]*\s+|[、，；：][”’」』）]*\s*|\s[-–—]+\s+|\n\s*")
_SPACE = re.compile(r"\s+")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_QUOTES = str.maketrans(dict.fromkeys('"“”„‟«»‹›「」『』', " "))
# Never the end of a sentence where a name follows, in whatever language: the library's lists lack some.
_TITLE = re.compile(r"(?:^|[\s(\"“«])(?:\w|M[rsx]|Mrs|Mme|Mlle|MM|Dr|Dra|Prof|St|Sr|Sra|Hr|Fr)\.\s+$")


class Boundary(Enum):
    """What ends a piece, from the longest pause to none; the end of the text ends a paragraph."""

    PARAGRAPH = "paragraph"
    SENTENCE = "sentence"
    CLAUSE = "clause"
    WORD = "word"
    CUT = "cut"


_ENDS_SENTENCE = (Boundary.PARAGRAPH, Boundary.SENTENCE)


@dataclass(frozen=True, slots=True)
class Piece:
    """`text` with the white space that follows it; `start` is its offset into the whole text."""

    text: str
    start: int
    end: Boundary


def split(text: str, limit: int = PIECE_CHARACTERS, language: str = "en") -> Iterator[Piece]:
    """The text in order, in pieces of 1..`limit` characters; a piece may be blank.

    Every paragraph starts a piece. Within one, a piece holds as many whole sentences as fit; a longer sentence is cut
    as `sentences` cuts it. `language` is a code such as "en-us"; one that is not known is read by general rules.
    """
    held: Piece | None = None
    for piece in sentences(text, limit, language):
        if held is not None and _may_join(held, piece, limit):
            held = Piece(held.text + piece.text, held.start, piece.end)
            continue
        if held is not None:
            yield held
        held = piece
    if held is not None:
        yield held


def sentences(text: str, limit: int = PIECE_CHARACTERS, language: str = "en") -> Iterator[Piece]:
    """The text in order, every sentence a piece of its own, those over `limit` characters in several.

    A long sentence is cut after the last clause within reach, else the last word, else as late as possible. A number,
    and a letter with its marks, stay together unless they alone exceed the limit.
    """
    start = 0
    for paragraph in _PARAGRAPH.finditer(text):
        yield from _paragraph(text[start : paragraph.end()], start, limit, language)
        start = paragraph.end()
    yield from _paragraph(text[start:], start, limit, language)


def _may_join(held: Piece, piece: Piece, limit: int) -> bool:
    return (
        held.end is not Boundary.PARAGRAPH and piece.end in _ENDS_SENTENCE and len(held.text) + len(piece.text) <= limit
    )


def _paragraph(text: str, offset: int, limit: int, language: str) -> Iterator[Piece]:
    """The paragraph's pieces, found a window at a time."""
    start = 0
    while start < len(text):
        window = _Window(text[start : start + max(_WINDOW_CHARACTERS, 4 * limit)], language)
        is_last = start + len(window.text) == len(text)
        begin = 0
        for end in window.sentence_ends(is_last):
            is_paragraph = is_last and end == len(window.text)
            last = Boundary.PARAGRAPH if is_paragraph else Boundary.SENTENCE
            yield from window.pieces(begin, end, limit, offset + start, last)
            begin = end
        if begin == 0:
            # One sentence longer than the window: all but its rest is cut, which then starts the next.
            for piece in window.pieces(0, len(window.text), limit, offset + start, Boundary.WORD):
                if len(window.text) - begin <= 2 * limit:
                    break
                yield piece
                begin += len(piece.text)
        start += begin


class _Window:
    """A stretch of a paragraph, and where it may be cut."""

    def __init__(self, text: str, language: str) -> None:
        self.text = text
        self._language = language.partition("-")[0].lower() or "en"
        self._places = _places(text)

    def sentence_ends(self, is_last: bool) -> list[int]:
        """Offsets after each sentence; without the last of them, unless the paragraph ends there."""
        ends = self._library_ends(self.text)
        return ends if is_last else ends[:-1]

    def pieces(self, begin: int, end: int, limit: int, offset: int, last: Boundary) -> Iterator[Piece]:
        """The sentence from `begin` to `end`, cut where it is longer than `limit`."""
        if end - begin > limit:
            inner = self._inner_ends(begin, end)
            while end - begin > limit:
                cut, boundary = self._cut(begin, begin + limit, inner)
                yield Piece(self.text[begin:cut], offset + begin, boundary)
                begin = cut
        yield Piece(self.text[begin:end], offset + begin, last)

    def _library_ends(self, text: str) -> list[int]:
        """Where the library sees a sentence end that may be cut at; the end of the text always."""
        found = sentencex.segment(self._language, _SURROGATE.sub("\ufffd", text))
        # Where white space surprised it, it loses or adds some.
        if sum(map(len, found)) != len(text):
            return [len(text)]
        allowed = set(self._places)
        ends, end = [], 0
        for sentence in found[:-1]:
            end += len(sentence)
            if end in allowed and not (self._language != "en" and _TITLE.search(sentence[-12:])):
                ends.append(end)
        return [*ends, len(text)]

    def _inner_ends(self, begin: int, end: int) -> list[int]:
        """Ends of the sentences within quotation marks, which the library holds together."""
        unquoted = self.text[begin:end].translate(_QUOTES)
        if unquoted == self.text[begin:end]:
            return []
        window = _Window(unquoted, self._language)
        return [self._before_quote(begin + place) for place in window._library_ends(unquoted)[:-1]]

    def _before_quote(self, place: int) -> int:
        """A mark that opens the next sentence does not end this one."""
        while place > 1 and self.text[place - 1].translate(_QUOTES) == " " != self.text[place - 1]:
            place -= 1
        return place

    def _cut(self, begin: int, end: int, inner: list[int]) -> tuple[int, Boundary]:
        """The best place after `begin` and up to `end`."""
        last = bisect_right(inner, end) - 1
        if last >= 0 and inner[last] > begin:
            return inner[last], Boundary.SENTENCE
        reachable = self._places[bisect_right(self._places, begin) : bisect_right(self._places, end)]
        if not reachable:
            return end, Boundary.CUT
        allowed = set(reachable)
        for pattern, boundary in ((_CLAUSE, Boundary.CLAUSE), (_SPACE, Boundary.WORD)):
            ends = [match.end() for match in pattern.finditer(self.text, begin, end) if match.end() in allowed]
            if ends:
                return ends[-1], boundary
        # One character more, as the end of what is searched counts as the edge of a word.
        edges = [edge.end() for edge in _WORD_EDGE.finditer(self.text, begin, end + 1) if edge.end() in allowed]
        if edges:
            return edges[-1], Boundary.WORD
        return reachable[-1], Boundary.CUT


def _places(text: str) -> list[int]:
    """Where a cut is in no grapheme and in no number, in order."""
    inside: set[int] = set()
    for number in _NUMBER.finditer(text):
        inside.update(range(number.start() + 1, number.end()))
    ends = (cluster.end() for cluster in _CLUSTER.finditer(text))
    return [end for end in ends if end not in inside and not _is_surrogate_pair(text, end)]


def _is_surrogate_pair(text: str, place: int) -> bool:
    return "\ud800" <= text[place - 1] <= "\udbff" and "\udc00" <= text[place : place + 1] <= "\udfff"

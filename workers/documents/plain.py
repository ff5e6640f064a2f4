"""Plain text: chapters at lines that name one, else at form feeds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from workers.documents.blocks import Chapter
from workers.documents.texts import check_length

_CHAPTER_WORDS = "chapter|chapitre|kapitel|cap[ií]tulo|capitolo|hoofdstuk|rozdział|глава|part|book"
_NUMBERS = (
    "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|[a-z]{3,5}teen|twenty|[ivxlcdm]{1,9}|[0-9]{1,4}"
)
_CHAPTER_LINE = re.compile(
    rf"(?:(?:{_CHAPTER_WORDS})[ \t]{{1,3}}(?:{_NUMBERS})|prologue|epilogue"
    rf"|第[0-9〇零一二三四五六七八九十百千]{{1,8}}[章回])"
    r"(?:[ \t]{0,3}[.:—–-]?|[ \t]{0,3}[.:—–-][ \t]{0,3}\S.{0,80})",
    re.IGNORECASE,
)


def read(text: str) -> Iterator[Chapter]:
    """Raises `InputUnreadable`."""
    check_length(text)
    pages = text.replace("\r\n", "\n").replace("\r", "\n").split("\f")
    if (found := _at_chapter_lines("\n\n".join(pages))) is not None:
        return found
    return (Chapter(_first_line(page) if len(pages) > 1 else None, page.strip()) for page in pages)


def _at_chapter_lines(text: str) -> Iterator[Chapter] | None:
    """None where fewer than two lines begin a chapter: one is as likely a sentence's."""
    lines = text.split("\n")
    filled = [number for number, line in enumerate(lines) if line.strip()]
    named = {number for number in filled if _names_chapter(lines[number])}
    # A table of contents has one below the other, and no text between.
    following = dict(pairwise(filled))
    begins = [
        number
        for number in filled
        if number in named and following.get(number) not in named and (number == 0 or not lines[number - 1].strip())
    ]
    return _at_lines(lines, begins) if len(begins) > 1 else None


def _names_chapter(line: str) -> bool:
    line = line.strip()
    return len(line) <= 120 and _CHAPTER_LINE.fullmatch(line) is not None


def _at_lines(lines: list[str], begins: list[int]) -> Iterator[Chapter]:
    yield Chapter(None, "\n".join(lines[: begins[0]]).strip())
    for begin, end in zip(begins, [*begins[1:], len(lines)], strict=True):
        yield Chapter(lines[begin].strip(), "\n".join(lines[begin:end]).strip())


def _first_line(page: str) -> str | None:
    """A page's first line, where it looks like a title: short, and alone."""
    first, _, rest = page.strip().partition("\n")
    return first.strip() if len(first) <= 80 and (not rest or rest.startswith("\n")) else None

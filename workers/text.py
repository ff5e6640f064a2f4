"""Cutting text into pieces that an engine can speak one by one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

PIECE_CHARACTERS = 250

_CLOSERS = r"[\"'”’»)\]]*"
_PARAGRAPH = re.compile(r"\n\s*\n\s*")
# From the best place to cut to the worst; each ends after the white space, so that the pieces join to the text.
_BOUNDARIES = (
    re.compile(rf"[.!?…]{_CLOSERS}\s+|[。！？]{_CLOSERS}\s*"),
    re.compile(rf"[,;:–—]{_CLOSERS}\s+|[、，；：]\s*|\n\s*"),
    re.compile(r"\s+"),
)
_JOINER = "\u200d"


def split_text(text: str, limit: int = PIECE_CHARACTERS) -> Iterator[str]:
    """The text in order, in pieces of 1..`limit` characters that join to it exactly.

    Every paragraph starts a piece. Within one, a piece holds as many whole sentences as fit, else whole clauses, else
    whole words, else as much as fits; a letter and its marks stay together unless they alone exceed the limit.
    """
    start = 0
    for paragraph in _PARAGRAPH.finditer(text):
        yield from _split_paragraph(text[start : paragraph.end()], limit)
        start = paragraph.end()
    yield from _split_paragraph(text[start:], limit)


def _split_paragraph(text: str, limit: int) -> Iterator[str]:
    start = 0
    while len(text) - start > limit:
        end = start + _cut(text[start : start + limit + 1], limit)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _cut(window: str, limit: int) -> int:
    """Where to cut a window that is one character longer than a piece may be."""
    for boundary in _BOUNDARIES:
        ends = [match.end() for match in boundary.finditer(window, 0, limit)]
        if ends:
            return ends[-1]
    for place in range(limit, 0, -1):
        if not _belongs_together(window[place - 1], window[place]):
            return place
    return limit


def _belongs_together(left: str, right: str) -> bool:
    if right == _JOINER or left == _JOINER:
        return True
    if unicodedata.category(right).startswith("M") or _is_emoji_modifier(right):
        return True
    if _is_regional(left) and _is_regional(right):
        return True
    return "\ud800" <= left <= "\udbff" and "\udc00" <= right <= "\udfff"


def _is_emoji_modifier(character: str) -> bool:
    return "\U0001f3fb" <= character <= "\U0001f3ff"


def _is_regional(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"

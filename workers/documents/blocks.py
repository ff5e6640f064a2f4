"""Paragraphs and headings, and the chapters that they make."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from inclavate.errors import InputUnreadable
from workers.documents.texts import MAX_CHARACTERS

# A book has some for each paragraph; each costs time and memory, also without a character in it.
MAX_ELEMENTS = 2_000_000
_MAX_TITLE = 200


@dataclass(frozen=True, slots=True)
class Chapter:
    """`text` has everything that is to be read, its title too, in paragraphs with an empty line between them."""

    title: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph; a heading where it has a level (1 is the highest). `anchors` are ids at or just before it."""

    text: str
    level: int = 0
    anchors: tuple[str, ...] = ()


@dataclass
class Budget:
    """What a document may still cost, over all of its pages."""

    characters: int = MAX_CHARACTERS
    elements: int = MAX_ELEMENTS

    def spend(self, *, characters: int = 0, elements: int = 0) -> None:
        """Raises `InputUnreadable`."""
        self.characters -= characters
        self.elements -= elements
        if self.characters < 0:
            raise InputUnreadable(f"The document has more than {MAX_CHARACTERS:,} characters.")
        if self.elements < 0:
            raise InputUnreadable(f"The document has more than {MAX_ELEMENTS:,} elements of markup.")


@dataclass
class Writer:
    """Puts paragraphs together. A row of a table is one: what is a paragraph elsewhere is a word apart in its cells."""

    blocks: list[Block] = field(default_factory=list)
    budget: Budget = field(default_factory=Budget)
    _parts: list[str] = field(default_factory=list)
    _anchors: list[str] = field(default_factory=list)
    _cells: list[str] | None = None
    level: int = 0

    def add(self, text: str) -> None:
        self.budget.spend(characters=len(text))
        self._parts.append(text)

    def mark(self, anchor: str) -> None:
        self._anchors.append(anchor[:200])

    def end_block(self) -> None:
        """A paragraph begins or ends here."""
        if self._cells is not None and not self.level:
            self._parts.append(" ")
            return
        if text := self._taken():
            self.blocks.append(Block(text, self.level, tuple(self._anchors)))
            self._anchors = []

    def begin_row(self) -> None:
        self.end_row()
        self.end_block()
        self._cells = []

    def end_cell(self) -> None:
        """A cell begins or ends here."""
        if self._cells is None:
            self.begin_row()
        assert self._cells is not None
        if text := self._taken():
            self._cells.append(text)

    def end_row(self) -> None:
        if self._cells is None:
            return
        self.end_cell()
        cells, self._cells = self._cells, None
        # As a list is read; what ends a sentence needs no comma.
        row = " ".join(cell if cell[-1] in ".!?,;:" else f"{cell}," for cell in cells).removesuffix(",")
        self._parts.append(row)
        self.end_block()

    def _taken(self) -> str:
        text, self._parts = "".join(self._parts).replace("\xad", ""), []
        return re.sub(" ?\n ?", "\n", re.sub(" {2,}", " ", text)).strip()


def of_headings(blocks: Iterable[Block], fallback: str | None = None) -> Iterator[Chapter]:
    """Chapters at the highest level of headings; below it, where there is but one, which is the document's title."""
    blocks = list(blocks)
    level = _chapter_level(blocks)
    return joined(_grouped(blocks, lambda block: block.text if 0 < block.level <= level else None), fallback)


def _chapter_level(blocks: list[Block]) -> int:
    levels = [block.level for block in blocks if block.level]
    counts = sorted(Counter(levels).items())
    if len(counts) > 1 and counts[0][1] == 1 and counts[1][1] > 1 and levels[0] == counts[0][0]:
        return counts[1][0]
    return counts[0][0] if counts else 0


Group: TypeAlias = tuple[str | None, list[Block]]


def _grouped(blocks: Iterable[Block], title_of: Callable[[Block], str | None]) -> Iterator[Group]:
    title, group = None, list[Block]()
    for block in blocks:
        if (begun := title_of(block)) is not None:
            yield title, group
            title, group = begun, []
        group.append(block)
    yield title, group


def joined(groups: Iterable[Group], fallback: str | None = None) -> Iterator[Chapter]:
    """What has headings alone (a book's title, a part's) is read at the beginning of the next chapter."""
    before: list[Block] = []
    title = fallback
    for begun, group in groups:
        before += group
        title = begun or title
        if any(not block.level for block in group):
            yield _chapter(title, before)
            before, title = [], None
    if before:
        yield _chapter(title, before)


def _chapter(title: str | None, blocks: list[Block]) -> Chapter:
    shown = " ".join(title.split())[:_MAX_TITLE] if title else None
    return Chapter(shown or None, "\n\n".join(block.text for block in blocks))

"""Word files: the body of a DOCX, with its headings and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from lxml import etree

from inclavate.errors import InputUnreadable
from workers.documents.archives import Archive, named_elements, opened, resolved, shown
from workers.documents.blocks import Block, Chapter, Writer, of_headings
from workers.documents.markup import Target, fed, local, xml_parser

_RELATIONS = "_rels/.rels"
_STYLES = "word/styles.xml"
_MAX_STYLE_DEPTH = 10
# A document's title is above its headings, the contents' lines are not read.
_TITLE_LEVEL = 1
_CONTENTS_LEVEL = -1


def read(path: Path) -> Iterator[Chapter]:
    """Raises `InputUnreadable`."""
    with opened(path) as archive:
        name = _main_part(archive)
        levels = _style_levels(archive)
        data = archive.read(name)
    try:
        blocks = fed(xml_parser(_WordTarget(levels)), data)
    except (etree.LxmlError, ValueError):
        raise InputUnreadable(f"The document is broken: {shown(name)} is no XML.") from None
    return of_headings(blocks)


def _main_part(archive: Archive) -> str:
    if _RELATIONS in archive:
        for relation in named_elements(archive.tree(_RELATIONS), "relationship"):
            if (relation.get("Type") or "").endswith("/officeDocument"):
                return resolved("", (relation.get("Target") or "").lstrip("/"))[0]
    return "word/document.xml"


def _style_levels(archive: Archive) -> dict[str, int]:
    """The level of each style that is a heading's, by its id."""
    if _STYLES not in archive:
        return {}
    styles = {_word(style, "styleId"): style for style in named_elements(archive.tree(_STYLES), "style")}
    return {key: level for key in styles if (level := _style_level(styles, key))}


def _style_level(styles: Mapping[str, etree._Element], key: str) -> int:
    for _ in range(_MAX_STYLE_DEPTH):
        if (style := styles.get(key)) is None:
            return 0
        said = {local(str(element.tag)): _word(element, "val") for element in style.iter(etree.Element)}
        name = said.get("name", "").lower()
        if name == "title":
            return _TITLE_LEVEL
        if name.startswith("toc"):
            return _CONTENTS_LEVEL
        if heading := re.fullmatch("heading ([1-9])", name):
            return _TITLE_LEVEL + int(heading[1])
        if (level := _outline_level(said.get("outlinelvl", ""))) is not None:
            return level
        key = said.get("basedon", "")
    return 0


def _outline_level(text: str) -> int | None:
    """9 is the text's."""
    return _TITLE_LEVEL + 1 + int(text) if re.fullmatch("[0-8]", text) else None


def _word(element: etree._Element, name: str) -> str:
    return next((value for key, value in element.items() if key.endswith(f"}}{name}")), "")


class _WordTarget(Target):
    """Takes the events of a document's body. Of what was changed, the newest is read."""

    _NOT_READ = frozenset(("del", "movefrom", "fallback", "instrtext", "deltext", "tabs", "pprchange", "rprchange"))
    _SIGNS: Mapping[str, str] = {"tab": " ", "br": "\n", "cr": "\n", "nobreakhyphen": "-", "ptab": " "}

    def __init__(self, levels: Mapping[str, int]) -> None:
        self._levels = levels
        self._writer = Writer()
        self._passing_over = 0
        self._is_text = False
        self._is_contents = False

    def doctype(self, name: str | None, public: str | None, system: str | None) -> None:
        raise InputUnreadable("The document defines a type of its own, which no DOCX does.")

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._writer.budget.spend(elements=1)
        name = local(tag)
        if self._passing_over or name in self._NOT_READ:
            self._passing_over += 1
            return
        value = next((value for key, value in attributes.items() if key.endswith("}val")), "")
        match name:
            case "p":
                self._writer.end_block()
                self._begin(0)
            case "pstyle":
                self._begin(self._levels.get(value, 0))
            case "outlinelvl" if (level := _outline_level(value)) is not None:
                self._begin(level)
            case "tr":
                self._writer.begin_row()
            case "tc":
                self._writer.end_cell()
            case "t":
                self._is_text = True
            case sign if sign in self._SIGNS and not self._is_contents:
                self._writer.add(self._SIGNS[sign])

    def _begin(self, level: int) -> None:
        self._is_contents = level == _CONTENTS_LEVEL
        self._writer.level = max(0, level)

    def end(self, tag: str) -> None:
        if self._passing_over:
            self._passing_over -= 1
            return
        match local(tag):
            case "p":
                self._writer.end_block()
                self._begin(0)
            case "tc":
                self._writer.end_cell()
            case "tr" | "tbl":
                self._writer.end_row()
            case "t":
                self._is_text = False

    def data(self, text: str) -> None:
        if self._is_text and not self._passing_over and not self._is_contents:
            self._writer.add(text)

    def close(self) -> list[Block]:
        self._writer.end_row()
        self._writer.end_block()
        return self._writer.blocks

"""HTML as browsers read it, XHTML, and Markdown."""

from __future__ import annotations

import html.entities
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from lxml import etree
from markdown_it import MarkdownIt
from mdit_py_plugins.footnote import footnote_plugin
from mdit_py_plugins.front_matter import front_matter_plugin

from inclavate.errors import InputUnreadable
from workers.documents.blocks import Block, Budget, Chapter, Writer, of_headings
from workers.documents.texts import check_length

if TYPE_CHECKING:
    # Of the stubs alone; what a parser takes has but the methods that it is to be told by.
    from lxml.etree import ParserTarget
    from lxml.etree._parser import CustomTargetParser

    Target: TypeAlias = ParserTarget[list[Block]]
else:
    Target = object

_FEED_CHARACTERS = 2**16
# Some 50 µs a character at worst: well within what an engine may take for a step.
_MAX_MARKDOWN = 2_000_000
_RUN_OF_SPACES = re.compile(r"[ \t\r\n\f\v]+")


def read_html(text: str) -> Iterator[Chapter]:
    """Raises `InputUnreadable`."""
    return of_headings(html_blocks(text))


def read_markdown(text: str) -> Iterator[Chapter]:
    """Raises `InputUnreadable`."""
    check_length(text, _MAX_MARKDOWN)
    reader = MarkdownIt("commonmark").enable(["table", "strikethrough"]).use(footnote_plugin).use(front_matter_plugin)
    return of_headings(html_blocks(reader.render(text)))


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BLOCKS = words(
    "address article blockquote body caption center dd details dir div dl dt fieldset figcaption "
    "figure form h1 h2 h3 h4 h5 h6 header hgroup hr html legend li main menu ol p pre search "
    "section summary table tbody tfoot thead ul"
)
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_NOT_READ = words(
    "head script style template noscript svg math nav iframe object embed audio video canvas map select "
    "textarea button dialog rt rp del aside footer"
)
# What stands apart from what is read, as `class` says it, and as `epub:type` or `role` (there after "doc-") do.
_APART_CLASSES = words(
    "footnote footnotes endnote endnotes noteref footnote-ref footnote-backref footnotes-sep mw-editsection"
)
_APART = words(
    "footnote footnotes endnote endnotes rearnote rearnotes noteref backlink pagebreak page-list pagelist "
    "toc landmarks index navigation search"
)
_HIDDEN = re.compile(r"display\s{0,9}:\s{0,9}none", re.IGNORECASE)
_ENTITY = re.compile(r"&([A-Za-z][A-Za-z0-9]{1,31});")
_XML_ENTITIES = ("amp", "lt", "gt", "quot", "apos")
_XML_HEAD = re.compile(r"\s*<\?xml[^>]{0,500}\?>")


class _HtmlTarget(Target):
    """Takes a parser's events: no tree is kept."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._passing_over = 0
        self._preformatted = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._writer.budget.spend(elements=1)
        if self._passing_over:
            self._passing_over += 1
            return
        name = local(tag)
        if name in _BLOCKS:
            self._writer.end_block()
        if anchor := attributes.get("id") or (attributes.get("name") if name == "a" else None):
            self._writer.mark(anchor)
        if name in _NOT_READ or _is_apart(name, attributes):
            self._passing_over = 1
            return
        if name in _HEADINGS:
            self._writer.level = int(name[1])
        self._begin(name)

    def _begin(self, name: str) -> None:
        match name:
            case "br":
                self._writer.add("\n")
            case "tr":
                self._writer.begin_row()
            case "td" | "th":
                self._writer.end_cell()
            case "pre":
                self._preformatted += 1

    def end(self, tag: str) -> None:
        if self._passing_over:
            self._passing_over -= 1
            return
        name = local(tag)
        match name:
            case "td" | "th":
                self._writer.end_cell()
            case "tr" | "table":
                self._writer.end_row()
            case "pre":
                self._preformatted -= 1
        if name in _BLOCKS:
            self._writer.end_block()
        if name in _HEADINGS:
            self._writer.level = 0

    def data(self, text: str) -> None:
        if not self._passing_over:
            self._writer.add(text if self._preformatted else _RUN_OF_SPACES.sub(" ", text))

    def close(self) -> list[Block]:
        self._writer.end_row()
        self._writer.end_block()
        return self._writer.blocks


def local(tag: str) -> str:
    return tag.rpartition("}")[2].lower()


def _is_apart(name: str, attributes: Mapping[str, str]) -> bool:
    """Notes, navigation, and what no reader would see."""
    if not attributes:
        return False
    if "hidden" in attributes or attributes.get("aria-hidden") == "true" or _HIDDEN.search(attributes.get("style", "")):
        return True
    classes = attributes.get("class", "").split()
    if not _APART_CLASSES.isdisjoint(classes) or (name == "sup" and "reference" in classes):
        return True
    meant = [
        word
        for key, value in attributes.items()
        if local(key).rpartition(":")[2] in ("type", "role")
        for word in value.split()
    ]
    return not _APART.isdisjoint(word.removeprefix("doc-") for word in meant)


def html_blocks(text: str, writer: Writer | None = None) -> list[Block]:
    """Paragraphs of HTML as browsers read it, however broken."""
    refuse_entities(text)
    target = _HtmlTarget(writer or Writer())
    parser = etree.HTMLParser(target=target, no_network=True, huge_tree=False, collect_ids=False)
    try:
        return fed(parser, _characters(text))
    except (etree.LxmlError, ValueError):
        raise InputUnreadable("The document's HTML cannot be read.") from None


def xhtml_blocks(text: str, budget: Budget) -> list[Block]:
    """Paragraphs of XHTML; where it is none, as HTML."""
    refuse_entities(text)
    before = replace(budget)
    try:
        return fed(xml_parser(_HtmlTarget(Writer(budget=budget))), _characters(_without_names(text)))
    except (etree.LxmlError, ValueError):
        budget.characters, budget.elements = before.characters, before.elements
        return html_blocks(_XML_HEAD.sub("", text, count=1), Writer(budget=budget))


def fed(parser: CustomTargetParser[list[Block]], text: str | bytes) -> list[Block]:
    for start in range(0, len(text), _FEED_CHARACTERS):
        parser.feed(text[start : start + _FEED_CHARACTERS])
    return parser.close()


def refuse_entities(text: str) -> None:
    if "<!ENTITY" in text:
        raise InputUnreadable("The document defines entities of its own, which are not expanded.")


def _characters(text: str) -> str:
    """Without what no XML may hold, and the parser would stumble over."""
    return re.sub("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", " ", text)


def _without_names(text: str) -> str:
    """HTML's named characters as themselves: their definitions are in a file that is not opened."""
    text = _XML_HEAD.sub("", text, count=1)
    return _ENTITY.sub(lambda found: found[0] if found[1] in _XML_ENTITIES else _named(found), text)


def _named(found: re.Match[str]) -> str:
    return html.entities.html5.get(f"{found[1]};", found[0])


def xml_parser(target: Target) -> CustomTargetParser[list[Block]]:
    return etree.XMLParser(
        target=target, resolve_entities=False, load_dtd=False, no_network=True, huge_tree=False, collect_ids=False
    )


def xml_tree(text: str) -> etree._Element:
    parser = etree.XMLParser(resolve_entities=False, load_dtd=False, no_network=True, huge_tree=False)
    return etree.fromstring(_characters(_without_names(text)), parser)

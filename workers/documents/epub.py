"""Books: the pages of an EPUB in reading order, in chapters as its table of contents has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from lxml import etree

from inclavate.errors import InputUnreadable
from workers.documents.archives import Archive, named_elements, opened, resolved
from workers.documents.blocks import Block, Budget, Chapter, Group, joined
from workers.documents.markup import local, xhtml_blocks

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_PAGES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")
_NCX = "application/x-dtbncx+xml"


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line of a book's table of contents."""

    path: str
    fragment: str
    title: str


@dataclass(frozen=True, slots=True)
class _Package:
    """`pages` are in reading order; `contents` is where the table of contents is, empty where there is none."""

    pages: list[str]
    contents: str


def read(path: Path) -> Iterator[Chapter]:
    """Raises `InputUnreadable`."""
    with opened(path) as archive:
        package = _package(archive)
        locked = _encrypted(archive)
        pages: list[tuple[str, list[Block]]] = []
        budget = Budget()
        for page in package.pages:
            if page in locked:
                raise InputUnreadable("The book is protected against copying, and cannot be read.")
            blocks = xhtml_blocks(archive.text(page), budget)
            pages.append((page, blocks))
        entries = _contents(archive, package.contents)
    return joined(_at_contents(pages, entries) or _at_pages(pages))


def _package(archive: Archive) -> _Package:
    root = next((e.get("full-path") for e in named_elements(archive.tree(_CONTAINER), "rootfile")), None)
    if not root:
        raise InputUnreadable("The book does not say where its contents are.")
    tree = archive.tree(root)
    items = {item.get("id"): item for item in named_elements(tree, "item")}
    paths = {key: resolved(root, item.get("href") or "")[0] for key, item in items.items()}
    spine = [e.get("idref") for e in named_elements(tree, "itemref") if e.get("linear") != "no"]
    nav = next((key for key, item in items.items() if "nav" in (item.get("properties") or "").split()), None)
    ncx = next((key for key, item in items.items() if item.get("media-type") == _NCX), None)
    pages = [paths[key] for key in spine if key in items and key != nav and items[key].get("media-type") in _PAGES]
    if not pages:
        raise InputUnreadable("The book has no reading order (its spine names no page).")
    return _Package(list(dict.fromkeys(pages)), paths.get(nav) or paths.get(ncx) or "")


def _encrypted(archive: Archive) -> set[str]:
    if _ENCRYPTION not in archive:
        return set()
    references = named_elements(archive.tree(_ENCRYPTION), "cipherreference")
    return {unquote(reference.get("URI") or "") for reference in references}


def _contents(archive: Archive, name: str) -> list[_Entry]:
    """The lines that begin chapters; none where the table of contents cannot be read."""
    if name not in archive:
        return []
    try:
        tree = archive.tree(name)
    except InputUnreadable:
        return []
    nav = next((e for e in named_elements(tree, "nav") if "toc" in _kinds(e)), tree)
    return list(_entries(name, nav))


def _kinds(element: etree._Element) -> list[str]:
    return [word for key, value in element.items() if local(key) == "type" for word in value.split()]


def _entries(base: str, tree: etree._Element) -> Iterator[_Entry]:
    """Those of the highest level, and those below that lead to another page than the one above them."""
    above: list[str] = []
    label = ""
    for event, element in etree.iterwalk(tree, events=("start", "end")):
        name = local(str(element.tag))
        if name in ("li", "navpoint"):
            if event == "start":
                above.append("")
            else:
                above.pop()
        elif event == "end" and name == "text":
            label = "".join(element.itertext())
        elif event == "start" and name in ("a", "content") and above:
            reference = element.get("href") or element.get("src")
            if reference is None:
                continue
            path, fragment = resolved(base, reference)
            is_chapter = len(above) == 1 or path != above[-2]
            above[-1] = path
            if is_chapter:
                yield _Entry(path, fragment, "".join(element.itertext()) if name == "a" else label)


def _at_contents(pages: list[tuple[str, list[Block]]], entries: list[_Entry]) -> list[Group] | None:
    """Chapters as the table of contents has them; None where it leads to fewer than two places."""
    groups: list[Group] = [(None, [])]
    by_page: dict[str, list[_Entry]] = {}
    for entry in entries:
        by_page.setdefault(entry.path, []).append(entry)
    for page, blocks in pages:
        begins = _begins(blocks, by_page.get(page, []))
        for place, block in enumerate(blocks):
            if place in begins:
                groups.append((begins[place], []))
            groups[-1][1].append(block)
    return groups if len(groups) > 2 else None


def _begins(blocks: list[Block], entries: list[_Entry]) -> dict[int, str]:
    """Which block of a page begins which chapter; what names no place that there is begins at the page's beginning."""
    places = {anchor: place for place, block in reversed(list(enumerate(blocks))) for anchor in block.anchors}
    begins: dict[int, str] = {}
    for entry in entries:
        begins.setdefault(places.get(entry.fragment, 0), entry.title)
    return begins


def _at_pages(pages: list[tuple[str, list[Block]]]) -> list[Group]:
    return [(next((block.text for block in blocks if block.level), None), blocks) for _, blocks in pages]

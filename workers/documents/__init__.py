"""Documents as text, chapter by chapter: plain text, Markdown, HTML, EPUB and DOCX.

They are strangers' files. Nothing is unpacked to the disk, no other file or address is opened, no entity is expanded,
and what is read and kept is bounded, whatever a file says of itself.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from inclavate.errors import InputUnreadable
from inclavate.generators import DOCX, EPUB, HTML, MARKDOWN, PLAIN_TEXT
from workers.documents import docx, epub, markup, plain, texts
from workers.documents.blocks import Chapter

__all__ = ["Chapter", "chapters", "file_name"]

MAX_CHAPTERS = 1_000


def chapters(path: Path, media_type: str) -> Iterator[Chapter]:
    """The chapters of a document in reading order, those without a word left out; at least one.

    Raises `InputUnreadable` for what is broken, hostile, protected or too large, or has no word in it.
    """
    readers: Mapping[str, Callable[[Path], Iterable[Chapter]]] = {
        PLAIN_TEXT: lambda path: plain.read(texts.read(path)),
        MARKDOWN: lambda path: markup.read_markdown(texts.read(path)),
        HTML: lambda path: markup.read_html(texts.read(path)),
        EPUB: epub.read,
        DOCX: docx.read,
    }
    if media_type not in readers:
        raise InputUnreadable(f"A document of the type {media_type} cannot be read.")
    count = 0
    for chapter in readers[media_type](path):
        if any(character.isalnum() for character in chapter.text):
            count += 1
            if count > MAX_CHAPTERS:
                raise InputUnreadable(f"The document has more than {MAX_CHAPTERS:,} chapters.")
            yield chapter
    if not count:
        raise InputUnreadable("There is no text in the document.")


def file_name(number: int, title: str | None, ending: str) -> str:
    """What a chapter's sound is called: its number, as much of its title as a name may have, and `ending`."""
    plain = "".join(c if unicodedata.category(c)[0] != "C" and c not in '/\\:*?"<>|' else " " for c in title or "")
    return f"{number:03d} {' '.join(plain.split())[:100].strip('. ')}".strip() + ending

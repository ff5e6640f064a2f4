"""Bytes as characters, whatever their encoding."""

from __future__ import annotations

import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Iterator
from pathlib import Path

import charset_normalizer

from inclavate.errors import InputUnreadable

MAX_BYTES = 64 * 2**20
MAX_CHARACTERS = 5_000_000
_SAMPLE_BYTES = 64 * 2**10


_BOMS = (
    (BOM_UTF8, "utf-8-sig"),
    (BOM_UTF32_LE, "utf-32"),
    (BOM_UTF32_BE, "utf-32"),
    (BOM_UTF16_LE, "utf-16"),
    (BOM_UTF16_BE, "utf-16"),
)
_DECLARED = re.compile(
    rb"""(?:<\?xml[^>]{0,200}?encoding|<meta[^>]{0,200}?charset)\s{0,9}=\s{0,9}["']?([\w.:-]{1,40})"""
)


# Without those that Icelandic alone has: the same bytes are common letters in Turkish.
_WESTERN = frozenset(
    "àáâãäåæçèéêëìíîïñòóôõöøœùúûüÿßÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØŒÙÚÛÜŸ€‚„…†‡‰‹›‘’“”•–—™¡¿©®°±²³¹µ·¼½¾«»£¥§ºª¢×\u00a0\u00ad"
)
# Marks within or behind letters are letters of another encoding, as are accents in a row.
_OUT_OF_PLACE = re.compile(r"[A-Za-zÀ-ÿ](?:[¡¿£¥¢¹×]|³(?![\s.,;:)/]|$))|[¹³][a-z]|[À-ÖØ-öø-ÿŒœŸ]{3}")
_MAX_ACCENTED = 0.34


def read(path: Path) -> str:
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise InputUnreadable(f"The document has {size:,} bytes; at most {MAX_BYTES:,} are read.")
    return decode(path.read_bytes())


def decode(data: bytes) -> str:
    """By its byte order mark, as UTF-8, as it declares itself, as Western Europe writes, else as it looks.

    Raises `InputUnreadable`.
    """
    encoding = next((name for mark, name in _BOMS if data.startswith(mark)), None)
    candidates = [encoding] if encoding else ["utf-8", *_declared(data), *_western(data), *_guessed(data)]
    for candidate in candidates:
        try:
            text = data.decode(candidate)
        except (UnicodeError, LookupError):
            continue
        if "\0" not in text:
            return text
    raise InputUnreadable("The document is not text in any encoding that is known.")


def _declared(data: bytes) -> Iterator[str]:
    if declared := _DECLARED.search(data[:2048]):
        yield declared[1].decode("ascii", "replace")


def _western(data: bytes) -> Iterator[str]:
    """Guessing goes wrong on a few accents in a short text, so these are known by their company: letters of Western
    Europe among plain ones, and its marks where they may stand."""
    try:
        text = data[:_SAMPLE_BYTES].decode("cp1252")
    except UnicodeDecodeError:
        return
    letters = [character for character in text if character.isalpha()]
    foreign = sum(not character.isascii() for character in letters)
    is_like_it = all(c.isascii() or c in _WESTERN for c in set(text)) and not _OUT_OF_PLACE.search(text)
    if is_like_it and foreign <= _MAX_ACCENTED * len(letters):
        yield "cp1252"


def _guessed(data: bytes) -> Iterator[str]:
    best = charset_normalizer.from_bytes(data[:_SAMPLE_BYTES]).best()
    if best is not None:
        yield best.encoding


def check_length(text: str, limit: int = MAX_CHARACTERS) -> None:
    """Raises `InputUnreadable` for more characters."""
    if len(text) > limit:
        raise InputUnreadable(f"The document has {len(text):,} characters; at most {limit:,} are read.")

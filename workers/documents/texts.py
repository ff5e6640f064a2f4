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


def read(path: Path) -> str:
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise InputUnreadable(f"The document has {size:,} bytes; at most {MAX_BYTES:,} are read.")
    return decode(path.read_bytes())


def decode(data: bytes) -> str:
    """By its byte order mark, as UTF-8, as it declares itself, else as it looks. Raises `InputUnreadable`."""
    encoding = next((name for mark, name in _BOMS if data.startswith(mark)), None)
    candidates = [encoding] if encoding else ["utf-8", *_declared(data), *_guessed(data)]
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


def _guessed(data: bytes) -> Iterator[str]:
    best = charset_normalizer.from_bytes(data[:_SAMPLE_BYTES]).best()
    if best is not None:
        yield best.encoding


def check_length(text: str, limit: int = MAX_CHARACTERS) -> None:
    """Raises `InputUnreadable` for more characters."""
    if len(text) > limit:
        raise InputUnreadable(f"The document has {len(text):,} characters; at most {limit:,} are read.")

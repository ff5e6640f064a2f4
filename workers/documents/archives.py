"""ZIP files of strangers, read in memory and with bounds."""

from __future__ import annotations

import posixpath
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lxml import etree

from inclavate.errors import InputUnreadable
from workers.documents.markup import local, refuse_entities, xml_tree
from workers.documents.texts import MAX_BYTES, decode

_MAX_MEMBER_BYTES = 64 * 2**20
_MAX_UNPACKED_BYTES = 256 * 2**20
_MAX_RATIO = 200
_RATIO_FROM_BYTES = 2**20
# What an archive says of its members is kept in memory as a whole.
_MAX_DIRECTORY_BYTES = 2 * 2**20
_MAX_LISTED_BYTES = 4 * 2**20


_END_OF_DIRECTORY = b"PK\x05\x06"
_END_OF_LARGE_DIRECTORY = b"PK\x06\x07"
_END_BYTES = 22 + 65_535 + 20


class Archive:
    """A ZIP file whose members are read one by one, each and all together up to a limit."""

    def __init__(self, file: zipfile.ZipFile) -> None:
        self._file = file
        self._names = {info.filename: info for info in file.infolist()}
        self._read_bytes = 0

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def read(self, name: str, limit: int = _MAX_MEMBER_BYTES) -> bytes:
        """Raises `InputUnreadable`."""
        info = self._names.get(name)
        if info is None:
            raise InputUnreadable(f"The document is incomplete: {shown(name)} is missing.")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
            raise InputUnreadable("The document is encrypted, or packed in a way that no such document is.")
        with self._file.open(info) as member:
            data = member.read(limit + 1)
        self._read_bytes += len(data)
        if len(data) > limit or self._read_bytes > _MAX_UNPACKED_BYTES:
            raise InputUnreadable(f"The document is too large when unpacked: {shown(name)} exceeds the limit.")
        if len(data) > max(_RATIO_FROM_BYTES, _MAX_RATIO * info.compress_size):
            raise InputUnreadable(f"{shown(name)} unpacks to more than {_MAX_RATIO} times its size.")
        return data

    def text(self, name: str) -> str:
        return decode(self.read(name))

    def tree(self, name: str) -> etree._Element:
        """A member's XML as a tree, for what is small."""
        text = decode(self.read(name, _MAX_LISTED_BYTES))
        refuse_entities(text)
        try:
            return xml_tree(text)
        except (etree.LxmlError, ValueError):
            raise InputUnreadable(f"The document is broken: {shown(name)} is no XML.") from None


def shown(name: str) -> str:
    return repr(name[:80])


@contextmanager
def opened(path: Path) -> Iterator[Archive]:
    """Raises `InputUnreadable`, also for what turns out broken inside the `with`."""
    if (size := path.stat().st_size) > MAX_BYTES:
        raise InputUnreadable(f"The document has {size:,} bytes; at most {MAX_BYTES:,} are read.")
    _check_directory(path)
    try:
        with zipfile.ZipFile(path) as file:
            yield Archive(file)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise InputUnreadable("The document is broken: its archive cannot be read.") from error


def _check_directory(path: Path) -> None:
    """Refuse a list of members that would fill the memory, before anything reads it."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _END_BYTES))
        tail = file.read()
    place = tail.find(_END_OF_DIRECTORY)
    # Whichever of them is taken for the end.
    while place >= 0 and len(tail) - place >= 22:
        (size,) = struct.unpack_from("<I", tail, place + 12)
        if size > _MAX_DIRECTORY_BYTES or tail[max(0, place - 20) : place].startswith(_END_OF_LARGE_DIRECTORY):
            raise InputUnreadable("The document's archive has too many members.")
        place = tail.find(_END_OF_DIRECTORY, place + 1)


def named_elements(tree: etree._Element, name: str) -> Iterator[etree._Element]:
    return (element for element in tree.iter(etree.Element) if local(str(element.tag)) == name)


def resolved(base: str, reference: str) -> tuple[str, str]:
    """A reference within the archive as a member's name and a fragment."""
    try:
        parts = urlsplit(reference)
    except ValueError:
        return "", ""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(base), unquote(parts.path))) if parts.path else base
    return path, unquote(parts.fragment)

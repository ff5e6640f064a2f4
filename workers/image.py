"""Pictures: how large they are, read from their headers alone. No pixel is decoded, so none can be too many."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeAlias

from inclavate.errors import InputUnreadable

Size: TypeAlias = tuple[int, int]

_MAX_SEGMENTS = 10_000
_MAX_META_BYTES = 2**20
_BROKEN = "The input's picture is broken: its header cannot be read."


def size(path: Path) -> Size:
    """(width, height) in pixels as they are stored, before any rotation. Raises `InputUnreadable`."""
    with path.open("rb") as file:
        head = file.read(32)
        file.seek(0)
        try:
            width, height = _reader(head)(file)
        except (struct.error, ValueError) as error:
            raise InputUnreadable(_BROKEN) from error
    if not (0 < width < 2**31 and 0 < height < 2**31):
        raise InputUnreadable(_BROKEN)
    return width, height


def _reader(head: bytes) -> Callable[[BinaryIO], Size]:
    for magic, reader in _READERS.items():
        if head.startswith(magic):
            return reader
    if head[8:12] == b"WEBP":
        return _webp
    if head[4:8] == b"ftyp":
        return _heif
    raise ValueError("no picture that is known")


def _png(file: BinaryIO) -> Size:
    name, width, height = struct.unpack(">4sII", file.read(24)[12:])
    return _agreed(name == b"IHDR", (width, height))


def _gif(file: BinaryIO) -> Size:
    return struct.unpack("<HH", file.read(10)[6:])


def _bmp(file: BinaryIO) -> Size:
    head = file.read(26)
    if struct.unpack("<I", head[14:18]) == (12,):
        return struct.unpack("<HH", head[18:22])
    width, height = struct.unpack("<ii", head[18:])
    # Negative where the rows go from the top to the bottom.
    return abs(width), abs(height)


def _jpeg(file: BinaryIO) -> Size:
    """Segment by segment to the first frame header, which may stand behind megabytes of metadata."""
    file.seek(2)
    for _ in range(_MAX_SEGMENTS):
        marker = _jpeg_marker(file)
        (length,) = struct.unpack(">H", file.read(2))
        # SOF0 to SOF15, less DHT, JPG and DAC, which stand among them.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">xHH", file.read(5))
            return width, height
        file.seek(max(length - 2, 0), 1)
    raise ValueError("no frame header")


def _jpeg_marker(file: BinaryIO) -> int:
    """The next segment's; those that stand alone, and fill bytes, are passed over."""
    for _ in range(_MAX_SEGMENTS):
        prefix, marker = struct.unpack("BB", file.read(2))
        if prefix != 0xFF:
            break
        if marker == 0xFF:
            file.seek(-1, 1)
        elif marker != 0x01 and not 0xD0 <= marker <= 0xD8:
            return int(marker)
    raise ValueError("no marker where one must be")


def _tiff(file: BinaryIO) -> Size:
    order = "<" if file.read(4).startswith(b"II") else ">"
    (offset,) = struct.unpack(f"{order}I", file.read(4))
    file.seek(offset)
    (count,) = struct.unpack(f"{order}H", file.read(2))
    found: dict[int, int] = {}
    for _ in range(count):
        tag, kind, _, value = struct.unpack(f"{order}HHI4s", file.read(12))
        if tag in (256, 257):
            (found[tag],) = struct.unpack(f"{order}H2x" if kind == 3 else f"{order}I", value)
    return found.get(256, 0), found.get(257, 0)


def _webp(file: BinaryIO) -> Size:
    head = file.read(30)
    match head[12:16]:
        case b"VP8X":
            return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
        case b"VP8L":
            (bits,) = struct.unpack("<I", head[21:25])
            return _agreed(head[20] == 0x2F, ((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1))
        case b"VP8 ":
            width, height = struct.unpack("<HH", head[26:30])
            return _agreed(head[23:26] == b"\x9d\x01\x2a", (width & 0x3FFF, height & 0x3FFF))
    raise ValueError("no picture in the first chunk")


def _heif(file: BinaryIO) -> Size:
    """AVIF and HEIC: the largest of the sizes in the `meta` box; the others are of tiles and thumbnails."""
    for _ in range(_MAX_SEGMENTS):
        length, name = struct.unpack(">I4s", file.read(8))
        if name == b"meta":
            meta = file.read(min(length, _MAX_META_BYTES))
            sizes = [struct.unpack(">II", part[4:12]) for part in meta.split(b"ispe")[1:] if len(part) >= 12]
            return max(sizes, key=lambda found: found[0] * found[1], default=(0, 0))
        file.seek(max(length - 8, 0), 1)
    raise ValueError("no box with the picture's properties")


def _agreed(is_right: bool, found: Size) -> Size:
    if not is_right:
        raise ValueError("the header is not what it must be")
    return found


_READERS: dict[bytes, Callable[[BinaryIO], Size]] = {
    b"\x89PNG\r\n\x1a\n": _png,
    b"\xff\xd8\xff": _jpeg,
    b"GIF8": _gif,
    b"BM": _bmp,
    b"II*\0": _tiff,
    b"MM\0*": _tiff,
}

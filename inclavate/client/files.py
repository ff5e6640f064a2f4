"""The caller's own files: read so that a request can be sent again, written so that nobody meets half of one."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedRandom
from pathlib import Path
from typing import IO

CHUNK_BYTES = 256 * 1024
# The most that a server keeps as one artifact: a device without an end must not fill the disk.
MAX_SPOOLED_BYTES = 512 * 2**20
MAX_LINKS = 40


@contextmanager
def rewindable(source: IO[bytes]) -> Iterator[IO[bytes]]:
    """`source` where it is a regular file; what is left of a pipe or a device, in a temporary file, where it is not.
    Raises `OSError` (EFBIG) for more than 512 MiB."""
    if _is_regular(source):
        yield source
        return
    with tempfile.TemporaryFile() as spool:
        while piece := source.read(CHUNK_BYTES):
            spool.write(piece)
            if spool.tell() > MAX_SPOOLED_BYTES:
                name = str(getattr(source, "name", "the input"))
                raise OSError(errno.EFBIG, f"it has more than {MAX_SPOOLED_BYTES:,} bytes", name)
        spool.seek(0)
        yield spool


def _is_regular(source: IO[bytes]) -> bool:
    try:
        return stat.S_ISREG(os.fstat(source.fileno()).st_mode)
    except (OSError, AttributeError):  # In memory: it has no descriptor.
        return source.seekable()


def size_of_rest(file: IO[bytes]) -> int:
    """Bytes from where the file stands to its end; it stays where it stands."""
    start = file.tell()
    size = file.seek(0, os.SEEK_END) - start
    file.seek(start)
    return size


def check_target(target: Path | str) -> None:
    """Raises `OSError` where `written_to(target)` could not write: a folder, a name that is too long, a place where
    nothing can be made. What is there is not touched."""
    with _named(target):
        if _is_stream(target):
            if not os.access(target, os.W_OK):
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
            return
        partial = _partial_beside(_end_of_links(target))
        partial.touch(exist_ok=False)
        partial.unlink()


@contextmanager
def written_to(target: Path | str) -> Iterator[BufferedRandom]:
    """A temporary file whose bytes are the target's once the block is done, and go away otherwise.

    A regular file, at the end of any symbolic links, is made or replaced whole. A device, a FIFO or an open descriptor
    (`/dev/stdout`) is written to. Raises `OSError` with the target's name.
    """
    with _named(target):
        if not _is_stream(target):
            with _replacing(_end_of_links(target)) as file:
                yield file
            return
        with tempfile.TemporaryFile() as spool:
            yield spool
            spool.seek(0)
            with _open_stream(target) as stream:
                shutil.copyfileobj(spool, stream)


@contextmanager
def _replacing(path: Path) -> Iterator[BufferedRandom]:
    partial = _partial_beside(path)
    try:
        with partial.open("x+b") as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _partial_beside(path: Path) -> Path:
    # Without the target's own name, which may be as long as a name can be.
    return path.with_name(f".{uuid.uuid4().hex[:12]}.part")


@contextmanager
def _named(target: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(target), None
        raise


def _is_stream(target: Path | str) -> bool:
    """Whether the target is there and is written to as it is. Raises `OSError` where it is no place for bytes."""
    text = str(target)
    if "\0" in text:
        raise OSError(errno.EINVAL, "a name cannot hold NUL")
    if not text:
        raise OSError(errno.ENOENT, "an empty name names no file")
    # By the text: a Path drops the slash that says "a folder".
    if text.rpartition("/")[2] in ("", ".", ".."):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    try:
        mode = Path(text).stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISSOCK(mode) and _descriptor_of(target) is None:
        raise OSError(errno.ENXIO, "a socket cannot be opened by its name")
    return not stat.S_ISREG(mode) or _descriptor_of(target) is not None


def _end_of_links(target: Path | str) -> Path:
    return Path(os.path.realpath(target))


def _descriptor_of(target: Path | str) -> int | None:
    """The open descriptor that the target names (`/dev/stdout`, `/dev/fd/3`); opening it by its name would begin
    the file behind it anew."""
    path = Path(target)
    for _ in range(MAX_LINKS):
        path = Path(os.path.realpath(path.parent)) / path.name
        if re.fullmatch(rf"/proc/{os.getpid()}(/task/\d+)?/fd", str(path.parent)):
            return int(path.name)
        if not path.is_symlink():
            return None
        path = path.parent / path.readlink()
    return None


def _open_stream(target: Path | str) -> IO[bytes]:
    descriptor = _descriptor_of(target)
    return os.fdopen(os.dup(descriptor), "wb") if descriptor is not None else Path(target).open("wb")

"""A store in a folder: objects lie in `<ab>/<cd>/`, unfinished writes in `tmp/`.

An object that comes in parts is a folder there: in `bytes` each part has its place, so that none is written twice, and
a note a part, named by its number, says who writes it, and how large it is once it came whole. Each step holds a lock
on `bytes`. So no writer that was overtaken, in this process or another, can change what a later one wrote, nor a
finished object.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import os
import re
import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from storage import (
    PART_BYTES,
    Entry,
    ObjectMissing,
    Part,
    PartTaken,
    Store,
    StoreError,
    StoreFull,
    Writer,
    check_key,
    check_number,
    check_parts,
    check_range,
    check_room,
    is_key,
    opened,
)

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TOKEN = re.compile(r"[0-9a-f]{32}")
_BYTES = "bytes"
# Of one length, so that one write replaces another.
_NOTE = "{writer:32} {size:8}"
_WHOLE_NOTE = re.compile(rb"[0-9a-f]{32} +(\d+)")


@contextmanager
def _translated(deed: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = StoreFull if error.errno in _NO_ROOM else StoreError
        raise kind(f"cannot {deed}: {error.strerror or error}") from error


class FilesystemStore(Store):
    """Made with its folder where that is missing; ours alone to read (0700), like all below it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._unfinished = root / "tmp"
        with _translated(f"use the store folder {root}"):
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._unfinished.mkdir(mode=0o700, exist_ok=True)

    def _path(self, key: str) -> Path:
        # By digest, because keys that grow with time would crowd into one folder.
        digest = hashlib.sha256(check_key(key).encode()).hexdigest()
        return self._root / digest[:2] / digest[2:4] / key.replace("/", "_")

    def create(self, key: str) -> Writer:
        return _FileWriter(self._root, self._unfinished, self._path(key))

    def read(
        self, key: str, start: int = 0, stop: int | None = None, chunk_bytes: int = 256 * 1024
    ) -> Generator[bytes, None, None]:
        check_range(start, stop)
        return opened(self._chunks(key, start, stop, chunk_bytes))

    def _chunks(self, key: str, start: int, stop: int | None, chunk_bytes: int) -> Generator[bytes, None, None]:
        with _translated(f"read {key} in {self._root}"), self._open(key) as file:
            yield b""
            file.seek(start)
            left = os.fstat(file.fileno()).st_size - start if stop is None else stop - start
            while left > 0 and (chunk := file.read(min(left, chunk_bytes))):
                left -= len(chunk)
                yield chunk

    def _open(self, key: str) -> io.FileIO:
        try:
            return io.FileIO(self._path(key))
        except FileNotFoundError:
            raise self._missing(key) from None

    def size(self, key: str) -> int:
        with _translated(f"look at {key} in {self._root}"):
            try:
                return self._path(key).stat().st_size
            except FileNotFoundError:
                raise self._missing(key) from None

    def _missing(self, key: str) -> StoreError:
        # A volume that is not mounted has lost nothing: that must not read as if each object were gone.
        if not self._unfinished.is_dir():
            return StoreError(f"the store folder {self._root} is gone")
        return ObjectMissing(f"there is no object {key} in {self._root}")

    def delete(self, key: str) -> None:
        with _translated(f"delete {key} in {self._root}"):
            self._path(key).unlink(missing_ok=True)

    def entries(self) -> Iterator[Entry]:
        with _translated(f"list {self._root}"):
            for outer in _scan(self._root):
                # `tmp`, and what is not ours (lost+found on a volume of its own), have longer names.
                if len(outer.name) != 2:
                    continue
                for inner in _scan(outer.path):
                    yield from self._entries_of(inner.path)

    def _entries_of(self, shard: str) -> Iterator[Entry]:
        for found in _scan(shard):
            try:
                status = found.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            key = found.name.replace("_", "/")
            if is_key(key):
                yield Entry(key, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))

    def sweep(self, before: datetime) -> int:
        removed = 0
        with _translated(f"sweep {self._unfinished}"):
            for found in _scan(self._unfinished):
                try:
                    if _touched_at(found) < before.timestamp():
                        _remove(found)
                        removed += 1
                except FileNotFoundError:
                    continue
        return removed

    def begin_parts(self, key: str) -> str:
        token = uuid4().hex
        folder = self._folder(key, token)
        with _translated(f"begin {key} in {self._root}"):
            folder.mkdir(mode=0o700)
            (folder / _BYTES).touch(mode=0o600)
            _sync_folder(folder)
            _sync_folder(self._unfinished)
        return token

    def _folder(self, key: str, token: str) -> Path:
        # The key is in it, so that no token opens another key's upload.
        digest = hashlib.sha256(check_key(key).encode()).hexdigest()
        if not _TOKEN.fullmatch(token):
            raise self._over(key)
        return self._unfinished / f"{digest[:16]}-{token}"

    def _over(self, key: str) -> StoreError:
        if not self._unfinished.is_dir():
            return self._missing(key)
        return ObjectMissing(f"there is no unfinished upload of {key} in {self._root} by this token")

    @contextmanager
    def uploading(self, deed: str, key: str) -> Iterator[None]:
        with _translated(f"{deed} {key} in {self._root}"):
            try:
                yield
            except FileNotFoundError:
                raise self._over(key) from None

    def write_part(self, key: str, token: str, number: int) -> Writer:
        return _PartWriter(self, key, self._folder(key, token), check_number(number))

    def parts(self, key: str, token: str) -> list[Part]:
        folder = self._folder(key, token)
        with self.uploading("list the parts of", key):
            (folder / _BYTES).stat()
            return _parts(folder)

    def complete_parts(self, key: str, token: str) -> None:
        folder = self._folder(key, token)
        try:
            with self.uploading("keep", key), _alone(folder) as file:
                parts = _parts(folder)
                check_parts(key, parts)
                file.truncate(sum(part.size for part in parts))
                os.utime(file.fileno())
                os.fsync(file.fileno())
                _publish(self._root, folder / _BYTES, self._path(key))
                shutil.rmtree(folder)
        except ObjectMissing:
            # It may be completed already.
            self.size(key)

    def abort_parts(self, key: str, token: str) -> None:
        try:
            with self.uploading("give up", key):
                _remove_upload(self._folder(key, token))
        except ObjectMissing:
            return

    def download_url(self, key: str, media_type: str, disposition: str, seconds: int) -> str | None:
        return None

    def part_url(self, key: str, token: str, number: int, seconds: int) -> str | None:
        return None


class _FileWriter(Writer):
    def __init__(self, root: Path, unfinished: Path, path: Path) -> None:
        self._root = root
        self._path = path
        with _translated(f"write in {unfinished}"):
            handle, name = tempfile.mkstemp(dir=unfinished)
        self._temporary = Path(name)
        # Unbuffered: a buffer would try a failed write again at close.
        self._file = io.FileIO(handle, "w")

    def write(self, chunk: bytes) -> None:
        with _translated(f"write {self._path.name} in {self._root}"):
            view = memoryview(chunk)
            while view:
                view = view[self._file.write(view) :]

    def commit(self) -> None:
        with _translated(f"keep {self._path.name} in {self._root}"):
            os.fsync(self._file.fileno())
            _publish(self._root, self._temporary, self._path)
            self._file.close()

    def abort(self) -> None:
        if self._file.closed:
            return
        with _translated(f"give up {self._path.name} in {self._root}"):
            self._file.close()
            self._temporary.unlink(missing_ok=True)


class _PartWriter(Writer):
    def __init__(self, store: FilesystemStore, key: str, folder: Path, number: int) -> None:
        self._store = store
        self._key = key
        self._folder = folder
        self._number = number
        self._name = uuid4().hex
        self._size = 0
        with store.uploading("write a part of", key):
            self._file = io.FileIO(folder / _BYTES, "r+")
            try:
                self._note = self._claim()
            except BaseException:
                self._file.close()
                raise

    def _claim(self) -> io.FileIO:
        """The part's note; the part is not whole from now on, before its first byte is overwritten."""
        with _locked(self._file, self._folder), ExitStack() as stack:
            handle = os.open(self._folder / str(self._number), os.O_RDWR | os.O_CREAT, 0o600)
            note = stack.enter_context(io.FileIO(handle, "r+"))
            _write_note(note, self._name)
            stack.pop_all()
        return note

    @contextmanager
    def _mine(self) -> Iterator[None]:
        """While nobody else may write this part."""
        with self._store.uploading("write a part of", self._key), _locked(self._file, self._folder):
            if os.pread(self._note.fileno(), len(self._name), 0) != self._name.encode():
                raise PartTaken(f"part {self._number} of {self._key} was begun again by another")
            yield

    def write(self, chunk: bytes) -> None:
        self._check_open()
        check_room(self._size, len(chunk))
        with self._mine():
            view = memoryview(chunk)
            while view:
                written = os.pwrite(self._file.fileno(), view, (self._number - 1) * PART_BYTES + self._size)
                self._size += written
                view = view[written:]

    def commit(self) -> None:
        self._check_open()
        # Outside the lock, because it takes long; nobody may change these bytes since and leave the note ours.
        with self._store.uploading("write a part of", self._key):
            os.fsync(self._file.fileno())
            _sync_folder(self._folder)
        with self._mine():
            _write_note(self._note, self._name, self._size)
        self.abort()

    def abort(self) -> None:
        self._file.close()
        self._note.close()

    def _check_open(self) -> None:
        if self._file.closed:
            raise ValueError(f"the write of part {self._number} of {self._key} is over")


def _write_note(note: io.FileIO, writer: str, size: int | str = "") -> None:
    was_written = os.fstat(note.fileno()).st_size > 0
    os.pwrite(note.fileno(), _NOTE.format(writer=writer, size=size).encode(), 0)
    # A new note that is lost says the same as one without a size.
    if was_written:
        os.fsync(note.fileno())


def _parts(folder: Path) -> list[Part]:
    """Those that came whole."""
    parts = []
    for found in _scan(folder):
        if found.name.isdecimal() and (match := _WHOLE_NOTE.fullmatch(Path(found.path).read_bytes())):
            parts.append(Part(int(found.name), int(match[1])))
    return sorted(parts, key=lambda part: part.number)


@contextmanager
def _alone(folder: Path) -> Iterator[io.FileIO]:
    """The bytes of an upload, with nobody writing them."""
    with io.FileIO(folder / _BYTES, "r+") as file, _locked(file, folder):
        yield file


@contextmanager
def _locked(file: io.FileIO, folder: Path) -> Iterator[None]:
    """`FileNotFoundError` where the upload in the folder is over."""
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        (folder / _BYTES).stat()
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def _touched_at(found: os.DirEntry[str]) -> float:
    if found.is_dir(follow_symlinks=False):
        with suppress(FileNotFoundError):
            return (Path(found.path) / _BYTES).stat().st_mtime
    return found.stat(follow_symlinks=False).st_mtime


def _remove(found: os.DirEntry[str]) -> None:
    if not found.is_dir(follow_symlinks=False):
        Path(found.path).unlink()
        return
    try:
        _remove_upload(Path(found.path))
    except FileNotFoundError:
        # What a process left that ended while it completed or removed the upload.
        shutil.rmtree(found.path)


def _remove_upload(folder: Path) -> None:
    with _alone(folder):
        (folder / _BYTES).unlink()
        shutil.rmtree(folder)


def _publish(root: Path, temporary: Path, path: Path) -> None:
    """Put a durable file in an object's place, durably."""
    shard = path.parent
    for folder in (shard.parent, shard):
        folder.mkdir(mode=0o700, exist_ok=True)
    temporary.replace(path)
    # Also the parents: another thread may have made a shard and not have come to this line yet.
    for folder in (shard, shard.parent, root):
        _sync_folder(folder)


def _scan(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        yield from found


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""A store in a folder: objects lie in `<ab>/<cd>/`, unfinished writes in `tmp/`."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from storage import Entry, ObjectMissing, Store, StoreError, StoreFull, Writer, check_key, check_range, is_key, opened

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
        """A write's age is that of its latest bytes."""
        removed = 0
        with _translated(f"sweep {self._unfinished}"):
            for found in _scan(self._unfinished):
                try:
                    if found.stat(follow_symlinks=False).st_mtime < before.timestamp():
                        Path(found.path).unlink()
                        removed += 1
                except FileNotFoundError:
                    continue
        return removed


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
            shard = self._path.parent
            for folder in (shard.parent, shard):
                folder.mkdir(mode=0o700, exist_ok=True)
            self._temporary.replace(self._path)
            self._file.close()
            # Also the parents: another thread may have made a shard and not have come to this line yet.
            for folder in (shard, shard.parent, self._root):
                _sync_folder(folder)

    def abort(self) -> None:
        if self._file.closed:
            return
        with _translated(f"give up {self._path.name} in {self._root}"):
            self._file.close()
            self._temporary.unlink(missing_ok=True)


def _scan(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        yield from found


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""A store in the memory of one process."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from threading import Lock

from storage import Entry, ObjectMissing, Store, StoreError, Writer, check_key, check_range, opened


class MemoryStore(Store):
    def __init__(self) -> None:
        self._lock = Lock()
        self._objects: dict[str, tuple[bytes, datetime]] = {}
        self._unfinished: dict[Writer, datetime] = {}

    def create(self, key: str) -> Writer:
        writer = _MemoryWriter(self, check_key(key))
        with self._lock:
            self._unfinished[writer] = datetime.now(UTC)
        return writer

    def keep(self, writer: Writer, key: str, content: bytes) -> None:
        with self._lock:
            if self._unfinished.pop(writer, None) is None:
                raise StoreError(f"cannot keep {key}: its unfinished write was swept")
            self._objects[key] = content, datetime.now(UTC)

    def forget(self, writer: Writer) -> None:
        with self._lock:
            self._unfinished.pop(writer, None)

    def _content(self, key: str) -> bytes:
        with self._lock:
            if check_key(key) not in self._objects:
                raise ObjectMissing(f"there is no object {key} in memory")
            return self._objects[key][0]

    def read(
        self, key: str, start: int = 0, stop: int | None = None, chunk_bytes: int = 256 * 1024
    ) -> Generator[bytes, None, None]:
        check_range(start, stop)
        return opened(_chunks(self._content(key), start, stop, chunk_bytes))

    def size(self, key: str) -> int:
        return len(self._content(key))

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(check_key(key), None)

    def entries(self) -> Iterator[Entry]:
        with self._lock:
            kept = list(self._objects.items())
        for key, (content, modified_at) in kept:
            yield Entry(key, len(content), modified_at)

    def sweep(self, before: datetime) -> int:
        with self._lock:
            stale = [writer for writer, begun_at in self._unfinished.items() if begun_at < before]
            for writer in stale:
                del self._unfinished[writer]
        return len(stale)


def _chunks(content: bytes, start: int, stop: int | None, chunk_bytes: int) -> Generator[bytes, None, None]:
    yield b""
    end = len(content) if stop is None else min(stop, len(content))
    for position in range(start, end, chunk_bytes):
        yield content[position : min(position + chunk_bytes, end)]


class _MemoryWriter(Writer):
    def __init__(self, store: MemoryStore, key: str) -> None:
        self._store = store
        self._key = key
        self._chunks: list[bytes] | None = []

    def write(self, chunk: bytes) -> None:
        self._open_chunks().append(bytes(chunk))

    def commit(self) -> None:
        self._store.keep(self, self._key, b"".join(self._open_chunks()))
        self._chunks = None

    def abort(self) -> None:
        self._chunks = None
        self._store.forget(self)

    def _open_chunks(self) -> list[bytes]:
        if self._chunks is None:
            raise ValueError(f"the write of {self._key} is over")
        return self._chunks

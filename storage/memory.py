"""A store in the memory of one process."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Lock
from uuid import uuid4

from storage import (
    Entry,
    ObjectMissing,
    Part,
    Store,
    StoreError,
    Writer,
    check_key,
    check_number,
    check_parts,
    check_range,
    check_room,
    opened,
)


@dataclass
class _Upload:
    key: str
    parts: dict[int, bytes] = field(default_factory=dict)
    touched_at: datetime = field(default_factory=lambda: datetime.now(UTC))


class MemoryStore(Store):
    def __init__(self) -> None:
        self._lock = Lock()
        self._objects: dict[str, tuple[bytes, datetime]] = {}
        self._unfinished: dict[Writer, datetime] = {}
        self._uploads: dict[str, _Upload] = {}

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
            writers = [writer for writer, begun_at in self._unfinished.items() if begun_at < before]
            for writer in writers:
                del self._unfinished[writer]
            tokens = [token for token, upload in self._uploads.items() if upload.touched_at < before]
            for token in tokens:
                del self._uploads[token]
        return len(writers) + len(tokens)

    def begin_parts(self, key: str) -> str:
        token = uuid4().hex
        with self._lock:
            self._uploads[token] = _Upload(check_key(key))
        return token

    def _upload(self, key: str, token: str) -> _Upload:
        """With the lock held."""
        check_key(key)
        upload = self._uploads.get(token)
        if upload is None or upload.key != key:
            raise ObjectMissing(f"there is no unfinished upload of {key} in memory by this token")
        return upload

    def write_part(self, key: str, token: str, number: int) -> Writer:
        with self._lock:
            self._upload(key, token)
        return _MemoryPart(self, key, token, check_number(number))

    def keep_part(self, key: str, token: str, number: int, content: bytes) -> None:
        with self._lock:
            upload = self._upload(key, token)
            upload.parts[number] = content
            upload.touched_at = datetime.now(UTC)

    def parts(self, key: str, token: str) -> list[Part]:
        with self._lock:
            return _listed(self._upload(key, token))

    def complete_parts(self, key: str, token: str) -> None:
        with self._lock:
            if token not in self._uploads and check_key(key) in self._objects:
                return
            upload = self._upload(key, token)
            check_parts(key, _listed(upload))
            del self._uploads[token]
            self._objects[key] = b"".join(content for _, content in sorted(upload.parts.items())), datetime.now(UTC)

    def abort_parts(self, key: str, token: str) -> None:
        with self._lock, suppress(ObjectMissing):
            self._upload(key, token)
            del self._uploads[token]

    def download_url(self, key: str, media_type: str, disposition: str, seconds: int) -> str | None:
        return None

    def part_url(self, key: str, token: str, number: int, seconds: int) -> str | None:
        return None


def _listed(upload: _Upload) -> list[Part]:
    return [Part(number, len(content)) for number, content in sorted(upload.parts.items())]


def _chunks(content: bytes, start: int, stop: int | None, chunk_bytes: int) -> Generator[bytes, None, None]:
    yield b""
    end = len(content) if stop is None else min(stop, len(content))
    for position in range(start, end, chunk_bytes):
        yield content[position : min(position + chunk_bytes, end)]


class _BufferedWriter(Writer):
    """Keeps what is written to it until it is over."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._content: bytearray | None = bytearray()

    def write(self, chunk: bytes) -> None:
        self._open_content().extend(chunk)

    def _open_content(self) -> bytearray:
        if self._content is None:
            raise ValueError(f"the write of {self._key} is over")
        return self._content


class _MemoryWriter(_BufferedWriter):
    def __init__(self, store: MemoryStore, key: str) -> None:
        super().__init__(key)
        self._store = store

    def commit(self) -> None:
        self._store.keep(self, self._key, bytes(self._open_content()))
        self._content = None

    def abort(self) -> None:
        self._content = None
        self._store.forget(self)


class _MemoryPart(_BufferedWriter):
    def __init__(self, store: MemoryStore, key: str, token: str, number: int) -> None:
        super().__init__(key)
        self._store = store
        self._token = token
        self._number = number

    def write(self, chunk: bytes) -> None:
        check_room(len(self._open_content()), len(chunk))
        super().write(chunk)

    def commit(self) -> None:
        self._store.keep_part(self._key, self._token, self._number, bytes(self._open_content()))
        self._content = None

    def abort(self) -> None:
        self._content = None

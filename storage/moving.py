"""Two stores as one while objects move: new bytes go to the current one, and what it lacks is in the previous one."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import datetime
from itertools import islice
from typing import TypeVar

from storage import Entry, ObjectMissing, Part, Store, StoreError, Writer, _folder, _split, open_store

T = TypeVar("T")

_LOOKUPS_AT_ONCE = 16
_BATCH = 512


class Damaged(StoreError):
    """An object's bytes are not those that were recorded."""


class MovingStore(Store):
    """The previous store is opened and asked only for what the current one lacks: while it is away, all that is in the
    current one can be read, and written. Listing and sweeping need both, and deleting is told to have failed halfway.
    """

    def __init__(self, current: Store, open_previous: Callable[[], Store]) -> None:
        self._current = current
        self._open_previous = open_previous
        self._opened: Store | None = None

    def previous(self) -> Store:
        """Opened by the first call, and by each after one that failed."""
        if self._opened is None:
            self._opened = self._open_previous()
        return self._opened

    def _first(self, ask: Callable[[Store], T]) -> T:
        """The current store's answer, or the previous one's where nothing is there."""
        try:
            return ask(self._current)
        except ObjectMissing:
            return ask(self.previous())

    def _holder(self, look: Callable[[Store], object]) -> Store:
        """The store in which `look` finds something. Raises `ObjectMissing` where it does in neither."""
        try:
            look(self._current)
        except ObjectMissing:
            look(self.previous())
            return self.previous()
        return self._current

    def create(self, key: str) -> Writer:
        return self._current.create(key)

    def read(
        self, key: str, start: int = 0, stop: int | None = None, chunk_bytes: int = 256 * 1024
    ) -> Generator[bytes, None, None]:
        return self._first(lambda store: store.read(key, start, stop, chunk_bytes))

    def size(self, key: str) -> int:
        return self._first(lambda store: store.size(key))

    def delete(self, key: str) -> None:
        self._current.delete(key)
        self.previous().delete(key)

    def entries(self) -> Iterator[Entry]:
        """An object that both have is told as the previous one has it."""
        # The previous store first: from it no copy takes anything away, so that what is copied meanwhile is neither
        # missed nor told twice.
        previous, current = self.previous(), self._current.entries()
        yield from previous.entries()
        with ThreadPoolExecutor(_LOOKUPS_AT_ONCE) as pool:
            while batch := list(islice(current, _BATCH)):
                told = pool.map(lambda entry: _has(previous, entry.key), batch)
                yield from (entry for entry, is_told in zip(batch, told, strict=True) if not is_told)

    def sweep(self, before: datetime) -> int:
        return self._current.sweep(before) + self.previous().sweep(before)

    # An upload goes on where it was begun.

    def begin_parts(self, key: str) -> str:
        return self._current.begin_parts(key)

    def write_part(self, key: str, token: str, number: int) -> Writer:
        return self._store_of(key, token).write_part(key, token, number)

    def parts(self, key: str, token: str) -> list[Part]:
        return self._first(lambda store: store.parts(key, token))

    def complete_parts(self, key: str, token: str) -> None:
        self._first(lambda store: store.complete_parts(key, token))

    def abort_parts(self, key: str, token: str) -> None:
        self._store_of(key, token).abort_parts(key, token)

    def _store_of(self, key: str, token: str) -> Store:
        """The one that has the upload; the current one, which says so, where it is over."""
        try:
            return self._holder(lambda store: store.parts(key, token))
        except ObjectMissing:
            return self._current

    def download_url(self, key: str, media_type: str, disposition: str, seconds: int) -> str | None:
        """None also where no store has the object: reading it says so."""
        try:
            holder = self._holder(lambda store: store.size(key))
        except ObjectMissing:
            return None
        return holder.download_url(key, media_type, disposition, seconds)

    def part_url(self, key: str, token: str, number: int, seconds: int) -> str | None:
        return self._store_of(key, token).part_url(key, token, number, seconds)

    # What moving them needs.

    def is_moved(self, key: str, size: int) -> bool:
        """Whether the current store has an object of this key, and of so many bytes."""
        try:
            return self._current.size(key) == size
        except ObjectMissing:
            return False

    def has_parts(self, key: str, token: str) -> bool:
        """Whether the current store has this upload; none has one that is over."""
        return _is_there(lambda: self._current.parts(key, token))

    def move(self, key: str, size: int, digest: str, on_chunk: Callable[[int], None]) -> bool:
        """Copy an object into the current store unless it is there already; whether it was copied.

        `digest` is the SHA-256 (hex) that its bytes must have. `on_chunk` is told the bytes of each chunk, and may
        raise: then nothing is kept. Raises `ObjectMissing` where neither has it, `Damaged`, `StoreFull`, `StoreError`.
        """
        if self.is_moved(key, size):
            return False
        seen, found = hashlib.sha256(), 0
        with closing(self.previous().read(key)) as chunks, self._current.create(key) as writer:
            for chunk in chunks:
                on_chunk(len(chunk))
                seen.update(chunk)
                found += len(chunk)
                writer.write(chunk)
            if seen.hexdigest() != digest:
                came = f"{found:,} bytes of SHA-256 {seen.hexdigest()}"
                raise Damaged(f"the object {key} has {came}; {size:,} of {digest} are recorded")
            writer.commit()
        return True

    def check(self) -> None:
        """Raises `StoreError` unless the current store takes an object, and the previous one answers and is another."""
        key = f"move-check-{uuid.uuid4()}"
        with self._current.create(key) as writer:
            writer.commit()
        try:
            is_same = _has(self.previous(), key)
        finally:
            self._current.delete(key)
        if is_same:
            raise StoreError("both URLs lead to one and the same store")


def open_moving(current_url: str, previous_url: str) -> MovingStore:
    """Raises as `open_store` does; but a `StoreError` of the previous one only when that is needed."""
    moving = MovingStore(open_store(current_url), lambda: _open_existing(previous_url))
    with suppress(StoreError):
        moving.previous()
    return moving


def _open_existing(url: str) -> Store:
    """A folder that is not mounted must not be made anew, and pass for one whose objects are gone."""
    parts = _split(url)
    if parts.scheme == "file" and not (_folder(parts) / "tmp").is_dir():
        raise StoreError(f"there is no store in the folder {_folder(parts)}")
    return open_store(url)


def _has(store: Store, key: str) -> bool:
    return _is_there(lambda: store.size(key))


def _is_there(look: Callable[[], object]) -> bool:
    try:
        look()
    except ObjectMissing:
        return False
    return True

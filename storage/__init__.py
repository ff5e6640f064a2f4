"""Where bytes are kept: one protocol, and a store for a URL.

`file:///path` keeps files in a folder, `memory:` in the process (tests), `s3://bucket/prefix?endpoint=…` on any
S3-compatible server.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Protocol, Self


class StoreError(Exception):
    """The store could not do it; the message says what and why, without credentials."""


class ObjectMissing(StoreError):
    """No object has this key."""


class StoreFull(StoreError):
    """There is no room for more bytes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a listing; `modified_at` is aware, UTC."""

    key: str
    size: int
    modified_at: datetime


class Writer(Protocol):
    """An object being written. It does not exist until `commit`; leaving the `with` without one aborts it."""

    def write(self, chunk: bytes) -> None: ...

    def commit(self) -> None:
        """Make the object readable, whole and durable, at once."""

    def abort(self) -> None:
        """Leave nothing behind. Safe to call twice, and after `commit` (then it does nothing)."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


class Store(Protocol):
    """Keys are `[a-z0-9/-]+` and never come from user input. All methods block, and may be called from any thread."""

    def create(self, key: str) -> Writer: ...

    def read(self, key: str, start: int = 0, stop: int | None = None, chunk_bytes: int = 256 * 1024) -> Iterator[bytes]:
        """The bytes start..stop (exclusive), in chunks. `ObjectMissing` is raised by the call, not by the first chunk."""

    def size(self, key: str) -> int: ...

    def delete(self, key: str) -> None:
        """No error where there is none."""

    def entries(self) -> Iterator[Entry]:
        """Every committed object, in any order, with flat memory."""

    def sweep(self, before: datetime) -> int:
        """Remove unfinished writes begun before then; how many."""


def open_store(url: str) -> Store:
    """The store for a URL. Raises `ValueError` naming what is wrong with the URL."""
    raise ValueError(f"no store for {url!r}")

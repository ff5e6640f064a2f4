"""Where bytes are kept: one protocol, and a store for a URL.

`file:///path` keeps files in a folder, `memory:` in the process (tests), `s3://bucket/prefix?endpoint=…` on any
S3-compatible server (all of such a URL: `storage.s3_url`).
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self
from urllib.parse import SplitResult, unquote, urlsplit

MAX_KEY_LENGTH = 200
# Of an object that comes in parts, and of what a store sends in one request.
PART_BYTES = 8 * 2**20
MAX_PARTS = 10_000
_KEY = re.compile(r"[a-z0-9-]+(/[a-z0-9-]+)*")


class StoreError(Exception):
    """The store could not do it; the message says what and why, without credentials. For the log, not for a client."""


class ObjectMissing(StoreError):
    """No object has this key."""


class PartTaken(StoreError):
    """The part was begun again by another writer, or came before and this store's server does not replace it."""


class StoreFull(StoreError):
    """There is no room for more bytes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a listing; `modified_at` is aware, UTC."""

    key: str
    size: int
    modified_at: datetime


@dataclass(frozen=True, slots=True)
class Part:
    """A part that an unfinished object has; `number` counts from 1."""

    number: int
    size: int


class Writer(Protocol):
    """An object being written. It does not exist until `commit`; leaving the `with` without one aborts it.

    Of one thread at a time. `write` and `commit` raise `ValueError` once it is committed or aborted.
    """

    def write(self, chunk: bytes) -> None: ...

    def commit(self) -> None:
        """Make the object readable, whole and durable, at once; an older one with its key is replaced."""

    def abort(self) -> None:
        """Leave nothing behind. Safe to call twice, and after `commit` (then it does nothing)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.abort()
            return
        # The first error is the one to tell; what an abort could not remove, `sweep` will.
        with suppress(StoreError):
            self.abort()


class Store(Protocol):
    """Keys are at most 200 characters of `[a-z0-9-]`, in parts between single slashes, and never come from user input;
    another key is a `ValueError`. All methods block, and may be called from any thread."""

    def create(self, key: str) -> Writer: ...

    def read(
        self, key: str, start: int = 0, stop: int | None = None, chunk_bytes: int = 256 * 1024
    ) -> Generator[bytes, None, None]:
        """The bytes start..stop (exclusive), in chunks; fewer where the object ends before, `ValueError` for
        start > stop. `ObjectMissing` is raised by the call, not by the first chunk. `close()` it when leaving early.
        """

    def size(self, key: str) -> int: ...

    def delete(self, key: str) -> None:
        """No error where there is none."""

    def entries(self) -> Iterator[Entry]:
        """Every committed object, in any order, with flat memory. Objects may come and go meanwhile."""

    def sweep(self, before: datetime) -> int:
        """Remove unfinished writes, and objects in parts, whose latest bytes came before then; how many."""

    # Objects that come in parts: in any order, each again if need be, over days and through many processes.

    def begin_parts(self, key: str) -> str:
        """Begin an object of parts; nothing is readable before `complete_parts`. The token goes to the other calls."""

    def write_part(self, key: str, token: str, number: int) -> Writer:
        """Part `number` (1 to `MAX_PARTS`) of at most `PART_BYTES`, else `ValueError`; kept by its `commit`.

        All but the last part must have `PART_BYTES`. A part may be sent again: the later one counts, and while it comes
        the part may be away. What two writers of one part send at once never mixes: the later commit counts, or one
        gets `StoreError`, like one who sends other bytes than before to a server that cannot replace them.
        `ObjectMissing`, at the latest by `commit`, where the upload is over.
        """

    def parts(self, key: str, token: str) -> list[Part]:
        """What has come, by number. `ObjectMissing` where the upload is over."""

    def complete_parts(self, key: str, token: str) -> None:
        """Make the object readable, whole and durable, of all its parts. Again after a success is no error.

        `StoreError` where a part is missing or has the wrong size, which more parts can mend; `ObjectMissing` where the
        upload was aborted or swept.
        """

    def abort_parts(self, key: str, token: str) -> None:
        """Leave nothing behind. No error where it is over; a completed object stays."""

    # Transfers past this process, for stores whose server takes them; None where it does not.

    def download_url(self, key: str, media_type: str, disposition: str, seconds: int) -> str | None:
        """A URL that gives the object to whoever has it, for a while, under these headers."""

    def part_url(self, key: str, token: str, number: int, seconds: int) -> str | None:
        """A URL that takes the part by PUT from whoever has it, for a while. Its size is checked at completion only."""


def open_store(url: str) -> Store:
    """The store for a URL. Raises `ValueError` saying what is wrong with the URL, `StoreError` for a folder that
    cannot be used. `memory:` is a new, empty store at each call."""
    parts = _split(url)
    match parts.scheme:
        case "file":
            from storage.filesystem import FilesystemStore

            return FilesystemStore(_folder(parts))
        case "memory":
            from storage.memory import MemoryStore

            return MemoryStore()
        case "s3":
            try:
                from storage.s3 import S3Store
            except ModuleNotFoundError as error:
                raise ValueError(f"an s3: store needs the extra `s3`: {error.name} is not installed") from error

            return S3Store.from_url(parts)
    raise ValueError("the store URL must begin with file:, memory: or s3:")


def _split(url: str) -> SplitResult:
    # An error of urlsplit's own quotes the part it cannot read, which may hold the secret.
    try:
        return urlsplit(url)
    except ValueError:
        raise ValueError("the store URL cannot be read: is every special character percent-encoded?") from None


def _folder(parts: SplitResult) -> Path:
    if parts.netloc not in ("", "localhost"):
        raise ValueError("a file: store URL has three slashes, file:///path: it names no host")
    if parts.query or parts.fragment:
        raise ValueError("a file: store URL has no ? or #: percent-encode them if the path has")
    path = Path(unquote(parts.path))
    if not path.is_absolute() or path == Path("/") or "\0" in str(path):
        raise ValueError("a file: store URL names an absolute folder below /, as file:///path")
    return path


def is_key(text: str) -> bool:
    """Whether a store may have an object of this key."""
    return len(text) <= MAX_KEY_LENGTH and _KEY.fullmatch(text) is not None


def check_key(key: str) -> str:
    """The key itself, or `ValueError`. For stores."""
    if not is_key(key):
        raise ValueError(f"{key[:MAX_KEY_LENGTH]!r} is no key of a store")
    return key


def check_range(start: int, stop: int | None) -> None:
    """`ValueError` unless 0 <= start <= stop. For stores."""
    if start < 0 or (stop is not None and stop < start):
        raise ValueError(f"no range: {start}..{stop}")


def check_number(number: int) -> int:
    """The number of a part itself, or `ValueError`. For stores."""
    if not 1 <= number <= MAX_PARTS:
        raise ValueError(f"a part's number is 1 to {MAX_PARTS}, not {number}")
    return number


def check_room(had_bytes: int, more_bytes: int) -> None:
    """`ValueError` where a part would become too large. For stores."""
    if had_bytes + more_bytes > PART_BYTES:
        raise ValueError(f"a part has at most {PART_BYTES} bytes")


def check_parts(key: str, parts: list[Part]) -> None:
    """`StoreError` saying what is missing or wrong, unless they make an object. For stores."""
    if not parts:
        raise StoreError(f"cannot complete {key}: no part of it has come")
    for position, part in enumerate(parts, 1):
        if part.number != position:
            raise StoreError(f"cannot complete {key}: part {position} of {parts[-1].number} has not come")
        if part.size > PART_BYTES or (part.size < PART_BYTES and position < len(parts)):
            rule = f"must have {PART_BYTES}, the last at most so many"
            raise StoreError(f"cannot complete {key}: part {position} has {part.size} bytes; a part {rule}")


def opened(chunks: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
    """Run a reader to its first, empty, chunk: its errors are met, and `close()` lets go what it holds. For stores."""
    next(chunks)
    return chunks

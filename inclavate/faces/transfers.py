"""Bytes between a socket and the store: batched, each batch moved in the pool, memory flat."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Self

from inclavate import artifacts, errors
from inclavate.faces.boundary import in_pool
from inclavate.models import Artifact, Owner

_BATCH_BYTES = 2**20


class Upload:
    """An artifact that arrives in chunks; leaving the `async with` before `finish` leaves nothing behind."""

    def __init__(self, owner: Owner, media_type: str, max_bytes: int) -> None:
        self._owner = owner
        self._media_type = media_type
        self._max_bytes = max_bytes
        self._batch = bytearray()
        self._draft: artifacts.Draft | None = None
        self._is_finished = False

    async def begin(self, expected_bytes: int = 0, filename: str = "", is_transient: bool = False) -> None:
        """Raises `PayloadTooLarge` at once where too much is announced, `QuotaExhausted`."""
        self._draft = await in_pool(
            artifacts.begin,
            self._owner,
            Artifact.Origin.UPLOADED,
            self._media_type,
            expected_bytes=expected_bytes,
            max_bytes=self._max_bytes,
            filename=filename,
            is_transient=is_transient,
        )

    async def write(self, chunk: bytes) -> None:
        self._batch += chunk
        if len(self._batch) >= _BATCH_BYTES:
            await self._flush()

    @property
    def size(self) -> int:
        """Bytes that have come."""
        return len(self._batch) + (self._draft.size if self._draft else 0)

    async def sniffed_type(self) -> str | None:
        """What all that has come shows it to be; None also where nothing came."""
        await self._flush()
        return self._draft.sniffed_type if self._draft else None

    async def finish(self) -> Artifact:
        """Raises `InvalidRequest` where nothing came."""
        await self._flush()
        if self._draft is None or not self.size:
            raise errors.InvalidRequest("The body is empty: there is nothing to keep.", param="body")
        artifact = await in_pool(self._draft.finish)
        self._is_finished = True
        return artifact

    async def _flush(self) -> None:
        if self._draft is not None and self._batch:
            batch, self._batch = bytes(self._batch), bytearray()
            await in_pool(self._draft.write, batch)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._draft is not None and not self._is_finished:
            await in_pool(self._draft.abandon)


async def iterate(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Chunks of a store, each read in the pool."""
    while (chunk := await in_pool(next, chunks, b"")) != b"":
        yield chunk

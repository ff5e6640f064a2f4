"""Bytes between a socket and the store: batched, each batch moved in the pool, memory flat."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from threading import Lock
from types import TracebackType
from typing import ClassVar, Self, TypeVar
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from inclavate import artifacts, errors
from inclavate.faces.boundary import at_store, store_pool
from inclavate.models import Artifact, Owner

R = TypeVar("R")

_BATCH_BYTES = 2**20
# Of all uploads of the process: beyond it, each batch goes as soon as something comes.
_ALL_BATCHES_BYTES = 8 * 2**20
# A client may send a byte at a time, and each is an object.
_BATCH_CHUNKS = 512
_INERT = re.compile(r"(audio|video)/[\w.+-]+|image/(png|jpeg|webp|gif|bmp|tiff|avif)|text/plain", re.ASCII)
# What Python's own table lacks.
_EXTENSIONS = {
    "audio/wav": ".wav",
    "audio/wave": ".wav",
    "audio/vnd.wave": ".wav",
    "audio/flac": ".flac",
    "audio/ogg": ".ogg",
    "audio/mp3": ".mp3",
    "audio/mp4": ".m4a",
    "audio/aac": ".aac",
    "audio/pcm": ".pcm",
    "application/x-subrip": ".srt",
    "text/vtt": ".vtt",
}
_RANGE = re.compile(r"\s*([0-9]*)\s*-\s*([0-9]*)\s*", re.ASCII)

# -- in ----------------------------------------------------------------------------------------------------------------


def announced_digest(request: Request) -> str | None:
    """The SHA-256 that the sender says its bytes have. Raises `InvalidRequest`."""
    text = request.headers.get("x-content-sha256")
    if text is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise errors.InvalidRequest(
            f"x-content-sha256 must be a SHA-256 in 64 hexadecimal digits, not {text[:80]!r}.", param="x-content-sha256"
        )
    return text and text.lower()


class Batches:
    """Chunks on their way from a socket to `write`, many in one hop into the pool. They are not joined: that would copy
    each byte twice more."""

    # Of all batches, those included that are being written; they live on one event loop.
    _held_bytes: ClassVar[int] = 0

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = write
        self._chunks: list[bytes] = []
        self.waiting_bytes = 0

    async def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self.waiting_bytes += len(chunk)
        Batches._held_bytes += len(chunk)
        is_full = self.waiting_bytes >= _BATCH_BYTES or len(self._chunks) >= _BATCH_CHUNKS
        if is_full or Batches._held_bytes >= _ALL_BATCHES_BYTES:
            await self.flush()

    async def flush(self) -> None:
        if self._chunks:
            chunks, size = self._chunks, self.waiting_bytes
            self._chunks, self.waiting_bytes = [], 0
            try:
                await at_store(self._write, *chunks)
            finally:
                Batches._held_bytes -= size

    def drop(self) -> None:
        """Let go of what waits; whoever adds calls it at the end."""
        Batches._held_bytes -= self.waiting_bytes
        self._chunks, self.waiting_bytes = [], 0


class Upload:
    """An artifact that arrives in chunks; leaving the `async with` before `finish` leaves nothing behind. `field` is
    where the request has it."""

    def __init__(
        self, owner: Owner, media_type: str, max_bytes: int, digest: str | None = None, field: str = "body"
    ) -> None:
        self._owner = owner
        self._field = field
        self._digest = digest
        self._media_type = media_type
        self._max_bytes = max_bytes
        self._draft: artifacts.Draft | None = None
        self._batches = Batches(_refuse)
        self._is_finished = False

    async def begin(
        self, expected_bytes: int = 0, filename: str = "", is_transient: bool = False, media_type: str = ""
    ) -> None:
        """Raises `PayloadTooLarge` at once where too much is announced, `QuotaExhausted`. A `media_type` given here is
        one that comes with the bytes."""
        self._draft = await at_store(
            artifacts.begin,
            self._owner,
            Artifact.Origin.UPLOADED,
            media_type or self._media_type,
            expected_bytes=expected_bytes,
            max_bytes=self._max_bytes,
            filename=filename,
            is_transient=is_transient,
        )
        self._batches = Batches(self._draft.write)

    async def write(self, chunk: bytes) -> None:
        await self._batches.add(chunk)

    @property
    def size(self) -> int:
        """Bytes that have come."""
        return self._batches.waiting_bytes + (self._draft.size if self._draft else 0)

    async def sniffed_type(self) -> str | None:
        """What all that has come shows it to be; None also where nothing came."""
        await self._batches.flush()
        return self._draft.sniffed_type if self._draft else None

    async def finish(self, purpose: str = "", expires_after: timedelta | None = None) -> Artifact:
        """Raises `InvalidRequest` where nothing came, or not what the digest says."""

        def seal(draft: artifacts.Draft) -> Artifact:
            draft.label(purpose, expires_after)
            return draft.finish()

        return await self.hand_over(seal)

    async def hand_over(self, verb: Callable[[artifacts.Draft], R]) -> R:
        """What `verb` makes of the draft, which it has to seal. Raises what `finish` does, and what it raises."""
        await self._batches.flush()
        if self._draft is None or not self.size:
            raise errors.InvalidRequest(f"The {self._field} is empty: there is nothing to keep.", param=self._field)
        if self._digest is not None:
            self._draft.check_digest(self._digest, "x-content-sha256")
        made = await at_store(verb, self._draft)
        self._is_finished = True
        return made

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._batches.drop()
        if self._draft is not None and not self._is_finished:
            await at_store(self._draft.abandon)


def _refuse(*chunks: bytes) -> None:
    raise RuntimeError("bytes came before the upload was begun")


# -- out ---------------------------------------------------------------------------------------------------------------


async def iterate(chunks: Generator[bytes, None, None]) -> AsyncIterator[bytes]:
    """Chunks of a store, each read in the pool; what they hold is let go also where the reader leaves early."""
    # A reader that is cancelled leaves its last read running.
    one_at_a_time = Lock()

    def read() -> bytes:
        with one_at_a_time:
            return next(chunks, b"")

    def close() -> None:
        with one_at_a_time:
            chunks.close()

    try:
        while (chunk := await at_store(read)) != b"":
            yield chunk
    finally:
        # Not awaited: whoever is cancelled may wait for nothing. At the stop of the process nothing is taken any more.
        with suppress(RuntimeError):
            store_pool.submit(close)


async def respond(request: Request, artifact: Artifact) -> Response:
    """GET and HEAD of an artifact's bytes, with single ranges and conditions (RFC 9110).

    Raises `NotReady`, `InvalidRequest`, `RangeNotSatisfiable`, `ArtifactGone`, `Unavailable`.
    """
    if artifact.state != Artifact.State.READY:
        raise errors.NotReady(f"Artifact {artifact.pk} is {artifact.state}, not ready.")
    headers = _headers(artifact)
    if _is_known(request, artifact, headers["ETag"]):
        return Response(status_code=304, headers={name: headers[name] for name in ("ETag", "Last-Modified")})
    wanted = _range(request, artifact, headers)
    start, stop = wanted or (0, artifact.size)
    headers["Content-Length"] = str(stop - start)
    if wanted:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{artifact.size}"
    status = 206 if wanted else 200
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    kind, disposition = headers["Content-Type"], headers["Content-Disposition"]
    if url := await at_store(artifacts.direct_url, artifact, kind, disposition):
        # The client repeats its Range there.
        return Response(status_code=307, headers={"Location": url, "Cache-Control": "no-store"})
    chunks = await at_store(artifacts.read, artifact, start, stop)
    return StreamingResponse(iterate(chunks), status, headers)


def _headers(artifact: Artifact) -> dict[str, str]:
    essence = artifact.media_type.partition(";")[0].strip().lower()
    is_inert = _INERT.fullmatch(essence) is not None
    return {
        "Content-Type": artifact.media_type if is_inert else "application/octet-stream",
        "Content-Disposition": content_disposition(filename(artifact)),
        "X-Content-Type-Options": "nosniff",
        "Accept-Ranges": "bytes",
        "ETag": f'"{artifact.digest}"',
        "Last-Modified": format_datetime(artifact.created_at, usegmt=True),
    }


def filename(artifact: Artifact) -> str:
    """What a download is called: as its uploader called it, else by its id and its type's usual ending."""
    essence = artifact.media_type.partition(";")[0].strip().lower()
    ending = _EXTENSIONS.get(essence) or mimetypes.guess_extension(essence) or ".bin"
    return artifact.filename or f"{artifact.pk}{ending}"


def content_disposition(filename: str) -> str:
    """An attachment whose name any client reads (RFC 6266): plain ASCII, and UTF-8 where that is not all of it."""
    plain = "".join(c if c.isascii() and c.isprintable() and c not in '"\\%' else "_" for c in filename)
    named = f'attachment; filename="{plain}"'
    return named if plain == filename else f"{named}; filename*=UTF-8''{quote(filename, safe='')}"


def _is_known(request: Request, artifact: Artifact, etag: str) -> bool:
    """Whether the client has it already: by its tag, or, where it sent none, by its time."""
    if (tags := request.headers.get("if-none-match")) is not None:
        return _matches(tags, etag)
    since = _http_date(request.headers.get("if-modified-since"))
    return since is not None and artifact.created_at.replace(microsecond=0) <= since


def _http_date(text: str | None) -> datetime | None:
    try:
        at = parsedate_to_datetime(text or "")
    except (ValueError, TypeError):
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _matches(condition: str | None, etag: str) -> bool:
    tags = {tag.strip().removeprefix("W/") for tag in (condition or "").split(",")}
    return "*" in tags or etag in tags


def _range(request: Request, artifact: Artifact, headers: dict[str, str]) -> tuple[int, int] | None:
    """The range asked for as (start, stop), None for all. Raises `InvalidRequest`, `RangeNotSatisfiable`."""
    text = request.headers.get("range")
    if text is None or not _if_range(request.headers.get("if-range"), artifact, headers):
        return None
    unit, equals, spec = text.partition("=")
    if not equals and unit.strip().lower().startswith("bytes"):
        raise errors.InvalidRequest(f"Range: {text[:80]!r} is no range; write bytes=START-END.", param="Range")
    if unit.strip().lower() != "bytes":
        return None
    if "," in spec or re.fullmatch(r"\s*-\s*[0-9]+\s*", spec):
        raise errors.RangeNotSatisfiable("Only a single range with a start is served.", size=artifact.size)
    match = _RANGE.fullmatch(spec)
    if not match or not match[1] or (match[2] and _position(match[2]) < _position(match[1])):
        raise errors.InvalidRequest(f"Range: {text[:80]!r} is no range; write bytes=START-END.", param="Range")
    start = _position(match[1])
    if start >= artifact.size:
        raise errors.RangeNotSatisfiable(f"The object ends before byte {start}.", size=artifact.size)
    return start, min(_position(match[2]) + 1, artifact.size) if match[2] else artifact.size


def _position(digits: str) -> int:
    """However many digits: beyond twenty it is past the end of anything."""
    return int(digits.lstrip("0")[:20] or "0")


def _if_range(condition: str | None, artifact: Artifact, headers: dict[str, str]) -> bool:
    if condition is None or condition == headers["ETag"]:
        return True
    return artifact.created_at.replace(microsecond=0) == _http_date(condition)

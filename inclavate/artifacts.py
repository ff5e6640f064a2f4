"""Bytes made or uploaded: begin, write, seal, read, delete, sweep, usage, quota.

An artifact is a row and an object of the store. The row comes first (pending), then the bytes, then the seal; it
goes the other way round when deleted. So bytes without a row are garbage, never the reverse for long.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Generic, TypeVar

from django.conf import settings
from django.db.models import Count, F, Q, QuerySet, Sum

import storage
from inclavate import database, errors
from inclavate.models import TERMINAL, Artifact, Job, JobInput, Owner, Usage

log = logging.getLogger(__name__)

_SNIFF_BYTES = 4096
_RESERVE_STEP_BYTES = 8 * 2**20
# A pending row or an object without a row younger than this may belong to a write that still goes on.
_GRACE = timedelta(hours=1)


@cache
def _store() -> storage.Store:
    return storage.open_store(settings.STORE_URL)


@contextmanager
def _translated() -> Iterator[None]:
    """The store's errors as ours; what it says of folders and buckets stays in the log."""
    try:
        yield
    except storage.StoreFull as error:
        raise errors.QuotaExhausted("The artifact store is full; delete something and try again.") from error
    except storage.ObjectMissing as error:
        raise errors.ArtifactGone("The bytes of this artifact are gone.") from error
    except storage.StoreError as error:
        log.error("the artifact store: %s", error)
        raise errors.Unavailable("The artifact store does not answer; try again later.", retry_after=5) from error


# -- writing ---------------------------------------------------------------------------------------------------------


class Draft:
    """An artifact being written: `write` chunks, then `store`, then `seal` in a transaction; or `abandon`.

    While it is pending, the row's `size` is what is reserved for it, so that the sweeper can give it back.
    """

    def __init__(self, artifact: Artifact, max_bytes: int | None) -> None:
        self.artifact = artifact
        self.size = 0
        self._max_bytes = max_bytes
        self._head = b""
        self._hash = hashlib.sha256()
        with _translated():
            self._writer = _store().create(artifact.store_key)

    def write(self, chunk: bytes) -> None:
        """Raises `PayloadTooLarge` past the cap, `QuotaExhausted` past the owner's quota or the store's room."""
        self.size += len(chunk)
        if self._max_bytes is not None and self.size > self._max_bytes:
            raise too_large(self._max_bytes)
        if self.size > self.artifact.size:
            self._reserve(max(self.size - self.artifact.size, _RESERVE_STEP_BYTES))
        if len(self._head) < _SNIFF_BYTES:
            self._head += chunk[: _SNIFF_BYTES - len(self._head)]
        self._hash.update(chunk)
        with _translated():
            self._writer.write(chunk)

    @property
    def sniffed_type(self) -> str | None:
        """What the first bytes say it is."""
        return sniff(self._head)

    def store(self) -> None:
        """Make the bytes durable. Slow; outside any transaction. Raises `QuotaExhausted`, `Unavailable`."""
        with _translated():
            self._writer.commit()

    def seal(self) -> Artifact:
        """Make the artifact ready. Inside a `database.write()`, after `store()`."""
        artifact = self.artifact
        reserved_bytes, artifact.size = artifact.size, self.size
        artifact.state = Artifact.State.READY
        artifact.digest = self._hash.hexdigest()
        artifact.sniffed_type = self.sniffed_type or ""
        sealed = Artifact.objects.filter(pk=artifact.pk, state=Artifact.State.PENDING).update(
            state=artifact.state,
            digest=artifact.digest,
            sniffed_type=artifact.sniffed_type,
            size=artifact.size,
            facts=artifact.facts,
            expires_at=artifact.expires_at,
        )
        if not sealed:
            raise errors.Conflict(f"Artifact {artifact.pk} was deleted while it was written.")
        _count(artifact, +1, reserved_bytes=-reserved_bytes, reserved_objects=-1)
        return artifact

    def finish(self) -> Artifact:
        """`store` and `seal`, for one that belongs to no job's end."""
        self.store()
        with database.write():
            return self.seal()

    def abandon(self) -> None:
        """Leave neither row, bytes nor reservation. Safe after any failure, and when already sealed (then nothing)."""
        with database.write():
            gone, _ = Artifact.objects.filter(pk=self.artifact.pk, state=Artifact.State.PENDING).delete()
            if gone:
                _change_usage(self.artifact, reserved_bytes=-self.artifact.size, reserved_objects=-1)
        if gone:
            _discard(self.artifact, self._writer)

    def _reserve(self, size: int) -> None:
        with database.write():
            _reserve(self.artifact, size, 0)
            Artifact.objects.filter(pk=self.artifact.pk).update(size=F("size") + size)
        self.artifact.size += size


def begin(
    owner: Owner,
    origin: Artifact.Origin,
    media_type: str,
    *,
    expected_bytes: int = 0,
    max_bytes: int | None = None,
    filename: str = "",
    purpose: str = "",
    job: Job | None = None,
    is_transient: bool = False,
) -> Draft:
    """A new pending artifact, with `expected_bytes` reserved. Raises `PayloadTooLarge`, `QuotaExhausted`."""
    if max_bytes is not None and expected_bytes > max_bytes:
        raise too_large(max_bytes, expected_bytes)
    key = uuid.uuid4()
    artifact = Artifact(
        id=key,
        owner=owner,
        origin=origin,
        media_type=media_type,
        size=expected_bytes,
        filename=filename,
        purpose=purpose,
        store_key=str(key),
        job=job,
        is_transient=is_transient,
    )
    with database.write() as now:
        _reserve(artifact, expected_bytes, 1)
        artifact.created_at = now
        if settings.ARTIFACT_TTL_HOURS:
            artifact.expires_at = now + timedelta(hours=settings.ARTIFACT_TTL_HOURS)
        artifact.save(force_insert=True)
    try:
        return Draft(artifact, max_bytes)
    except errors.InclavateError:
        _remove(artifact)
        raise


def too_large(limit: int, got: int | None = None) -> errors.PayloadTooLarge:
    came = f"{got:,} bytes were announced" if got is not None else "more came"
    return errors.PayloadTooLarge(f"The body may have at most {limit:,} bytes; {came}.", param="body")


# -- reading ---------------------------------------------------------------------------------------------------------


def get(owner: Owner, artifact_id: uuid.UUID) -> Artifact:
    """Raises `NotFound`, the same for another owner's."""
    artifact = Artifact.objects.filter(pk=artifact_id, owner=owner).first()
    if artifact is None:
        raise errors.NotFound(f"There is no artifact {artifact_id}.")
    return artifact


def read(artifact: Artifact, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """The bytes start..stop (exclusive) in chunks. Raises `NotReady`, `ArtifactGone`, `Unavailable`."""
    if artifact.state != Artifact.State.READY:
        raise errors.NotReady(f"Artifact {artifact.pk} is {artifact.state}, not ready.")
    with _translated():
        return _store().read(artifact.store_key, start, stop)


T = TypeVar("T")
M = TypeVar("M", Artifact, Job)


@dataclass(frozen=True)
class Page(Generic[T]):
    rows: list[T]
    truncated: bool


def page(
    owner: Owner, *, limit: int, offset: int = 0, after: uuid.UUID | None = None, origin: str | None = None
) -> Page[Artifact]:
    """An owner's artifacts, newest first; `origin` as in `Artifact.Origin`, anything else is both."""
    rows = Artifact.objects.filter(owner=owner)
    if origin in Artifact.Origin.values:
        rows = rows.filter(origin=origin)
    return paginate(rows, get(owner, after) if after else None, limit, offset)


def paginate(
    rows: QuerySet[M], after: M | None, limit: int, offset: int, each: Callable[[M], M] = lambda row: row
) -> Page[M]:
    """Newest first by (created_at, id); `after` seeks by the index, so that depth costs nothing.

    `each` is applied to a row as soon as it is read: what it drops of a long row is never kept a thousand times.
    """
    if after is not None:
        rows = rows.filter(Q(created_at__lt=after.created_at) | Q(created_at=after.created_at, id__lt=after.pk))
    window = rows.order_by("-created_at", "-id")[offset : offset + limit + 1]
    found = [each(row) for row in window.iterator(chunk_size=20)]
    return Page(found[:limit], len(found) > limit)


def ready_ids(ids: Iterable[str]) -> set[str]:
    """Which of these artifacts still exist."""
    found = Artifact.objects.filter(pk__in=list(ids), state=Artifact.State.READY).values_list("pk", flat=True)
    return {str(pk) for pk in found}


# -- deleting --------------------------------------------------------------------------------------------------------


def delete(owner: Owner, artifact_id: uuid.UUID) -> None:
    """Row first, then bytes. Raises `NotFound`, `NotReady` for one that is still being written."""
    artifact = get(owner, artifact_id)
    if artifact.state == Artifact.State.PENDING:
        raise errors.NotReady(f"Artifact {artifact.pk} is still being written.")
    _remove(artifact)


def delete_transient_inputs(job: Job) -> None:
    """A transcription's upload goes with the end of its job."""
    for artifact in Artifact.objects.filter(uses__job=job, is_transient=True):
        _remove(artifact)


def delete_outputs(job: Job) -> int:
    """What a job made and still exists goes; how many."""
    made = list(Artifact.objects.filter(pk__in=job.output_artifacts, state=Artifact.State.READY))
    for artifact in made:
        _remove(artifact)
    return len(made)


def _remove(artifact: Artifact) -> None:
    with database.write():
        gone, _ = Artifact.objects.filter(pk=artifact.pk, state=artifact.state).delete()
        if gone and artifact.state == Artifact.State.READY:
            _count(artifact, -1)
        elif gone:
            _change_usage(artifact, reserved_bytes=-artifact.size, reserved_objects=-1)
    if gone:
        _discard(artifact)


def _discard(artifact: Artifact, writer: storage.Writer | None = None) -> None:
    try:
        if writer is not None:
            writer.abort()
        _store().delete(artifact.store_key)
    except storage.StoreError as error:
        log.warning("the bytes of artifact %s wait for the sweeper: %s", artifact.pk, error)


def sweep(at: datetime | None = None) -> int:
    """Remove what expired (unless a job still needs it) and writes that never ended; how many rows."""
    at = at or database.now()
    needed = JobInput.objects.filter(~Q(job__state__in=TERMINAL), artifact__isnull=False).values("artifact")
    expired = Artifact.objects.filter(expires_at__lt=at).exclude(pk__in=needed)
    abandoned = Artifact.objects.filter(state=Artifact.State.PENDING, created_at__lt=at - _GRACE).exclude(
        job__state="running"
    )
    rows = [*expired[:500], *abandoned[:500]]
    for artifact in rows:
        _remove(artifact)
    return len(rows)


def sweep_store(at: datetime | None = None) -> int:
    """Remove bytes without a row, and unfinished writes of the store; how many. Walks the whole store."""
    before = (at or database.now()) - _GRACE
    removed = _store().sweep(before)
    batch: list[str] = []
    for entry in _store().entries():
        if entry.modified_at < before:
            batch.append(entry.key)
        if len(batch) >= 500:
            removed += _remove_orphans(batch)
            batch = []
    return removed + _remove_orphans(batch)


def _remove_orphans(keys: list[str]) -> int:
    known = set(Artifact.objects.filter(store_key__in=keys).values_list("store_key", flat=True))
    orphans = [key for key in keys if key not in known]
    for key in orphans:
        _store().delete(key)
    return len(orphans)


# -- usage and quota -------------------------------------------------------------------------------------------------


def usage(owner: Owner) -> dict[str, Any]:
    """Bytes and objects, in all and by origin, and the ceilings (0 where there is none)."""
    kept = {row.origin: row for row in Usage.objects.filter(owner=owner)}
    parts = {
        origin: {
            "bytes": kept[origin].bytes if origin in kept else 0,
            "objects": kept[origin].objects_count if origin in kept else 0,
        }
        for origin in Artifact.Origin.values
    }
    return {
        "bytes": sum(part["bytes"] for part in parts.values()),
        "objects": sum(part["objects"] for part in parts.values()),
        "max_bytes": owner.max_bytes or 0,
        "max_objects": owner.max_objects or 0,
        **parts,
        **({"default_ttl_hours": settings.ARTIFACT_TTL_HOURS} if settings.ARTIFACT_TTL_HOURS else {}),
    }


def usage_mismatches() -> list[str]:
    """Where the kept totals differ from COUNT and SUM, as sentences; empty when all is well."""
    counted = {
        (row["owner"], row["origin"]): (row["sum_bytes"], row["count"])
        for row in Artifact.objects.filter(state=Artifact.State.READY)
        .values("owner", "origin")
        .annotate(sum_bytes=Sum("size"), count=Count("pk"))
    }
    kept = {(row.owner_id, row.origin): (row.bytes, row.objects_count) for row in Usage.objects.all()}
    nothing = (0, 0)
    return [
        f"owner {owner}, {origin}: kept {kept.get((owner, origin))}, counted {counted.get((owner, origin))}"
        for owner, origin in sorted(kept.keys() | counted.keys())
        if kept.get((owner, origin), nothing) != counted.get((owner, origin), nothing)
    ]


def _count(artifact: Artifact, sign: int, **reserved: int) -> None:
    _change_usage(artifact, bytes=sign * artifact.size, objects_count=sign, **reserved)


def _change_usage(artifact: Artifact, **changes: int) -> None:
    row = Usage.objects.filter(owner=artifact.owner, origin=artifact.origin)
    row.update(**{name: F(name) + change for name, change in changes.items()})


def _reserve(artifact: Artifact, size: int, objects: int) -> None:
    owner = artifact.owner
    Usage.objects.get_or_create(owner=owner, origin=artifact.origin)
    _change_usage(artifact, reserved_bytes=size, reserved_objects=objects)
    if owner.max_bytes is None and owner.max_objects is None:
        return
    # The rows are locked in one order, so that two uploads of one owner queue instead of both fitting.
    locked = Usage.objects.select_for_update().filter(owner=owner).order_by("origin")
    total_bytes = sum(row.bytes + row.reserved_bytes for row in locked)
    total_objects = sum(row.objects_count + row.reserved_objects for row in locked)
    if owner.max_bytes is not None and total_bytes > owner.max_bytes:
        raise errors.QuotaExhausted(f"The quota of {owner.max_bytes:,} bytes is exhausted; {size:,} more do not fit.")
    if owner.max_objects is not None and total_objects > owner.max_objects:
        raise errors.QuotaExhausted(f"The quota of {owner.max_objects:,} objects is exhausted.")


# -- what bytes are --------------------------------------------------------------------------------------------------

_MAGIC = (
    (0, b"ID3", "audio/mpeg"),
    (0, b"fLaC", "audio/flac"),
    (0, b"OggS", "audio/ogg"),
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF8", "image/gif"),
    (0, b"BM", "image/bmp"),
    (0, b"II*\0", "image/tiff"),
    (0, b"MM\0*", "image/tiff"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"#!AMR", "audio/amr"),
    (0, b"caff", "audio/x-caf"),
)


def sniff(head: bytes) -> str | None:
    """The media type that the first bytes (some kilobytes) show, or None. Never looks at a name."""
    for offset, magic, media_type in _MAGIC:
        if head.startswith(magic, offset):
            return media_type
    match head[:4], head[8:12]:
        case (b"RIFF" | b"RF64" | b"RIFX", b"WAVE"):
            return "audio/wav"
        case (b"RIFF", b"WEBP"):
            return "image/webp"
        case (b"RIFF", b"AVI "):
            return "video/x-msvideo"
        case (b"FORM", b"AIFF" | b"AIFC"):
            return "audio/aiff"
        case (b"\x1aE\xdf\xa3", _):
            return "video/webm" if b"webm" in head[:64] else "video/x-matroska"
    if head[4:8] == b"ftyp":
        return {b"M4A ": "audio/mp4", b"M4B ": "audio/mp4", b"qt  ": "video/quicktime"}.get(head[8:12], "video/mp4")
    return _sniff_frames(head)


def _sniff_frames(head: bytes) -> str | None:
    """MPEG audio and ADTS have no magic word, only a sync pattern with fields that must make sense."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return None
    layer, version = head[1] >> 1 & 3, head[1] >> 3 & 3
    if layer == 0:
        return "audio/aac" if head[1] & 0xF0 == 0xF0 and head[2] >> 2 & 15 < 13 else None
    is_frame = version != 1 and head[2] >> 4 not in (0, 15) and head[2] >> 2 & 3 != 3
    return "audio/mpeg" if is_frame else None


# -- whether the store has it ----------------------------------------------------------------------------------------

_COMPARED_AT_ONCE = 500


def store_mismatches() -> Iterator[str]:
    """Which ready artifacts have no object, or one of another size, as sentences. Asks the store for each of them.

    Raises `Unavailable`.
    """
    ready = Artifact.objects.filter(state=Artifact.State.READY).order_by("pk")
    rows = list(ready[:_COMPARED_AT_ONCE])
    while rows:
        for row in rows:
            if (found := _stored_size(row)) == row.size or not ready.filter(pk=row.pk).exists():
                continue
            has = "is missing" if found is None else f"has {found:,} bytes"
            yield f"artifact {row.pk} of owner {row.owner_id}: its object {has}, the row says {row.size:,}"
        rows = list(ready.filter(pk__gt=rows[-1].pk)[:_COMPARED_AT_ONCE])


def _stored_size(artifact: Artifact) -> int | None:
    try:
        with _translated():
            return _store().size(artifact.store_key)
    except errors.ArtifactGone:
        return None

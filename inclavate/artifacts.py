"""Bytes made or uploaded: begin, write, seal, read, delete, sweep, usage, quota.

An artifact is a row and an object of the store. The row comes first (pending), then the bytes, then the seal; it
goes the other way round when deleted. So bytes without a row are garbage, never the reverse for long.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from itertools import islice
from typing import Any, Generic, TypeVar

from django.conf import settings
from django.db.models import Count, F, Q, QuerySet, Sum

import storage
from inclavate import database, errors, queue
from inclavate.generators import DOCUMENTS, DOCX, EPUB, HTML, MARKDOWN, PLAIN_TEXT
from inclavate.models import TERMINAL, Artifact, Job, JobInput, Owner, PartedUpload, Usage
from storage.moving import open_moving

log = logging.getLogger(__name__)

_SNIFF_BYTES = 4096
_RESERVE_STEP_BYTES = 8 * 2**20
# A pending row or an object without a row younger than this may belong to a write that still goes on.
_GRACE = timedelta(hours=1)
# A sweep's share, so that it never holds a lock for long; the next one goes on.
_SWEEP_ROWS = 500
# Each is a hop between threads; each is also what every download under way holds.
_READ_BYTES = 512 * 1024
_TOUCH_SECONDS = 60.0
_DIRECT_SECONDS = 3600
_ASSEMBLY_STEP_BYTES = 16 * 2**20


@cache
def _store() -> storage.Store:
    if settings.STORE_PREVIOUS_URL:
        return open_moving(settings.STORE_URL, settings.STORE_PREVIOUS_URL)
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
    except storage.PartTaken:
        raise
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
        self._touched_at = time.monotonic()
        self._max_bytes = max_bytes
        self._head = b""
        self._hash = hashlib.sha256()
        with _translated():
            self._writer = _store().create(artifact.store_key)

    def write(self, *chunks: bytes) -> None:
        """Raises `PayloadTooLarge` past the cap, `QuotaExhausted` past the owner's quota or the store's room."""
        self.size += sum(map(len, chunks))
        if self._max_bytes is not None and self.size > self._max_bytes:
            raise too_large(self._max_bytes)
        if self.size > self.artifact.size:
            self._reserve(self.size - self.artifact.size)
        if time.monotonic() - self._touched_at > _TOUCH_SECONDS:
            self._touched_at = time.monotonic()
            self._touch()
        with _translated():
            for chunk in chunks:
                if len(self._head) < _SNIFF_BYTES:
                    self._head += chunk[: _SNIFF_BYTES - len(self._head)]
                self._hash.update(chunk)
                self._writer.write(chunk)

    @property
    def sniffed_type(self) -> str | None:
        """What the first bytes say it is."""
        return sniff(self._head)

    def check_digest(self, expected: str, param: str) -> None:
        """Raises `InvalidRequest` where the bytes have another SHA-256 than their sender said."""
        _check_digest(self._hash.hexdigest(), expected, param)

    def label(self, purpose: str, expires_after: timedelta | None) -> None:
        """Say what it is for, and how long after it began it goes at the latest. Before `seal`."""
        self.artifact.purpose = purpose
        if expires_after is not None:
            wanted = self.artifact.created_at + expires_after
            self.artifact.expires_at = min(wanted, self.artifact.expires_at or wanted)

    def store(self) -> None:
        """Make the bytes durable. Slow; outside any transaction. Raises `QuotaExhausted`, `Unavailable`."""
        with _translated():
            self._writer.commit()

    def seal(self) -> Artifact:
        """Make the artifact ready. Inside a `database.write()`, after `store()`."""
        if not _seal(self.artifact, self.size, self._hash.hexdigest(), self.sniffed_type):
            raise errors.Conflict(f"Artifact {self.artifact.pk} was deleted while it was written.")
        return self.artifact

    def finish(self) -> Artifact:
        """`store` and `seal`, for one that belongs to no job's end."""
        self.store()
        with database.write():
            artifact = self.seal()
        ring_inspection(artifact)
        return artifact

    def abandon(self) -> None:
        """Leave neither row, bytes nor reservation. Safe after any failure, and when already sealed (then nothing)."""
        with database.write():
            gone, _ = Artifact.objects.filter(pk=self.artifact.pk, state=Artifact.State.PENDING).delete()
            if gone:
                _change_usage(self.artifact, reserved_bytes=-self.artifact.size, reserved_objects=-1)
        if gone:
            _discard(self.artifact, self._writer)

    def _reserve(self, size: int) -> None:
        # Exactly what came where there is a quota to be exact about; else a step ahead, to spare the database.
        if _ceilings(self.artifact.owner) == (None, None):
            size = max(size, _RESERVE_STEP_BYTES)
        with database.write():
            _reserve(self.artifact, size, 0)
            self._update(size=F("size") + size)
        self.artifact.size += size

    def _touch(self) -> None:
        """A slow line is no abandoned write: the sweeper goes by this."""
        with database.write() as now:
            self._update(written_at=now)

    def _update(self, **changes: Any) -> None:
        # Within the transaction, so that what was reserved for a row that is gone is not kept.
        if not Artifact.objects.filter(pk=self.artifact.pk, state=Artifact.State.PENDING).update(**changes):
            raise errors.Conflict(f"Artifact {self.artifact.pk} was deleted while it was written.")


def _seal(artifact: Artifact, size: int, digest: str, sniffed_type: str | None) -> bool:
    """Whether it was still pending, and is ready now. Inside a `database.write()`."""
    reserved_bytes, artifact.size = artifact.size, size
    artifact.state = Artifact.State.READY
    artifact.digest = digest
    artifact.sniffed_type = sniffed_type or ""
    artifact.inspect_at = _inspection_time(artifact)
    sealed = Artifact.objects.filter(pk=artifact.pk, state=Artifact.State.PENDING).update(
        state=artifact.state,
        digest=artifact.digest,
        sniffed_type=artifact.sniffed_type,
        size=artifact.size,
        purpose=artifact.purpose,
        facts=artifact.facts,
        inspect_at=artifact.inspect_at,
        expires_at=artifact.expires_at,
    )
    if sealed:
        _count(artifact, +1, reserved_bytes=-reserved_bytes, reserved_objects=-1)
    return bool(sealed)


def begin(
    owner: Owner,
    origin: Artifact.Origin,
    media_type: str,
    *,
    expected_bytes: int = 0,
    max_bytes: int | None = None,
    filename: str = "",
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
        store_key=str(key),
        job=job,
        is_transient=is_transient,
    )
    _insert(artifact)
    try:
        return Draft(artifact, max_bytes)
    except errors.InclavateError:
        _remove(artifact)
        raise


def _insert(artifact: Artifact) -> datetime:
    """The pending row, its size reserved; when."""
    with database.write() as now:
        _reserve(artifact, artifact.size, 1)
        artifact.created_at = artifact.written_at = now
        if settings.ARTIFACT_TTL_HOURS:
            artifact.expires_at = now + timedelta(hours=settings.ARTIFACT_TTL_HOURS)
        artifact.save(force_insert=True)
    return now


def _check_digest(got: str, expected: str, param: str) -> None:
    if got != expected:
        raise errors.InvalidRequest(
            f"{param}: the bytes that came have the SHA-256 {got}, not {expected[:80]}; nothing was kept.", param=param
        )


def too_large(limit: int, got: int | None = None) -> errors.PayloadTooLarge:
    came = f"{got:,} bytes were announced" if got is not None else "more came"
    return errors.PayloadTooLarge(f"The body may have at most {limit:,} bytes; {came}.", param="body")


# -- writing in parts ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """An upload in parts as it stands. `urls` are the store's own for parts that miss; empty where it takes none."""

    upload: PartedUpload
    received: list[int]
    missing: list[int]
    urls: dict[int, str]


def begin_parts(owner: Owner, media_type: str, size: int, digest: str = "") -> PartedUpload:
    """A new pending artifact of `size` bytes, all reserved. Raises `PayloadTooLarge`, `QuotaExhausted`, `Unavailable`.

    `digest` is the SHA-256 that the whole shall have, where its sender knows it by now.
    """
    if size > settings.MAX_PARTED_UPLOAD_BYTES:
        raise too_large(settings.MAX_PARTED_UPLOAD_BYTES, size)
    key = uuid.uuid4()
    artifact = Artifact(
        id=key, owner=owner, origin=Artifact.Origin.UPLOADED, media_type=media_type, size=size, store_key=str(key)
    )
    now = _insert(artifact)
    try:
        with _translated():
            token = _store().begin_parts(artifact.store_key)
    except errors.InclavateError:
        _remove(artifact)
        raise
    expires_at = now + timedelta(hours=settings.PARTED_UPLOAD_HOURS)
    with database.write():
        return PartedUpload.objects.create(
            artifact=artifact,
            size=size,
            part_bytes=storage.PART_BYTES,
            digest=digest,
            token=token,
            expires_at=expires_at,
        )


def get_parts(owner: Owner, upload_id: uuid.UUID) -> PartedUpload:
    """Raises `NotFound`, the same for another owner's and for one that is over."""
    upload = PartedUpload.objects.select_related("artifact").filter(pk=upload_id, artifact__owner=owner).first()
    if upload is None:
        raise errors.NotFound(f"There is no upload {upload_id}, or it is over.")
    return upload


def parts(upload: PartedUpload, max_urls: int = 100) -> Parts:
    """What has come and what misses. Raises `NotFound`, `Unavailable`."""
    with _of_parts(upload):
        sizes = {part.number: part.size for part in _store().parts(upload.artifact.store_key, upload.token)}
    received = [n for n in range(1, _part_count(upload) + 1) if sizes.get(n) == part_size(upload, n)]
    missing = sorted(set(range(1, _part_count(upload) + 1)) - set(received))
    urls = _part_urls(upload, missing[:max_urls]) if settings.STORE_REDIRECT else {}
    return Parts(upload, received, missing, urls)


def _part_urls(upload: PartedUpload, numbers: list[int]) -> dict[int, str]:
    store, key = _store(), upload.artifact.store_key
    found = {number: store.part_url(key, upload.token, number, _DIRECT_SECONDS) for number in numbers}
    return {number: url for number, url in found.items() if url is not None}


def part_size(upload: PartedUpload, number: int) -> int:
    """How many bytes that part has. Raises `InvalidRequest` where the upload has no such part."""
    count = _part_count(upload)
    if not 1 <= number <= count:
        raise errors.InvalidRequest(f"number: this upload has parts 1 to {count}, not {number}.", param="number")
    return upload.part_bytes if number < count else upload.size - (count - 1) * upload.part_bytes


def _part_count(upload: PartedUpload) -> int:
    return -(-upload.size // upload.part_bytes)


class PartDraft:
    """One part being written: `write` chunks, then `finish`; or `abandon`."""

    def __init__(self, upload: PartedUpload, number: int, digest: str | None = None) -> None:
        self._upload = upload
        self._digest = digest
        self._hash = hashlib.sha256()
        self._left = self._size = part_size(upload, number)
        self._number = number
        with _of_parts(upload):
            self._writer = _store().write_part(upload.artifact.store_key, upload.token, number)

    def write(self, *chunks: bytes) -> None:
        """Raises `PayloadTooLarge` past the part's size."""
        self._left -= sum(map(len, chunks))
        if self._left < 0:
            raise too_large(self._size)
        with _of_parts(self._upload):
            for chunk in chunks:
                if self._digest is not None:
                    self._hash.update(chunk)
                self._writer.write(chunk)

    def finish(self) -> None:
        """Raises `InvalidRequest` where too little came, or not what the digest says."""
        if self._left:
            raise errors.InvalidRequest(
                f"body: part {self._number} has {self._size:,} bytes; {self._size - self._left:,} came.", param="body"
            )
        if self._digest is not None:
            _check_digest(self._hash.hexdigest(), self._digest, "x-content-sha256")
        with _of_parts(self._upload):
            self._writer.commit()

    def abandon(self) -> None:
        """Leave nothing of this part. Safe after any failure, and after `finish` (then nothing)."""
        try:
            self._writer.abort()
        except storage.StoreError as error:
            log.warning("a part of upload %s waits for the sweeper: %s", self._upload.pk, error)


@contextmanager
def _of_parts(upload: PartedUpload) -> Iterator[None]:
    try:
        with _translated():
            yield
    except errors.ArtifactGone:
        raise errors.NotFound(f"The upload {upload.pk} is over.") from None
    except storage.PartTaken as error:
        raise errors.Conflict(f"Another request writes this part of upload {upload.pk}: {error}.") from error


def _check_complete(upload: Parts) -> None:
    if missing := upload.missing:
        named = ", ".join(map(str, missing[:10])) + ("…" if len(missing) > 10 else "")
        count = len(missing) + len(upload.received)
        raise errors.NotReady(f"Upload {upload.upload.pk} lacks {len(missing):,} of its {count:,} parts: {named}.")


class Assembly:
    """A parted upload being completed: `step` until it says that all is read, then `finish`."""

    def __init__(self, upload: PartedUpload, digest: str = "") -> None:
        """Make one object of the parts. Raises `NotReady` where some miss, `NotFound`, `Unavailable`."""
        # Without parts it may have been completed before, by a request that did not come to its end.
        with suppress(errors.NotFound):
            _check_complete(parts(upload, max_urls=0))
        self._upload = upload
        self._expected = digest or upload.digest
        self._hash = hashlib.sha256()
        self._head = b""
        self._size = 0
        with _of_parts(upload):
            _store().complete_parts(upload.artifact.store_key, upload.token)
            self._chunks = _store().read(upload.artifact.store_key, chunk_bytes=_READ_BYTES)

    def step(self) -> bool:
        """Read a little, a moment's work; whether there is more."""
        chunk = b""
        with _of_parts(self._upload):
            for chunk in islice(self._chunks, _ASSEMBLY_STEP_BYTES // _READ_BYTES):
                self._head += chunk[: _SNIFF_BYTES - len(self._head)]
                self._hash.update(chunk)
                self._size += len(chunk)
        return chunk != b""

    def finish(self) -> Artifact:
        """The artifact, ready. Raises `InvalidRequest` where size or digest are not what they should be: the parts
        cannot be told right from wrong, so all is given up."""
        artifact, upload = self._upload.artifact, self._upload
        try:
            if self._size != upload.size:
                raise errors.InvalidRequest(
                    f"size_bytes: {upload.size:,} were announced, {self._size:,} came; nothing was kept.",
                    param="size_bytes",
                )
            if self._expected:
                _check_digest(self._hash.hexdigest(), self._expected, "digest")
        except errors.InvalidRequest:
            give_up_parts(upload)
            raise
        with database.write():
            is_ours = _seal(artifact, self._size, self._hash.hexdigest(), sniff(self._head))
            if is_ours:
                PartedUpload.objects.filter(pk=upload.pk).delete()
        if not is_ours:
            # Another request completed or gave up the same upload meanwhile.
            return get(artifact.owner, artifact.pk)
        ring_inspection(artifact)
        return artifact

    def close(self) -> None:
        """Let go of the store. Safe twice."""
        self._chunks.close()


def give_up_parts(upload: PartedUpload) -> None:
    """Leave neither row, bytes nor reservation."""
    _remove(upload.artifact)


# -- reading ---------------------------------------------------------------------------------------------------------


def get(owner: Owner, artifact_id: uuid.UUID) -> Artifact:
    """Raises `NotFound`, the same for another owner's."""
    artifact = Artifact.objects.filter(pk=artifact_id, owner=owner).first()
    if artifact is None:
        raise errors.NotFound(f"There is no artifact {artifact_id}.")
    return artifact


def read(artifact: Artifact, start: int = 0, stop: int | None = None) -> Generator[bytes, None, None]:
    """The bytes start..stop (exclusive) in chunks. Raises `NotReady`, `ArtifactGone`, `Unavailable`; the last two also
    on the way."""
    _check_ready(artifact)
    return storage.opened(_chunks(artifact, start, stop))


def _chunks(artifact: Artifact, start: int, stop: int | None) -> Generator[bytes, None, None]:
    with _translated(), closing(_store().read(artifact.store_key, start, stop, _READ_BYTES)) as chunks:
        yield b""
        yield from chunks


def direct_url(artifact: Artifact, media_type: str, disposition: str) -> str | None:
    """Where the store itself serves the bytes for a while, under these headers; None where it does not or must not."""
    if not settings.STORE_REDIRECT:
        return None
    with _translated():
        return _store().download_url(artifact.store_key, media_type, disposition, _DIRECT_SECONDS)


def several(owner: Owner, ids: Sequence[uuid.UUID]) -> list[Artifact]:
    """These artifacts, in this order. Raises `NotFound` and `NotReady` for the first that is not to be had."""
    found = Artifact.objects.filter(owner=owner).in_bulk(ids)
    for artifact_id in ids:
        if artifact_id not in found:
            raise errors.NotFound(f"There is no artifact {artifact_id}.")
        _check_ready(found[artifact_id])
    return [found[artifact_id] for artifact_id in ids]


def _check_ready(artifact: Artifact) -> None:
    if artifact.state != Artifact.State.READY:
        raise errors.NotReady(f"Artifact {artifact.pk} is {artifact.state}, not ready.")


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
    rows = Artifact.objects.filter(owner=owner).defer("facts")
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
        rows = rows.filter(_beyond(after))
    window = rows.order_by("-created_at", "-id")[offset : offset + limit + 1]
    found = [each(row) for row in window.iterator(chunk_size=20)]
    return Page(found[:limit], len(found) > limit)


# -- files -----------------------------------------------------------------------------------------------------------


def page_of_files(
    owner: Owner,
    *,
    limit: int,
    after: uuid.UUID | None = None,
    purpose: str | None = None,
    is_oldest_first: bool = False,
) -> Page[Artifact]:
    """An owner's ready artifacts that have a purpose, or this one, by (created_at, id). Raises `NotFound` for `after`.

    Their `facts` are not read: they are long, and ten thousand rows may be asked for.
    """
    # The indexes hold what has a purpose; said beside the one asked for, or they are not used.
    rows = Artifact.objects.filter(owner=owner, state=Artifact.State.READY).exclude(purpose="").defer("facts")
    if purpose is not None:
        rows = rows.filter(purpose=purpose)
    if after is not None:
        rows = rows.filter(_beyond(get(owner, after), is_oldest_first))
    order = ("created_at", "id") if is_oldest_first else ("-created_at", "-id")
    found = list(rows.order_by(*order)[: limit + 1])
    return Page(found[:limit], len(found) > limit)


def _beyond(last: Artifact | Job, is_oldest_first: bool = False) -> Q:
    """What follows that row. An index seeks by the bound on `created_at`; by an OR alone it would not."""
    if is_oldest_first:
        return Q(created_at__gte=last.created_at) & (Q(created_at__gt=last.created_at) | Q(id__gt=last.pk))
    return Q(created_at__lte=last.created_at) & (Q(created_at__lt=last.created_at) | Q(id__lt=last.pk))


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
    is_pending = artifact.state == Artifact.State.PENDING
    parted = PartedUpload.objects.filter(pk=artifact.pk).first() if is_pending else None
    with database.write():
        # Looked at again: one that is being written has reserved more meanwhile.
        row = Artifact.objects.select_for_update().filter(pk=artifact.pk, state=artifact.state).first()
        if row is None:
            return
        Artifact.objects.filter(pk=row.pk).delete()
        if row.state == Artifact.State.READY:
            _count(row, -1)
        else:
            _change_usage(row, reserved_bytes=-row.size, reserved_objects=-1)
    _discard(artifact, parted=parted)


def _discard(artifact: Artifact, writer: storage.Writer | None = None, parted: PartedUpload | None = None) -> None:
    try:
        if writer is not None:
            writer.abort()
        if parted is not None:
            _store().abort_parts(artifact.store_key, parted.token)
        _store().delete(artifact.store_key)
    except storage.StoreError as error:
        log.warning("the bytes of artifact %s wait for the sweeper: %s", artifact.pk, error)


def sweep(at: datetime | None = None) -> int:
    """Remove what expired (unless a job still needs it) and writes that never ended; how many rows."""
    at = at or database.now()
    needed = JobInput.objects.filter(~Q(job__state__in=TERMINAL), artifact__isnull=False).values("artifact")
    expired = Artifact.objects.filter(state=Artifact.State.READY, expires_at__lt=at).exclude(pk__in=needed)
    abandoned = (
        Artifact.objects.filter(state=Artifact.State.PENDING, created_at__lt=at - _GRACE)
        .exclude(written_at__gte=at - _GRACE)
        .exclude(job__state="running")
        .exclude(parted__expires_at__gte=at)
    )
    rows = [*expired[:_SWEEP_ROWS], *abandoned[:_SWEEP_ROWS]]
    for artifact in rows:
        _remove(artifact)
    return len(rows)


def sweep_store(at: datetime | None = None) -> int:
    """Remove bytes without a row, and unfinished writes of the store; how many. Walks the whole store."""
    at = at or database.now()
    before = at - _GRACE
    removed = _store().sweep(before - timedelta(hours=settings.PARTED_UPLOAD_HOURS))
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
        "max_bytes": _ceilings(owner)[0] or 0,
        "max_objects": _ceilings(owner)[1] or 0,
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


def _ceilings(owner: Owner) -> tuple[int | None, int | None]:
    """The owner's quota of bytes and of objects: its own, else the deployment's; None where there is none."""
    return (
        (settings.MAX_BYTES_PER_OWNER or None) if owner.max_bytes is None else owner.max_bytes,
        (settings.MAX_OBJECTS_PER_OWNER or None) if owner.max_objects is None else owner.max_objects,
    )


def _reserve(artifact: Artifact, size: int, objects: int) -> None:
    owner = artifact.owner
    Usage.objects.get_or_create(owner=owner, origin=artifact.origin)
    max_bytes, max_objects = _ceilings(owner)
    if max_bytes is not None or max_objects is not None:
        # Locked before anything is changed, and in one order: two writes of one owner queue, and never for each other.
        locked = list(Usage.objects.select_for_update().filter(owner=owner).order_by("origin"))
        total_bytes = size + sum(row.bytes + row.reserved_bytes for row in locked)
        total_objects = objects + sum(row.objects_count + row.reserved_objects for row in locked)
        if max_bytes is not None and total_bytes > max_bytes:
            raise errors.QuotaExhausted(f"The quota of {max_bytes:,} bytes is exhausted; {size:,} more do not fit.")
        if max_objects is not None and total_objects > max_objects:
            raise errors.QuotaExhausted(f"The quota of {max_objects:,} objects is exhausted.")
    _change_usage(artifact, reserved_bytes=size, reserved_objects=objects)


# -- what is inside ----------------------------------------------------------------------------------------------------

# The queue that workers are rung on to look into artifacts. Models' queues have a prefix, so it is none of theirs.
INSPECTIONS = "inspect"
MAX_INSPECTIONS = 3
_INSPECTION_LEASE = timedelta(seconds=120)


def _inspection_time(artifact: Artifact) -> datetime | None:
    """When a worker is to look into it: as soon as one can, or never. One that goes with its job is never shown."""
    is_media = artifact.sniffed_type.startswith(("audio/", "image/", "video/"))
    return artifact.created_at if is_media and not artifact.is_transient else None


def ring_inspection(artifact: Artifact) -> None:
    """After the commit that sealed it."""
    if artifact.inspect_at is not None:
        queue.ring(INSPECTIONS)


def is_inspection_due() -> bool:
    return Artifact.objects.filter(inspect_at__lte=database.now()).exists()


def claim_inspection() -> Artifact | None:
    """Take the next artifact to look into, for `_INSPECTION_LEASE`; then it is another's, unless it is finished.

    Its `inspections` counts this try: above `MAX_INSPECTIONS`, the earlier ones all took their worker with them.
    """
    with database.write() as now:
        due = Artifact.objects.filter(inspect_at__lte=now).order_by("inspect_at")
        artifact = due.select_for_update(skip_locked=True).first()
        if artifact is not None:
            artifact.inspect_at, artifact.inspections = now + _INSPECTION_LEASE, artifact.inspections + 1
            artifact.save(update_fields=["inspect_at", "inspections"])
    return artifact


def hand_back_inspection(artifact: Artifact) -> None:
    """It was not looked into, for reasons of the worker's or the store's: no try was spent. Due when the lease ends."""
    with database.write():
        _held_inspection(artifact).update(inspections=F("inspections") - 1)


def finish_inspection(artifact: Artifact, facts: Mapping[str, Any]) -> bool:
    """Add what was found to what its engine said of it, the bytes having the last word; False if no longer ours."""
    with database.write():
        return bool(_held_inspection(artifact).update(facts=artifact.facts | facts, inspect_at=None))


def _held_inspection(artifact: Artifact) -> QuerySet[Artifact]:
    return Artifact.objects.filter(pk=artifact.pk, inspections=artifact.inspections, inspect_at__isnull=False)


# -- what bytes are --------------------------------------------------------------------------------------------------

_MAGIC = (
    (0, b"ID3", "audio/mpeg"),
    (0, b"fLaC", "audio/flac"),
    (0, b"OggS", "audio/ogg"),
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF8", "image/gif"),
    (0, b"II*\0", "image/tiff"),
    (0, b"MM\0*", "image/tiff"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"#!AMR", "audio/amr"),
    (0, b"caff", "audio/x-caf"),
)
_BRANDS = {
    b"M4A ": "audio/mp4",
    b"M4B ": "audio/mp4",
    b"qt  ": "video/quicktime",
    b"avif": "image/avif",
    b"avis": "image/avif",
    b"heic": "image/heic",
    b"heix": "image/heic",
    b"mif1": "image/heif",
}
_ARCHIVE = "application/zip"
_BITMAP_HEADERS = {size.to_bytes(4, "little") for size in (12, 16, 40, 52, 56, 64, 108, 124)}


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
    if head.startswith(b"PK\x03\x04"):
        return _sniff_archive(head)
    if head[4:8] == b"ftyp":
        return _BRANDS.get(head[8:12], "video/mp4")
    # Two letters are no magic: the size of the second header must be one that there is.
    if head.startswith(b"BM") and head[14:18] in _BITMAP_HEADERS:
        return "image/bmp"
    return _sniff_frames(head)


def _sniff_archive(head: bytes) -> str:
    """By the names of the first members. An EPUB's first says what it is, uncompressed; a DOCX's folder comes soon."""
    if head[30:58] == b"mimetype" + EPUB.encode():
        return EPUB
    return DOCX if b"word/" in head else _ARCHIVE


def content_type(artifact: Artifact) -> str:
    """What its bytes are, as they show it; empty where nobody can tell.

    What was declared counts for text alone, which shows nothing, and for a ZIP file whose first members do not tell
    which document it is.
    """
    declared = artifact.media_type.partition(";")[0].strip().lower()
    possible = {"": (PLAIN_TEXT, MARKDOWN, HTML), _ARCHIVE: (EPUB, DOCX)}.get(artifact.sniffed_type, ())
    return declared if declared in possible else artifact.sniffed_type


def count_documents(owner: Owner, ids: Sequence[uuid.UUID]) -> int:
    """How many of these are documents; what is not there is none."""
    rows = Artifact.objects.filter(owner=owner).only("media_type", "sniffed_type").in_bulk(ids)
    return sum(content_type(rows[key]) in DOCUMENTS for key in ids if key in rows)


def _sniff_frames(head: bytes) -> str | None:
    """MPEG audio and ADTS have no magic word, only a sync pattern with fields that must make sense."""
    # FF FE is how text in UTF-16 begins; as sound it would be Layer I, which nobody writes.
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0 or head[1] == 0xFE:
        return None
    layer, version = head[1] >> 1 & 3, head[1] >> 3 & 3
    if layer == 0:
        return "audio/aac" if head[1] & 0xF0 == 0xF0 and head[2] >> 2 & 15 < 13 else None
    is_frame = version != 1 and head[2] >> 4 not in (0, 15) and head[2] >> 2 & 3 != 3
    return "audio/mpeg" if is_frame else None


# -- whether the store has it ----------------------------------------------------------------------------------------

_WALKED_AT_ONCE = 500


def walk(rows: QuerySet[Artifact]) -> Iterator[Artifact]:
    """By the primary key, in short queries: no transaction stays open, and rows may come and go."""
    last = uuid.UUID(int=0)
    while batch := list(rows.filter(pk__gt=last).order_by("pk")[:_WALKED_AT_ONCE]):
        yield from batch
        last = batch[-1].pk


def store_mismatches() -> Iterator[str]:
    """Which ready artifacts have no object, or one of another size, as sentences. Asks the store for each of them.

    Raises `Unavailable`.
    """
    ready = Artifact.objects.filter(state=Artifact.State.READY)
    for row in walk(ready):
        if (found := _stored_size(row)) == row.size or not ready.filter(pk=row.pk).exists():
            continue
        has = "is missing" if found is None else f"has {found:,} bytes"
        yield f"artifact {row.pk} of owner {row.owner_id}: its object {has}, the row says {row.size:,}"


def _stored_size(artifact: Artifact) -> int | None:
    try:
        with _translated():
            return _store().size(artifact.store_key)
    except errors.ArtifactGone:
        return None

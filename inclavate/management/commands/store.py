"""`inclavate store move`: copy every object that a row names out of the previous store, while the platform serves."""

from __future__ import annotations

import signal
import threading
import time
import uuid
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import Error as DatabaseError

from inclavate import artifacts
from inclavate.models import Artifact, PartedUpload
from storage import ObjectMissing, StoreError, StoreFull
from storage.moving import Damaged, MovingStore, open_moving

_BATCH = 500
_MAX_WORKERS = 64
_AGAIN = "Run it again: it goes on where it was."


class Command(BaseCommand):
    help = (
        "Copy every object that a row names from the store INCLAVATE_STORE_PREVIOUS_URL to INCLAVATE_STORE_URL, while"
        " processes that have both settings serve. What is there already is left out; the old objects stay."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        move = verbs.add_parser("move", help="copy what the new store lacks")
        move.add_argument("--workers", type=int, default=8, help="how many objects at a time, 1 to 64 (default: 8)")
        move.add_argument("--dry-run", action="store_true", help="only count what is to be copied")

    def handle(self, *args: Any, workers: int, dry_run: bool, **options: Any) -> None:
        if not 1 <= workers <= _MAX_WORKERS:
            raise CommandError(f"--workers must be between 1 and {_MAX_WORKERS}, not {workers}.")
        move = _Move(_open(), workers, dry_run, self.stderr.write)
        try:
            with move.stopped_by_signals():
                move.run()
        except StoreFull as error:
            raise CommandError(f"The new store is full: {error}. {move.summary()} {_AGAIN}") from None
        except StoreError as error:
            raise CommandError(f"A store cannot be used: {error}. {move.summary()} {_AGAIN}") from None
        except DatabaseError as error:
            raise CommandError(f"The database does not answer: {error}. {move.summary()} {_AGAIN}") from None
        if move.stopped_by is not None:
            raise CommandError(f"Stopped. {move.summary()} {_AGAIN}", returncode=128 + move.stopped_by)
        self.stdout.write(move.summary())
        if not dry_run:
            self._conclude(move)

    def _conclude(self, move: _Move) -> None:
        if move.failed:
            raise CommandError(f"{move.failed:,} objects are not in the new store; their lines above say why.")
        if move.unfinished:
            raise CommandError(
                f"{move.unfinished:,} uploads in parts were begun in the previous store and may still end there:"
                " run it again when they have ended or expired."
            )
        self.stdout.write(
            "Nothing is left to copy: INCLAVATE_STORE_PREVIOUS_URL can be taken away."
            " The old objects stay where they are."
        )


def _open() -> MovingStore:
    if not settings.STORE_PREVIOUS_URL:
        raise CommandError("INCLAVATE_STORE_PREVIOUS_URL is not set: it names the store that objects are copied from.")
    try:
        return open_moving(settings.STORE_URL, settings.STORE_PREVIOUS_URL)
    except (ValueError, StoreError) as error:
        raise CommandError(f"A store cannot be opened: {error}.") from None


class _Stopped(Exception):
    """The move is to end; what is being copied is given up."""


class _Move:
    """Rows and counts belong to the thread that calls `run`; only the bytes pass through others."""

    def __init__(self, store: MovingStore, workers: int, is_dry: bool, tell: Callable[[str], object]) -> None:
        self._store = store
        self._workers = workers
        self._is_dry = is_dry
        self._tell = tell
        self._progress = _Progress(tell)
        self._stopping = threading.Event()
        self.stopped_by: int | None = None
        self.copied = self.there = self.gone = self.failed = self.unfinished = 0
        self.copied_bytes = 0

    @contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM end the move in good order, and a second one the process."""

        def stop(number: int, _: object) -> None:
            self.stopped_by = number
            self._stopping.set()
            signal.signal(number, signal.SIG_DFL)

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(self) -> None:
        """Raises `StoreError` where a store cannot be used any more."""
        if not self._is_dry:
            self._store.check()
        in_hand: dict[Future[bool], Artifact] = {}
        with ThreadPoolExecutor(self._workers) as pool:
            try:
                for artifact in self._rows():
                    in_hand[pool.submit(self._move, artifact)] = artifact
                    while len(in_hand) >= 2 * self._workers:
                        self._settle_some(in_hand)
                while in_hand:
                    self._settle_some(in_hand)
            finally:
                self._stopping.set()

    def _rows(self) -> Iterator[Artifact]:
        ready = Artifact.objects.filter(state=Artifact.State.READY).only("pk", "store_key", "size", "digest")
        # What is being written now may be sealed where the walk has passed already, and lie in the previous store.
        written = list(Artifact.objects.filter(state=Artifact.State.PENDING).values_list("pk", flat=True))
        self._progress.begin(ready.count())
        for artifact in artifacts.walk(ready):
            if self._stopping.is_set():
                return
            yield artifact
        self.unfinished = sum(self._may_end_in_previous(upload) for upload in _uploads(written))
        for start in range(0, len(written), _BATCH):
            yield from ready.filter(pk__in=written[start : start + _BATCH])

    def _may_end_in_previous(self, upload: PartedUpload) -> bool:
        return not self._store.has_parts(upload.artifact.store_key, upload.token)

    def _move(self, artifact: Artifact) -> bool:
        """In a thread of the pool; whether it was, or is to be, copied."""
        self._pass(0)
        if self._is_dry:
            return not self._store.is_moved(artifact.store_key, artifact.size)
        return self._store.move(artifact.store_key, artifact.size, artifact.digest, self._pass)

    def _pass(self, size: int) -> None:
        if self._stopping.is_set():
            raise _Stopped
        self._progress.add(size=size)

    def _settle_some(self, in_hand: dict[Future[bool], Artifact]) -> None:
        for future in wait(in_hand, return_when=FIRST_COMPLETED).done:
            self._settle(in_hand.pop(future), future)

    def _settle(self, artifact: Artifact, future: Future[bool]) -> None:
        try:
            was_copied = future.result()
        except _Stopped:
            return
        except StoreFull:
            raise
        except StoreError as error:
            # One who ended the move is not to wait while it is found out what else is wrong.
            if self.stopped_by is not None:
                return
            self._settle_failure(artifact, error)
        else:
            self._settle_success(artifact, was_copied)
        self._progress.add(objects=1)

    def _settle_success(self, artifact: Artifact, was_copied: bool) -> None:
        if not was_copied:
            self.there += 1
        elif self._is_dry or _exists(artifact):
            self.copied += 1
            self.copied_bytes += artifact.size
        else:
            # Its bytes were deleted before they came here.
            self._store.delete(artifact.store_key)
            self.gone += 1

    def _settle_failure(self, artifact: Artifact, error: StoreError) -> None:
        if not _exists(artifact):
            self.gone += 1
            return
        if self._is_dry:
            raise error
        if not isinstance(error, ObjectMissing | Damaged):
            # Of this object only, or the store's end?
            self._store.check()
        self.failed += 1
        self._tell(f"artifact {artifact.pk}: {error}")

    def summary(self) -> str:
        if self._is_dry:
            return f"{self.copied:,} objects of {self.copied_bytes:,} bytes are to be copied, {self.there:,} are there."
        gone = f" {self.gone:,} were deleted meanwhile." if self.gone else ""
        return (
            f"Copied {self.copied:,} objects of {self.copied_bytes:,} bytes; {self.there:,} were there already;"
            f" {self.failed:,} failed.{gone}"
        )


class _Progress:
    """A line at most once a second; told from any thread."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._total = self._objects = self._size = 0
        self._told_at = float("-inf")

    def begin(self, total: int) -> None:
        self._total = total

    def add(self, *, objects: int = 0, size: int = 0) -> None:
        """So many objects are settled, so many bytes read."""
        with self._lock:
            self._objects += objects
            self._size += size
            if time.monotonic() - self._told_at >= 1.0:
                self._told_at = time.monotonic()
                self._tell(f"{self._objects:,} of {self._total:,} objects, {self._size:,} bytes copied")


def _uploads(artifact_ids: list[uuid.UUID]) -> Iterator[PartedUpload]:
    for start in range(0, len(artifact_ids), _BATCH):
        yield from PartedUpload.objects.filter(pk__in=artifact_ids[start : start + _BATCH]).select_related("artifact")


def _exists(artifact: Artifact) -> bool:
    return Artifact.objects.filter(pk=artifact.pk, state=Artifact.State.READY).exists()

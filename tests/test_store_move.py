"""Objects on their way from one store to another: two stores as one, the command that copies, and a platform that
serves meanwhile."""

from __future__ import annotations

import hashlib
import inspect
import io
import os
import re
import resource
import signal
import subprocess
import sys
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from urllib.parse import urlsplit

import httpx
import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from inclavate.models import Artifact, Owner, PartedUpload
from storage import PART_BYTES, ObjectMissing, Store, StoreError, open_store
from storage.memory import MemoryStore
from storage.moving import Damaged, MovingStore, open_moving
from tests import platforms, servers, test_storage
from tests.driving import until
from tests.faultproxy import FaultProxy, Mode
from tests.storing import BIG, MIB, assert_empty, get, put, soon
from tests.test_settings import settings_of
from tests.test_storage_s3 import endpoint_of, with_parts

ROOT = platforms.ROOT


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# -- the contract of every store, here of two as one -----------------------------------------------------------------

CONTRACT = {
    name: test
    for name, test in vars(test_storage).items()
    if name.startswith("test_") and "store" in inspect.signature(test).parameters
}
assert len(CONTRACT) > 20
globals().update(CONTRACT)


@pytest.fixture(params=["filesystem", "rclone"], ids=["filesystem over memory", "rclone over filesystem"])
def kind(request: pytest.FixtureRequest) -> str:
    """Of the current one."""
    return str(request.param)


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of the current one."""
    if kind == "rclone":
        return str(request.getfixturevalue("rclone_url"))
    return (tmp_path / "current").as_uri()


@pytest.fixture
def is_local(kind: str) -> bool:
    return kind == "filesystem"


@pytest.fixture(scope="session")
def rclone_store(rclone_url: str) -> Store:
    return open_store(rclone_url)


@pytest.fixture
def current(kind: str, url: str, request: pytest.FixtureRequest) -> Iterator[Store]:
    store: Store = request.getfixturevalue("rclone_store") if kind == "rclone" else open_store(url)
    assert_empty(store)
    yield store
    store.sweep(soon())
    for entry in store.entries():
        store.delete(entry.key)


@pytest.fixture
def previous(kind: str, tmp_path: Path) -> Store:
    return MemoryStore() if kind == "filesystem" else open_store((tmp_path / "previous").as_uri())


@pytest.fixture
def store(current: Store, previous: Store) -> MovingStore:
    return MovingStore(current, lambda: previous)


# -- two stores as one -----------------------------------------------------------------------------------------------


def test_any_range_of_what_only_the_previous_store_has_is_exact(store: MovingStore, previous: Store) -> None:
    content = os.urandom(1000)
    put(previous, "a", content)
    assert store.size("a") == 1000

    @given(start=st.integers(0, 1100), length=st.none() | st.integers(0, 1100))
    @hypothesis_settings(deadline=None, max_examples=20)
    def check(start: int, length: int | None) -> None:
        stop = None if length is None else start + length
        assert get(store, "a", start, stop) == content[start:stop]

    check()


def test_new_bytes_go_to_the_current_store_and_win(store: MovingStore, current: Store, previous: Store) -> None:
    put(previous, "a", b"old")
    put(store, "a", b"newer")
    assert (get(store, "a"), store.size("a")) == (b"newer", 5)
    assert (get(current, "a"), get(previous, "a")) == (b"newer", b"old")


def test_a_deleted_object_is_gone_from_both(store: MovingStore, current: Store, previous: Store) -> None:
    for key, holders in {"a": [current], "b": [previous], "c": [current, previous]}.items():
        for holder in holders:
            put(holder, key, b"x")
        store.delete(key)
        with pytest.raises(ObjectMissing):
            store.read(key)
    assert_empty(current)
    assert_empty(previous)


def test_every_object_is_listed_once_wherever_it_is(store: MovingStore, current: Store, previous: Store) -> None:
    for number in range(30):
        for holder in ([current], [previous], [current, previous])[number % 3]:
            put(holder, f"key-{number}", b"x" * number)
    listed = sorted((entry.key, entry.size) for entry in store.entries())
    assert listed == sorted((f"key-{number}", number) for number in range(30))


def test_what_is_moved_while_it_is_listed_is_neither_missed_nor_doubled(store: MovingStore, previous: Store) -> None:
    keys = [f"key-{number}" for number in range(20)]
    for key in keys:
        put(previous, key, b"x")
    listing = store.entries()
    listed = [next(listing).key for _ in range(5)]
    for key in keys:
        assert store.move(key, 1, digest_of(b"x"), lambda size: None)
    listed += [entry.key for entry in listing]
    assert sorted(listed) == sorted(keys)


def test_a_sweep_cleans_both(store: MovingStore, current: Store, previous: Store) -> None:
    for holder in (current, previous):
        holder.create("a").write(BIG)
    assert store.sweep(soon()) == 2
    assert store.sweep(soon()) == 0


def test_readers_get_the_whole_object_while_it_is_moved_and_until_it_is_deleted(
    store: MovingStore, previous: Store
) -> None:
    put(previous, "a", BIG)
    is_read, is_deleted = Event(), Event()

    def read_until_gone() -> int:
        reads = 0
        while True:
            try:
                assert get(store, "a") == BIG
            except ObjectMissing:
                assert is_deleted.is_set()
                return reads
            reads += 1
            is_read.set()

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read_until_gone) for _ in range(3)]
        assert is_read.wait(60)
        assert store.move("a", len(BIG), digest_of(BIG), lambda size: None)
        is_read.clear()
        assert is_read.wait(60)
        is_deleted.set()
        store.delete("a")
        assert all(reader.result(timeout=60) for reader in readers)


@pytest.fixture(params=["a bucket that does not answer", "a folder that is not mounted"])
def away(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if "bucket" in request.param:
        return f"s3://SOMEKEY:SECRETWORD@objects/p?endpoint=http://127.0.0.1:{servers.free_port()}"
    return (tmp_path / "mnt" / "objects").as_uri()


def test_a_previous_store_that_is_away_breaks_nothing_of_the_current_one(away: str, tmp_path: Path) -> None:
    store = open_moving((tmp_path / "current").as_uri(), away)
    put(store, "a", b"here")
    assert (get(store, "a", 1), store.size("a"), store.is_moved("a", 4)) == (b"ere", 4, True)
    for call in (store.read, store.size):
        with pytest.raises(StoreError, match="objects") as caught:
            call("b")
        assert caught.type is StoreError
    for housekeeping in (lambda: store.delete("a"), lambda: list(store.entries()), lambda: store.sweep(soon())):
        with pytest.raises(StoreError, match="objects"):
            housekeeping()
    assert_empty(open_store((tmp_path / "current").as_uri()))
    assert not (tmp_path / "mnt").exists()


def test_a_previous_folder_is_found_once_it_is_mounted(tmp_path: Path) -> None:
    store = open_moving((tmp_path / "current").as_uri(), (tmp_path / "mnt" / "objects").as_uri())
    with pytest.raises(StoreError, match="no store in the folder"):
        store.read("a")
    put(open_store((tmp_path / "mnt" / "objects").as_uri()), "a", b"found")
    assert get(store, "a") == b"found"


def test_a_bad_url_of_the_previous_store_is_told_at_once(tmp_path: Path) -> None:
    for url, reason in {"file:relative": "absolute folder", "file:///": "absolute folder", "s3://": "bucket"}.items():
        with pytest.raises(ValueError, match=reason):
            open_moving((tmp_path / "current").as_uri(), url)


# -- parts -----------------------------------------------------------------------------------------------------------


def put_part(store: Store, key: str, token: str, number: int, content: bytes) -> None:
    with store.write_part(key, token, number) as writer:
        writer.write(content)
        writer.commit()


def test_an_upload_in_parts_goes_on_where_it_was_begun(store: MovingStore, current: Store, previous: Store) -> None:
    old, new = previous.begin_parts("old"), store.begin_parts("new")
    put_part(previous, "old", old, 1, bytes(PART_BYTES))
    for key, token in (("old", old), ("new", new)):
        put_part(store, key, token, 2, b"tail")
        put_part(store, key, token, 1, bytes(PART_BYTES))
        assert [(part.number, part.size) for part in store.parts(key, token)] == [(1, PART_BYTES), (2, 4)]
        for _ in range(2):
            store.complete_parts(key, token)
        assert get(store, key) == bytes(PART_BYTES) + b"tail"
        store.abort_parts(key, token)
        assert store.size(key) == PART_BYTES + 4
    assert [entry.key for entry in previous.entries()] == ["old"]
    assert [entry.key for entry in current.entries()] == ["new"]
    assert (store.has_parts("old", old), store.has_parts("new", new)) == (False, False)


def test_an_upload_in_parts_is_given_up_where_it_was_begun(store: MovingStore, current: Store, previous: Store) -> None:
    old, new = previous.begin_parts("old"), store.begin_parts("new")
    assert (store.has_parts("old", old), store.has_parts("new", new)) == (False, True)
    for key, token in (("old", old), ("new", new)):
        put_part(store, key, token, 1, b"x")
        for _ in range(2):
            store.abort_parts(key, token)
        with pytest.raises(ObjectMissing):
            store.parts(key, token)
        with pytest.raises(ObjectMissing):
            put_part(store, key, token, 1, b"x")
        with pytest.raises(ObjectMissing):
            store.complete_parts(key, token)
    assert_empty(current)
    assert_empty(previous)


def test_parts_in_the_current_store_need_no_previous_one(away: str, tmp_path: Path) -> None:
    store = open_moving((tmp_path / "current").as_uri(), away)
    token = store.begin_parts("a")
    put_part(store, "a", token, 1, b"x")
    assert [part.number for part in store.parts("a", token)] == [1]
    store.complete_parts("a", token)
    assert get(store, "a") == b"x"
    token = store.begin_parts("b")
    store.abort_parts("b", token)


def test_a_url_leads_to_the_store_that_has_the_object(rclone_store: Store, tmp_path: Path) -> None:
    folder = open_store((tmp_path / "objects").as_uri())
    put(rclone_store, "a", b"here")
    ask = ("audio/wav", "attachment", 60)
    try:
        for store in (MovingStore(folder, lambda: rclone_store), MovingStore(rclone_store, lambda: folder)):
            url = store.download_url("a", *ask)
            assert url is not None
            assert httpx.get(url).content == b"here"
            assert store.download_url("missing", *ask) is None
        put(folder, "a", b"here")
        assert MovingStore(folder, lambda: rclone_store).download_url("a", *ask) is None
    finally:
        rclone_store.delete("a")


# -- moving one object -----------------------------------------------------------------------------------------------


def test_an_object_is_moved_once_and_stays_where_it_was(store: MovingStore, current: Store, previous: Store) -> None:
    put(previous, "a", BIG)
    passed: list[int] = []
    assert not store.is_moved("a", len(BIG))
    assert store.move("a", len(BIG), digest_of(BIG), passed.append)
    assert store.is_moved("a", len(BIG))
    assert not store.move("a", len(BIG), digest_of(BIG), passed.append)
    assert sum(passed) == len(BIG)
    assert get(current, "a") == get(previous, "a") == BIG


def test_an_empty_object_is_moved_too(store: MovingStore, current: Store, previous: Store) -> None:
    put(previous, "a", b"")
    assert store.move("a", 0, digest_of(b""), lambda size: None)
    assert current.size("a") == 0


def test_one_of_another_size_in_the_current_store_is_replaced(
    store: MovingStore, current: Store, previous: Store
) -> None:
    put(previous, "a", b"whole")
    put(current, "a", b"who")
    assert store.move("a", 5, digest_of(b"whole"), lambda size: None)
    assert get(current, "a") == b"whole"


def test_wrong_bytes_are_told_and_not_kept(store: MovingStore, current: Store, previous: Store) -> None:
    put(previous, "a", BIG[:-1] + b"X")
    with pytest.raises(Damaged, match=f"{len(BIG):,} bytes.*{digest_of(BIG)}"):
        store.move("a", len(BIG), digest_of(BIG), lambda size: None)
    with pytest.raises(ObjectMissing):
        store.move("b", 1, digest_of(b"x"), lambda size: None)
    assert_empty(current)


def test_a_move_that_is_given_up_leaves_nothing(store: MovingStore, current: Store, previous: Store) -> None:
    put(previous, "a", BIG)
    passed = 0

    def stop_late(size: int) -> None:
        nonlocal passed
        passed += size
        if passed == len(BIG):
            raise LookupError

    with pytest.raises(LookupError):
        store.move("a", len(BIG), digest_of(BIG), stop_late)
    assert_empty(current)


def test_moving_takes_no_memory_for_the_object(tmp_path: Path) -> None:
    old, new = (open_store((tmp_path / name).as_uri()) for name in ("old", "new"))
    content = os.urandom(MIB) * 64
    put(old, "a", content)
    digest = digest_of(content)
    del content
    tracemalloc.start()
    try:
        assert MovingStore(new, lambda: old).move("a", 64 * MIB, digest, lambda size: None)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


def test_one_store_under_two_names_is_told(tmp_path: Path) -> None:
    open_store((tmp_path / "objects").as_uri())
    (tmp_path / "link").symlink_to(tmp_path / "objects")
    store = open_moving((tmp_path / "objects").as_uri(), (tmp_path / "link").as_uri())
    with pytest.raises(StoreError, match="one and the same store"):
        store.check()
    assert_empty(open_store((tmp_path / "objects").as_uri()))


# -- the settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ftp://x", "INCLAVATE_STORE_PREVIOUS_URL must be file:///…, s3://… or memory:."),
        ("file:///there", "INCLAVATE_STORE_PREVIOUS_URL must be another store than INCLAVATE_STORE_URL."),
        ("file:///there/", "INCLAVATE_STORE_PREVIOUS_URL must be another store than INCLAVATE_STORE_URL."),
    ],
)
def test_a_bad_previous_store_stops_the_start(tmp_path: Path, url: str, sentence: str) -> None:
    assert settings_of(tmp_path, STORE_URL="file:///there", STORE_PREVIOUS_URL=url)["error"] == sentence


def test_an_empty_previous_store_is_none(tmp_path: Path) -> None:
    assert "error" not in settings_of(tmp_path, STORE_PREVIOUS_URL="")


# -- the command -----------------------------------------------------------------------------------------------------


def row(owner: Owner, key: uuid.UUID, **fields: object) -> Artifact:
    """A ready artifact, not saved."""
    known = {
        "origin": Artifact.Origin.UPLOADED,
        "state": Artifact.State.READY,
        "media_type": "audio/wav",
        "created_at": "2026-01-01T00:00:00Z",
        "digest": digest_of(b""),
    }
    return Artifact(id=key, owner=owner, store_key=str(key), **known | fields)


@dataclass
class Move:
    """The command over two folders, in this process."""

    owner: Owner
    folder: Path

    def __post_init__(self) -> None:
        self.old, self.new = (open_store((self.folder / name).as_uri()) for name in ("old", "new"))

    def keep(self, content: bytes, key: uuid.UUID | None = None, **fields: object) -> Artifact:
        """An artifact whose bytes are in the old store."""
        known = {"size": len(content), "digest": digest_of(content)}
        artifact = row(self.owner, key or uuid.uuid4(), **known | fields)
        put(self.old, artifact.store_key, content)
        artifact.save(force_insert=True)
        return artifact

    def run(self, *words: str, fails: str | None = None, stderr: io.StringIO | None = None, **urls: str) -> str:
        """What it says on stdout; `fails` is a pattern of the error with which it ends, and has exit code 1."""
        stdout = io.StringIO()
        chosen = {"STORE_URL": self.url("new"), "STORE_PREVIOUS_URL": self.url("old")} | urls
        with (
            override_settings(**chosen),
            pytest.raises(CommandError, match=fails) if fails else nullcontext() as caught,
        ):
            call_command("store", "move", *words, stdout=stdout, stderr=stderr or io.StringIO())
        assert caught is None or caught.value.returncode == 1
        return stdout.getvalue()

    def url(self, name: str) -> str:
        return (self.folder / name).as_uri()

    def file(self, artifact: Artifact) -> Path:
        """Where its bytes are in the old store."""
        [path] = (self.folder / "old").glob(f"??/??/{artifact.store_key}")
        return path

    def moved(self) -> set[str]:
        return {entry.key for entry in self.new.entries()}


@pytest.fixture
def move(alice: Owner, tmp_path: Path) -> Move:
    return Move(alice, tmp_path)


class Meanwhile(io.StringIO):
    """A stderr that does something once, when the first line of progress comes: rows were read, nothing is copied."""

    def __init__(self, deed: Callable[[], object]) -> None:
        super().__init__()
        self._deed = deed

    def write(self, text: str) -> int:
        if not self.getvalue():
            super().write(text)
            self._deed()
            # The line comes from a thread of its own.
            connection.close()
            return len(text)
        return super().write(text)


@pytest.mark.database
def test_every_object_that_a_row_names_is_moved_and_no_other(move: Move) -> None:
    kept = {str(move.keep(os.urandom(size)).pk) for size in (0, 1, 1000, 3 * MIB)}
    put(move.old, "garbage", b"x")
    move.keep(b"unsealed", state=Artifact.State.PENDING, digest="")
    told = move.run("--workers", "3")
    assert f"Copied 4 objects of {3 * MIB + 1001:,} bytes; 0 were there already; 0 failed." in told
    assert "INCLAVATE_STORE_PREVIOUS_URL can be taken away" in told
    assert "old objects stay" in told
    assert move.moved() == kept
    assert len(list(move.old.entries())) == 6
    assert "Copied 0 objects of 0 bytes; 4 were there already; 0 failed." in move.run()


@pytest.mark.database
def test_a_dry_run_counts_and_copies_nothing(move: Move) -> None:
    first, _ = move.keep(b"12345"), move.keep(b"123")
    put(move.new, first.store_key, b"12345")
    assert move.run("--dry-run") == "1 objects of 3 bytes are to be copied, 1 are there.\n"
    assert move.moved() == {first.store_key}
    assert move.new.sweep(soon()) == 0


@pytest.mark.database
def test_what_is_corrupt_missing_or_unreadable_is_told_and_the_rest_is_moved(move: Move) -> None:
    good, corrupt, missing, unreadable = (move.keep(bytes([number]) * 10) for number in range(4))
    move.file(corrupt).write_bytes(b"\xff" * 10)
    move.old.delete(missing.store_key)
    place = move.file(unreadable)
    place.unlink()
    place.mkdir()
    errors = io.StringIO()
    for counts in (
        "Copied 1 objects of 10 bytes; 0 were there already; 3 failed.",
        "; 1 were there already; 3 failed.",
    ):
        told = move.run(fails="3 objects are not in the new store", stderr=errors)
        assert counts in told
        assert "taken away" not in told
        assert move.moved() == {good.store_key}
    lines = errors.getvalue()
    assert re.search(f"artifact {corrupt.pk}: the object {corrupt.store_key} has 10 bytes of SHA-256", lines)
    assert re.search(f"artifact {missing.pk}: there is no object {missing.store_key}", lines)
    assert re.search(f"artifact {unreadable.pk}: .*Is a directory", lines)


@pytest.mark.database
@pytest.mark.parametrize("has_bytes", [True, False])
def test_what_is_deleted_meanwhile_does_no_harm(move: Move, has_bytes: bool) -> None:
    artifact = move.keep(BIG)

    def delete() -> None:
        Artifact.objects.filter(pk=artifact.pk).delete()
        if not has_bytes:
            move.old.delete(artifact.store_key)

    told = move.run(stderr=Meanwhile(delete))
    assert "Copied 0 objects of 0 bytes; 0 were there already; 0 failed. 1 were deleted meanwhile." in told
    assert_empty(move.new)


@pytest.mark.database
def test_what_is_sealed_behind_the_walk_is_moved_too(move: Move) -> None:
    # More than one worker has in hand at a time, so that the walk waits for the first of them.
    for _ in range(4):
        move.keep(b"early")
    late = move.keep(b"late", uuid.UUID(int=1), state=Artifact.State.PENDING)
    rows = Artifact.objects.filter(pk=late.pk)
    told = move.run("--workers", "1", stderr=Meanwhile(lambda: rows.update(state=Artifact.State.READY)))
    assert "Copied 5 objects of 24 bytes" in told
    assert late.store_key in move.moved()


@pytest.mark.database
def test_an_upload_in_parts_that_may_still_end_in_the_old_store_is_told(move: Move) -> None:
    move.keep(b"first")

    def begin(store: Store) -> Artifact:
        artifact = move.keep(b"", state=Artifact.State.PENDING, digest="")
        move.old.delete(artifact.store_key)
        token = store.begin_parts(artifact.store_key)
        PartedUpload.objects.create(
            artifact=artifact, size=1, part_bytes=PART_BYTES, token=token, expires_at="2099-01-01T00:00:00Z"
        )
        return artifact

    old, _ = begin(move.old), begin(move.new)
    move.run(fails="1 uploads in parts were begun in the previous store")
    old.delete()
    assert "can be taken away" in move.run()


@pytest.mark.database
def test_many_rows_are_walked_in_flat_memory(move: Move) -> None:
    def peak_of(first: int, stop: int) -> int:
        rows = (row(move.owner, uuid.UUID(int=number), size=1) for number in range(first, stop))
        Artifact.objects.bulk_create(rows, batch_size=500)
        # The smaller of two: Python's table of interned words, which has all file names, grows now and then.
        return min(peak_of_one(stop - 1) for _ in range(2))

    def peak_of_one(total: int) -> int:
        tracemalloc.start()
        try:
            assert move.run("--dry-run").startswith(f"{total:,} objects of {total:,} bytes")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few = peak_of(1, 1001)
    assert peak_of(1001, 4001) < few + MIB


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """To this process a larger file is as a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.database
def test_a_full_target_ends_the_move_and_room_lets_it_go_on(move: Move) -> None:
    move.keep(BIG)
    with files_of_at_most(8 * MIB):
        move.run(fails="The new store is full: .* Copied 0 objects")
    assert_empty(move.new)
    assert "Copied 1 objects" in move.run()


@pytest.mark.database
def test_a_previous_store_that_is_away_is_told_at_the_start(move: Move, away: str) -> None:
    move.keep(b"x")
    move.run(fails=r"^A store cannot be used: (?!.*SECRETWORD).*objects", STORE_PREVIOUS_URL=away)
    assert_empty(move.new)


@pytest.mark.database
def test_a_previous_store_that_goes_away_ends_the_move(move: Move) -> None:
    for number in range(50):
        move.keep(bytes([number]))
    errors = Meanwhile(lambda: (move.folder / "old").rename(move.folder / "elsewhere"))
    move.run("--workers", "1", fails="A store cannot be used: the store folder .* is gone.*Run it again", stderr=errors)
    assert errors.getvalue().count("artifact ") == 0
    (move.folder / "elsewhere").rename(move.folder / "old")
    assert "can be taken away" in move.run()
    assert len(move.moved()) == 50


@pytest.mark.database
@pytest.mark.parametrize(
    ("words", "urls", "sentence"),
    [
        ((), {"STORE_PREVIOUS_URL": ""}, "INCLAVATE_STORE_PREVIOUS_URL is not set"),
        ((), {"STORE_PREVIOUS_URL": "s3://"}, "A store cannot be opened: an s3: store URL names a bucket"),
        (("--workers", "0"), {}, "--workers must be between 1 and 64, not 0."),
        (("--workers", "65"), {}, "--workers must be between 1 and 64, not 65."),
    ],
)
def test_what_cannot_begin_is_told(move: Move, words: tuple[str, ...], urls: dict[str, str], sentence: str) -> None:
    move.run(*words, fails=re.escape(sentence), **urls)


# -- the platform ----------------------------------------------------------------------------------------------------


@dataclass
class Bucket:
    """A store on an S3 server; `slow_url` leads to it through the proxy."""

    url: str
    slow_url: str
    proxy: FaultProxy

    def objects(self) -> int:
        return sum(1 for _ in open_store(self.url).entries())


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    folder = tmp_path / "rclone"
    folder.mkdir()
    with servers.s3_rclone(folder) as url:
        target = urlsplit(endpoint_of(url))
        assert target.port is not None
        with FaultProxy("127.0.0.1", target.port) as proxy:
            slow_url = with_parts(url, endpoint=f"http://127.0.0.1:{proxy.port}")
            yield Bucket(url, slow_url, proxy)


def begin_move(data_dir: Path, *words: str, **settings: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "inclavate.cli", "store", "move", *words],
        cwd=ROOT,
        env=platforms.environment(data_dir, **settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish_move(mover: subprocess.Popen[str]) -> str:
    out, err = mover.communicate(timeout=100)
    assert mover.returncode == 0, err
    return out


@contextmanager
def stuck_in_the_middle(bucket: Bucket, data_dir: Path, old_url: str) -> Iterator[subprocess.Popen[str]]:
    """A move of which some objects have arrived, and the next one does not."""
    settings = {"STORE_URL": bucket.slow_url, "STORE_PREVIOUS_URL": old_url}
    mover = begin_move(data_dir, "--workers", "1", **settings)
    try:
        until(lambda: bucket.objects() > 1 or mover.poll() is not None)
        bucket.proxy.set(Mode.STALL)
        assert mover.poll() is None
        yield mover
    finally:
        mover.kill()
        mover.communicate()
        bucket.proxy.set(Mode.PASS)


def upload(http: httpx.Client, content: bytes) -> str:
    answer = http.post("/v1/artifacts", content=content, headers={"Content-Type": "audio/flac"})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def read_all(http: httpx.Client, contents: dict[str, bytes]) -> None:
    for artifact_id, content in contents.items():
        answer = http.get(f"/v1/artifacts/{artifact_id}")
        assert (answer.status_code, digest_of(answer.content)) == (200, digest_of(content))


@pytest.mark.timeout(600)
def test_a_platform_moves_to_s3_while_it_serves(tmp_path: Path, bucket: Bucket) -> None:
    home, old_url = tmp_path / "platform", (tmp_path / "old").as_uri()
    with platforms.running(home, STORE_URL=old_url) as platform, platform.http as http:
        contents = {
            upload(http, content): content for content in (b"fLaC" + os.urandom(500 + number) for number in range(80))
        }
        job = platform.submit(model="test-tone", modality="audio", params={"text": "x"})
        [made] = platform.until_state(job["id"], "completed")["output_artifacts"]
        contents[made] = http.get(f"/v1/artifacts/{made}").content

    both = {"STORE_URL": bucket.url, "STORE_PREVIOUS_URL": old_url}
    with platforms.running(home, **both) as platform, platform.http as http:
        read_all(http, contents)
        with stuck_in_the_middle(bucket, platform.data_dir, old_url) as mover:
            mover.send_signal(signal.SIGKILL)
        assert 1 < bucket.objects() < len(contents)
        read_all(http, contents)

        doomed = [artifact_id for number, artifact_id in enumerate(contents) if number % 10 == 0]
        with ThreadPoolExecutor(1) as pool:
            mover = begin_move(platform.data_dir, "--workers", "2", **both)
            stays = {key: content for key, content in contents.items() if key not in doomed}
            reader = pool.submit(read_all, http, stays)
            for artifact_id in doomed:
                assert http.delete(f"/v1/artifacts/{artifact_id}").status_code == 204
                content = b"fLaC" + os.urandom(700)
                contents[upload(http, content)] = content
                del contents[artifact_id]
            told = finish_move(mover)
            reader.result(60)
        counted = re.search(r"Copied (\d+) objects .*; (\d+) were there already; 0 failed", told)
        assert counted is not None, told
        assert min(int(count) for count in counted.groups()) > 0
        assert "can be taken away" in told
        read_all(http, contents)

    (tmp_path / "old").rename(tmp_path / "not needed any more")
    with platforms.running(home, STORE_URL=bucket.url) as platform, platform.http as http:
        read_all(http, contents)
        for artifact_id in doomed:
            assert http.get(f"/v1/artifacts/{artifact_id}").status_code == 404
    # Nothing is in the new store that no row names, whatever was killed or deleted meanwhile.
    assert {entry.key for entry in open_store(bucket.url).entries()} == set(contents)


@pytest.fixture
def filled(tmp_path: Path) -> tuple[Path, str, int]:
    """A data folder, the URL of its store, and how many artifacts it has; nothing runs on it."""
    old_url = (tmp_path / "old").as_uri()
    code = "import django, sys; django.setup(); exec(sys.stdin.read())"
    made = """
import hashlib
from django.core.management import call_command
from inclavate import artifacts
from inclavate.models import Artifact, Owner
call_command("migrate", verbosity=0)
owner = Owner.objects.create(name="local")
for number in range(50):
    draft = artifacts.begin(owner, Artifact.Origin.UPLOADED, "audio/wav")
    draft.write(bytes([number]) * 1000)
    draft.finish()
"""
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    environment = platforms.environment(data_dir, STORE_URL=old_url) | {"DJANGO_SETTINGS_MODULE": "inclavate.settings"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, input=made, text=True, check=True)
    return data_dir, old_url, 50


@pytest.mark.parametrize(("number", "then"), [(signal.SIGTERM, Mode.PASS), (signal.SIGINT, Mode.REFUSE)])
def test_a_move_stops_when_told_and_goes_on_where_it_was(
    filled: tuple[Path, str, int], bucket: Bucket, number: signal.Signals, then: Mode
) -> None:
    data_dir, old_url, total = filled
    with stuck_in_the_middle(bucket, data_dir, old_url) as mover:
        mover.send_signal(number)
        bucket.proxy.set(then)
        _, err = mover.communicate(timeout=100)
    assert mover.returncode == 128 + number
    assert re.search(r"Stopped\. Copied \d+ objects .* 0 failed\. Run it again: it goes on where it was\.", err)
    assert re.search(rf"\d+ of {total} objects, [\d,]+ bytes copied", err)
    there = bucket.objects()
    assert 1 < there < total
    told = finish_move(begin_move(data_dir, STORE_URL=bucket.url, STORE_PREVIOUS_URL=old_url))
    assert f"Copied {total - there} objects of {1000 * (total - there):,} bytes; {there} were there already" in told


def test_a_second_signal_ends_a_move_that_is_stuck(filled: tuple[Path, str, int], bucket: Bucket) -> None:
    data_dir, old_url, _ = filled
    with stuck_in_the_middle(bucket, data_dir, old_url) as mover:

        def has_ended() -> bool:
            mover.send_signal(signal.SIGTERM)
            return mover.poll() is not None

        until(has_ended, seconds=40)
    assert mover.returncode == -signal.SIGTERM

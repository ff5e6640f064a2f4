"""One contract for every store."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import tracemalloc
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from storage import MAX_PARTS, Entry, ObjectMissing, Part, Store, StoreError, open_store
from tests.storing import BIG, MIB, assert_empty, get, part_bytes, put, send_part, soon

PART = 8 * MIB
FOLDER = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def rclone_store(rclone_url: str) -> Store:
    return open_store(rclone_url)


@pytest.fixture(scope="session")
def moto_store(moto_url: str) -> Store:
    return open_store(moto_url)


@pytest.fixture(params=["filesystem", "memory", "rclone", "moto"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match kind:
        case "filesystem":
            return (tmp_path / "objects").as_uri()
        case "memory":
            return "memory:"
    return str(request.getfixturevalue(f"{kind}_url"))


@pytest.fixture
def store(kind: str, url: str, request: pytest.FixtureRequest) -> Iterator[Store]:
    """An empty one."""
    if kind in ("filesystem", "memory"):
        yield open_store(url)
        return
    # One for all tests: boto3 takes a second for a client.
    shared: Store = request.getfixturevalue(f"{kind}_store")
    assert_empty(shared)
    yield shared
    shared.sweep(soon())
    for entry in shared.entries():
        shared.delete(entry.key)


@pytest.fixture
def is_local(kind: str) -> bool:
    return kind in ("filesystem", "memory")


# -- the contract: writing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 2 * PART + 5])
def test_what_was_committed_is_read_back(store: Store, size: int) -> None:
    content = (b"abcdefghijklmnopq" * (size // 17 + 1))[:size]
    put(store, "a", content, step=3 * MIB + 1)
    assert store.size("a") == size
    assert get(store, "a") == content


def test_one_chunk_may_be_larger_than_a_part(store: Store) -> None:
    put(store, "a", BIG * 2, step=len(BIG) * 2)
    assert get(store, "a") == BIG * 2


def test_an_object_does_not_exist_before_its_commit(store: Store) -> None:
    with store.create("a") as writer:
        writer.write(BIG)
        with pytest.raises(ObjectMissing):
            store.read("a")
        assert list(store.entries()) == []
        writer.commit()
        assert get(store, "a") == BIG


def test_leaving_without_a_commit_leaves_nothing(store: Store) -> None:
    with store.create("a") as writer:
        writer.write(BIG)
    with pytest.raises(LookupError):
        leave_by_an_error(store)
    assert_empty(store)


def leave_by_an_error(store: Store) -> None:
    with store.create("b") as writer:
        writer.write(BIG)
        raise LookupError


def test_an_abort_is_safe_twice_and_after_a_commit(store: Store) -> None:
    writer = store.create("a")
    writer.write(BIG)
    writer.abort()
    writer.abort()
    assert_empty(store)
    with store.create("b") as writer:
        writer.write(BIG)
        writer.commit()
        writer.abort()
    assert store.size("b") == len(BIG)


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_writer_that_is_over_takes_nothing_more(store: Store, end: str) -> None:
    writer = store.create("a")
    getattr(writer, end)()
    with pytest.raises(ValueError, match=r"over|closed"):
        writer.write(b"more")
    with pytest.raises(ValueError, match=r"over|closed"):
        writer.commit()


def test_a_commit_replaces_the_older_object(store: Store) -> None:
    put(store, "a", BIG)
    put(store, "a", b"short")
    assert get(store, "a") == b"short"
    assert [entry.key for entry in store.entries()] == ["a"]


def test_memory_stays_flat_for_64_mib(store: Store, kind: str) -> None:
    if kind == "memory":
        pytest.skip("a store in memory keeps its objects there")
    chunk = os.urandom(256 * 1024)
    tracemalloc.start()
    try:
        with store.create("a") as writer:
            for _ in range(256):
                writer.write(chunk)
            writer.commit()
        assert tracemalloc.get_traced_memory()[1] < 24 * MIB
        tracemalloc.reset_peak()
        # What a store keeps for its next writers.
        kept, _ = tracemalloc.get_traced_memory()
        assert sum(len(piece) for piece in store.read("a")) == 64 * MIB
        assert tracemalloc.get_traced_memory()[1] < kept + 2 * MIB
    finally:
        tracemalloc.stop()


# -- the contract: reading -------------------------------------------------------------------------------------------


def test_any_range_is_exact(store: Store) -> None:
    content = os.urandom(1000)
    put(store, "a", content)
    put(store, "empty", b"")

    @given(
        start=st.integers(0, 1100),
        length=st.none() | st.integers(0, 1100),
        step=st.integers(1, 400),
        empty=st.booleans(),
    )
    @hypothesis_settings(deadline=None, max_examples=60)
    def check(start: int, length: int | None, step: int, empty: bool) -> None:
        stop = None if length is None else start + length
        chunks = list(store.read("empty" if empty else "a", start, stop, step))
        assert b"".join(chunks) == (b"" if empty else content)[start:stop]
        assert all(0 < len(chunk) <= step for chunk in chunks)

    check()


@pytest.mark.parametrize(("start", "stop"), [(-1, None), (-5, -1), (3, 2)])
def test_a_backward_range_is_refused(store: Store, start: int, stop: int | None) -> None:
    put(store, "a", b"0123456789")
    with pytest.raises(ValueError, match="range"):
        store.read("a", start, stop)


@pytest.mark.parametrize(("start", "stop"), [(0, None), (0, 5), (3, None), (2, 2)])
def test_a_missing_object_is_told_by_the_call(store: Store, start: int, stop: int | None) -> None:
    put(store, "a", b"here")
    with pytest.raises(ObjectMissing, match="other"):
        store.read("other", start, stop)
    with pytest.raises(ObjectMissing, match="other"):
        store.size("other")


def test_a_reader_that_began_ends_whole_though_the_object_is_deleted(store: Store) -> None:
    put(store, "a", BIG)
    chunks = store.read("a")
    first = next(chunks)
    store.delete("a")
    assert first + b"".join(chunks) == BIG
    with pytest.raises(ObjectMissing):
        store.read("a")


def test_readers_get_the_whole_object_or_none_while_it_is_deleted(store: Store) -> None:
    put(store, "a", BIG)
    has_opened = threading.Semaphore(0)

    def read_until_gone() -> int:
        reads = 0
        while True:
            try:
                chunks = store.read("a")
            except ObjectMissing:
                return reads
            has_opened.release()
            assert b"".join(chunks) == BIG
            reads += 1

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read_until_gone) for _ in range(4)]
        assert has_opened.acquire(timeout=60)
        store.delete("a")
        assert sum(reader.result(timeout=60) for reader in readers) > 0


def test_a_reader_may_be_left_early(store: Store) -> None:
    put(store, "a", BIG)
    for _ in range(20):
        chunks = store.read("a", 1)
        next(chunks)
        chunks.close()
    store.read("a").close()
    assert get(store, "a", 5, 9) == BIG[5:9]


# -- the contract: keeping house -------------------------------------------------------------------------------------


def test_a_deleted_object_is_gone_and_deleting_again_is_no_error(store: Store) -> None:
    put(store, "a", b"here")
    put(store, "b", b"stays")
    store.delete("a")
    store.delete("a")
    with pytest.raises(ObjectMissing):
        store.size("a")
    assert [entry.key for entry in store.entries()] == ["b"]


def test_a_listing_has_key_size_and_time(store: Store) -> None:
    before = datetime.now(UTC) - timedelta(seconds=2)
    contents = {"a": b"", "b-1/c/d": b"four", str(uuid.uuid4()): BIG}
    for key, content in contents.items():
        put(store, key, content)
    entries = list(store.entries())
    assert {entry.key: entry.size for entry in entries} == {key: len(content) for key, content in contents.items()}
    assert all(before <= entry.modified_at <= soon() for entry in entries)
    assert all(isinstance(entry, Entry) and entry.modified_at.utcoffset() == timedelta(0) for entry in entries)


def test_objects_may_be_deleted_while_they_are_listed(store: Store) -> None:
    keys = {f"key-{number}" for number in range(30)}
    for key in keys:
        put(store, key, b"x")
    listed = set()
    for entry in store.entries():
        listed.add(entry.key)
        store.delete(entry.key)
    assert listed == keys
    assert_empty(store)


ENDS_IN_THE_MIDDLE = """
import os, sys, storage
writer = storage.open_store(sys.argv[1]).create("a")
# The second part begins once the first has come.
writer.write(bytes(17 * 2**20))
os._exit(0)
"""


def test_a_sweep_removes_what_a_dead_writer_left(store: Store, url: str, kind: str) -> None:
    put(store, "kept", b"kept")
    started_at = datetime.now(UTC)
    if kind == "memory":
        unfinished = store.create("a")
        unfinished.write(BIG)
    else:
        subprocess.run([sys.executable, "-c", ENDS_IN_THE_MIDDLE, url], cwd=FOLDER, check=True, timeout=60)
    assert [entry.key for entry in store.entries()] == ["kept"]
    assert store.sweep(started_at - timedelta(seconds=2)) == 0
    assert store.sweep(soon()) == 1
    assert store.sweep(soon()) == 0
    assert get(store, "kept") == b"kept"


def test_a_write_that_was_swept_cannot_be_committed(store: Store) -> None:
    with store.create("a") as writer:
        writer.write(BIG)
        assert store.sweep(soon()) == 1
        with pytest.raises(StoreError) as caught:
            writer.commit()
    assert caught.type is StoreError
    assert_empty(store)


def test_threads_may_share_a_store(store: Store) -> None:
    def work(number: int) -> bool:
        content = bytes([number]) * (MIB + number)
        put(store, f"key/{number}", content)
        return get(store, f"key/{number}") == content

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(32)))
    assert len(list(store.entries())) == 32


BAD_KEYS = (
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "../a",
    "a/../../b",
    "A",
    "a_b",
    "a.b",
    "a\n",
    "a\0",
    "é",
    "a" * 201,
)


@pytest.mark.parametrize("key", BAD_KEYS)
def test_what_is_no_key_is_refused(store: Store, key: str) -> None:
    for call in (store.create, store.read, store.size, store.delete):
        with pytest.raises(ValueError, match="no key"):
            call(key)


def test_the_longest_key_works(store: Store) -> None:
    key = "a/" * 50 + "b" * 100
    put(store, key, b"x")
    assert [entry.key for entry in store.entries()] == [key]
    assert get(store, key) == b"x"


# -- the contract: objects that come in parts --------------------------------------------------------------------------


def test_parts_in_any_order_and_repeated_make_the_object(store: Store, is_local: bool) -> None:
    contents = {number: part_bytes(number) for number in (1, 2)} | {3: part_bytes(3, 1234)}

    @given(order=st.permutations([1, 2, 3]), again=st.lists(st.sampled_from([1, 2, 3]), max_size=2))
    @hypothesis_settings(deadline=None, max_examples=12 if is_local else 3)
    def check(order: list[int], again: list[int]) -> None:
        token = store.begin_parts("a/b")
        for number in (*order, *again):
            send_part(store, "a/b", token, number, contents[number])
        assert store.parts("a/b", token) == [Part(number, len(content)) for number, content in contents.items()]
        store.complete_parts("a/b", token)
        assert get(store, "a/b") == b"".join(contents.values())

    check()
    assert store.sweep(soon()) == 0


@pytest.mark.parametrize("size", [0, 1, PART])
def test_one_part_of_any_size_is_an_object(store: Store, size: int) -> None:
    token = store.begin_parts("a")
    send_part(store, "a", token, 1, part_bytes(1, size))
    store.complete_parts("a", token)
    assert get(store, "a") == part_bytes(1, size)


def test_a_part_sent_twice_is_kept_once(store: Store, kind: str) -> None:
    token = store.begin_parts("a")
    send_part(store, "a", token, 1, part_bytes(1, MIB))
    if kind == "rclone":
        # It sends a first part on as it comes, and refuses another in its place.
        with pytest.raises(StoreError, match="cannot be replaced"):
            send_part(store, "a", token, 1, part_bytes(2, 10))
        send_part(store, "a", token, 1, part_bytes(1, MIB))
        assert store.parts("a", token) == [Part(1, MIB)]
        return
    send_part(store, "a", token, 1, part_bytes(2, 10))
    assert store.parts("a", token) == [Part(1, 10)]
    store.complete_parts("a", token)
    assert get(store, "a") == part_bytes(2, 10)


def test_nothing_is_readable_before_the_parts_are_completed(store: Store) -> None:
    token = store.begin_parts("a")
    send_part(store, "a", token, 1, b"first")
    with pytest.raises(ObjectMissing):
        store.read("a")
    assert list(store.entries()) == []
    store.complete_parts("a", token)
    assert [(entry.key, entry.size) for entry in store.entries()] == [("a", 5)]


def test_completing_twice_is_no_error(store: Store) -> None:
    token = store.begin_parts("a")
    send_part(store, "a", token, 1, b"first")
    store.complete_parts("a", token)
    store.complete_parts("a", token)
    store.abort_parts("a", token)
    assert get(store, "a") == b"first"


def test_two_may_complete_at_once(store: Store) -> None:
    token = store.begin_parts("a")
    send_part(store, "a", token, 1, BIG[:PART])
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(store.complete_parts, "a", token) for _ in range(4)]:
            done.result(timeout=60)
    assert get(store, "a") == BIG[:PART]


def test_an_object_of_parts_replaces_an_older_one(store: Store) -> None:
    put(store, "a", BIG)
    token = store.begin_parts("a")
    send_part(store, "a", token, 1, b"new")
    assert get(store, "a") == BIG
    store.complete_parts("a", token)
    assert get(store, "a") == b"new"


INCOMPLETE: dict[str, tuple[dict[int, int], str]] = {
    "no part": ({}, "no part of it has come"),
    "the first part missing": ({2: PART, 3: 5}, "part 1 of 3 has not come"),
    "a gap": ({1: PART, 3: 5}, "part 2 of 3 has not come"),
    "a short middle part": ({1: PART, 2: PART - 1, 3: 5}, f"part 2 has {PART - 1} bytes"),
    "an empty first part": ({1: 0, 2: 5}, "part 1 has 0 bytes"),
}


@pytest.mark.parametrize("case", INCOMPLETE)
def test_what_is_not_whole_is_not_completed_and_told(store: Store, case: str) -> None:
    sizes, reason = INCOMPLETE[case]
    token = store.begin_parts("a")
    for number, size in sizes.items():
        send_part(store, "a", token, number, part_bytes(number, size))
    with pytest.raises(StoreError, match=reason) as caught:
        store.complete_parts("a", token)
    assert caught.type is StoreError
    assert store.parts("a", token) == [Part(number, size) for number, size in sizes.items()]
    store.abort_parts("a", token)
    assert_empty(store)


def test_a_part_that_was_missing_can_still_come(store: Store) -> None:
    token = store.begin_parts("a")
    send_part(store, "a", token, 2, b"end")
    with pytest.raises(StoreError, match="part 1 of 2"):
        store.complete_parts("a", token)
    send_part(store, "a", token, 1, part_bytes(1))
    store.complete_parts("a", token)
    assert get(store, "a") == part_bytes(1) + b"end"


def test_a_part_has_no_more_bytes_than_a_part(store: Store) -> None:
    token = store.begin_parts("a")
    with store.write_part("a", token, 1) as writer:
        writer.write(bytes(PART))
        with pytest.raises(ValueError, match="at most"):
            writer.write(b"x")
    assert store.parts("a", token) == []


@pytest.mark.parametrize("number", [-1, 0, MAX_PARTS + 1])
def test_what_is_no_number_of_a_part_is_refused(store: Store, number: int) -> None:
    token = store.begin_parts("a")
    with pytest.raises(ValueError, match="1 to 10000"):
        store.write_part("a", token, number)


def test_a_part_that_was_left_is_not_kept(store: Store) -> None:
    token = store.begin_parts("a")
    with store.write_part("a", token, 1) as writer:
        writer.write(b"left")
    with store.write_part("a", token, 2) as writer:
        writer.write(b"kept")
        writer.commit()
        writer.abort()
    assert store.parts("a", token) == [Part(2, 4)]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_part_that_is_over_takes_nothing_more(store: Store, end: str) -> None:
    writer = store.write_part("a", store.begin_parts("a"), 1)
    getattr(writer, end)()
    with pytest.raises(ValueError, match="over"):
        writer.write(b"more")
    with pytest.raises(ValueError, match="over"):
        writer.commit()


TOKENS = ("", "nonsense", "../../etc", "0" * 32, str(uuid.UUID(int=7)))


@pytest.mark.parametrize("token", TOKENS)
def test_an_unknown_token_is_told(store: Store, kind: str, token: str) -> None:
    if token == "" and kind in ("rclone", "moto"):
        token = "another"  # boto3 sends no empty one
    with pytest.raises(ObjectMissing, match="token"):
        store.parts("a", token)
    with pytest.raises(ObjectMissing):
        store.complete_parts("a", token)
    store.abort_parts("a", token)
    # moto answers 500 to it.
    with pytest.raises(StoreError if kind == "moto" else ObjectMissing):
        send_part(store, "a", token, 1, b"x")


def test_a_token_is_of_its_key_alone(store: Store, kind: str) -> None:
    if kind == "moto":
        pytest.skip("moto looks at the upload's id only")
    token = store.begin_parts("a")
    send_part(store, "a", token, 1, b"x")
    store.abort_parts("b", token)
    with pytest.raises(ObjectMissing):
        store.parts("b", token)
    with pytest.raises(ObjectMissing):
        send_part(store, "b", token, 1, b"y")
    with pytest.raises(ObjectMissing):
        store.complete_parts("b", token)
    store.complete_parts("a", token)
    assert get(store, "a") == b"x"


@pytest.mark.parametrize("end", ["abort", "sweep", "complete"])
def test_an_upload_that_is_over_takes_no_part(store: Store, kind: str, end: str) -> None:
    token = store.begin_parts("a")
    send_part(store, "a", token, 1, b"first")
    late = store.write_part("a", token, 2)
    late.write(b"late")
    match end:
        case "abort":
            store.abort_parts("a", token)
            store.abort_parts("a", token)
        case "sweep":
            assert store.sweep(soon()) == 1
        case "complete":
            store.complete_parts("a", token)
    for call in (late.commit, lambda: send_part(store, "a", token, 1, b"x")):
        with pytest.raises(StoreError if kind == "moto" else ObjectMissing):
            call()
    late.abort()
    with pytest.raises(ObjectMissing):
        store.parts("a", token)
    if end == "complete":
        assert get(store, "a") == b"first"
        return
    with pytest.raises(ObjectMissing):
        store.complete_parts("a", token)
    assert_empty(store)


def test_parts_may_come_at_once(store: Store) -> None:
    token = store.begin_parts("a")
    with ThreadPoolExecutor(4) as threads:
        sent = [threads.submit(send_part, store, "a", token, n, part_bytes(n)) for n in (4, 3, 2, 1)]
        for done in sent:
            done.result(timeout=60)
    store.complete_parts("a", token)
    assert get(store, "a") == b"".join(map(part_bytes, (1, 2, 3, 4)))


def test_two_writers_of_a_part_do_not_mix(store: Store, kind: str) -> None:
    if kind == "rclone":
        pytest.skip("it replaces no part; test_a_part_sent_twice_is_kept_once")
    token = store.begin_parts("a")
    first, second = store.write_part("a", token, 1), store.write_part("a", token, 1)
    second.write(b"second ")
    with suppress(StoreError):
        first.write(b"f" * 100)
    second.write(b"one")
    with suppress(StoreError):
        first.commit()
    second.commit()
    first.abort()
    store.complete_parts("a", token)
    assert get(store, "a") == b"second one"


PART_FROM_ELSEWHERE = """
import sys, storage
from tests.storing import part_bytes, send_part
url, key, token, number = sys.argv[1:]
store = storage.open_store(url)
send_part(store, key, token, int(number), part_bytes(int(number)))
print([part.number for part in store.parts(key, token)], flush=True)
"""


def test_parts_come_from_many_processes(store: Store, url: str, kind: str) -> None:
    if kind == "memory":
        pytest.skip("it is of one process")
    token = store.begin_parts("a")
    send_part(store, "a", token, 2, part_bytes(2))
    command = [sys.executable, "-c", PART_FROM_ELSEWHERE, url, "a", token, "1"]
    done = subprocess.run(command, cwd=FOLDER, check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout.strip() == "[1, 2]"
    store.complete_parts("a", token)
    assert get(store, "a") == part_bytes(1) + part_bytes(2)


def test_a_sweep_removes_abandoned_parts_and_spares_what_still_receives(store: Store) -> None:
    started_at = datetime.now(UTC)
    put(store, "kept", b"kept")
    token = store.begin_parts("a")
    send_part(store, "a", token, 1, b"x")
    assert store.sweep(started_at - timedelta(seconds=2)) == 0
    assert store.parts("a", token) == [Part(1, 1)]
    store.begin_parts("b")
    assert store.sweep(soon()) == 2
    assert store.sweep(soon()) == 0
    assert get(store, "kept") == b"kept"


def test_memory_stays_flat_for_parts(store: Store, kind: str) -> None:
    if kind == "memory":
        pytest.skip("a store in memory keeps its objects there")
    chunk = os.urandom(256 * 1024)
    token = store.begin_parts("a")
    tracemalloc.start()
    try:
        for number in range(1, 7):
            with store.write_part("a", token, number) as writer:
                for _ in range(PART // len(chunk)):
                    writer.write(chunk)
                writer.commit()
        store.complete_parts("a", token)
        assert tracemalloc.get_traced_memory()[1] < 24 * MIB
    finally:
        tracemalloc.stop()
    assert store.size("a") == 6 * PART


@pytest.mark.parametrize("key", BAD_KEYS)
def test_what_is_no_key_begins_no_parts(store: Store, key: str) -> None:
    calls = (
        lambda: store.begin_parts(key),
        lambda: store.write_part(key, "0" * 32, 1),
        lambda: store.parts(key, "0" * 32),
        lambda: store.complete_parts(key, "0" * 32),
        lambda: store.abort_parts(key, "0" * 32),
    )
    for call in calls:
        with pytest.raises(ValueError, match="no key"):
            call()

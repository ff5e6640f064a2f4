"""A store in a bucket behind a network at fault: each phase of each operation, through the fault proxy.

On rclone and on moto, where a test does not say otherwise.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from storage import PART_BYTES, ObjectMissing, Part, Store, StoreError, open_store
from tests.faultproxy import Fault, FaultProxy, Mode
from tests.storing import BIG, MIB, assert_empty, get, part_bytes, put, send_part, soon

SMALL = part_bytes(7, MIB)


@dataclass
class Behind:
    """A store through the proxy, and the same without it."""

    store: Store
    direct: Store
    proxy: FaultProxy


def _behind(url: str, options: str) -> Iterator[Behind]:
    endpoint = parse_qs(urlsplit(url).query)["endpoint"][0]
    server = urlsplit(endpoint)
    with FaultProxy(str(server.hostname), int(server.port or 0)) as proxy:
        through = url.replace(quote(endpoint, safe=""), quote(f"http://127.0.0.1:{proxy.port}", safe=""))
        yield Behind(open_store(f"{through}&{options}"), open_store(url), proxy)


@pytest.fixture(scope="module")
def rclone_behind(rclone_url: str) -> Iterator[Behind]:
    yield from _behind(rclone_url, "read_seconds=20")


@pytest.fixture(scope="module")
def moto_behind(moto_url: str) -> Iterator[Behind]:
    yield from _behind(moto_url, "read_seconds=20")


@pytest.fixture(scope="module")
def two_attempts(rclone_url: str) -> Iterator[Behind]:
    yield from _behind(rclone_url, "read_seconds=20&attempts=2")


@pytest.fixture(scope="module")
def impatient(moto_url: str) -> Iterator[Behind]:
    """With one attempt of half a second."""
    yield from _behind(moto_url, "connect_seconds=0.5&read_seconds=0.5&attempts=1")


@pytest.fixture(params=["rclone", "moto"])
def behind(request: pytest.FixtureRequest) -> Iterator[Behind]:
    behind: Behind = request.getfixturevalue(f"{request.param}_behind")
    yield from emptied(behind)


def emptied(behind: Behind) -> Iterator[Behind]:
    assert_empty(behind.direct)
    yield behind
    behind.proxy.set(Mode.PASS)
    behind.direct.sweep(soon())
    for entry in behind.direct.entries():
        behind.direct.delete(entry.key)


# -- each phase ------------------------------------------------------------------------------------------------------


@dataclass
class Phase:
    """`run` makes the request that the pattern finds, after `prepare`, which has no fault; `check` looks at what a
    success left."""

    request: str
    run: Callable[[Behind, str], None]
    check: Callable[[Behind], None]
    prepare: Callable[[Behind], str] = field(default=lambda behind: "")


def is_big(behind: Behind) -> None:
    assert get(behind.direct, "a") == BIG


def is_gone(behind: Behind) -> None:
    assert_empty(behind.direct)


def with_object(behind: Behind) -> str:
    put(behind.direct, "a", BIG)
    return ""


def with_parts(behind: Behind) -> str:
    token = behind.direct.begin_parts("a")
    send_part(behind.direct, "a", token, 1, BIG[:PART_BYTES])
    send_part(behind.direct, "a", token, 2, BIG[PART_BYTES:])
    return token


def put_small(behind: Behind, _: str) -> None:
    put(behind.store, "a", SMALL)


def put_big(behind: Behind, _: str) -> None:
    put(behind.store, "a", BIG)


def is_small(behind: Behind) -> None:
    assert get(behind.direct, "a") == SMALL


def is_read(behind: Behind, _: str) -> None:
    assert get(behind.store, "a") == BIG


def is_measured(behind: Behind, _: str) -> None:
    assert behind.store.size("a") == len(BIG)


def is_listed(behind: Behind, _: str) -> None:
    assert [(entry.key, entry.size) for entry in behind.store.entries()] == [("a", len(BIG))]


def has_parts(behind: Behind, token: str) -> None:
    assert behind.store.parts("a", token) == [Part(1, PART_BYTES), Part(2, len(BIG) - PART_BYTES)]


def send_second(behind: Behind, token: str) -> None:
    send_part(behind.store, "a", token, 2, BIG[PART_BYTES:])


def sweeps(behind: Behind, _: str) -> None:
    assert behind.store.sweep(soon()) == 1


def completes(behind: Behind, token: str) -> None:
    behind.store.complete_parts("a", token)


PHASES = {
    "put": Phase("^PUT [^?]*/a ", put_small, is_small),
    "create": Phase(r"^POST \S*\?uploads", put_big, is_big),
    "part": Phase(r"^PUT \S*partNumber=2", put_big, is_big),
    "complete": Phase(r"^POST \S*\?uploadId=", put_big, is_big),
    "get": Phase("^GET [^?]*/a ", is_read, is_big, with_object),
    "head": Phase("^HEAD ", is_measured, is_big, with_object),
    "list": Phase(r"^GET \S*list-type=2", is_listed, is_big, with_object),
    "delete": Phase("^DELETE [^?]*/a ", lambda behind, _: behind.store.delete("a"), is_gone, with_object),
    "abort": Phase(r"^DELETE \S*uploadId=", lambda b, token: b.store.abort_parts("a", token), is_gone, with_parts),
    "sweep": Phase(r"^GET \S*\?uploads", sweeps, is_gone, with_parts),
    "list parts": Phase(r"^GET \S*uploadId=", has_parts, lambda behind: None, with_parts),
    "send a part": Phase(r"^PUT \S*partNumber=2", send_second, lambda behind: None, with_parts),
    "complete parts": Phase(r"^POST \S*\?uploadId=", completes, is_big, with_parts),
}
FAULTS = {
    "two 503": lambda request: Fault(Mode.UNAVAILABLE, request, times=2),
    "two resets": lambda request: Fault(Mode.REFUSE, request, times=2),
    "the answer lost": lambda request: Fault(Mode.LOSE_ANSWER, request),
    "the request cut": lambda request: Fault(
        Mode.CUT_REQUEST, request, after_bytes=2000 if "P" in request[:3] else 100
    ),
    "the answer's status cut": lambda request: Fault(Mode.CUT_ANSWER, request, after_bytes=11),
    "the answer's head cut": lambda request: Fault(Mode.CUT_ANSWER, request, after_bytes=40),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_fault_that_passes_is_survived_in_each_phase(behind: Behind, phase: str, fault: str) -> None:
    at = PHASES[phase]
    prepared = at.prepare(behind)
    behind.proxy.inject(FAULTS[fault](at.request))
    at.run(behind, prepared)
    assert behind.proxy.faults_left == 0
    behind.proxy.set(Mode.PASS)
    at.check(behind)
    behind.direct.sweep(soon())
    behind.direct.delete("a")
    assert_empty(behind.direct)


LASTING = {
    "503": lambda request: Fault(Mode.UNAVAILABLE, request, times=1000),
    "resets": lambda request: Fault(Mode.REFUSE, request, times=1000),
    "answers lost": lambda request: Fault(Mode.LOSE_ANSWER, request, times=1000),
}


@pytest.mark.parametrize("fault", LASTING)
@pytest.mark.parametrize("phase", PHASES)
def test_a_server_that_keeps_failing_ends_in_an_error_soon(two_attempts: Behind, phase: str, fault: str) -> None:
    # On rclone.
    with contextmanager(emptied)(two_attempts) as behind:
        at = PHASES[phase]
        prepared = at.prepare(behind)
        behind.proxy.inject(LASTING[fault](at.request))
        began = time.monotonic()
        with pytest.raises(StoreError) as caught:
            at.run(behind, prepared)
        assert time.monotonic() - began < 60
        assert caught.type is StoreError
        # Not more than the attempts, of the request and of the abort or the look that follows it.
        assert 2 <= 1000 - behind.proxy.faults_left <= 4
        behind.proxy.set(Mode.PASS)
        # An object is whole or not there.
        with suppress(ObjectMissing):
            assert get(behind.direct, "a") in (SMALL, BIG)
        behind.direct.sweep(soon())
        behind.direct.delete("a")
        assert_empty(behind.direct)


def test_a_server_that_says_nothing_ends_in_an_error_soon(impatient: Behind) -> None:
    # On moto; the server behind does not matter.
    with contextmanager(emptied)(impatient) as behind:
        token = with_parts(behind)
        put(behind.direct, "a", BIG)
        behind.proxy.set(Mode.STALL)
        with ThreadPoolExecutor(len(PHASES)) as threads:
            for waiting in [threads.submit(at.run, behind, token) for at in PHASES.values()]:
                with pytest.raises(StoreError, match="objects"):
                    waiting.result(timeout=60)


# -- a completion whose answer was lost ------------------------------------------------------------------------------


def test_a_completion_whose_answers_are_all_lost_can_be_done_again(behind: Behind) -> None:
    token = with_parts(behind)
    behind.proxy.inject(Fault(Mode.LOSE_ANSWER, r"^POST \S*\?uploadId=", times=3))
    with suppress(StoreError):
        behind.store.complete_parts("a", token)
    behind.proxy.set(Mode.PASS)
    behind.store.complete_parts("a", token)
    is_big(behind)


def test_an_older_object_does_not_make_a_swept_write_a_success(behind: Behind) -> None:
    put(behind.direct, "a", BIG)
    with behind.store.create("a") as writer:
        writer.write(BIG[::-1])
        assert behind.direct.sweep(soon()) == 1
        with pytest.raises(StoreError):
            writer.commit()
    assert get(behind.direct, "a") == BIG


# -- reading on after a cut ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "stop"), [(0, None), (5, None), (1000, 7 * MIB + 3)])
def test_a_body_that_is_cut_is_read_on_from_where_it_stopped(behind: Behind, start: int, stop: int | None) -> None:
    content = part_bytes(1) + part_bytes(2, MIB)
    put(behind.direct, "a", content)
    behind.proxy.inject(Fault(Mode.CUT_ANSWER, "^GET", times=3, after_bytes=2 * MIB))
    assert get(behind.store, "a", start, stop) == content[start:stop]
    assert behind.proxy.faults_left == 0


def test_a_body_that_is_cut_again_and_again_ends_in_an_error(behind: Behind) -> None:
    put(behind.direct, "a", BIG)
    behind.proxy.inject(Fault(Mode.CUT_ANSWER, "^GET", times=1000, after_bytes=MIB))
    came: list[bytes] = []
    with pytest.raises(StoreError, match="objects"):
        came.extend(behind.store.read("a"))
    assert 0 < len(b"".join(came)) < len(BIG)
    assert BIG.startswith(b"".join(came))
    assert 1000 - behind.proxy.faults_left == 6


@pytest.mark.parametrize("other", [BIG[::-1], b"short", None])
def test_two_versions_of_an_object_are_never_mixed(behind: Behind, other: bytes | None) -> None:
    put(behind.direct, "a", BIG)
    behind.proxy.inject(Fault(Mode.CUT_ANSWER, "^GET", after_bytes=2 * MIB))
    chunks = behind.store.read("a")
    came = [next(chunks)]
    if other is None:
        behind.direct.delete("a")
    else:
        put(behind.direct, "a", other)
    with pytest.raises(StoreError, match="changed while it was read") as caught:
        came.extend(chunks)
    assert caught.type is StoreError
    assert BIG.startswith(b"".join(came))


@pytest.mark.parametrize("sent", [1, 2])
def test_a_write_that_failed_leaves_no_object_with_a_hole(two_attempts: Behind, sent: int) -> None:
    with two_attempts.store.create("a") as writer:
        writer.write(part_bytes(1) * sent)
        two_attempts.proxy.set(Mode.UNAVAILABLE)
        with pytest.raises(StoreError):
            writer.write(part_bytes(2) * 3)
        two_attempts.proxy.set(Mode.PASS)
        for _ in range(2):
            with pytest.raises(StoreError):
                writer.commit()
    assert_empty(two_attempts.direct)


@contextmanager
def crowded(store: Store) -> Iterator[None]:
    """So many writers have so much that what comes next is kept outside the memory."""
    with ExitStack() as stack:
        for number in range(6):
            stack.enter_context(store.create(f"crowd-{number}")).write(bytes(MIB))
        yield


def test_writers_that_find_no_room_in_memory_keep_every_byte(behind: Behind) -> None:
    keys = [f"a{number}" for number in range(4)]
    with crowded(behind.store), ExitStack() as stack:
        writers = [stack.enter_context(behind.store.create(key)) for key in keys]
        for position in range(0, len(BIG), MIB):
            for number, writer in enumerate(writers):
                writer.write(BIG[position : position + MIB] + bytes([number]))
        for writer in writers:
            writer.commit()
    for number, key in enumerate(keys):
        whole = b"".join(BIG[at : at + MIB] + bytes([number]) for at in range(0, len(BIG), MIB))
        assert get(behind.direct, key) == whole


def test_a_machine_without_room_for_a_part_says_so(behind: Behind) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, before[1]))
    try:
        with (
            crowded(behind.store),
            behind.store.create("a") as writer,
            pytest.raises(StoreError, match="cannot keep a part in the temporary folder: File too large"),
        ):
            writer.write(part_bytes(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_empty(behind.direct)

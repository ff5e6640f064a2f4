"""What only a store in a folder meets: its disk, its files, and other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from storage import PART_BYTES, ObjectMissing, Part, StoreError, StoreFull, open_store
from tests.driving import until
from tests.storing import BIG, MIB, assert_empty, get, part_bytes, put, send_part, soon

FOLDER = Path(__file__).resolve().parent.parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "with space %41" / "objects"


def test_only_its_user_can_read_a_folder_store(folder: Path) -> None:
    store = open_store(folder.as_uri())
    put(store, "a/b", b"x")
    with store.create("c") as writer:
        writer.write(b"y")
        modes = {path.is_dir(): set() for path in (folder, FOLDER / "pyproject.toml")}
        for path in (folder, *folder.rglob("*")):
            modes[path.is_dir()].add(path.stat().st_mode & 0o777)
    assert modes == {True: {0o700}, False: {0o600}}


@given(key=st.text(alphabet="./\\~ab-\0\n%_A"))
@hypothesis_settings(deadline=None)
def test_no_key_leads_out_of_the_folder(tmp_path_factory: pytest.TempPathFactory, key: str) -> None:
    around = tmp_path_factory.mktemp("around")
    store = open_store((around / "objects").as_uri())
    try:
        put(store, key, b"x")
    except ValueError:
        assert_empty(store)
    else:
        assert get(store, key) == b"x"
    assert [path.name for path in around.iterdir()] == ["objects"]


def test_objects_outlive_the_store_object(folder: Path) -> None:
    put(open_store(folder.as_uri()), "a", BIG)
    assert get(open_store(folder.as_uri()), "a") == BIG


def test_a_folder_that_is_gone_is_not_taken_for_missing_objects(folder: Path) -> None:
    store = open_store(folder.as_uri())
    put(store, "a", b"x")
    folder.rename(folder.with_name("elsewhere"))
    calls = (store.read, store.size, store.create, store.begin_parts, lambda key: store.parts(key, "0" * 32))
    for call in calls:
        with pytest.raises(StoreError, match="objects") as caught:
            call("a")
        assert caught.type is StoreError


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "objects").write_text("a file")
    with pytest.raises(StoreError, match="objects"):
        open_store((tmp_path / "objects").as_uri())


def test_what_others_left_in_the_folder_is_not_listed(folder: Path) -> None:
    store = open_store(folder.as_uri())
    put(store, "a", b"x")
    shard = next(path.parent for path in folder.glob("??/??/a"))
    (shard / "Not.Ours").write_text("x")
    (folder / "lost+found").mkdir(mode=0)
    assert [entry.key for entry in store.entries()] == ["a"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Of 2 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount; test_a_file_size_limit_counts_as_full goes the same way without")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"this root may not mount: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_is_told_and_nothing_stays_behind(small_disk: Path) -> None:
    store = open_store((small_disk / "objects").as_uri())
    put(store, "fits", bytes(MIB))
    with pytest.raises(StoreFull, match="No space left"):
        put(store, "a", bytes(3 * MIB))
    assert store.sweep(soon()) == 0
    assert [entry.key for entry in store.entries()] == ["fits"]
    put(store, "b", bytes(MIB // 2))
    assert get(store, "b") == bytes(MIB // 2)


RUNS_FULL = """
import datetime, resource, sys, storage
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
store = storage.open_store(sys.argv[1])
try:
    with store.create("a") as writer:
        writer.write(bytes(2**21))
except storage.StoreFull as error:
    print("full", list(store.entries()), store.sweep(datetime.datetime.now(datetime.UTC)))
"""


def test_a_full_disk_is_told_for_a_part_and_the_others_stay(small_disk: Path) -> None:
    store = open_store((small_disk / "objects").as_uri())
    token = store.begin_parts("a")
    send_part(store, "a", token, 2, part_bytes(2, MIB // 2))
    with pytest.raises(StoreFull, match="No space left"):
        send_part(store, "a", token, 1, bytes(3 * MIB))
    assert store.parts("a", token) == [Part(2, MIB // 2)]
    store.abort_parts("a", token)
    assert_empty(store)
    put(store, "b", bytes(MIB))
    assert get(store, "b") == bytes(MIB)


def test_a_part_that_is_begun_again_is_away_until_it_came(folder: Path) -> None:
    store = open_store(folder.as_uri())
    token = store.begin_parts("a")
    send_part(store, "a", token, 1, b"whole")
    with store.write_part("a", token, 1) as writer:
        writer.write(b"ha")
        assert store.parts("a", token) == []
    assert store.parts("a", token) == []


def test_a_writer_that_was_overtaken_is_told(folder: Path) -> None:
    store = open_store(folder.as_uri())
    token = store.begin_parts("a")
    with store.write_part("a", token, 1) as slow:
        slow.write(b"slow")
        send_part(open_store(folder.as_uri()), "a", token, 1, b"quick")
        for call in (lambda: slow.write(b"er"), slow.commit):
            with pytest.raises(StoreError, match="begun again"):
                call()
    store.complete_parts("a", token)
    assert get(store, "a") == b"quick"


def test_a_completion_among_writers_keeps_one_whole_version(folder: Path) -> None:
    store = open_store(folder.as_uri())
    token = store.begin_parts("a")
    versions = [part_bytes(number, MIB) for number in (1, 2)]
    send_part(store, "a", token, 1, versions[0])

    def send_again_and_again(content: bytes) -> None:
        other = open_store(folder.as_uri())
        for _ in range(30):
            try:
                send_part(other, "a", token, 1, content)
            except ObjectMissing:
                return
            except StoreError:
                continue  # overtaken

    def completed() -> bool:
        with suppress(StoreError):
            store.complete_parts("a", token)
            return True
        return False

    with ThreadPoolExecutor(len(versions)) as threads:
        senders = [threads.submit(send_again_and_again, content) for content in versions]
        until(completed)
        kept = get(store, "a")
        for sender in senders:
            sender.result(timeout=60)
    assert kept in versions
    assert get(store, "a") == kept
    assert store.sweep(soon()) == 0


def test_parts_are_written_in_their_place_and_not_copied(folder: Path) -> None:
    store = open_store(folder.as_uri())
    token = store.begin_parts("a")
    send_part(store, "a", token, 3, part_bytes(3, 100))
    (unfinished,) = folder.glob("tmp/*/bytes")
    before = unfinished.stat()
    assert before.st_blocks * 512 < MIB < before.st_size == 2 * PART_BYTES + 100
    for number in (1, 2):
        send_part(store, "a", token, number, part_bytes(number))
    store.complete_parts("a", token)
    (kept,) = folder.glob("??/??/a")
    assert kept.stat().st_ino == before.st_ino
    assert list(folder.glob("tmp/*")) == []


ENDS_IN_A_PART = """
import os, sys, storage
writer = storage.open_store(sys.argv[1]).write_part("a", sys.argv[2], int(sys.argv[3]))
writer.write(b"only half")
os._exit(0)
"""


def test_a_process_that_ends_in_a_part_leaves_it_out(folder: Path) -> None:
    store = open_store(folder.as_uri())
    token = store.begin_parts("a")
    for number in (1, 2):
        send_part(store, "a", token, number, part_bytes(number))
    for number in ("2", "3"):
        command = [sys.executable, "-c", ENDS_IN_A_PART, folder.as_uri(), token, number]
        subprocess.run(command, cwd=FOLDER, check=True, timeout=60)
    assert store.parts("a", token) == [Part(1, PART_BYTES)]
    store.complete_parts("a", token)
    assert get(store, "a") == part_bytes(1)


def test_the_age_of_parts_is_that_of_their_latest_bytes(folder: Path) -> None:
    store = open_store(folder.as_uri())
    old, young = store.begin_parts("old"), store.begin_parts("young")
    hour_ago = (datetime.now(UTC) - timedelta(hours=1)).timestamp()
    for path in (*folder.glob("tmp/*/*"), *folder.glob("tmp/*")):
        os.utime(path, (hour_ago, hour_ago))
    send_part(store, "young", young, 1, b"x")
    assert store.sweep(datetime.now(UTC) - timedelta(minutes=30)) == 1
    assert store.parts("young", young) == [Part(1, 1)]
    with pytest.raises(ObjectMissing):
        store.parts("old", old)


def test_a_sweep_removes_what_an_interrupted_completion_left(folder: Path) -> None:
    store = open_store(folder.as_uri())
    token = store.begin_parts("a")
    send_part(store, "a", token, 1, b"x")
    (unfinished,) = folder.glob("tmp/*/bytes")
    unfinished.unlink()
    with pytest.raises(ObjectMissing):
        store.parts("a", token)
    assert store.sweep(soon()) == 1
    assert_empty(store)


def test_a_local_store_gives_no_urls(folder: Path) -> None:
    for store in (open_store(folder.as_uri()), open_store("memory:")):
        token = store.begin_parts("a")
        assert store.download_url("a", "audio/wav", "attachment", 60) is None
        assert store.part_url("a", token, 1, 60) is None


def test_a_file_size_limit_counts_as_full(folder: Path) -> None:
    command = [sys.executable, "-c", RUNS_FULL, folder.as_uri()]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("full [] 0", "")

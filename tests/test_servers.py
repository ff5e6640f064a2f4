"""The servers that tests lean on end when they should, and keep what they should."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from tests import servers

FOLDER = Path(__file__).resolve().parent.parent

BEGINS_AND_WAITS = """
import pathlib, sys
from tests import servers
with getattr(servers, sys.argv[1])(pathlib.Path(sys.argv[2])) as url:
    print(url, flush=True)
    sys.stdin.read()
"""


def wait_until_dead(processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + 20
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes):
        assert time.monotonic() < deadline, f"still running: {processes}"
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["postgres", "valkey"])
def test_a_server_dies_with_a_test_run_that_is_killed(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", BEGINS_AND_WAITS, kind, str(tmp_path)]
    with subprocess.Popen(command, cwd=FOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert "://" in run.stdout.readline()
        begun = psutil.Process(run.pid).children(recursive=True)
        assert begun
        run.kill()
        wait_until_dead(begun)


@pytest.mark.parametrize("kind", ["postgres", "valkey", "s3_rclone", "s3_moto"])
def test_a_server_ends_with_its_block(kind: str, tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    with suppress(LookupError), getattr(servers, kind)(tmp_path):
        begun = set(psutil.Process().children(recursive=True)) - before
        raise LookupError
    assert begun
    wait_until_dead(list(begun))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's databases lie in a temporary folder")
def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    left = Path(tempfile.mkdtemp(prefix=f"inclavate-postgres-{ended.pid}-", dir="/tmp"))
    with servers.postgres(tmp_path):
        assert not left.exists()


def test_valkey_has_what_it_held_after_a_new_start(tmp_path: Path) -> None:
    with servers.valkey(tmp_path) as url, redis.Redis.from_url(url) as client:
        client.set("key", "value")
    with servers.valkey(tmp_path) as url, redis.Redis.from_url(url) as client:
        assert client.get("key") == b"value"


def test_valkey_starts_in_a_folder_with_a_long_path(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    with servers.valkey(folder) as url, redis.Redis.from_url(url) as client:
        assert client.ping()


def test_two_databases_run_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with servers.postgres(tmp_path / "a") as first, servers.postgres(tmp_path / "b") as second:
        with psycopg.connect(first, autocommit=True) as session:
            session.execute("CREATE TABLE here (id int)")
        with psycopg.connect(second) as session, pytest.raises(psycopg.errors.UndefinedTable):
            session.execute("SELECT * FROM here")


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "appendonlydir").write_text("in the way")
    with pytest.raises(RuntimeError, match="valkey-server"), servers.valkey(tmp_path):
        pass

"""Breaking things: what must survive, on real processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import platforms
from tests.driving import until
from tests.platforms import Platform

SLOW = {"model": "test-tone", "modality": "audio", "params": {"text": "x" * 50, "steps": 60, "step_seconds": 0.05}}
ENDLESS = {"model": "test-tone", "modality": "audio", "params": {"text": "x" * 50, "steps": 9999, "step_seconds": 0.05}}
QUICK = {"model": "test-tone", "modality": "audio", "params": {"text": "x" * 50}}


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform of these tests' own, to break."""
    folder = tmp_path_factory.mktemp("fragile")
    with platforms.running(folder, WORKER_SLOTS="2", SPEECH_SYNC_TIMEOUT_SECONDS="0.5") as platform:
        yield platform


def until_working(platform: Platform, job_id: str) -> None:
    until(lambda: platform.job(job_id)["progress_stage"] == "generating")


def engine_of(platform: Platform, job_id: str) -> psutil.Process:
    """The engine process that works on a job: the one whose parent is the worker and that uses its work folder."""
    folder = next((platform.data_dir / "work").glob(f"*/{job_id}-*"))
    return until(lambda: next((p for p in platform.part("worker").children() if _uses(p, str(folder))), None))


def _uses(process: psutil.Process, folder: str) -> bool:
    return any(file.path.startswith(folder) for file in process.open_files())


def runs_of(platform: Platform, job_id: str) -> list[Any]:
    query = "SELECT fence, worker, cause FROM inclavate_attempt WHERE job_id = ? ORDER BY fence"
    return platform.rows(query, job_id.replace("-", ""))


def test_a_worker_killed_in_the_middle_of_a_job_has_a_successor_that_completes_it(fragile: Platform) -> None:
    job = fragile.submit(**SLOW)
    until_working(fragile, job["id"])
    first = fragile.part("worker")
    engines = first.children()
    first.kill()
    done = fragile.until_state(job["id"], "completed")
    assert (done["attempts"], len(done["output_artifacts"])) == (2, 1)
    (fence_1, worker_1, cause_1), (fence_2, worker_2, cause_2) = runs_of(fragile, job["id"])
    # `up` says at once that it is lost; on a machine so busy that the lease runs out first, the sweeper does.
    assert cause_1 in ("worker_lost", "lease_lost")
    assert (fence_1, fence_2, cause_2) == (1, 2, "completed")
    assert worker_1 != worker_2
    outputs = fragile.rows("SELECT state FROM inclavate_artifact WHERE job_id = ?", job["id"].replace("-", ""))
    assert outputs == [("ready",)]
    until(lambda: not any(engine.is_running() for engine in engines))


def test_an_engine_process_that_is_killed_fails_only_its_own_job(fragile: Platform) -> None:
    doomed = fragile.submit(**ENDLESS)
    until_working(fragile, doomed["id"])
    other = fragile.submit(**SLOW)
    until_working(fragile, other["id"])
    worker = fragile.part("worker")
    engine_of(fragile, doomed["id"]).kill()
    failed = fragile.until_state(doomed["id"], "failed")
    assert failed["error_code"] == "engine_crashed"
    assert "SIGKILL" in failed["error_message"]
    assert fragile.until_state(other["id"], "completed")["attempts"] == 1
    assert worker.is_running()
    assert fragile.until_state(fragile.submit(**QUICK)["id"], "completed")


@pytest.mark.parametrize(
    ("how", "code", "sentence"),
    [
        ("segfault", "engine_crashed", "SIGSEGV"),
        ("exit", "engine_crashed", "exit code 3"),
        ("memory", "out_of_memory", "memory"),
        ("raise", "inference_failed", "ValueError"),
        ("refuse", "unsupported_input", "refuses"),
        ("outside", "inference_failed", ""),
    ],
)
def test_an_engine_that_goes_wrong_fails_its_job_by_name(fragile: Platform, how: str, code: str, sentence: str) -> None:
    with fragile.http as http:
        clip = http.post("/v1/artifacts", content=b"fLaC words", headers={"Content-Type": "audio/flac"}).json()
    params = {"prompt": "x", "how": how}
    job = fragile.submit(model="test-crasher", modality="text", input_artifacts=[clip["id"]], params=params)
    failed = fragile.until_state(job["id"], "failed")
    assert failed["error_code"] == code
    assert sentence in failed["error_message"]
    assert "/" not in failed["error_message"]


def test_an_engine_that_makes_no_step_is_stalled(tmp_path: Path) -> None:
    with platforms.running(tmp_path, STALL_SECONDS="8") as platform, platform.http as http:
        clip = http.post("/v1/artifacts", content=b"fLaC words", headers={"Content-Type": "audio/flac"}).json()
        params = {"prompt": "x", "how": "hang"}
        job = platform.submit(model="test-crasher", modality="text", input_artifacts=[clip["id"]], params=params)
        failed = platform.until_state(job["id"], "failed")
        assert (failed["error_code"], failed["attempts"]) == ("stalled", 1)
        assert failed["error_message"] == "The engine made no step for 8 seconds."


def test_an_input_deleted_before_the_run_fails_the_job_by_name(fragile: Platform) -> None:
    with fragile.http as http:
        clip = http.post("/v1/artifacts", content=b"fLaC words", headers={"Content-Type": "audio/flac"}).json()
        blockers = [fragile.submit(**ENDLESS) for _ in range(2)]
        for job in blockers:
            until_working(fragile, job["id"])
        waiting = fragile.submit(
            model="test-echo", modality="text", input_artifacts=[clip["id"]], params={"prompt": "x"}
        )
        assert http.delete(f"/v1/artifacts/{clip['id']}").status_code == 204
        for job in blockers:
            http.delete(f"/v1/generations/{job['id']}")
    failed = fragile.until_state(waiting["id"], "failed")
    assert (failed["error_code"], failed["input_artifacts"]) == ("input_unreadable", [clip["id"]])


def test_a_valkey_that_dies_costs_no_job_and_no_watcher(fragile: Platform) -> None:
    job = fragile.submit(**SLOW)
    until_working(fragile, job["id"])
    [valkey] = [p for p in psutil.Process(fragile.up.pid).children() if "valkey" in " ".join(p.cmdline())]
    with fragile.http as http, http.stream("GET", f"/v1/generations/{job['id']}/events") as stream:
        lines = stream.iter_lines()
        next(lines)
        valkey.kill()
        while_down = fragile.submit(**QUICK)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert fragile.job(job["id"])["state"] == "completed"
    assert fragile.until_state(while_down["id"], "completed")["attempts"] == 1


def test_a_sweeper_that_dies_is_replaced(fragile: Platform) -> None:
    first = fragile.part("sweeper")
    first.kill()
    until(lambda: fragile.part("sweeper").pid != first.pid)


def test_a_wait_that_runs_out_is_a_504_with_the_job_that_goes_on(fragile: Platform) -> None:
    with fragile.http as http:
        answer = http.post("/v1/audio/speech", json={"model": "test-tone-slow", "input": "Hello."})
        job_id = answer.headers["x-dppan-job-id"]
        assert (answer.status_code, answer.headers["x-should-retry"]) == (504, "false")
        assert job_id in answer.json()["error"]["message"]
        assert fragile.job(job_id)["state"] in ("queued", "running")
        http.delete(f"/v1/generations/{job_id}")


def test_nothing_is_left_over_after_all_that(fragile: Platform) -> None:
    """No work folder, no pending row, no file without a row, no total that is off."""
    until(lambda: not any((fragile.data_dir / "work").glob("*/*")))
    assert fragile.rows("SELECT count(*) FROM inclavate_artifact WHERE state != 'ready'") == [(0,)]
    keys = {key for (key,) in fragile.rows("SELECT store_key FROM inclavate_artifact")}
    files = {path.name for path in (fragile.data_dir / "objects").rglob("*") if path.is_file()}
    assert files == keys
    counted = fragile.rows("SELECT origin, sum(size), count(*) FROM inclavate_artifact GROUP BY origin ORDER BY origin")
    kept = fragile.rows("SELECT origin, bytes, objects_count FROM inclavate_usage WHERE objects_count ORDER BY origin")
    assert kept == counted
    assert fragile.rows("SELECT sum(queued), sum(running) FROM inclavate_turn") == [(0, 0)]


def test_a_job_that_ends_within_the_drain_is_completed_before_the_stop(tmp_path: Path) -> None:
    with platforms.running(tmp_path) as platform:
        job, waiting = platform.submit(**SLOW), platform.submit(**SLOW)
        until_working(platform, job["id"])
        platform.up.send_signal(signal.SIGTERM)
        platform.up.wait(timeout=30)
        query = "SELECT state, fence FROM inclavate_job WHERE id = ?"
        assert platform.rows(query, job["id"].replace("-", "")) == [("completed", 1)]
        assert platform.rows(query, waiting["id"].replace("-", "")) == [("queued", 0)]


def test_a_graceful_stop_hands_running_jobs_back(tmp_path: Path) -> None:
    with platforms.running(tmp_path) as platform:
        job = platform.submit(**ENDLESS)
        until_working(platform, job["id"])
        platform.up.send_signal(signal.SIGTERM)
        platform.up.wait(timeout=30)
        assert platform.up.returncode == 0
        query = "SELECT state, attempts, fence, worker FROM inclavate_job"
        assert platform.rows(query) == [("queued", 0, 1, "")]
        assert [cause for _, _, cause in runs_of(platform, job["id"])] == ["handed_back"]

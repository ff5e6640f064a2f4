from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from inclavate.errors import EngineCrashed, InferenceFailed, NoGenerator
from inclavate.generators import Input
from tests.driving import PATIENCE_SECONDS, TEST_MODELS, events, is_alive, outputs, run_job, start, until
from workers.catalog import load_catalog
from workers.hosts import CancelledByRequest, Done, Failed, Hosts, Loaded, Note, Progress, Step, child_environment

ROOT = Path(__file__).resolve().parent.parent
SECRETS = {
    "INCLAVATE_ADMIN_TOKEN": "sesame",
    "DPPAN_ADMIN_TOKEN": "sesame",
    "AWS_SECRET_ACCESS_KEY": "sesame",
    "DJANGO_SETTINGS_MODULE": "inclavate.settings",
    "https_proxy": "http://user:sesame@127.0.0.1:1",
}


def new_hosts(idle_seconds: float = 3600, **environment: str) -> Hosts:
    return Hosts(load_catalog(TEST_MODELS), idle_seconds, {"PATH": os.defpath} | environment)


@pytest.fixture
def hosts():
    hosts = new_hosts()
    yield hosts
    hosts.close()


def failure(seen) -> Failed:
    assert isinstance(seen[-1], Failed), seen
    return seen[-1]


def test_a_job_loads_the_model_then_runs_and_yields_its_file(hosts, tmp_path):
    (tmp_path / "in.txt").write_text("hello")
    given = [Input(tmp_path / "in.txt", "text/plain")]
    seen = run_job(hosts, "test-upper", tmp_path / "job", {"prompt": "say "}, given)
    assert seen[:2] == [Progress("loading", 0.0), Loaded()]
    assert seen[-1] == Done()
    (produced,) = outputs(seen)
    assert (produced.path.read_text(), produced.media_type, produced.facts) == (
        "SAY HELLO",
        "text/plain",
        {"characters": 5},
    )


def test_the_next_job_of_a_model_finds_it_loaded_in_the_same_process(hosts, tmp_path):
    pids = []
    for place in range(3):
        with hosts.session("test-echo") as host:
            pids.append(host.pid)
            start(host, tmp_path / str(place), {"prompt": str(place)})
            seen = list(events(host))
        assert (Loaded() in seen) is (place == 0)
        assert outputs(seen)[0].path.read_text() == str(place)
    assert len(set(pids)) == 1


def test_two_models_run_side_by_side(hosts, tmp_path):
    with hosts.session("test-tone") as tone, hosts.session("test-echo") as echo:
        start(tone, tmp_path / "tone", {"text": "a" * 50, "steps": 1000, "step_seconds": 1})
        start(echo, tmp_path / "echo", {"prompt": "quick"})
        assert list(events(echo))[-1] == Done()
        assert is_alive(tone.pid)
        assert tone.pid != echo.pid
        tone.cancel()
        assert list(events(tone))[-1] == CancelledByRequest()


def test_two_sessions_of_one_model_have_a_process_each(hosts):
    with hosts.session("test-echo") as one, hosts.session("test-echo") as other:
        assert one.pid != other.pid


def test_many_threads_share_the_processes_without_mixing_their_jobs(hosts, tmp_path):
    answers: dict[int, str] = {}

    def work(place: int) -> None:
        seen = run_job(hosts, "test-echo", tmp_path / str(place), {"prompt": str(place)})
        answers[place] = outputs(seen)[0].path.read_text()

    threads = [threading.Thread(target=work, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {place: str(place) for place in range(8)}


def test_a_large_text_arrives_whole(hosts, tmp_path):
    text = "ü" * 1_000_000
    seen = run_job(hosts, "test-echo", tmp_path / "job", {"prompt": text})
    assert outputs(seen)[0].path.read_text() == text


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("segfault", "The engine process ended with signal SIGSEGV (11)."),
        ("killed", "The engine process was killed (signal SIGKILL, 9), often for want of memory."),
        ("exit", "The engine process ended with exit code 3."),
    ],
)
def test_a_process_that_dies_fails_its_job_with_how_it_died(hosts, tmp_path, how, sentence):
    with hosts.session("test-crasher") as host:
        start(host, tmp_path / "job", {"how": how})
        assert failure(list(events(host))) == Failed("engine_crashed", sentence)
        assert not host.is_reusable
    assert run_job(hosts, "test-crasher", tmp_path / "next", {})[-1] == Done()


def test_a_process_killed_from_outside_takes_only_its_own_job(hosts, tmp_path):
    with hosts.session("test-tone") as victim, hosts.session("test-echo") as other:
        start(victim, tmp_path / "victim", {"text": "abc", "steps": 100, "step_seconds": 1})
        start(other, tmp_path / "other", {"prompt": "x", "steps": 3, "step_seconds": 0.1})
        until(lambda: victim.poll(0.25) == Loaded())
        os.kill(victim.pid, signal.SIGKILL)
        assert failure(list(events(victim))).code == "engine_crashed"
        assert list(events(other))[-1] == Done()


@pytest.mark.parametrize(
    ("how", "code", "sentence"),
    [
        ("raise", "inference_failed", "The engine failed: ValueError: cannot open (a path) at (a path)"),
        ("memory", "out_of_memory", "There was not enough memory for this job."),
        ("refuse", "unsupported_input", "params.how asks for what this engine refuses."),
        ("outside", "inference_failed", "The engine named an output that is not in its work folder."),
        ("link", "inference_failed", "The engine named an output that is not in its work folder."),
        ("nothing", "inference_failed", "The engine named an output that is not in its work folder."),
        ("growing_outside", "inference_failed", "The engine named an output that is not in its work folder."),
        ("growing_gone", "unsupported_input", "params.how asks for what this engine refuses."),
    ],
)
def test_what_an_engine_raises_becomes_a_code_and_a_sentence_without_paths(hosts, tmp_path, how, code, sentence):
    (tmp_path / "outside.txt").write_text("not the engine's")
    assert failure(run_job(hosts, "test-crasher", tmp_path / "job", {"how": how})) == Failed(code, sentence)


def test_facts_that_no_database_takes_fail_the_job(hosts, tmp_path):
    seen = run_job(hosts, "test-crasher", tmp_path / "job", {"how": "nan"})
    assert failure(seen).code == "inference_failed"
    assert outputs(seen) == []


@pytest.mark.parametrize(
    ("how", "stays"),
    [("refuse", True), ("growing_gone", True), ("growing_outside", False), ("raise", False), ("memory", False)],
)
def test_only_an_engine_that_refused_on_purpose_is_used_again(hosts, tmp_path, how, stays):
    with hosts.session("test-crasher") as host:
        start(host, tmp_path / "job", {"how": how})
        failure(list(events(host)))
    with hosts.session("test-crasher") as second:
        assert (second.pid == host.pid) is stays
    assert is_alive(host.pid) is stays


def test_a_model_that_cannot_load_fails_the_job_and_its_process_ends(hosts, tmp_path):
    with hosts.session("test-broken") as host:
        start(host, tmp_path / "job", {})
        assert failure(list(events(host))) == Failed(
            "inference_failed", "The engine failed: ValueError: no weights in (a path)"
        )
    assert not is_alive(host.pid)


def test_a_model_that_refuses_to_load_is_tried_anew_by_the_next_job(hosts, tmp_path):
    seen = [failure(run_job(hosts, "test-refusing", tmp_path / str(place), {})) for place in range(2)]
    assert seen == [Failed("unsupported_input", "These weights are of another kind.")] * 2


def test_a_cancel_stops_the_job_at_its_next_check_and_the_process_works_on(hosts, tmp_path):
    with hosts.session("test-tone") as host:
        start(host, tmp_path / "first", {"text": "abc", "steps": 1000, "step_seconds": 0.1})
        until(lambda: isinstance(event := host.poll(0.25), Progress) and event.stage == "generating")
        host.cancel()
        seen = list(events(host))
        assert seen[-1] == CancelledByRequest()
        assert outputs(seen) == []
        assert list((tmp_path / "first").iterdir()) == []
        start(host, tmp_path / "second", {"text": "abc"})
        assert list(events(host))[-1] == Done()


def test_a_cancel_that_comes_too_late_does_not_touch_the_next_job(hosts, tmp_path):
    with hosts.session("test-echo") as host:
        start(host, tmp_path / "first", {"prompt": "x"})
        assert list(events(host))[-1] == Done()
        host.cancel()
        start(host, tmp_path / "second", {"prompt": "x"})
        assert list(events(host))[-1] == Done()


def test_a_model_that_still_loads_can_be_cancelled_by_killing(hosts, tmp_path):
    with hosts.session("test-tone-slow-load") as host:
        start(host, tmp_path / "job", {"text": "abc"})
        assert until(lambda: host.poll(0.25)) == Progress("loading", 0.0)
        host.kill()
        assert failure(list(events(host))).code == "engine_crashed"
    assert not is_alive(host.pid)


def test_an_engine_that_hangs_makes_no_step_and_dies_when_killed(hosts, tmp_path):
    with hosts.session("test-crasher") as host:
        start(host, tmp_path / "job", {"how": "hang"})
        until(lambda: host.poll(0.25) == Progress("understanding", 0.0))
        host.cancel()
        assert host.poll(1.0) is None
        host.kill()
        assert failure(list(events(host))) == Failed("engine_crashed", "The engine process was ended by its worker.")
    assert not is_alive(host.pid)


def test_an_engine_that_will_not_stop_says_no_step_after_the_cancel(hosts, tmp_path):
    with hosts.session("test-crasher") as host:
        start(host, tmp_path / "job", {"how": "deaf"})
        until(lambda: host.poll(0.25) == Step())
        until(lambda: host.poll(1.0) == Step())
        host.cancel()
        until(lambda: host.poll(0.6) is None)
    assert not is_alive(host.pid)


def test_killing_ends_what_the_engine_started_too(hosts, tmp_path):
    with hosts.session("test-crasher") as host:
        start(host, tmp_path / "job", {"how": "orphan"})
        seen = next(event for event in events(host) if isinstance(event, Note))
        assert is_alive(int(seen.text))
        host.kill()
    until(lambda: not is_alive(int(seen.text)))


def test_leaving_a_session_in_the_middle_of_a_job_ends_the_process(hosts, tmp_path):
    with hosts.session("test-tone") as host:
        start(host, tmp_path / "job", {"text": "abc", "steps": 1000, "step_seconds": 1})
    assert not is_alive(host.pid)


def test_an_engine_that_starts_while_its_worker_stops_does_its_job(hosts, tmp_path):
    # As Celery does meanwhile.
    socket.setdefaulttimeout(5.0)
    try:
        seen = run_job(hosts, "test-tone", tmp_path / "job", {"text": "abc", "steps": 5, "step_seconds": 0.1})
    finally:
        socket.setdefaulttimeout(None)
    assert seen[-1] == Done()


def test_a_host_runs_one_job_at_a_time(hosts, tmp_path):
    with hosts.session("test-echo") as host:
        start(host, tmp_path / "first", {"steps": 100, "step_seconds": 1})
        with pytest.raises(RuntimeError):
            start(host, tmp_path / "second", {})


def test_a_process_that_died_while_idle_is_replaced_unnoticed(hosts, tmp_path):
    with hosts.session("test-echo") as host:
        start(host, tmp_path / "first", {})
        list(events(host))
    os.kill(host.pid, signal.SIGKILL)
    # Its main thread is a zombie before its other threads are gone, and only then can its end be seen.
    until(lambda: not host.is_reusable)
    assert run_job(hosts, "test-echo", tmp_path / "second", {})[-1] == Done()
    hosts.reap_idle()
    until(lambda: not psutil.pid_exists(host.pid))


def test_an_idle_model_is_unloaded_after_its_time_and_not_before(tmp_path):
    hosts = new_hosts(idle_seconds=1.0)
    with hosts.session("test-echo") as host:
        start(host, tmp_path / "job", {})
        list(events(host))
        released = time.monotonic()
    hosts.reap_idle()
    assert is_alive(host.pid) or time.monotonic() - released > 1.0

    def is_reaped() -> bool:
        hosts.reap_idle()
        return not psutil.pid_exists(host.pid)

    until(is_reaped)
    assert time.monotonic() - released >= 1.0
    hosts.close()


def test_progress_never_goes_back_and_stays_within_0_and_1(hosts, tmp_path):
    seen = run_job(hosts, "test-crasher", tmp_path / "job", {"how": "backwards"})
    fractions = [event.fraction for event in seen if isinstance(event, Progress) and event.stage == "understanding"]
    assert fractions[:5] == [0.0, 0.5, 0.5, 1.0, None]


def test_what_an_engine_prints_does_not_disturb_its_reports(hosts, tmp_path, capfd):
    seen = run_job(hosts, "test-crasher", tmp_path / "job", {"how": "print"})
    assert Note("This engine printed something.") in seen
    assert seen[-1] == Done()
    said = capfd.readouterr()
    assert "engines print" in said.err
    assert said.out == ""


def test_no_secret_reaches_an_engine(tmp_path):
    hosts = new_hosts(**SECRETS, LANG="C.UTF-8", OMP_NUM_THREADS="2")
    seen = run_job(hosts, "test-crasher", tmp_path / "job", {"how": "environment"})
    hosts.close()
    environment = json.loads(outputs(seen)[0].path.read_text())
    assert not set(SECRETS) & set(environment)
    assert "sesame" not in json.dumps(environment)
    assert environment["OMP_NUM_THREADS"] == "2"
    assert environment["HF_HUB_OFFLINE"] == "1"


def test_the_environment_of_a_child_cannot_be_talked_into_downloading():
    assert child_environment({"HF_HUB_OFFLINE": "0"})["HF_HUB_OFFLINE"] == "1"


def test_an_engine_process_imports_neither_django_nor_celery(hosts, tmp_path):
    seen = run_job(hosts, "test-crasher", tmp_path / "job", {"how": "modules"})
    modules = json.loads(outputs(seen)[0].path.read_text())
    assert "workers.child" in modules or "__main__" in modules
    assert not {"django", "celery", "kombu", "redis"} & set(modules)


def test_the_end_of_the_worker_ends_its_engines_and_what_they_started(tmp_path):
    code = """if True:
        import sys, time
        from pathlib import Path
        from tests.driving import PATIENCE_SECONDS, TEST_MODELS, events, start
        from workers.catalog import load_catalog
        from workers.hosts import Hosts, Note
        hosts = Hosts(load_catalog(TEST_MODELS), 3600, {})
        with hosts.session("test-crasher") as host:
            start(host, Path(sys.argv[1]), {"how": "orphan"})
            note = next(event for event in events(host) if isinstance(event, Note))
            print(host.pid, note.text, flush=True)
            time.sleep(600)
    """
    worker = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "job")], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with worker:
        assert worker.stdout is not None
        pids = [int(word) for word in worker.stdout.readline().split()]
        assert len(pids) == 2
        assert all(is_alive(pid) for pid in pids)
        worker.kill()
    until(lambda: not any(is_alive(pid) for pid in pids))


def engine_processes() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "workers.child" in child.cmdline()]


def test_closing_ends_idle_busy_and_stubborn_processes_and_begins_none(tmp_path):
    hosts = new_hosts()
    run_job(hosts, "test-echo", tmp_path / "idle", {})
    run_job(hosts, "test-stubborn", tmp_path / "stubborn", {})
    with hosts.session("test-crasher") as busy:
        start(busy, tmp_path / "busy", {"how": "hang"})
        until(lambda: busy.poll(0.25) == Progress("understanding", 0.0))
        children = engine_processes()
        assert len(children) >= 3
        started = time.monotonic()
        hosts.close()
        assert time.monotonic() - started < PATIENCE_SECONDS
        assert not any(is_alive(child.pid) for child in children)
        with pytest.raises(InferenceFailed), hosts.session("test-echo"):
            pass
        assert failure(list(events(busy))).code == "engine_crashed"


def test_a_model_that_the_worker_does_not_have_is_refused(hosts):
    with pytest.raises(NoGenerator, match="no-such-model"), hosts.session("no-such-model"):
        pass


def test_a_process_that_cannot_be_started_says_so(hosts, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(EngineCrashed, match="could not be started"), hosts.session("test-echo"):
        pass


@contextmanager
def memory_limit(pid: int, limit_bytes: int) -> Iterator[None]:
    """A process in a memory cgroup of its own; the test is skipped where none can be made."""
    is_v1 = Path("/sys/fs/cgroup/memory").is_dir()
    group = Path("/sys/fs/cgroup") / ("memory" if is_v1 else ".") / f"inclavate-test-{pid}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(limit_bytes))
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        pytest.skip(f"a memory limit needs root and a memory cgroup to write to: {error}")
    yield
    until(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


def test_an_engine_is_told_not_to_phone_home(hosts: Hosts, tmp_path: Path) -> None:
    with hosts.session("test-crasher") as host:
        start(host, tmp_path / "work", {"how": "environment"})
        (path, *_) = outputs(list(events(host)))
    told = json.loads(path.path.read_text())
    assert (told["ORT_DISABLE_TELEMETRY"], told["HF_HUB_OFFLINE"], told["DO_NOT_TRACK"]) == ("1", "1", "1")


def test_an_engine_that_the_system_kills_for_want_of_memory_fails_by_that_name(hosts: Hosts, tmp_path: Path) -> None:
    with hosts.session("test-crasher") as host, memory_limit(host.pid, 200 * 2**20):
        start(host, tmp_path / "work", {"how": "hog"})
        last = list(events(host))[-1]
    assert last == Failed("out_of_memory", "The system killed the engine process for want of memory.")

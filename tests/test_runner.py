"""A worker's runs, in this process: what only the order of two threads can show."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection

from inclavate import database, fleet, jobs
from inclavate.models import Job, Owner, State
from tests.driving import TEST_MODELS, engines_of, until
from workers.catalog import load_catalog
from workers.hosts import Hosts
from workers.runner import Runner

pytestmark = [pytest.mark.database, pytest.mark.usefixtures("database")]


def answering(runner: Runner, queue: str) -> threading.Thread:
    """One of the worker's slots answers a ring."""

    def answer() -> None:
        runner.answer(queue)
        connection.close()

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """1 MiB at the folder."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can mount a small disk, and not in every container")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_worker_without_room_for_a_job_takes_none_and_loses_none(alice: Owner, tmp_path: Path) -> None:
    catalog = load_catalog(TEST_MODELS)
    tone = catalog.models["test-tone"].capability()
    fleet.register("w1", 1, [tone])
    engines = Hosts(catalog, 3600, {"PATH": os.defpath})
    runner = Runner("w1", engines, tmp_path / "disk" / "work")
    jobs.submit(alice, jobs.Submission(model="test-tone", modality="audio", params={"text": "x"}))
    try:
        with small_disk(tmp_path / "disk"):
            runner.answer(tone.queue)
            waiting = Job.objects.get()
            assert (waiting.state, waiting.fence) == (State.QUEUED, 0)
        runner.answer(tone.queue)
        assert Job.objects.get().state == State.COMPLETED
    finally:
        engines.close()


def test_the_end_of_a_lost_run_does_not_cost_the_next_run_of_its_job_the_lease(alice: Owner, tmp_path: Path) -> None:
    """A worker that slept past its lease may take its own job again in another slot."""
    catalog = load_catalog(TEST_MODELS)
    tone = catalog.models["test-tone"].capability()
    fleet.register("w1", 2, [tone])
    engines = Hosts(catalog, 3600, {"PATH": os.defpath})
    runner = Runner("w1", engines, tmp_path)
    params = {"text": "x", "steps": 10_000, "step_seconds": 0.05}
    job, _ = jobs.submit(alice, jobs.Submission(model="test-tone", modality="audio", params=params))
    try:
        lost = answering(runner, tone.queue)
        until(lambda: Job.objects.filter(state=State.RUNNING, fence=1).exists())
        assert jobs.sweep(at=database.now() + timedelta(hours=1)).released == 1
        second = answering(runner, tone.queue)
        until(lambda: Job.objects.filter(state=State.RUNNING, fence=2).exists())
        until(lambda: not lost.is_alive())
        soon = database.now() + timedelta(seconds=1)
        Job.objects.update(lease_until=soon)
        runner.beat()
        assert Job.objects.get().lease_until > soon
        jobs.cancel(alice, job.pk)
        until(lambda: not second.is_alive())
        assert Job.objects.get().state == State.CANCELLED
    finally:
        engines.close()


def test_a_worker_that_ends_before_its_slot_hands_the_job_back(alice: Owner, tmp_path: Path) -> None:
    """Celery does not wait for its slots where it stops while the bell is away."""
    catalog = load_catalog(TEST_MODELS)
    tone = catalog.models["test-tone"].capability()
    fleet.register("w1", 1, [tone])
    runner = Runner("w1", Hosts(catalog, 3600, {"PATH": os.defpath}), tmp_path / "work")
    params = {"text": "x", "steps": 9999, "step_seconds": 0.05}
    jobs.submit(alice, jobs.Submission(model="test-tone", modality="audio", params=params))
    slot = answering(runner, tone.queue)
    until(lambda: Job.objects.get().stage == "generating")
    runner.close()
    slot.join(timeout=30)
    job = Job.objects.get()
    assert (job.state, job.attempts, job.fence) == (State.QUEUED, 0, 1)
    assert [run.cause for run in job.runs.all()] == ["handed_back"]


def test_a_job_whose_engine_died_before_it_heard_of_it_runs_on_another(alice: Owner, tmp_path: Path) -> None:
    catalog = load_catalog(TEST_MODELS)
    tone = catalog.models["test-tone"].capability()
    fleet.register("w1", 1, [tone])
    engines = Hosts(catalog, 3600, {"PATH": os.defpath})
    runner = Runner("w1", engines, tmp_path / "work")
    jobs.submit(alice, jobs.Submission(model="test-tone", modality="audio", params={"text": "x"}))
    try:
        runner.answer(tone.queue)
        [engine] = engines_of(os.getpid())
        engine.suspend()
        second, _ = jobs.submit(alice, jobs.Submission(model="test-tone", modality="audio", params={"text": "y"}))
        slot = answering(runner, tone.queue)
        until(lambda: Job.objects.get(pk=second.pk).stage == "loading")
        engine.kill()
        slot.join()
        second.refresh_from_db()
        assert (second.state, second.attempts) == (State.COMPLETED, 1)
        assert [run.cause for run in second.runs.all()] == ["completed"]
    finally:
        engines.close()

"""The chaos run in short, and that it finds what it is there to find."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inclavate import database
from inclavate.models import Artifact, Attempt, Job, Owner, State, Turn, Usage
from tests import chaos
from tests.chaos_checks import Checks

ROOT = Path(__file__).parent.parent


@pytest.mark.timeout(600)
def test_sixty_jobs_come_through_everything_that_can_break() -> None:
    command = [sys.executable, "-m", "tests.chaos", "--seed", "20", "--jobs", "60", "--seconds", "15"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "jobs: 60," in done.stdout
    assert all(f"{kind}: 1" in done.stdout for kind in chaos.KINDS if kind != "fill disk")
    assert "--seed 20 --jobs 60 --seconds 15 replays it" in done.stdout


def test_a_seed_replays_its_schedule_and_another_has_another() -> None:
    assert chaos.schedule(1, 150) == chaos.schedule(1, 150) != chaos.schedule(2, 150)
    assert chaos.wishes(1, 50, 10) == chaos.wishes(1, 50, 10) != chaos.wishes(2, 50, 10)


def test_a_schedule_has_every_kind_of_fault_equally_often() -> None:
    kinds = [fault.kind for fault in chaos.schedule(1, 150)]
    assert {kinds.count(kind) for kind in chaos.KINDS} == {7}
    assert set(kinds) == set(chaos.KINDS)


# -- the checks themselves: a world that is right, and one that is wrong in one place ----------------------------------


@pytest.fixture
def world(alice: Owner) -> list[Checks]:
    """One completed job, as a run leaves it."""
    [wish] = chaos.wishes(1, 1, 1)
    now = database.now()
    key = wish.body["idempotency_key"]
    job = Job.objects.create(
        owner=alice,
        model="test-tone",
        queue="q",
        state=State.COMPLETED,
        idempotency_key=key,
        created_at=now,
        started_at=now,
        completed_at=now,
        deadline_at=now,
        attempts=1,
        fence=1,
    )
    Attempt.objects.create(job=job, fence=1, worker="w", started_at=now, ended_at=now, cause="completed")
    Turn.objects.create(owner=alice, queue="q")
    Usage.objects.create(owner=alice, origin="generated", bytes=3, objects_count=1)
    made = Artifact.objects.create(
        owner=alice, origin="generated", state="ready", size=3, digest="d", job=job, created_at=now, store_key="k"
    )
    Job.objects.update(output_artifacts=[str(made.pk)])
    ends = {str(job.pk): ("completed", None, str(made.pk))}
    return [
        Checks(
            wanted=[wish],
            keys=["key"],
            accepted={key: str(job.pk)},
            ends=ends,
            bounds={"engine_crashed": 0, "of a full disk": 0},
        )
    ]


def found_in(checks: Checks) -> list[str]:
    return list(checks.of_rows())


def test_a_world_that_is_right_has_no_fault(world: list[Checks]) -> None:
    assert found_in(world[0]) == []


def _twice(job: Job) -> None:
    made = job.artifacts.get()
    made.pk = None
    made.store_key = "another"
    made.id = job.pk
    made.save(force_insert=True)
    Usage.objects.update(bytes=6, objects_count=2)


WRONG: dict[str, tuple[Callable[[Job], Any], str]] = {
    "a job is still queued": (
        lambda job: Job.objects.update(state="queued", started_at=None, completed_at=None),
        "nothing moves",
    ),
    "a job ended otherwise than was told": (
        lambda job: Job.objects.update(state="cancelled", output_artifacts=[]),
        "had been told",
    ),
    "a job failed for no fault of ours": (
        lambda job: Job.objects.update(state="failed", error_code="internal"),
        "failed internal",
    ),
    "an engine crashed that nobody killed": (
        lambda job: Job.objects.update(state="failed", error_code="engine_crashed"),
        "1 jobs failed engine_crashed, where 0 could",
    ),
    "a job failed for want of a disk that was not full": (
        lambda job: Job.objects.update(state="failed", error_code="input_unreadable"),
        "1 jobs failed of a full disk, where 0 could",
    ),
    "a job is gone": (lambda job: job.delete(), "does not exist"),
    "a job is there twice": (
        lambda job: Job.objects.create(
            owner=job.owner, created_at=job.created_at, deadline_at=job.created_at, queue="q", model="m"
        ),
        "1 accepted, 2 exist",
    ),
    "a run has no end": (lambda job: Attempt.objects.update(ended_at=None), "has no end"),
    "two runs completed": (
        lambda job: Attempt.objects.create(job=job, fence=2, worker="w", started_at=job.created_at, cause="completed"),
        "its runs ended",
    ),
    "an output was published twice": (_twice, "has 2 outputs"),
    "an output is not ready": (lambda job: Artifact.objects.update(state="pending"), "is pending"),
    "a total is off": (lambda job: Usage.objects.update(bytes=4), "kept (4, 1)"),
    "a reservation is left": (lambda job: Usage.objects.update(reserved_objects=1), "1 objects reserved"),
    "a turn is off": (lambda job: Turn.objects.update(running=1), "kept (0, 1)"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_the_checks_find_that(wrong: str, world: list[Checks]) -> None:
    spoil, sentence = WRONG[wrong]
    spoil(Job.objects.get())
    found = found_in(world[0])
    assert any(sentence in fault for fault in found), found


def test_an_output_that_is_not_what_was_asked_for_is_found() -> None:
    from tests.chaos_checks import is_as_wished

    [wish] = [wish for wish in chaos.wishes(1, 50, 10) if wish.clip is not None][:1]
    prompt = wish.body["params"]["prompt"].encode()
    assert is_as_wished(wish, prompt + (wish.clip or b""))
    assert not is_as_wished(wish, prompt)
    spoken = replace(wish, clip=None, body=wish.body | {"params": {"text": "x"}})
    assert not is_as_wished(spoken, b"RIFF")

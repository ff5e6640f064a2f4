"""Any order of verbs, by any number of workers, leads where the design says: a model of a job's life runs beside."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from django.conf import settings
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from inclavate import artifacts, database, errors, fleet, jobs
from inclavate.generators import SPEECH, Capability
from inclavate.models import TERMINAL, Artifact, Attempt, Job, Owner, Turn, Usage, Worker

pytestmark = [pytest.mark.database, pytest.mark.usefixtures("database")]

MODEL = Capability("test-life", "audio", SPEECH, formats=("wav",))
WORKERS = st.sampled_from(["w1", "w2", "w3"])


@dataclass
class Expected:
    """What the design says of one job."""

    state: str = "queued"
    fence: int = 0
    attempts: int = 0
    is_cancel_requested: bool = False
    outputs: int = 0
    causes: list[str] = field(default_factory=list)

    def end(self, state: str, cause: str) -> None:
        if self.state == "running":
            self.causes.append(cause)
        self.state = state

    def lose(self, cause: str) -> None:
        self.causes.append(cause)
        if self.is_cancel_requested:
            self.state = "cancelled"
        else:
            self.state = "queued" if self.attempts < 3 else "failed"


class JobLife(RuleBasedStateMachine):
    submitted = Bundle("submitted")
    claims = Bundle("claims")

    @initialize()
    def begin(self) -> None:
        for model in (Job, Artifact, Usage, Turn, Worker, Owner):
            model.objects.all().delete()
        fleet.register("w1", 1, [MODEL])
        self.owners = [Owner.objects.create(name=name, max_running_jobs=0) for name in ("alice", "bob")]
        self.expected: dict[object, Expected] = {}
        self.owner_of: dict[object, Owner] = {}

    @rule(target=submitted, owner=st.integers(0, 1), key=st.sampled_from([None, "a", "b"]))
    def submit(self, owner: int, key: str | None) -> object:
        request = jobs.Submission(MODEL.model, "audio", {"text": "hello"}, idempotency_key=key)
        job, is_new = jobs.submit(self.owners[owner], request)
        assert is_new == (job.pk not in self.expected)
        self.expected.setdefault(job.pk, Expected())
        self.owner_of[job.pk] = self.owners[owner]
        return job.pk

    @rule(target=claims, worker=WORKERS)
    def claim(self, worker: str) -> object:
        claim = jobs.claim(MODEL.queue, worker)
        waiting = [pk for pk, job in self.expected.items() if job.state == "queued"]
        if claim is None:
            assert waiting == []
            return multiple()
        assert claim.job.pk in waiting
        job = self.expected[claim.job.pk]
        job.state, job.fence, job.attempts = "running", job.fence + 1, job.attempts + 1
        assert claim.fence == job.fence
        return claim

    def _holds(self, claim: jobs.Claim) -> bool:
        job = self.expected[claim.job.pk]
        return job.state == "running" and job.fence == claim.fence

    @rule(claim=claims)
    def report(self, claim: jobs.Claim) -> None:
        before = jobs.get(self.owner_of[claim.job.pk], claim.job.pk)
        jobs.report(claim, "generating", 0.5)
        after = jobs.get(self.owner_of[claim.job.pk], claim.job.pk)
        assert after.revision - before.revision == self._holds(claim)

    @rule(claim=claims)
    def complete(self, claim: jobs.Claim) -> None:
        draft = artifacts.begin(claim.job.owner, Artifact.Origin.GENERATED, "audio/wav", job=claim.job)
        draft.write(b"sound")
        draft.store()
        holds = self._holds(claim)
        assert jobs.complete(claim, [draft]) == holds
        if holds:
            self.expected[claim.job.pk].end("completed", "completed")
            self.expected[claim.job.pk].outputs = 1
        else:
            draft.abandon()

    @rule(claim=claims)
    def fail(self, claim: jobs.Claim) -> None:
        holds = self._holds(claim)
        assert jobs.fail(claim, "inference_failed", "It went wrong.") == holds
        if holds:
            self.expected[claim.job.pk].end("failed", "inference_failed")

    @rule(claim=claims)
    def settle_cancel(self, claim: jobs.Claim) -> None:
        holds = self._holds(claim)
        assert jobs.settle_cancel(claim) == holds
        if holds:
            self.expected[claim.job.pk].end("cancelled", "cancelled")

    @rule(claim=claims)
    def hand_back(self, claim: jobs.Claim) -> None:
        holds = self._holds(claim)
        assert jobs.hand_back(claim) == holds
        if holds:
            job = self.expected[claim.job.pk]
            job.causes.append("handed_back")
            job.state = "cancelled" if job.is_cancel_requested else "queued"
            job.attempts -= not job.is_cancel_requested

    @rule(job_id=submitted)
    def cancel(self, job_id: object) -> None:
        job = self.expected[job_id]
        owner = self.owner_of[job_id]
        if job.state in TERMINAL:
            with pytest.raises(errors.AlreadyFinished):
                jobs.cancel(owner, job_id)
            return
        jobs.cancel(owner, job_id)
        if job.state == "queued":
            job.state = "cancelled"
        job.is_cancel_requested = job.is_cancel_requested or job.state == "running"

    @rule(job_id=submitted)
    def a_stranger_cancels(self, job_id: object) -> None:
        stranger = next(owner for owner in self.owners if owner != self.owner_of[job_id])
        with pytest.raises(errors.NotFound):
            jobs.cancel(stranger, job_id)

    @rule(worker=WORKERS)
    def a_worker_dies(self, worker: str) -> None:
        held = list(Job.objects.filter(worker=worker, state="running").values_list("pk", flat=True))
        assert jobs.release_worker(worker) == len(held)
        for pk in held:
            self.expected[pk].lose("worker_lost")

    @rule(job_id=submitted)
    def a_lease_runs_out(self, job_id: object) -> None:
        past = database.now() - timedelta(seconds=1)
        if Job.objects.filter(pk=job_id, state="running").update(lease_until=past):
            assert jobs.sweep().released == 1
            self.expected[job_id].lose("lease_lost")

    @rule(job_id=submitted)
    def a_deadline_passes(self, job_id: object) -> None:
        job = self.expected[job_id]
        at = database.now()
        Job.objects.filter(pk=job_id).update(deadline_at=at)
        assert jobs.sweep(at).expired == (job.state not in TERMINAL)
        if job.state not in TERMINAL:
            job.end("expired", "expired")

    @rule()
    def nothing_is_swept_before_its_time(self) -> None:
        swept = jobs.sweep(database.now() - timedelta(seconds=settings.LEASE_SECONDS))
        assert (swept.released, swept.expired) == (0, 0)

    @invariant()
    def every_row_is_as_the_design_says(self) -> None:
        for job in Job.objects.all():
            expected = self.expected[job.pk]
            assert (job.state, job.fence, job.attempts) == (expected.state, expected.fence, expected.attempts)
            assert len(job.output_artifacts) == expected.outputs
            runs = list(Attempt.objects.filter(job=job).exclude(ended_at=None).order_by("fence"))
            assert [run.cause for run in runs] == expected.causes

    @invariant()
    def no_count_is_off(self) -> None:
        assert jobs.mismatches() == []
        assert artifacts.usage_mismatches() == []
        assert not Usage.objects.exclude(reserved_bytes=0, reserved_objects=0).exists()
        assert not Artifact.objects.filter(state="pending").exists()


def test_any_order_of_verbs_keeps_every_promise(database: None) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        JobLife,
        settings=hypothesis_settings(
            max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )

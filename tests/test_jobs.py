"""The verbs of a job, on SQLite and on PostgreSQL."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.test import override_settings

from inclavate import artifacts, database, errors, fleet, jobs
from inclavate.generators import SPEECH, TRANSCRIBE, Capability
from inclavate.jobs import Order, Submission
from inclavate.models import Artifact, Attempt, Job, Owner, State

pytestmark = [pytest.mark.database, pytest.mark.usefixtures("database")]

SPEAKER = Capability(
    "test-speaker", "audio", SPEECH, builtin_voices=("joe",), limits={"max_characters": 50}, formats=("wav",)
)
LISTENER = Capability("test-listener", "text", TRANSCRIBE, input_modalities=("audio",), media_types=("audio/flac",))


@pytest.fixture(autouse=True)
def offered(database: None) -> None:
    fleet.register("w1", 1, [SPEAKER, LISTENER])


@pytest.fixture
def unlimited(alice: Owner, bob: Owner) -> None:
    for owner in (alice, bob):
        owner.max_running_jobs = 0
        owner.save()


def asked(**changes: Any) -> Submission:
    fields: dict[str, Any] = {"model": "test-speaker", "modality": "audio", "params": {"text": "Hello."}}
    return Submission(**fields | changes)


def submitted(owner: Owner, **changes: Any) -> Job:
    return jobs.submit(owner, asked(**changes))[0]


def claimed(owner: Owner, worker: str = "w1", **changes: Any) -> jobs.Claim:
    submitted(owner, **changes)
    claim = jobs.claim(SPEAKER.queue, worker)
    assert claim is not None
    return claim


def draft(job: Job, content: bytes = b"sound") -> artifacts.Draft:
    made = artifacts.begin(job.owner, Artifact.Origin.GENERATED, "audio/wav", job=job)
    made.write(content)
    made.store()
    return made


def uploaded(owner: Owner, content: bytes = b"fLaC, more or less", **more: Any) -> Artifact:
    made = artifacts.begin(owner, Artifact.Origin.UPLOADED, "audio/flac", **more)
    made.write(content)
    return made.finish()


def in_threads(count: int, action: Any) -> list[Any]:
    barrier = threading.Barrier(count)

    def run(number: int) -> Any:
        barrier.wait()
        try:
            return action(number)
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))


# -- submitting --------------------------------------------------------------------------------------------------------


def test_a_submitted_job_is_queued_with_its_deadline(alice: Owner) -> None:
    job = submitted(alice, deadline_seconds=60)
    assert (job.state, job.deadline_at - job.created_at) == (State.QUEUED, timedelta(seconds=60))


def test_same_key_returns_the_first_job(alice: Owner) -> None:
    first, was_new = jobs.submit(alice, asked(idempotency_key="k"))
    again, is_new = jobs.submit(alice, asked(idempotency_key="k"))
    assert (first.pk, was_new, is_new) == (again.pk, True, False)


def test_same_key_with_another_request_is_a_mismatch(alice: Owner) -> None:
    submitted(alice, idempotency_key="k")
    with pytest.raises(errors.IdempotencyMismatch, match="belongs to another request"):
        submitted(alice, idempotency_key="k", params={"text": "Bye."})


def test_nulls_and_number_spelling_do_not_change_a_request() -> None:
    plain = asked(params={"text": "a", "speed": 1})
    assert plain.digest == asked(params={"text": "a", "speed": 1.0, "voice": None}).digest
    assert plain.digest != asked(params={"text": "a", "speed": 1.5}).digest


def test_two_owners_may_use_the_same_key(alice: Owner, bob: Owner) -> None:
    assert submitted(alice, idempotency_key="k").pk != submitted(bob, idempotency_key="k").pk


def test_fifty_threads_with_the_same_key_make_one_job(alice: Owner) -> None:
    answers = in_threads(50, lambda _: jobs.submit(alice, asked(idempotency_key="one")))
    assert {job.pk for job, _ in answers} == {Job.objects.get().pk}
    assert sum(is_new for _, is_new in answers) == 1


def test_racing_requests_with_one_key_all_get_the_job_that_fills_the_queue(alice: Owner) -> None:
    alice.max_queued_jobs = 1
    alice.save()
    answers = in_threads(20, lambda _: jobs.submit(alice, asked(idempotency_key="one")))
    assert {job.pk for job, _ in answers} == {Job.objects.get().pk}


def test_fifty_threads_with_five_keys_make_five_jobs(alice: Owner) -> None:
    answers = in_threads(50, lambda n: jobs.submit(alice, asked(idempotency_key=f"key {n % 5}")))
    assert len({job.pk for job, _ in answers}) == Job.objects.count() == 5
    assert jobs.mismatches() == []


def test_a_full_queue_refuses_but_still_answers_the_first_jobs_key(alice: Owner) -> None:
    alice.max_queued_jobs = 1
    alice.save()
    first = submitted(alice, idempotency_key="k")
    with pytest.raises(errors.QueueFull, match="1 jobs of yours are queued, and the limit is 1"):
        submitted(alice)
    assert submitted(alice, idempotency_key="k").pk == first.pk


def test_a_replay_is_answered_when_nobody_offers_the_model_any_more(alice: Owner) -> None:
    first = submitted(alice, idempotency_key="k")
    fleet.register("w1", 1, [])
    assert submitted(alice, idempotency_key="k").pk == first.pk


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({}, "text: It is required"),
        ({"text": " \n"}, "text: It must be text, and not blank"),
        ({"text": 5}, "text: It must be a string, not 5"),
        ({"text": "x" * 51}, "text: It may have at most 50 characters; 51 came"),
        ({"text": "a", "voice": "ann"}, "voice: 'ann' is no voice of test-speaker; it has joe"),
        ({"text": "a", "response_format": "mp3"}, "response_format: 'mp3' is not one of wav"),
        ({"text": "a", "normalize": 1}, "normalize: It must be true or false, not 1"),
        ({"text": "a", "max_duration_seconds": 0}, "max_duration_seconds: It must be between 0.1 and 86400.0, not 0"),
        ({"text": "a", "reference_text": "b"}, "reference_text: test-speaker takes no reference text"),
    ],
)
def test_a_refused_request_names_the_field_and_leaves_nothing(alice: Owner, params: Any, sentence: str) -> None:
    with pytest.raises(errors.InvalidRequest, match=sentence):
        submitted(alice, params=params, idempotency_key="k")
    assert not Job.objects.exists()
    assert submitted(alice, idempotency_key="k").state == State.QUEUED


def test_unknown_params_are_ignored(alice: Owner) -> None:
    assert submitted(alice, params={"text": "a", "mood": "glad"}).params["mood"] == "glad"


def test_an_unknown_model_names_those_that_there_are(alice: Owner) -> None:
    with pytest.raises(errors.NoGenerator, match="there are: test-speaker"):
        submitted(alice, model="nobody")


def test_a_clip_for_a_model_that_takes_none_is_refused(alice: Owner) -> None:
    with pytest.raises(errors.SpeakerUnsupported):
        submitted(alice, input_artifacts=[uploaded(alice).pk])


def test_an_input_must_exist_and_be_ones_own(alice: Owner, bob: Owner) -> None:
    for missing in (uuid.uuid4(), uploaded(bob).pk):
        with pytest.raises(errors.NotFound, match=f"input_artifacts: There is no artifact {missing}"):
            submitted(alice, model="test-listener", modality="text", params={}, input_artifacts=[missing])


def test_an_input_of_another_kind_is_refused(alice: Owner) -> None:
    text = uploaded(alice, b"just words")
    with pytest.raises(errors.InvalidRequest, match="cannot read"):
        submitted(alice, model="test-listener", modality="text", params={}, input_artifacts=[text.pk])


def test_understanding_needs_an_input(alice: Owner) -> None:
    with pytest.raises(errors.NoInput):
        submitted(alice, model="test-listener", modality="text", params={})


def test_a_seed_that_the_model_does_not_honour_is_noted(alice: Owner) -> None:
    assert submitted(alice, seed=7).notes == ["test-speaker has no seed; the one given was ignored."]


# -- claiming ----------------------------------------------------------------------------------------------------------


def test_a_claim_starts_the_run_and_puts_it_on_record(alice: Owner) -> None:
    claim = claimed(alice)
    job = Job.objects.get()
    assert (job.state, job.worker, job.fence, job.attempts) == (State.RUNNING, "w1", 1, 1)
    assert Attempt.objects.get().fence == claim.fence
    assert jobs.claim(SPEAKER.queue, "w2") is None


def test_higher_priority_goes_first_then_the_older(alice: Owner, unlimited: None) -> None:
    plain, later, urgent = submitted(alice), submitted(alice), submitted(alice, priority=5)
    order = [jobs.claim(SPEAKER.queue, "w1") for _ in range(3)]
    assert [claim and claim.job.pk for claim in order] == [urgent.pk, plain.pk, later.pk]


def test_owners_take_turns(alice: Owner, bob: Owner) -> None:
    for _ in range(20):
        submitted(alice)
    mine = submitted(bob)
    first_two = [jobs.claim(SPEAKER.queue, "w1") for _ in range(2)]
    assert mine.pk in {claim.job.pk for claim in first_two if claim}


def test_an_owner_at_the_running_limit_waits(alice: Owner, bob: Owner) -> None:
    alice.max_running_jobs = 1
    alice.save()
    claimed(alice)
    submitted(alice)
    assert jobs.claim(SPEAKER.queue, "w1") is None
    submitted(bob)
    assert jobs.claim(SPEAKER.queue, "w1") is not None


def test_many_workers_never_claim_the_same_job(alice: Owner, bob: Owner, unlimited: None) -> None:
    for owner in (alice, bob) * 10:
        submitted(owner)
    claims = in_threads(8, lambda n: [jobs.claim(SPEAKER.queue, f"w{n}") for _ in range(5)])
    taken = [claim.job.pk for part in claims for claim in part if claim]
    assert len(taken) == len(set(taken)) == 20
    assert jobs.mismatches() == []


def test_many_workers_together_keep_an_owners_running_limit(alice: Owner) -> None:
    alice.max_running_jobs = 3
    alice.save()
    for _ in range(10):
        submitted(alice)
    claims = in_threads(8, lambda n: jobs.claim(SPEAKER.queue, f"w{n}"))
    assert sum(claim is not None for claim in claims) == Job.objects.filter(state=State.RUNNING).count() == 3


# -- ending ------------------------------------------------------------------------------------------------------------


def test_completing_publishes_the_outputs_with_the_state(alice: Owner) -> None:
    claim = claimed(alice)
    output = draft(claim.job)
    assert Artifact.objects.get().state == "pending"
    assert jobs.complete(claim, [output])
    job = jobs.get(alice, claim.job.pk)
    assert (job.state, job.output_artifacts) == (State.COMPLETED, [str(output.artifact.pk)])
    assert b"".join(artifacts.read(artifacts.get(alice, output.artifact.pk))) == b"sound"
    assert Attempt.objects.get().cause == "completed"
    assert artifacts.usage_mismatches() == []


def test_a_worker_back_from_the_dead_changes_nothing(alice: Owner) -> None:
    late = claimed(alice)
    jobs.release_worker("w1")
    current = jobs.claim(SPEAKER.queue, "w2")
    assert current is not None
    late_output = draft(late.job)
    jobs.report(late, "generating", 0.9)
    assert jobs.order(late) is Order.LET_GO
    assert not jobs.complete(late, [late_output])
    assert not jobs.fail(late, "inference_failed", "late")
    assert not jobs.settle_cancel(late)
    assert not jobs.hand_back(late)
    late_output.abandon()
    job = jobs.get(alice, late.job.pk)
    assert (job.state, job.worker, job.stage) == (State.RUNNING, "w2", None)
    assert jobs.complete(current, [draft(job, b"right")])
    assert [b"".join(artifacts.read(a)) for a in Artifact.objects.all()] == [b"right"]
    assert [run.cause for run in Attempt.objects.order_by("fence")] == ["worker_lost", "completed"]


def test_a_job_runs_at_most_three_times(alice: Owner) -> None:
    submitted(alice)
    for _ in range(3):
        assert jobs.claim(SPEAKER.queue, "w1")
        assert jobs.release_worker("w1") == 1
    job = Job.objects.get()
    assert (job.state, job.error_code, job.attempts) == (State.FAILED, "attempts_exhausted", 3)
    assert jobs.claim(SPEAKER.queue, "w1") is None


def test_a_run_handed_back_does_not_count(alice: Owner) -> None:
    submitted(alice)
    for _ in range(5):
        claim = jobs.claim(SPEAKER.queue, "w1")
        assert claim is not None
        assert jobs.hand_back(claim)
    job = Job.objects.get()
    assert (job.state, job.attempts, job.fence) == (State.QUEUED, 0, 5)


def test_a_lease_that_ran_out_is_released_by_the_sweeper(alice: Owner) -> None:
    claim = claimed(alice)
    assert jobs.sweep().released == 0
    after_the_lease = database.now() + timedelta(seconds=settings.LEASE_SECONDS + 1)
    assert jobs.sweep(after_the_lease).released == 1
    assert jobs.get(alice, claim.job.pk).state == State.QUEUED


def test_a_heartbeat_keeps_what_is_in_hand_and_nothing_else(alice: Owner) -> None:
    kept, dropped = claimed(alice), claimed(alice)
    Job.objects.update(lease_until=database.now())
    jobs.heartbeat("w1", [kept.job.pk])
    assert jobs.sweep(database.now()).released == 1
    assert jobs.get(alice, kept.job.pk).state == State.RUNNING
    assert jobs.get(alice, dropped.job.pk).state == State.QUEUED


@pytest.mark.parametrize("is_running", [False, True])
def test_a_deadline_ends_a_job_whether_it_waits_or_runs(alice: Owner, is_running: bool) -> None:
    job = claimed(alice, deadline_seconds=60).job if is_running else submitted(alice, deadline_seconds=60)
    assert jobs.sweep(database.now() + timedelta(seconds=30)).expired == 0
    jobs.sweep(database.now() + timedelta(seconds=61))
    job = jobs.get(alice, job.pk)
    assert job.state == State.EXPIRED
    assert jobs.mismatches() == []


def test_a_worker_meets_the_deadline_of_its_own_job(alice: Owner) -> None:
    claim = claimed(alice)
    Job.objects.update(deadline_at=database.now())
    assert jobs.order(claim) is Order.LET_GO
    assert jobs.get(alice, claim.job.pk).state == State.EXPIRED


# -- cancelling --------------------------------------------------------------------------------------------------------


def test_a_queued_job_is_cancelled_at_once(alice: Owner) -> None:
    job = submitted(alice)
    assert jobs.cancel(alice, job.pk).state == State.CANCELLED
    with pytest.raises(errors.AlreadyFinished, match="already cancelled"):
        jobs.cancel(alice, job.pk)
    assert jobs.claim(SPEAKER.queue, "w1") is None


def test_a_running_job_is_asked_to_stop(alice: Owner) -> None:
    claim = claimed(alice)
    assert jobs.order(claim) is Order.GO_ON
    for _ in range(2):
        assert jobs.cancel(alice, claim.job.pk).cancel_requested
    assert jobs.order(claim) is Order.CANCEL
    assert jobs.settle_cancel(claim)
    assert jobs.get(alice, claim.job.pk).state == State.CANCELLED


def test_a_cancel_that_loses_to_the_finish_leaves_it_completed(alice: Owner) -> None:
    claim = claimed(alice)
    jobs.cancel(alice, claim.job.pk)
    assert jobs.complete(claim, [draft(claim.job)])
    assert not jobs.settle_cancel(claim)
    assert jobs.get(alice, claim.job.pk).state == State.COMPLETED


def test_a_lease_extended_after_the_sweepers_look_keeps_its_run(alice: Owner) -> None:
    claim = claimed(alice)
    at = database.now() + timedelta(hours=1)
    (seen,) = Job.objects.filter(lease_until__lt=at)
    # The heartbeat comes between the look and the write.
    Job.objects.update(lease_until=at + timedelta(seconds=1))
    assert not jobs._lose(seen, "lease_lost", lease_before=at)
    assert jobs.complete(claim, [draft(claim.job)])
    assert list(Attempt.objects.values_list("cause", flat=True)) == ["completed"]


def test_no_more_than_the_limit_are_queued_however_many_ask_at_once(alice: Owner) -> None:
    alice.max_queued_jobs = 5
    alice.save()
    begun = threading.Barrier(16)

    def ask(_: int) -> bool:
        begun.wait(60)
        try:
            submitted(alice)
        except errors.QueueFull:
            return False
        finally:
            connection.close()
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(ask, range(16))) == 5
    assert jobs.counts(alice)["queued"] == 5


@pytest.mark.parametrize("key", ["7", "-1", "a.b", "__class", "k-x", "0"])
def test_jobs_are_found_by_any_key_of_their_metadata(alice: Owner, key: str) -> None:
    wanted = submitted(alice, metadata={key: "x"})
    submitted(alice, metadata={key: "y"})
    submitted(alice, metadata={"other": "x"})
    for value, found in (("x", [wanted]), ("none", [])):
        assert jobs.page(alice, limit=9, only=jobs.Filter(metadata={key: value})).rows == found
    assert jobs.page(alice, limit=9, only=jobs.Filter(metadata={'no"key': "x"})).rows == []


def test_a_lost_run_that_was_to_be_cancelled_does_not_run_again(alice: Owner) -> None:
    claim = claimed(alice)
    jobs.cancel(alice, claim.job.pk)
    jobs.release_worker("w1")
    assert jobs.get(alice, claim.job.pk).state == State.CANCELLED


def test_cancels_and_finishes_at_the_same_instant_settle_once(alice: Owner) -> None:
    for _ in range(10):
        claim = claimed(alice)
        made = draft(claim.job)

        def race(number: int, claim: jobs.Claim = claim, made: artifacts.Draft = made) -> bool:
            if number == 0:
                return jobs.complete(claim, [made])
            if number == 1:
                return jobs.settle_cancel(claim)
            return jobs.fail(claim, "inference_failed", "raced")

        assert sum(in_threads(3, race)) == 1
        made.abandon()
    assert jobs.mismatches() == artifacts.usage_mismatches() == []


def test_a_strangers_job_is_not_found(alice: Owner, bob: Owner) -> None:
    job = submitted(alice)
    for verb in (jobs.get, jobs.cancel):
        with pytest.raises(errors.NotFound, match=f"There is no job {job.pk}"):
            verb(bob, job.pk)
    assert jobs.page(bob, limit=10).rows == []


# -- listing, inputs ---------------------------------------------------------------------------------------------------


def test_pages_by_offset_and_by_id_see_each_job_once(alice: Owner) -> None:
    for _ in range(7):
        submitted(alice)
    Job.objects.update(created_at=database.now())
    whole = [job.pk for job in jobs.page(alice, limit=10).rows]
    by_offset = [job.pk for start in (0, 3, 6) for job in jobs.page(alice, limit=3, offset=start).rows]
    second = jobs.page(alice, limit=3, after=whole[2])
    assert by_offset == whole
    assert [job.pk for job in second.rows] == whole[3:6]
    assert second.truncated
    assert not jobs.page(alice, limit=3, after=whole[5]).truncated


def test_filters_narrow_a_page_and_all_of_them_must_hold(alice: Owner) -> None:
    plain = submitted(alice)
    tagged = submitted(alice, metadata={"project": "a", "it's": "b%"})
    both = submitted(
        alice,
        metadata={"project": "a", "it's": "c"},
        model="test-listener",
        modality="text",
        params={},
        input_artifacts=[uploaded(alice).pk],
    )
    jobs.cancel(alice, plain.pk)

    def found(**asked: Any) -> list[Any]:
        return [job.pk for job in jobs.page(alice, limit=10, only=jobs.Filter(**asked)).rows]

    assert found(state="cancelled") == [plain.pk]
    assert found(metadata={"project": "a"}) == [both.pk, tagged.pk]
    assert found(metadata={"project": "a", "it's": "b%"}) == [tagged.pk]
    assert found(metadata={"project": "a"}, model="test-listener") == [both.pk]
    assert found(modality="text", state="queued") == [both.pk]
    assert found(since=both.created_at) == [both.pk]
    assert found(metadata={"nothing": "a"}) == []


def test_only_an_ended_job_is_erased_and_its_outputs_as_asked(alice: Owner) -> None:
    claim = claimed(alice)
    with pytest.raises(errors.Conflict, match="is running; cancel it first"):
        jobs.erase(claim.job.pk)
    jobs.complete(claim, [draft(claim.job)])
    kept = claimed(alice)
    jobs.complete(kept, [draft(kept.job)])
    assert jobs.erase(claim.job.pk) == 1
    assert jobs.erase(kept.job.pk, with_artifacts=False) == 0
    assert not Job.objects.exists()
    assert [artifact.job for artifact in Artifact.objects.all()] == [None]
    with pytest.raises(errors.NotFound):
        jobs.erase(kept.job.pk)
    assert jobs.mismatches() == artifacts.usage_mismatches() == []


def test_records_are_kept_for_ever_unless_a_time_is_set_and_their_outputs_always(alice: Owner) -> None:
    claim = claimed(alice)
    jobs.complete(claim, [draft(claim.job)])
    waiting = submitted(alice)
    later = database.now() + timedelta(hours=3)
    assert jobs.sweep_old(later) == 0
    with override_settings(JOB_TTL_HOURS=2.0):
        assert jobs.sweep_old(later - timedelta(hours=2)) == 0
        assert jobs.sweep_old(later) == 1
    assert Job.objects.get() == waiting
    assert Artifact.objects.count() == 1


def test_a_requests_own_upload_goes_with_the_jobs_end(alice: Owner) -> None:
    clip = uploaded(alice, is_transient=True)
    job = submitted(alice, model="test-listener", modality="text", params={}, clip=clip)
    claim = jobs.claim(LISTENER.queue, "w1")
    assert claim is not None
    assert jobs.complete(claim, [])
    assert not Artifact.objects.exists()
    assert jobs.get(alice, job.pk).input_artifacts == [str(clip.pk)]


def test_deleting_an_input_leaves_its_job(alice: Owner) -> None:
    clip = uploaded(alice)
    job = submitted(alice, model="test-listener", modality="text", params={}, input_artifacts=[clip.pk])
    artifacts.delete(alice, clip.pk)
    assert jobs.get(alice, job.pk).inputs.get().artifact is None


def test_the_same_clip_under_a_new_id_is_the_same_request(alice: Owner) -> None:
    listen = {"model": "test-listener", "modality": "text", "params": {}, "idempotency_key": "k"}
    first = submitted(alice, clip=uploaded(alice, is_transient=True), **listen)
    assert submitted(alice, clip=uploaded(alice, is_transient=True), **listen).pk == first.pk


def test_a_recording_may_be_of_five_gibibytes_and_not_a_byte_more(alice: Owner) -> None:
    clip = uploaded(alice)
    listen = {"model": LISTENER.model, "modality": "text", "params": {}, "input_artifacts": [clip.pk]}
    for size, is_taken in ((5 * 2**30, True), (5 * 2**30 + 1, False)):
        # No test writes five gibibytes: the row says how many there are.
        Artifact.objects.filter(pk=clip.pk).update(size=size)
        if is_taken:
            assert submitted(alice, **listen).state == State.QUEUED
        else:
            with pytest.raises(errors.InputTooLarge, match=r"5,368,709,121 bytes; the limit is 5,368,709,120\."):
                submitted(alice, **listen)

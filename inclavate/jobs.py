"""The life of a job: the only writer of `Job.state`.

    submit     (none) -> queued       claim    queued -> running          complete  running -> completed
    release    running -> queued      fail     running -> failed          cancel    queued | running -> cancelled
    expire     queued | running -> expired

Every transition is a compare-and-set on the row, and every write of a worker says which run it speaks for
(`Claim.fence`): a worker back from the dead changes nothing. The bus and the bell are told after the commit.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from django.conf import settings
from django.db import IntegrityError
from django.db.models import F, Func, OuterRef, Q, QuerySet, Subquery, Sum, TextField, Value
from django.db.models.functions import Coalesce

from inclavate import artifacts, database, errors, fleet, progress, queue, voices, webhooks
from inclavate.generators import DOCUMENTS, SPEECH, TRANSCRIBE, Capability, Check
from inclavate.models import TERMINAL, Artifact, Attempt, Job, JobInput, Owner, State, Turn

MAX_INPUTS = 64
# What a listing shows of a string; a text may have a million characters, and a page a thousand jobs.
LISTED_CHARACTERS = 2_000
# Short transactions: nobody waits long behind one.
_ERASED_AT_ONCE = 200
# The last stage of every job: the outputs go to the store.
PUBLISHING = "publishing"


# -- submitting ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Submission:
    """A validated request, before defaults. `clip` is an upload that came with the request itself."""

    model: str
    modality: str
    params: Mapping[str, Any]
    seed: int | None = None
    input_artifacts: Sequence[uuid.UUID] = ()
    deadline_seconds: int | None = None
    priority: int | None = None
    idempotency_key: str | None = None
    webhook_url: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    task: str | None = None
    clip: Artifact | None = None
    name_of: Callable[[str], str] = str

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON of what was asked; a clip counts by its bytes, its id is new each time."""
        inputs = [str(i) for i in self.input_artifacts] + ([f"sha256:{self.clip.digest}"] if self.clip else [])
        asked = {
            "model": self.model,
            "modality": self.modality,
            "params": self.params,
            "seed": self.seed,
            "inputs": inputs,
            "deadline_seconds": self.deadline_seconds,
            "priority": self.priority,
            "webhook_url": self.webhook_url,
        }
        canonical = json.dumps(_canonical(asked), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _canonical(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_canonical(v) for v in value]
    # 1.0 and 1 are the same JSON number.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def submit(owner: Owner, submission: Submission) -> tuple[Job, bool]:
    """The job, and whether this request made it; the same key and request return the first job.

    Raises `IdempotencyMismatch`, `NoGenerator`, `InvalidRequest`, `NotFound`, `NotReady`, `QueueFull`.
    """
    if (first := _replayed(owner, submission)) is not None:
        return first, False
    if submission.webhook_url is not None:
        webhooks.check(submission.webhook_url)
    capability = fleet.find(submission.model, submission.modality, submission.task)
    accepted = _check(owner, submission, capability)
    try:
        job = _insert(owner, submission, capability, accepted)
    except (IntegrityError, errors.QueueFull):
        # Another request with the same key may have committed between our look and our insert, or our count.
        if (first := _replayed(owner, submission)) is None:
            raise
        return first, False
    queue.ring(job.queue)
    return job, True


def _replayed(owner: Owner, submission: Submission) -> Job | None:
    if submission.idempotency_key is None:
        return None
    job = Job.objects.filter(owner=owner, idempotency_key=submission.idempotency_key).first()
    if job is not None and job.request_digest != submission.digest:
        raise errors.IdempotencyMismatch(
            f"The idempotency key {submission.idempotency_key!r} belongs to another request, job {job.pk}.",
            param="idempotency_key",
        )
    return job


@dataclass(frozen=True, slots=True)
class _Accepted:
    """A submission that passed: what the engine gets of it. A saved voice has become its clip."""

    params: Mapping[str, Any]
    inputs: Sequence[Artifact]
    notes: Sequence[str]


def _check(owner: Owner, submission: Submission, capability: Capability) -> _Accepted:
    speaker = voices.speaker(owner, submission.params, capability)
    clip = [submission.clip] if submission.clip else []
    documents = artifacts.count_documents(owner, submission.input_artifacts) if capability.documents else 0
    count = len(submission.input_artifacts) + len(clip) - documents
    if speaker.voice is not None:
        _check_only_voice(submission, count)
        count += 1
    if capability.documents and submission.params.get("text") is None:
        # Whoever sends no text wants these read: what they are counts before what is missing.
        for artifact_id in submission.input_artifacts:
            _check_media_type(_input(owner, artifact_id, capability), capability)
    Check(capability, speaker.params, count, submission.name_of, documents, speaker.offered).run()
    inputs = [_input(owner, artifact_id, capability) for artifact_id in submission.input_artifacts] + clip
    if speaker.voice is not None:
        inputs.insert(0, voices.clip(speaker.voice))
    for artifact in inputs:
        _check_media_type(artifact, capability)
        if capability.task == SPEECH and artifacts.content_type(artifact) not in capability.documents:
            voices.check_given(artifact, submission.name_of("speaker_artifact"))
    return _Accepted(speaker.params, inputs, [*_notes(submission, capability), *speaker.notes])


def _check_only_voice(submission: Submission, clips: int) -> None:
    if clips:
        name = submission.name_of("voice")
        raise errors.InvalidRequest(f"{name}: it is a saved voice, and a clip came as well; send one.", param=name)


def _input(owner: Owner, artifact_id: uuid.UUID, capability: Capability) -> Artifact:
    try:
        artifact = artifacts.get(owner, artifact_id)
    except errors.NotFound as error:
        raise errors.NotFound(f"input_artifacts: {error.message}", param="input_artifacts") from None
    if artifact.state != Artifact.State.READY:
        raise errors.NotReady(f"input_artifacts: artifact {artifact_id} is {artifact.state}.", param="input_artifacts")
    # A recording is read from a file in small pieces; other models take an input whole.
    limit = settings.MAX_PARTED_UPLOAD_BYTES if capability.task == TRANSCRIBE else settings.MAX_CLIP_BYTES
    if artifact.size > limit:
        raise errors.InputTooLarge(
            f"input_artifacts: {artifact_id} has {artifact.size:,} bytes; the limit is {limit:,}.",
            param="input_artifacts",
        )
    return artifact


def _check_media_type(artifact: Artifact, capability: Capability) -> None:
    content_type = artifacts.content_type(artifact)
    readable = capability.media_types
    takes_any = not readable
    if capability.documents and content_type not in DOCUMENTS:
        # Of a model that reads documents aloud, they say which; what clips it takes, the others do.
        readable = tuple(kind for kind in readable if kind not in DOCUMENTS)
        takes_any = capability.accepts_speaker and not readable
    if not takes_any and content_type not in readable:
        raise errors.InvalidRequest(
            f"{capability.model} cannot read {content_type or 'what artifact ' + str(artifact.pk) + ' is'}; "
            f"it reads {', '.join(capability.media_types)}.",
            param="input_artifacts",
        )


def _insert(owner: Owner, submission: Submission, capability: Capability, accepted: _Accepted) -> Job:
    deadline = settings.JOB_DEADLINE_SECONDS if submission.deadline_seconds is None else submission.deadline_seconds
    with database.write() as now:
        _check_limits(owner)
        job = Job.objects.create(
            owner=owner,
            modality=capability.modality,
            model=capability.model,
            queue=capability.queue,
            params=dict(accepted.params),
            seed=submission.seed,
            priority=submission.priority or 0,
            input_artifacts=[str(artifact.pk) for artifact in accepted.inputs],
            notes=list(accepted.notes),
            created_at=now,
            deadline_at=now + timedelta(seconds=deadline),
            metadata=dict(submission.metadata),
            webhook_url=submission.webhook_url,
            request_digest=submission.digest,
            idempotency_key=submission.idempotency_key,
        )
        JobInput.objects.bulk_create(
            JobInput(job=job, position=position, artifact=artifact) for position, artifact in enumerate(accepted.inputs)
        )
        _turn(job, queued=+1)
    return job


def _notes(submission: Submission, capability: Capability) -> list[str]:
    if submission.seed is not None and not capability.honours_seed:
        return [f"{capability.model} has no seed; the one given was ignored."]
    return []


def _check_limits(owner: Owner) -> None:
    # Counted with the owner's row locked: else requests at one moment all see the last free place.
    Owner.objects.select_for_update(no_key=True).get(pk=owner.pk)
    mine = settings.MAX_QUEUED_JOBS_PER_OWNER if owner.max_queued_jobs is None else owner.max_queued_jobs
    queued = Turn.objects.aggregate(in_all=Sum("queued"), mine=Sum("queued", filter=Q(owner=owner)))
    for waiting, limit, whose in (
        (queued["in_all"] or 0, settings.MAX_QUEUED_JOBS, "in all"),
        (queued["mine"] or 0, mine, "of yours"),
    ):
        if waiting >= limit:
            raise errors.QueueFull(f"{waiting:,} jobs {whose} are queued, and the limit is {limit:,}.", retry_after=10)


# -- reading ---------------------------------------------------------------------------------------------------------


def get(owner: Owner, job_id: uuid.UUID) -> Job:
    """Raises `NotFound`, the same for another owner's."""
    job = Job.objects.filter(pk=job_id, owner=owner).first()
    if job is None:
        raise errors.NotFound(f"There is no job {job_id}.")
    return job


def latest(job_id: uuid.UUID) -> Job | None:
    """The row, for a watcher whose right was checked when it came; None once it was deleted."""
    return Job.objects.filter(pk=job_id).first()


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs of a list; what is None is not asked for. Every `metadata` pair must be there."""

    state: str | None = None
    model: str | None = None
    modality: str | None = None
    since: datetime | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def apply(self, rows: QuerySet[Job]) -> QuerySet[Job]:
        asked = {"state": self.state, "model": self.model, "modality": self.modality, "created_at__gte": self.since}
        rows = rows.filter(**{name: value for name, value in asked.items() if value is not None})
        for key, value in self.metadata.items():
            rows = rows.alias(kept=_MetadataText(key)).filter(kept=value)
        return rows


class _MetadataText(Func):
    """The text under a key. Django's own transform takes a key of digits for a place in a list."""

    output_field = TextField()

    def __init__(self, key: str) -> None:
        super().__init__(F("metadata"), Value(key), template="(%(expressions)s)", arg_joiner=" ->> ")

    def as_sqlite(self, compiler: Any, connection: Any, **more: Any) -> Any:
        column, key = self.get_source_expressions()
        path = Value(f'$."{key.value}"')
        return Func(column, path, function="JSON_EXTRACT", output_field=TextField()).as_sql(compiler, connection)


def page(
    owner: Owner, *, limit: int, offset: int = 0, after: uuid.UUID | None = None, only: Filter | None = None
) -> artifacts.Page[Job]:
    """An owner's jobs, newest first, strings of `params` cut to one more than `LISTED_CHARACTERS`.

    Raises `NotFound` where `after` is no job of theirs.
    """
    rows = (only or Filter()).apply(Job.objects.filter(owner=owner))
    return artifacts.paginate(rows, get(owner, after) if after else None, limit, offset, _shorten)


def _shorten(job: Job) -> Job:
    job.params = {k: v[: LISTED_CHARACTERS + 1] if isinstance(v, str) else v for k, v in job.params.items()}
    return job


def output(job: Job, position: int) -> uuid.UUID:
    """The id of a completed job's output of that number, from 0, whether or not its bytes still exist."""
    return uuid.UUID(job.output_artifacts[position])


def counts(owner: Owner) -> dict[str, int]:
    """How many of an owner's jobs wait and run."""
    totals = Turn.objects.filter(owner=owner).aggregate(queued=Sum("queued"), running=Sum("running"))
    return {name: total or 0 for name, total in totals.items()}


# -- a worker's verbs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """One run of a job, held by one worker."""

    job: Job
    fence: int


class Order(Enum):
    """What the holder of a claim is to do."""

    GO_ON = "go on"
    CANCEL = "cancel"
    LET_GO = "let go"  # the run is no longer ours: expired, or given to another


def claim(queue_name: str, worker: str) -> Claim | None:
    """Take the next job of a queue, or None. Fair: the owner with the fewest running, then the longest waiting."""
    for turn in _turns(queue_name):
        job = _claim_for(turn, worker)
        if job is not None:
            progress.bus.publish(job.pk, {"revision": job.revision})
            return Claim(job, job.fence)
    return None


def _turns(queue_name: str) -> Iterator[Turn]:
    """Whose turn it is, of those who wait on this queue and may run one more."""
    totals = Turn.objects.filter(owner=OuterRef("owner")).values("owner").annotate(total=Sum("running"))
    turns = Turn.objects.filter(queue=queue_name, queued__gt=0).annotate(
        total_running=Subquery(totals.values("total")),
        limit=Coalesce("owner__max_running_jobs", Value(settings.MAX_RUNNING_JOBS_PER_OWNER)),
    )
    may_run = turns.filter(Q(limit=0) | Q(total_running__lt=F("limit")))
    return may_run.order_by("total_running", F("last_claimed_at").asc(nulls_first=True), "pk").iterator()


def _claim_for(turn: Turn, worker: str) -> Job | None:
    with database.write() as now:
        if _is_at_running_limit(turn):
            return None
        job = _next_job(turn)
        return job and _start(job, worker, now)


def _is_at_running_limit(turn: Turn) -> bool:
    """Counted again with the owner's row locked: two workers must not both take the last place."""
    limit: int = turn.limit  # type: ignore[attr-defined]
    if not limit:
        return False
    Owner.objects.select_for_update(no_key=True).get(pk=turn.owner_id)
    running = Turn.objects.filter(owner=turn.owner_id).aggregate(n=Sum("running"))["n"]
    return bool(running >= limit)


def _next_job(turn: Turn) -> Job | None:
    waiting = Job.objects.filter(queue=turn.queue, owner=turn.owner_id, state=State.QUEUED)
    return waiting.order_by("-priority", "created_at", "id").select_for_update(skip_locked=True).first()


def _start(job: Job, worker: str, now: datetime) -> Job | None:
    started = _move(
        job,
        State.QUEUED,
        State.RUNNING,
        fence=F("fence") + 1,
        attempts=F("attempts") + 1,
        worker=worker,
        started_at=now,
        lease_until=now + timedelta(seconds=settings.LEASE_SECONDS),
        stage=None,
        fraction=None,
    )
    if started is not None:
        Turn.objects.filter(queue=job.queue, owner=job.owner_id).update(last_claimed_at=now)
        Attempt.objects.create(job=started, fence=started.fence, worker=worker, started_at=now)
    return started


def heartbeat(worker: str, in_hand: Sequence[uuid.UUID]) -> None:
    """Extend the leases of what this worker has in hand."""
    with database.write() as now:
        lease = now + timedelta(seconds=settings.LEASE_SECONDS)
        Job.objects.filter(pk__in=in_hand, worker=worker, state=State.RUNNING).update(lease_until=lease)


def report(claim: Claim, stage: str, fraction: float | None) -> None:
    """Progress, to the row and the bus together; nothing where the run is no longer ours."""
    with database.write():
        held = _held(claim)
        if not held.update(stage=stage, fraction=fraction, revision=F("revision") + 1):
            return
        revision = held.values_list("revision", flat=True).get()
    progress.bus.publish(claim.job.pk, {"revision": revision, "stage": stage, "fraction": fraction})


def note(claim: Claim, text: str) -> None:
    """Add a sentence for the user to the job's notes."""
    with database.write():
        job = _held(claim).first()
        if job is not None and text not in job.notes:
            _held(claim).update(notes=[*job.notes, text], revision=F("revision") + 1)


def order(claim: Claim) -> Order:
    """What the row says of this run, read twice a second. A deadline that has passed ends the job here."""
    job = _held(claim).only("cancel_requested", "deadline_at").first()
    if job is None:
        return Order.LET_GO
    if job.deadline_at <= database.now():
        expire(claim.job.pk)
        return Order.LET_GO
    return Order.CANCEL if job.cancel_requested else Order.GO_ON


def complete(claim: Claim, drafts: Sequence[artifacts.Draft]) -> bool:
    """running -> completed, and the outputs (whose bytes are stored) become ready with it; False if no longer ours."""
    with database.write() as now:
        job = _move(
            claim.job,
            State.RUNNING,
            State.COMPLETED,
            claim=claim,
            cause="completed",
            completed_at=now,
            stage=PUBLISHING,
            fraction=1.0,
            output_artifacts=[str(draft.artifact.pk) for draft in drafts],
        )
        if job is not None:
            sealed = [draft.seal() for draft in drafts]
    if job is not None:
        for artifact in sealed:
            artifacts.ring_inspection(artifact)
    return _ended(job)


def fail(claim: Claim, code: str, message: str) -> bool:
    """running -> failed; False if no longer ours."""
    with database.write() as now:
        job = _fail(claim.job, now, code, message, claim=claim)
    return _ended(job)


def settle_cancel(claim: Claim) -> bool:
    """running -> cancelled, once the engine has stopped; False if no longer ours."""
    with database.write() as now:
        job = _move(claim.job, State.RUNNING, State.CANCELLED, claim=claim, cause="cancelled", completed_at=now)
    return _ended(job)


def hand_back(claim: Claim) -> bool:
    """running -> queued by a worker that drains: not a lost run, so it does not count as one."""
    with database.write() as now:
        job = _requeue(claim.job, now, "handed_back", claim=claim, attempts=F("attempts") - 1)
    return _requeued(job)


# -- anybody's verbs -------------------------------------------------------------------------------------------------


def cancel(owner: Owner, job_id: uuid.UUID) -> Job:
    """Cancel a queued job at once; ask a running one to stop. Raises `NotFound`, `AlreadyFinished`."""
    job = get(owner, job_id)
    with database.write() as now:
        ended = _move(job, State.QUEUED, State.CANCELLED, completed_at=now)
        if ended is None:
            running = Job.objects.filter(pk=job.pk, state=State.RUNNING)
            running.filter(cancel_requested=False).update(cancel_requested=True, revision=F("revision") + 1)
    if ended is not None:
        _ended(ended)
        return ended
    job.refresh_from_db()
    if job.is_terminal:
        raise errors.AlreadyFinished(f"Job {job.pk} is already {job.state}.")
    progress.bus.publish(job.pk, {"revision": job.revision})
    return job


def expire(job_id: uuid.UUID, at: datetime | None = None) -> bool:
    """queued | running -> expired, where the deadline has passed."""
    with database.write() as now:
        job = Job.objects.filter(pk=job_id, deadline_at__lte=at or now).first()
        ended = job and (
            _move(job, State.QUEUED, State.EXPIRED, completed_at=now)
            or _move(job, State.RUNNING, State.EXPIRED, cause="expired", completed_at=now)
        )
    return _ended(ended)


def release_worker(worker: str) -> int:
    """What a dead worker held runs again (or has failed three times); how many."""
    held = Job.objects.filter(worker=worker, state=State.RUNNING)
    return sum(_lose(job, "worker_lost") for job in held)


@dataclass(frozen=True, slots=True)
class Swept:
    released: int
    expired: int
    rung: int


def sweep(at: datetime | None = None) -> Swept:
    """Release what nobody holds, expire what is overdue, ring every queue that holds a job."""
    at = at or database.now()
    lost = Job.objects.filter(state=State.RUNNING, lease_until__lt=at)
    released = sum(_lose(job, "lease_lost", lease_before=at) for job in lost[:1000])
    overdue = Job.objects.filter(state__in=[State.QUEUED, State.RUNNING], deadline_at__lte=at)
    expired = sum(expire(job_id, at) for job_id in overdue.values_list("pk", flat=True)[:1000])
    waiting = list(Turn.objects.filter(queued__gt=0).values_list("queue", flat=True).distinct())
    for name in waiting:
        queue.ring(name)
    return Swept(released, expired, len(waiting))


def _lose(job: Job, cause: str, lease_before: datetime | None = None) -> bool:
    with database.write() as now:
        held = Claim(job, job.fence)
        still_lost = Q(lease_until__lt=lease_before) if lease_before else Q()
        if job.attempts < settings.MAX_ATTEMPTS:
            moved = _requeue(job, now, cause, claim=held, where=still_lost)
        else:
            message = f"The job's worker was lost {job.attempts} times; that is the limit."
            code = errors.AttemptsExhausted.code
            moved = _fail(job, now, code, message, claim=held, cause=cause, where=still_lost)
    return _requeued(moved)


# -- erasing -----------------------------------------------------------------------------------------------------------


def finished(
    *, owner: Owner | None = None, states: Sequence[str] = (), completed_before: datetime | None = None
) -> QuerySet[Job]:
    """Jobs that have ended, of all owners or of one, for an admin who looks before erasing. Oldest first."""
    rows = Job.objects.filter(state__in=states or TERMINAL).filter(state__in=TERMINAL)
    if owner is not None:
        rows = rows.filter(owner=owner)
    if completed_before is not None:
        rows = rows.filter(completed_at__lt=completed_before)
    return rows.order_by("completed_at", "pk")


def erase(job_id: uuid.UUID, *, with_artifacts: bool = True) -> int:
    """Destroy a job's record, whoever owns it, and its outputs; how many of these there were still.

    Raises `NotFound`, `Conflict` while the job waits or runs.
    """
    job = Job.objects.filter(pk=job_id).first()
    if job is None:
        raise errors.NotFound(f"There is no job {job_id}.")
    # The record goes last: where this is cut short, it still says what there is to remove.
    outputs = artifacts.delete_outputs(job) if with_artifacts and job.is_terminal else 0
    with database.write():
        gone, _ = Job.objects.filter(pk=job_id, state__in=TERMINAL).delete()
    if not gone and Job.objects.filter(pk=job_id).exists():
        raise errors.Conflict(f"Job {job_id} is {job.state}; cancel it first.")
    return outputs


def sweep_old(at: datetime | None = None) -> int:
    """Erase records (not their outputs) that ended longer ago than `JOB_TTL_HOURS`; how many. A few at a time."""
    if not settings.JOB_TTL_HOURS:
        return 0
    before = (at or database.now()) - timedelta(hours=settings.JOB_TTL_HOURS)
    old = list(finished(completed_before=before).values_list("pk", flat=True)[:_ERASED_AT_ONCE])
    with database.write():
        Job.objects.filter(pk__in=old, state__in=TERMINAL).delete()
    return len(old)


# -- transitions -----------------------------------------------------------------------------------------------------


def _held(claim: Claim) -> Any:
    return Job.objects.filter(pk=claim.job.pk, state=State.RUNNING, fence=claim.fence)


def _move(
    job: Job,
    source: State,
    target: State,
    *,
    claim: Claim | None = None,
    cause: str | None = None,
    where: Q | None = None,
    **changes: Any,
) -> Job | None:
    """The compare-and-set under every transition, with what must change in the same transaction; None if it lost."""
    rows = _held(claim) if claim else Job.objects.filter(pk=job.pk, state=source)
    rows = rows.filter(where or Q())
    if source == State.RUNNING:
        changes = {"lease_until": None} | changes
    if not rows.update(state=target, revision=F("revision") + 1, **changes):
        return None
    moved = Job.objects.get(pk=job.pk)
    _turn(
        moved,
        queued=(target == State.QUEUED) - (source == State.QUEUED),
        running=(target == State.RUNNING) - (source == State.RUNNING),
    )
    if source == State.RUNNING:
        runs = Attempt.objects.filter(job=moved, fence=moved.fence)
        runs.update(ended_at=database.now(), cause=cause or target.value)
    if moved.is_terminal:
        webhooks.record(moved)
    return moved


def _fail(job: Job, now: datetime, code: str, message: str, *, cause: str | None = None, **more: Any) -> Job | None:
    failure: dict[str, Any] = {"completed_at": now, "error_code": code, "error_message": message}
    return _move(job, State.RUNNING, State.FAILED, cause=cause or code, **failure, **more)


def _requeue(job: Job, now: datetime, cause: str, *, claim: Claim, **more: Any) -> Job | None:
    """Back to the queue, unless somebody asked to cancel: then that is its end."""
    if _held(claim).filter(cancel_requested=True).exists():
        more.pop("attempts", None)
        return _move(job, State.RUNNING, State.CANCELLED, claim=claim, cause=cause, completed_at=now, **more)
    nobody: dict[str, Any] = {"worker": "", "started_at": None, "stage": None, "fraction": None}
    return _move(job, State.RUNNING, State.QUEUED, claim=claim, cause=cause, **nobody, **more)


def _turn(job: Job, queued: int = 0, running: int = 0) -> None:
    changes = {"queued": F("queued") + queued, "running": F("running") + running}
    row = Turn.objects.filter(queue=job.queue, owner=job.owner_id)
    if not row.update(**changes):
        Turn.objects.get_or_create(queue=job.queue, owner=job.owner)
        row.update(**changes)


def _ended(job: Job | None) -> bool:
    """After the commit of an end: tell watchers, drop the request's own upload."""
    if job is None:
        return False
    progress.bus.publish(job.pk, {"revision": job.revision})
    artifacts.delete_transient_inputs(job)
    return True


def _requeued(job: Job | None) -> bool:
    if job is None or job.is_terminal:
        return _ended(job)
    progress.bus.publish(job.pk, {"revision": job.revision})
    queue.ring(job.queue)
    return True


def mismatches() -> list[str]:
    """Where the kept turns differ from counting the jobs, as sentences; empty when all is well."""
    found = []
    for turn in Turn.objects.all():
        rows = Job.objects.filter(queue=turn.queue, owner=turn.owner_id)
        counted = rows.filter(state=State.QUEUED).count(), rows.filter(state=State.RUNNING).count()
        if counted != (turn.queued, turn.running):
            found.append(f"{turn.queue} of owner {turn.owner_id}: kept {turn.queued, turn.running}, counted {counted}")
    return found

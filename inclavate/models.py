"""Tables, constraints and indexes. Workflow lives in the verbs; each index names the query it serves."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import F, Q


class State(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


TERMINAL = (State.COMPLETED, State.FAILED, State.CANCELLED, State.EXPIRED)


class Owner(models.Model):
    """Whose rows they are: a user's account, or the local principal. A null limit means the deployment's."""

    name = models.CharField(max_length=150, unique=True)
    user = models.OneToOneField(settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE)
    max_queued_jobs = models.PositiveIntegerField(null=True)
    max_running_jobs = models.PositiveIntegerField(null=True)
    max_bytes = models.PositiveBigIntegerField(null=True)
    max_objects = models.PositiveBigIntegerField(null=True)
    # Signing needs the secret itself; empty until one was made.
    webhook_secret = models.CharField(max_length=100, default="")


class ApiKey(models.Model):
    """A key of an owner's. The key itself is shown once and not kept: `digest` is its SHA-256."""

    owner = models.ForeignKey(Owner, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=16)
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)


class Job(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    owner = models.ForeignKey(Owner, on_delete=models.CASCADE)
    modality = models.CharField(max_length=16)
    model = models.CharField(max_length=200)
    queue = models.CharField(max_length=220)
    params = models.JSONField(default=dict)
    seed = models.BigIntegerField(null=True)
    priority = models.SmallIntegerField(default=0)
    input_artifacts = models.JSONField(default=list)
    output_artifacts = models.JSONField(default=list)

    state = models.CharField(max_length=10, choices=State.choices, default=State.QUEUED)
    stage = models.CharField(max_length=60, null=True)
    fraction = models.FloatField(null=True)
    revision = models.PositiveIntegerField(default=1)
    fence = models.PositiveIntegerField(default=0)
    attempts = models.PositiveSmallIntegerField(default=0)
    worker = models.CharField(max_length=200, default="")
    lease_until = models.DateTimeField(null=True)
    cancel_requested = models.BooleanField(default=False)

    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    completed_at = models.DateTimeField(null=True)
    deadline_at = models.DateTimeField()
    error_code = models.CharField(max_length=40, null=True)
    error_message = models.TextField(null=True)
    notes = models.JSONField(default=list)
    metadata = models.JSONField(default=dict)
    webhook_url = models.TextField(null=True)
    request_digest = models.CharField(max_length=64)
    idempotency_key = models.CharField(max_length=255, null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["owner", "idempotency_key"], name="job_one_per_key"),
            models.CheckConstraint(condition=Q(state__in=State.values), name="job_state_is_known"),
            models.CheckConstraint(
                condition=~Q(state=State.QUEUED) | Q(started_at=None, completed_at=None, lease_until=None, worker=""),
                name="job_queued_is_held_by_nobody",
            ),
            models.CheckConstraint(
                condition=~Q(state=State.RUNNING)
                | Q(started_at__isnull=False, lease_until__isnull=False, completed_at=None) & ~Q(worker=""),
                name="job_running_has_a_lease",
            ),
            models.CheckConstraint(
                condition=~Q(state__in=TERMINAL) | Q(completed_at__isnull=False, lease_until=None),
                name="job_terminal_has_its_time",
            ),
            models.CheckConstraint(
                condition=~Q(state__in=[State.COMPLETED, State.FAILED]) | Q(started_at__isnull=False),
                name="job_ended_by_a_run_was_started",
            ),
            models.CheckConstraint(
                condition=Q(state=State.FAILED, error_code__isnull=False) | ~Q(state=State.FAILED) & Q(error_code=None),
                name="job_failed_says_why",
            ),
            models.CheckConstraint(
                condition=Q(fraction=None) | Q(fraction__gte=0, fraction__lte=1), name="job_fraction_is_one"
            ),
            models.CheckConstraint(condition=Q(attempts__lte=F("fence")), name="job_attempts_within_fence"),
        ]
        indexes = [
            # jobs.claim: the next job of an owner on a queue
            models.Index(
                fields=["queue", "owner", "-priority", "created_at"],
                condition=Q(state=State.QUEUED),
                name="job_next",
            ),
            # jobs.page: an owner's jobs, newest first
            models.Index(fields=["owner", "-created_at", "-id"], name="job_page"),
            # jobs.page: those of one state
            models.Index(fields=["owner", "state", "-created_at", "-id"], name="job_page_of_state"),
            # jobs.sweep: records older than their time
            models.Index(fields=["completed_at"], condition=Q(completed_at__isnull=False), name="job_completed"),
            # jobs.sweep: leases that ran out, and what a lost worker held
            models.Index(fields=["lease_until"], condition=Q(state=State.RUNNING), name="job_leases"),
            # jobs.sweep: deadlines that have passed
            models.Index(
                fields=["deadline_at"], condition=Q(state__in=[State.QUEUED, State.RUNNING]), name="job_deadlines"
            ),
        ]

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL


class Delivery(models.Model):
    """The news of a job's end on its way to a webhook; `id` is the `webhook-id` of every try."""

    class State(models.TextChoices):
        PENDING = "pending"
        DELIVERED = "delivered"
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    owner = models.ForeignKey(Owner, on_delete=models.CASCADE)
    job = models.ForeignKey(Job, null=True, on_delete=models.SET_NULL, related_name="deliveries")
    url = models.TextField()
    body = models.TextField()
    state = models.CharField(max_length=10, choices=State.choices, default=State.PENDING)
    tries = models.PositiveSmallIntegerField(default=0)
    next_try_at = models.DateTimeField()
    created_at = models.DateTimeField()
    last_error = models.TextField(default="")

    class Meta:
        indexes = [
            # webhooks.claim: what is to be tried next
            models.Index(fields=["next_try_at"], condition=Q(state="pending"), name="delivery_due"),
            # webhooks.prune: what ended long ago
            models.Index(fields=["created_at"], condition=~Q(state="pending"), name="delivery_ended"),
        ]


class Attempt(models.Model):
    """One run of a job by one worker; `cause` is how it ended."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="runs")
    fence = models.PositiveIntegerField()
    worker = models.CharField(max_length=200)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    cause = models.CharField(max_length=40, default="")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "fence"], name="attempt_one_per_fence")]


class Turn(models.Model):
    """An owner's place on a queue: counts kept with each transition, so that a claim is fair without counting."""

    queue = models.CharField(max_length=220)
    owner = models.ForeignKey(Owner, on_delete=models.CASCADE)
    queued = models.PositiveIntegerField(default=0)
    running = models.PositiveIntegerField(default=0)
    last_claimed_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["queue", "owner"], name="turn_one_per_owner")]
        indexes = [
            # jobs.claim and jobs.sweep: queues that hold something
            models.Index(fields=["queue", "running", "last_claimed_at"], condition=Q(queued__gt=0), name="turn_waiting")
        ]


class Artifact(models.Model):
    class Origin(models.TextChoices):
        GENERATED = "generated"
        UPLOADED = "uploaded"

    class State(models.TextChoices):
        PENDING = "pending"
        READY = "ready"
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    owner = models.ForeignKey(Owner, on_delete=models.CASCADE)
    origin = models.CharField(max_length=10, choices=Origin.choices)
    state = models.CharField(max_length=10, choices=State.choices, default=State.PENDING)
    media_type = models.CharField(max_length=255)
    sniffed_type = models.CharField(max_length=100, default="")
    size = models.PositiveBigIntegerField(default=0)
    digest = models.CharField(max_length=64, default="")
    filename = models.CharField(max_length=255, default="")
    purpose = models.CharField(max_length=40, default="")
    store_key = models.CharField(max_length=100, unique=True)
    job = models.ForeignKey(Job, null=True, on_delete=models.SET_NULL, related_name="artifacts")
    is_transient = models.BooleanField(default=False)
    # What a worker read in its bytes, or what the engine that made it said of it.
    facts = models.JSONField(default=dict)
    # When a worker is to look into it; null where nothing is to be found out (any more).
    inspect_at = models.DateTimeField(null=True)
    inspections = models.PositiveSmallIntegerField(default=0)
    created_at = models.DateTimeField()
    # When bytes of it last came, to the minute, while it is pending.
    written_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=~Q(state="ready") | ~Q(digest=""), name="artifact_ready_has_a_digest"),
        ]
        indexes = [
            # artifacts.page: an owner's artifacts, newest first
            models.Index(fields=["owner", "-created_at", "-id"], name="artifact_page"),
            # artifacts.page: one half of them
            models.Index(fields=["owner", "origin", "-created_at", "-id"], name="artifact_page_of_origin"),
            # artifacts.page_of_files: those with a purpose, and those with one of them
            models.Index(fields=["owner", "-created_at", "-id"], condition=~Q(purpose=""), name="artifact_files"),
            models.Index(
                fields=["owner", "purpose", "-created_at", "-id"],
                condition=~Q(purpose=""),
                name="artifact_files_of_purpose",
            ),
            # artifacts.claim_inspection: the next one to look into
            models.Index(fields=["inspect_at"], condition=Q(inspect_at__isnull=False), name="artifact_inspection"),
            # artifacts.sweep: writes that never ended, and what has expired
            models.Index(fields=["created_at"], condition=Q(state="pending"), name="artifact_pending"),
            models.Index(fields=["expires_at"], condition=Q(expires_at__isnull=False), name="artifact_expiry"),
        ]


class Voice(models.Model):
    """A voice that an owner saved: a clip to speak like, and the consent of whoever speaks in it.

    It lives as long as its clip: whoever deletes the one deletes the other.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    owner = models.ForeignKey(Owner, on_delete=models.CASCADE)
    name = models.CharField(max_length=100)
    description = models.TextField(default="")
    artifact = models.OneToOneField(Artifact, on_delete=models.CASCADE, related_name="voice")
    reference_text = models.TextField(default="")
    consent = models.TextField()
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            # voices.page too: an owner's voices by name
            models.UniqueConstraint(fields=["owner", "name"], name="voice_one_per_name"),
            models.CheckConstraint(condition=~Q(consent=""), name="voice_has_a_consent"),
        ]


class PartedUpload(models.Model):
    """An upload that comes in parts, until it is complete or given up. `token` is the store's own word for it."""

    artifact = models.OneToOneField(Artifact, primary_key=True, on_delete=models.CASCADE, related_name="parted")
    size = models.PositiveBigIntegerField()
    part_bytes = models.PositiveBigIntegerField()
    digest = models.CharField(max_length=64, default="")
    token = models.TextField()
    expires_at = models.DateTimeField()

    class Meta:
        indexes = [
            # artifacts.sweep: uploads that nobody completed
            models.Index(fields=["expires_at"], name="parted_upload_expiry")
        ]


class JobInput(models.Model):
    """That a job reads an artifact; deleting the artifact leaves the job, which then fails by name."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="inputs")
    position = models.PositiveSmallIntegerField()
    artifact = models.ForeignKey(Artifact, null=True, on_delete=models.SET_NULL, related_name="uses")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "position"], name="job_input_one_per_position")]


class Usage(models.Model):
    """What an owner stores, by origin. Changed in the transaction that changes the artifact's row."""

    owner = models.ForeignKey(Owner, on_delete=models.CASCADE)
    origin = models.CharField(max_length=10, choices=Artifact.Origin.choices)
    bytes = models.PositiveBigIntegerField(default=0)
    objects_count = models.PositiveBigIntegerField(default=0)
    reserved_bytes = models.PositiveBigIntegerField(default=0)
    reserved_objects = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["owner", "origin"], name="usage_one_per_origin")]


class Worker(models.Model):
    name = models.CharField(max_length=200, unique=True)
    host = models.CharField(max_length=255)
    pid = models.PositiveIntegerField()
    slots = models.PositiveSmallIntegerField()
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    stopped_at = models.DateTimeField(null=True)


class Offer(models.Model):
    """That a worker runs a model, and what the model can do there. Outlives the worker by a day."""

    worker = models.ForeignKey(Worker, on_delete=models.CASCADE, related_name="offers")
    model = models.CharField(max_length=200, db_index=True)
    capability = models.JSONField()
    digest = models.CharField(max_length=64)
    seen_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["worker", "model"], name="offer_one_per_model")]

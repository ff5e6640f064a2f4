"""One worker's runs: claim, fetch, drive an engine, publish, finish; while it watches for cancel, drain and stall."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from django.conf import settings
from django.db import Error as DatabaseError
from django.db import close_old_connections

from inclavate import artifacts, errors, fleet, jobs, queue, sounds
from inclavate.generators import DOCUMENTS, Input
from inclavate.models import Artifact, Job
from storage import StoreError
from workers import hosts
from workers.hosts import EngineJob, Host, Hosts
from workers.lexicon import Lexicon
from workers.voices import Voices

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_REPORT_SECONDS = 0.5
_CANCEL_GRACE_SECONDS = 2.0
_DRAIN_GRACE_SECONDS = 1.0
# How long inputs, outputs and ends are tried again while the store or the database does not answer.
_PERSIST_SECONDS = 60.0
_COPY_BYTES = 2**20
_ROOM_BYTES = 64 * 2**20

P = ParamSpec("P")
R = TypeVar("R")


class Runner:
    """`answer` runs in one of the worker's slots; `beat` and `drain` come from other threads."""

    def __init__(
        self,
        name: str,
        engines: Hosts,
        work_dir: Path,
        lexicon: Lexicon | None = None,
        voices: Voices | None = None,
    ) -> None:
        self.name = name
        self._engines = engines
        self._voices = voices or Voices()
        self._work_dir = work_dir
        self._lexicon = lexicon or Lexicon()
        self._draining_at: float | None = None
        self.is_closed = False
        # By claim: a run that was lost may end here after this worker took the same job again.
        self._in_hand: set[jobs.Claim] = set()

    def answer(self, queue_name: str) -> None:
        """A ring: run one job of the queue, if there is one, then ring again, so that queues take turns."""
        if self.is_draining or not self._has_room():
            return
        close_old_connections()
        claim = _try(jobs.claim, queue_name, self.name)
        if claim is None:
            return
        log.info("job %s begins, run %d", claim.job.pk, claim.fence)
        self._in_hand.add(claim)
        try:
            self._run(claim)
        except Exception:
            # A slot outlives whatever one job does to it. Nobody extends the lease any more, so the job runs again.
            log.exception("job %s: this run ended without an end", claim.job.pk)
        finally:
            self._in_hand.discard(claim)
        queue.ring(queue_name)

    def _has_room(self) -> bool:
        """A worker whose disk is full would take job after job and lose each."""
        try:
            self._work_dir.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self._work_dir).free
        except OSError as error:
            log.error("no job is taken: the work folder %s cannot be used: %s", self._work_dir, error.strerror)
            return False
        if free < _ROOM_BYTES:
            log.error("no job is taken: %d MiB are free in %s", free // 2**20, self._work_dir)
        return free >= _ROOM_BYTES

    def beat(self) -> None:
        """Keep the worker's leases and its place in the fleet, and end idle engines."""
        jobs.heartbeat(self.name, [claim.job.pk for claim in list(self._in_hand)])
        fleet.heartbeat(self.name)
        self._engines.reap_idle()

    def drain(self) -> None:
        """Take no more; the jobs in hand have `DRAIN_SECONDS` to end, then they are handed back."""
        if self._draining_at is None:
            self._draining_at = time.monotonic()

    def close(self) -> None:
        """The worker ends now, also where Celery did not wait for its slots: what is in hand is handed back."""
        self.is_closed = True
        self._engines.close()

    @property
    def is_draining(self) -> bool:
        """Whether it takes no more."""
        return self._draining_at is not None

    @property
    def is_drained(self) -> bool:
        """Whether the time of the jobs in hand is over."""
        return self._draining_at is not None and time.monotonic() - self._draining_at >= settings.DRAIN_SECONDS

    def _run(self, claim: jobs.Claim) -> None:
        with self._workdir(claim) as workdir:
            try:
                inputs = _fetch(claim, workdir / "inputs")
                params, speaker = self._voices.speaker(claim.job.model, self._params(claim.job), workdir / "inputs")
                outputs = workdir / "outputs"
                outputs.mkdir()
                job = EngineJob(params, [*speaker, *inputs], claim.job.seed, outputs)
                ending, detail = Ending.UNHEARD, None
                while ending is Ending.UNHEARD:
                    with self._engines.session(claim.job.model) as host:
                        run = _Run(self, claim, host)
                        ending, detail = run.drive(job)
                self._finish(claim, ending, detail, run.produced)
            except errors.InclavateError as error:
                if self.is_closed:
                    persist(jobs.hand_back, claim)
                    return
                code = error.code if isinstance(error, errors.JobError) else errors.InferenceFailed.code
                persist(jobs.fail, claim, code, error.message)

    def _params(self, job: Job) -> dict[str, Any]:
        """The job's own, and for what may speak the words of the operator's lexicon besides the job's."""
        params: dict[str, Any] = dict(job.params)
        if job.modality == "audio" and (lexicon := self._lexicon.with_entries(params.get("lexicon") or {})).entries:
            params["lexicon"] = dict(lexicon.entries)
        return params

    @contextmanager
    def _workdir(self, claim: jobs.Claim) -> Iterator[Path]:
        workdir = self._work_dir / f"{claim.job.pk}-{claim.fence}"
        workdir.mkdir(parents=True, mode=0o700)
        try:
            yield workdir
        finally:
            shutil.rmtree(workdir, ignore_errors=True)

    def _finish(
        self, claim: jobs.Claim, ending: Ending, failed: hosts.Failed | None, produced: list[hosts.Produced]
    ) -> None:
        log.info("job %s: %s%s", claim.job.pk, ending.value, f" ({failed.code})" if failed else "")
        match ending:
            case Ending.DONE:
                _publish(claim, produced)
            case Ending.FAILED if failed is not None:
                is_clip = failed.code == errors.InputUnreadable.code and _has_clip(claim.job)
                message = f"speaker_artifact: {failed.message}" if is_clip else failed.message
                persist(jobs.fail, claim, failed.code, message)
            case Ending.CANCELLED:
                persist(jobs.settle_cancel, claim)
            case Ending.DRAINED:
                persist(jobs.hand_back, claim)
            case Ending.LET_GO:
                pass


class Ending(Enum):
    """How an engine's work on a job ended."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DRAINED = "handed back"
    LET_GO = "no longer ours"
    UNHEARD = "the engine had died before it heard of it"


class _Run:
    """An engine at work on one claim."""

    def __init__(self, runner: Runner, claim: jobs.Claim, host: Host) -> None:
        self.produced: list[hosts.Produced] = []
        self._runner = runner
        self._claim = claim
        self._host = host
        self._stopping: Ending | None = None
        self._kill_at = float("inf")
        self._step_at = time.monotonic()
        self._looked_at = 0.0
        self._reported_at = 0.0
        self._stage: str | None = None
        self._unreported: tuple[str, float | None] | None = None
        self._feed: sounds.Feed | None = None

    def drive(self, job: EngineJob) -> tuple[Ending, hosts.Failed | None]:
        """Run the job to its end, whichever it is."""
        self._progress("loading", None)
        self._host.run(job)
        while True:
            event = self._host.poll(_POLL_SECONDS)
            now = time.monotonic()
            if event is not None:
                self._step_at = now
            match event:
                case hosts.Progress(stage, fraction):
                    self._progress(stage, fraction)
                case hosts.Note(text):
                    _try(jobs.note, self._claim, text)
                case hosts.Growing(path, media_type):
                    self._feed = sounds.Feed(self._claim.job.pk, self._claim.fence, path, media_type)
                case hosts.Produced():
                    self.produced.append(event)
                case hosts.Done():
                    return Ending.DONE, None
                case hosts.CancelledByRequest():
                    return self._stopping or Ending.CANCELLED, None
                case hosts.Failed() | hosts.DiedIdle():
                    if stopping := self._stopping or (Ending.DRAINED if self._runner.is_closed else None):
                        return stopping, None
                    return (Ending.FAILED, event) if isinstance(event, hosts.Failed) else (Ending.UNHEARD, None)
            if self._feed is not None:
                self._feed.feed()
            if (ending := self._look(now)) is not None:
                return ending

    def _look(self, now: float) -> tuple[Ending, hosts.Failed | None] | None:
        """What does not come from the engine: orders on the row, drain, stall, and the end of patience."""
        if now - self._looked_at >= _REPORT_SECONDS:
            self._looked_at = now
            self._flush_progress(now)
            match _try(jobs.order, self._claim):
                case jobs.Order.LET_GO:
                    self._host.kill()
                    return Ending.LET_GO, None
                case jobs.Order.CANCEL:
                    self._stop(Ending.CANCELLED, now + _CANCEL_GRACE_SECONDS)
        if self._runner.is_drained:
            self._stop(Ending.DRAINED, now + _DRAIN_GRACE_SECONDS)
        if now >= self._kill_at and self._stopping is not None:
            self._host.kill()
            return self._stopping, None
        if now - self._step_at >= settings.STALL_SECONDS:
            self._host.kill()
            message = f"The engine made no step for {settings.STALL_SECONDS:g} seconds."
            return Ending.FAILED, hosts.Failed(errors.Stalled.code, message)
        return None

    def _stop(self, ending: Ending, kill_at: float) -> None:
        if self._stopping is None:
            self._stopping, self._kill_at = ending, kill_at
            self._host.cancel()

    def _progress(self, stage: str, fraction: float | None) -> None:
        self._unreported = stage, fraction
        now = time.monotonic()
        if stage != self._stage or now - self._reported_at >= _REPORT_SECONDS:
            self._flush_progress(now)

    def _flush_progress(self, now: float) -> None:
        if self._unreported is not None:
            (stage, fraction), self._unreported = self._unreported, None
            self._stage, self._reported_at = stage, now
            _try(jobs.report, self._claim, stage, fraction)


# -- bytes in and out --------------------------------------------------------------------------------------------------


def _fetch(claim: jobs.Claim, folder: Path) -> list[Input]:
    """The job's inputs as files. Raises `InputUnreadable`, `InferenceFailed`."""
    folder.mkdir()
    inputs = []
    for used in claim.job.inputs.select_related("artifact").order_by("position"):
        if used.artifact is None:
            raise errors.InputUnreadable(f"Input {used.position} was deleted before the job ran.")
        path = folder / str(used.position)
        try:
            persist(_copy, used.artifact, path)
        except (errors.InclavateError, StoreError) as error:
            raise errors.InputUnreadable(f"Input {used.position} cannot be read from the store.") from error
        except OSError as error:
            log.error("job %s: input %d cannot be kept here: %s", claim.job.pk, used.position, error)
            raise errors.InferenceFailed(f"The worker had no room for input {used.position} on its disk.") from error
        inputs.append(Input(path, artifacts.content_type(used.artifact) or used.artifact.media_type))
    return inputs


def _has_clip(job: Job) -> bool:
    """Whether it speaks like its input, which is then no document."""
    if job.modality != "audio":
        return False
    used = [use.artifact for use in job.inputs.select_related("artifact")]
    return any(artifact is not None and artifacts.content_type(artifact) not in DOCUMENTS for artifact in used)


def _copy(artifact: Artifact, path: Path) -> None:
    with path.open("wb") as file:
        file.writelines(artifacts.read(artifact))


def _publish(claim: jobs.Claim, produced: list[hosts.Produced]) -> None:
    """Outputs first, then the state: bytes go to the store, then one transaction seals and completes."""
    drafts: list[artifacts.Draft] = []
    is_complete = False
    _try(jobs.report, claim, jobs.PUBLISHING, 0.0)
    try:
        for output in produced:
            drafts.append(persist(_store_output, claim, output))
        is_complete = persist(jobs.complete, claim, drafts)
    except (StoreError, errors.QuotaExhausted, errors.Unavailable) as error:
        log.warning("job %s: the output could not be stored: %s", claim.job.pk, error)
        message = error.message if isinstance(error, errors.InclavateError) else "The artifact store did not take it."
        persist(jobs.fail, claim, errors.PublishFailed.code, f"The output could not be stored: {message}")
    finally:
        if not is_complete:
            for draft in drafts:
                draft.abandon()


def _store_output(claim: jobs.Claim, output: hosts.Produced) -> artifacts.Draft:
    draft = artifacts.begin(
        claim.job.owner,
        Artifact.Origin.GENERATED,
        output.media_type,
        expected_bytes=output.path.stat().st_size,
        filename=output.filename,
        job=claim.job,
    )
    with ExitStack() as undo:
        undo.callback(draft.abandon)
        with output.path.open("rb") as file:
            while chunk := file.read(_COPY_BYTES):
                draft.write(chunk)
        draft.artifact.facts = dict(output.facts)
        draft.store()
        undo.pop_all()
    return draft


def persist(action: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Do what must not be lost, again and again for a minute while the database or the store does not answer."""
    give_up_at = time.monotonic() + _PERSIST_SECONDS
    pause = 0.2
    while True:
        try:
            return action(*args, **kwargs)
        except (DatabaseError, StoreError, errors.Unavailable) as error:
            if time.monotonic() + pause > give_up_at:
                raise
            log.warning("trying again in %.1f s: %s", pause, error)
        close_old_connections()
        time.sleep(pause)
        pause = min(pause * 2, 5.0)


def _try(action: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """Do what may be lost: the engine goes on while the database does not answer."""
    try:
        return action(*args, **kwargs)
    except DatabaseError as error:
        log.warning("the database did not answer: %s", error)
        close_old_connections()
        return None


def beat_until(stopping: threading.Event, *beats: Callable[[], None]) -> None:
    """The worker's heartbeat, in a thread of its own."""
    while not stopping.wait(settings.HEARTBEAT_SECONDS):
        for beat in beats:
            _try(beat)

"""What must hold after a chaos run. Imported once the environment names the deployment: it asks the verbs."""

from __future__ import annotations

import hashlib
import io
import wave
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import django
import httpx

django.setup(set_prefix=False)

from django.conf import settings  # noqa: E402 - after setup
from django.db import close_old_connections, connection  # noqa: E402

import storage  # noqa: E402
from inclavate import accounts, artifacts, database, jobs  # noqa: E402
from inclavate.models import TERMINAL, Artifact, Attempt, Job, Owner, State, Usage  # noqa: E402
from tests.engines import SAMPLE_RATE, SECONDS_PER_CHARACTER  # noqa: E402

if TYPE_CHECKING:
    from tests.chaos import Wish

# Failures that a fault may bring about, by what; any other is a fault of ours.
LEGAL_FAILURES = {
    "attempts_exhausted": "lost runs",
    "engine_crashed": "engine_crashed",
    "inference_failed": "of a full disk",
    "input_unreadable": "of a full disk",
}


def new_keys(owners: Sequence[str]) -> list[str]:
    keys = [accounts.create_key(accounts.create_user(name), "chaos") for name in owners]
    connection.close()
    return keys


class Checks:
    """They give what is wrong, as sentences, and fill `counts`."""

    def __init__(
        self,
        wanted: Sequence[Wish],
        keys: Sequence[str],
        accepted: dict[str, str],
        ends: dict[str, tuple[object, ...]],
        bounds: Mapping[str, int],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._wishes = {wish.body["idempotency_key"]: wish for wish in wanted}
        self._keys = keys
        self._accepted = accepted
        self._ends = ends
        self._bounds = bounds
        self._jobs: dict[str, Job] = {}

    def run(self, url: str) -> Iterator[str]:
        """All of them; `url` is a web process's."""
        close_old_connections()
        self._sweep()
        yield from self.of_rows()
        yield from self._objects()
        yield from self._outputs_are_readable(url)

    def of_rows(self) -> Iterator[str]:
        """What the database alone shows."""
        self._jobs = {str(job.pk): job for job in Job.objects.select_related("owner")}
        yield from self._answers_have_jobs()
        yield from self._ends_are_ends()
        yield from self._runs()
        yield from self._outputs()
        yield from self._totals()

    def _answers_have_jobs(self) -> Iterator[str]:
        self.counts["jobs asked for"] = len(self._wishes)
        self.counts["jobs"] = len(self._jobs)
        for key, job_id in self._accepted.items():
            if job_id not in self._jobs:
                yield f"the key {key} was answered with job {job_id}, which does not exist"
            elif self._jobs[job_id].idempotency_key != key:
                yield f"the key {key} was answered with job {job_id}, whose key is another"
        if (len(self._jobs), len(self._accepted)) != (len(self._wishes), len(self._wishes)):
            yield f"{len(self._wishes)} jobs were wanted, {len(self._accepted)} accepted, {len(self._jobs)} exist"

    def _ends_are_ends(self) -> Iterator[str]:
        for job in self._jobs.values():
            name = f"failed {job.error_code}" if job.state == State.FAILED else str(job.state)
            self.counts[name] += 1
            if job.state not in TERMINAL:
                yield f"job {job.pk} is {job.state}, and nothing moves any more"
            if job.state == State.EXPIRED or (job.state == State.FAILED and job.error_code not in LEGAL_FAILURES):
                yield f"job {job.pk} ended {name}: {job.error_message}"
            outputs = job.output_artifacts if job.state == State.COMPLETED else []
            end = job.state, job.error_code, *outputs
            if self._ends.get(str(job.pk), end) != end:
                yield f"job {job.pk} ended as {end}, but a client had been told {self._ends[str(job.pk)]}"
        failures = Counter(LEGAL_FAILURES.get(job.error_code or "") for job in self._jobs.values())
        for cause, bound in self._bounds.items():
            if failures[cause] > bound:
                said = Counter(
                    j.error_message for j in self._jobs.values() if LEGAL_FAILURES.get(j.error_code or "") == cause
                )
                yield f"{failures[cause]} jobs failed {cause}, where {bound} could: {said.most_common()}"

    def _runs(self) -> Iterator[str]:
        causes: dict[str, list[str]] = {job_id: [] for job_id in self._jobs}
        for attempt in Attempt.objects.order_by("fence"):
            causes[str(attempt.job_id)].append(attempt.cause)
            self.counts["runs"] += 1
            self.counts["runs lost"] += attempt.cause.endswith("_lost")
            if attempt.ended_at is None:
                yield f"run {attempt.fence} of job {attempt.job_id} has no end"
        for job_id, ended in causes.items():
            if ended.count("completed") != (self._jobs[job_id].state == State.COMPLETED):
                yield f"job {job_id} is {self._jobs[job_id].state}, and its runs ended {ended}"
            lost = sum(cause.endswith("_lost") for cause in ended)
            if lost > settings.MAX_ATTEMPTS:
                yield f"job {job_id} ran on after {lost} lost runs"

    def _sweep(self) -> None:
        """As a sweeper does it once the time of grace has passed."""
        at = database.now() + timedelta(hours=2)
        self.counts["rows swept"] = artifacts.sweep(at)
        self.counts["objects swept"] = artifacts.sweep_store(at)

    def _outputs(self) -> Iterator[str]:
        """Each completed job has published once, and nobody else has."""
        made = list(Artifact.objects.filter(origin=Artifact.Origin.GENERATED))
        published: Counter[str] = Counter(str(artifact.job_id) for artifact in made)
        for job in self._jobs.values():
            expected = 1 if job.state == State.COMPLETED else 0
            if (len(job.output_artifacts), published[str(job.pk)]) != (expected, expected):
                yield f"job {job.pk} is {job.state}, names {job.output_artifacts}, has {published[str(job.pk)]} outputs"
        named = {artifact for job in self._jobs.values() for artifact in job.output_artifacts}
        for artifact in made:
            if artifact.state != Artifact.State.READY or str(artifact.pk) not in named:
                yield f"artifact {artifact.pk} is {artifact.state}, an output of no completed job"

    def _totals(self) -> Iterator[str]:
        yield from artifacts.usage_mismatches()
        yield from jobs.mismatches()
        for row in Usage.objects.exclude(reserved_bytes=0, reserved_objects=0):
            yield f"owner {row.owner_id} still has {row.reserved_bytes} bytes, {row.reserved_objects} objects reserved"

    def _objects(self) -> Iterator[str]:
        kept = {entry.key for entry in storage.open_store(settings.STORE_URL).entries()}
        known = set(Artifact.objects.values_list("store_key", flat=True))
        self.counts["objects"] = len(kept)
        yield from (f"the object {key} has no row" for key in kept - known)
        yield from (f"the row of the object {key} has no bytes" for key in known - kept)

    def _outputs_are_readable(self, url: str) -> Iterator[str]:
        """Through a web process, as their owners read them; and they are what was asked for."""
        keys = dict(zip(Owner.objects.order_by("pk").values_list("pk", flat=True), self._keys, strict=True))
        with httpx.Client(base_url=url, timeout=60) as http:
            for artifact in Artifact.objects.filter(state=Artifact.State.READY):
                headers = {"Authorization": f"Bearer {keys[artifact.owner_id]}"}
                answer = http.get(f"/v1/artifacts/{artifact.pk}", headers=headers)
                if answer.status_code != 200 or hashlib.sha256(answer.content).hexdigest() != artifact.digest:
                    yield f"artifact {artifact.pk} was answered {answer.status_code}, not with what its digest says"
                elif artifact.origin == Artifact.Origin.GENERATED and not is_as_wished(
                    self._wish(artifact), answer.content
                ):
                    yield f"artifact {artifact.pk} is whole, and is not what job {artifact.job_id} asked for"
                self.counts["outputs read"] += 1

    def _wish(self, artifact: Artifact) -> Wish:
        return self._wishes[self._jobs[str(artifact.job_id)].idempotency_key or ""]


def is_as_wished(wish: Wish, content: bytes) -> bool:
    """Whether the bytes are those that the wish's job must make."""
    if wish.clip is not None:
        return content == wish.body["params"]["prompt"].encode() + wish.clip
    return _is_sound(content, round(SECONDS_PER_CHARACTER * len(wish.body["params"]["text"]) * SAMPLE_RATE))


def _is_sound(content: bytes, frames: int) -> bool:
    try:
        with wave.open(io.BytesIO(content)) as sound:
            return sound.getnframes() == frames and len(sound.readframes(frames)) == 2 * frames
    except (wave.Error, EOFError):
        return False

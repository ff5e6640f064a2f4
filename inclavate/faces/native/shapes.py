"""What the native API's requests and answers look like."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from inclavate import artifacts, database, errors, jobs
from inclavate.faces.boundary import idempotency_key, parse_id
from inclavate.fleet import Offered
from inclavate.generators import MODALITIES, SPEECH, TRANSCRIBE, UNDERSTAND
from inclavate.models import Artifact, Job, State

MetadataKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
MetadataValue = Annotated[str, Field(max_length=512)]


class GenerationRequest(BaseModel):
    """`POST /v1/generations`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: Annotated[str, Field(min_length=1, max_length=200)]
    modality: str
    params: dict[str, Any] = {}
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    input_artifacts: Annotated[list[str], Field(max_length=jobs.MAX_INPUTS)] | None = None
    idempotency_key: str | None = None
    deadline_seconds: Annotated[int, Field(ge=1, le=86400)] | None = None
    priority: Annotated[int, Field(ge=-10, le=10)] | None = None
    webhook_url: Annotated[str, Field(max_length=2000)] | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = None

    def submission(self, key_header: str | None) -> jobs.Submission:
        """Raises `InvalidRequest` for what types alone do not show."""
        if self.modality not in MODALITIES:
            raise errors.InvalidRequest(
                f"modality must be one of {', '.join(MODALITIES)}, not {self.modality[:40]!r}.", param="modality"
            )
        params = dict(self.params)
        inputs = [parse_id(text, "input_artifacts") for text in self.input_artifacts or []]
        return jobs.Submission(
            model=self.model,
            modality=self.modality,
            input_artifacts=inputs_with_speaker(inputs, params),
            params=params,
            seed=self.seed,
            deadline_seconds=self.deadline_seconds,
            priority=self.priority,
            idempotency_key=idempotency_key(key_header, self.idempotency_key),
            webhook_url=self.webhook_url,
            metadata=self.metadata or {},
            name_of="params.{}".format,
        )


Digest = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$"), AfterValidator(str.lower)]
MEDIA_TYPE = r"^[A-Za-z0-9_!#$&^.+-]{1,100}/[A-Za-z0-9_!#$&^.+-]{1,100}([ \t]*;[\x20-\x7e]*)?$"


class PartedUploadRequest(BaseModel):
    """`POST /v1/artifacts/uploads`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    size_bytes: Annotated[int, Field(ge=1)]
    media_type: Annotated[str, Field(max_length=255, pattern=MEDIA_TYPE)] = "application/octet-stream"
    digest: Digest | None = None


class CompletionRequest(BaseModel):
    """`POST /v1/artifacts/uploads/:id/complete`; the body may be left out."""

    model_config = ConfigDict(strict=True, extra="forbid")

    digest: Digest | None = None


def job_filter(query: Mapping[str, str]) -> jobs.Filter:
    """What `?state= &model= &modality= &since= &metadata.KEY=` ask for. Raises `InvalidRequest`."""
    for name, words in (("state", State.values), ("modality", MODALITIES)):
        if name in query and query[name] not in words:
            raise errors.InvalidRequest(
                f"{name} must be one of {', '.join(words)}, not {query[name][:40]!r}.", param=name
            )
    metadata = {name.removeprefix("metadata."): query[name] for name in query if name.startswith("metadata.")}
    return jobs.Filter(
        state=query.get("state"),
        model=query.get("model"),
        modality=query.get("modality"),
        since=_instant(query["since"]) if "since" in query else None,
        metadata=metadata,
    )


def _instant(text: str) -> datetime:
    # A "+" that was not escaped came as a space.
    with suppress(ValueError, OverflowError):
        at = datetime.fromisoformat(text.replace(" ", "+"))
        if at.tzinfo is not None:
            return at.astimezone(UTC)
    raise errors.InvalidRequest(f"since must be a time like 2026-11-30T12:00:00Z, not {text[:40]!r}.", param="since")


def timestamp(at: datetime | None) -> str | None:
    return None if at is None else database.rfc3339(at)


def job_json(job: Job) -> dict[str, Any]:
    return {
        "id": str(job.pk),
        "state": job.state,
        "modality": job.modality,
        "model": job.model,
        "seed": job.seed,
        "priority": job.priority,
        "input_artifacts": job.input_artifacts,
        "output_artifacts": job.output_artifacts if job.state == State.COMPLETED else [],
        "artifacts_deleted": 0,
        "progress_stage": job.stage,
        "progress_fraction": job.fraction,
        "cancel_requested": job.cancel_requested,
        "attempts": job.attempts,
        "notes": job.notes,
        "metadata": job.metadata,
        "error_code": job.error_code,
        "error_message": job.error_message,
        "created_at": timestamp(job.created_at),
        "started_at": timestamp(job.started_at),
        "completed_at": timestamp(job.completed_at),
        "expires_at": timestamp(job.deadline_at),
    }


def job_event(job: Job) -> bytes:
    """One server-sent event; its id is the job's revision."""
    return f"id: {job.revision}\ndata: {json.dumps(job_json(job), ensure_ascii=False)}\n\n".encode()


def jobs_json(page: artifacts.Page[Job]) -> dict[str, Any]:
    """A listing: only outputs that still exist, and the parameters, long strings cut."""
    listed = {i for job in page.rows for i in job.output_artifacts}
    existing = artifacts.ready_ids(listed)
    return {"generations": [_listed(job, existing) for job in page.rows], "truncated": page.truncated}


def _listed(job: Job, existing: set[str]) -> dict[str, Any]:
    kept = [i for i in job.output_artifacts if i in existing]
    params, is_cut = _cut(job.params)
    shown = {"output_artifacts": kept, "artifacts_deleted": len(job.output_artifacts) - len(kept), "params": params}
    return job_json(job) | shown | ({"params_truncated": True} if is_cut else {})


def _cut(params: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    cut = {k: v[: jobs.LISTED_CHARACTERS] if isinstance(v, str) else v for k, v in params.items()}
    return cut, cut != params


def artifact_json(artifact: Artifact) -> dict[str, Any]:
    named = {name: text for name in ("filename", "purpose") if (text := getattr(artifact, name))}
    return {
        "id": str(artifact.pk),
        "media_type": artifact.media_type,
        "sniffed_type": artifact.sniffed_type or None,
        "size_bytes": artifact.size if artifact.state == Artifact.State.READY else 0,
        "digest": artifact.digest or None,
        "state": artifact.state,
        "created_at": timestamp(artifact.created_at),
        "expires_at": timestamp(artifact.expires_at),
        **named,
    }


def parts_json(parts: artifacts.Parts) -> dict[str, Any]:
    upload = parts.upload
    return {
        "id": str(upload.pk),
        "media_type": upload.artifact.media_type,
        "size_bytes": upload.size,
        "part_bytes": upload.part_bytes,
        "parts": len(parts.received) + len(parts.missing),
        "received": parts.received,
        "expires_at": timestamp(upload.expires_at),
        **({"part_urls": {str(number): url for number, url in parts.urls.items()}} if parts.urls else {}),
    }


def meta_json(artifact: Artifact) -> dict[str, Any]:
    """With what is inside it; a listing leaves that out, as a waveform has two hundred points."""
    return artifact_json(artifact) | {"facts": artifact.facts, "inspecting": artifact.inspect_at is not None}


def artifacts_json(page: artifacts.Page[Artifact]) -> dict[str, Any]:
    return {"artifacts": [artifact_json(row) for row in page.rows], "truncated": page.truncated}


def generator_json(offered: Offered) -> dict[str, Any]:
    """One generator of the capabilities; what is empty is left out, as the contract has it."""
    c = offered.capability
    shown: dict[str, Any] = {"modality": c.modality, "model": c.model, "task": c.task, "ready": offered.is_ready}
    if c.task in (TRANSCRIBE, UNDERSTAND):
        shown |= {"kind": "understand", "input_modalities": list(c.input_modalities)}
    else:
        shown |= {"requires_speaker": c.requires_speaker}
    if c.limits:
        shown["limits"] = dict(c.limits)
    if c.speed_range:
        shown["speed_range"] = dict(zip(("min", "max"), c.speed_range, strict=True))
    if c.accepts_speaker:
        shown["accepts_speaker"] = True
    if c.task == SPEECH and c.requires_reference_text:
        shown["requires_reference_text"] = True
    if c.sample_rate:
        shown["sample_rate"] = c.sample_rate
    for name in ("streams", "blends_voices", "translates"):
        if getattr(c, name):
            shown[name] = True
    if c.voice_languages:
        shown["voice_languages"] = dict(c.voice_languages)
    lists = ("voices", "builtin_voices", "languages", "formats", "timestamps", "subtitles", "media_types")
    return shown | {name: list(values) for name in lists if (values := getattr(c, name))}


def inputs_with_speaker(inputs: list[uuid.UUID], params: dict[str, Any]) -> list[uuid.UUID]:
    """`speaker_artifact` is another way to write `input_artifacts[0]`; it leaves `params`."""
    speaker = params.pop("speaker_artifact", None)
    if speaker is None:
        return inputs
    if not isinstance(speaker, str):
        raise errors.InvalidRequest("speaker_artifact must be an artifact's id.", param="speaker_artifact")
    return [parse_id(speaker, "speaker_artifact"), *inputs]

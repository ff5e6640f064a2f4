"""What the server tells, as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

FINAL_STATES = frozenset({"completed", "failed", "cancelled", "expired"})

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the server last told it. Times are aware, UTC; `progress_fraction` is 0..1 within the stage.
    `revision` grows with every change and is known only of jobs that came from an event stream."""

    id: str
    state: str
    modality: str = ""
    model: str = ""
    seed: int | None = None
    priority: int = 0
    params: Mapping[str, Any] | None = None
    input_artifacts: tuple[str, ...] = ()
    output_artifacts: tuple[str, ...] = ()
    artifacts_deleted: int = 0
    progress_stage: str | None = None
    progress_fraction: float | None = None
    cancel_requested: bool = False
    attempts: Any = None
    notes: tuple[Any, ...] = ()
    error_code: str | None = None
    error_message: str | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    expires_at: datetime | None = None
    revision: int | None = None

    @property
    def is_finished(self) -> bool:
        return self.state in FINAL_STATES


@dataclass(frozen=True, slots=True)
class JobPage:
    """Jobs, newest first; `is_truncated` where the server has more."""

    jobs: tuple[Job, ...]
    is_truncated: bool


@dataclass(frozen=True, slots=True)
class Artifact:
    """Bytes that the server keeps. `digest` is the SHA-256 of the whole, in hex.

    `sniffed_type` is what the first bytes show it to be. `facts` (duration_seconds, width…) come from `Client.artifact`
    alone, and are not all there while it is `inspecting`.
    """

    id: str
    media_type: str = "application/octet-stream"
    sniffed_type: str | None = None
    size_bytes: int = 0
    digest: str = ""
    state: str = ""
    filename: str | None = None
    purpose: str | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None
    facts: Mapping[str, Any] | None = None
    inspecting: bool = False


@dataclass(frozen=True, slots=True)
class Generator:
    """A model as capabilities describe it. `speed_range` is (min, max); durations divide by the speed."""

    model: str
    modality: str
    task: str = ""
    kind: str | None = None
    ready: bool = True
    voices: tuple[str, ...] = ()
    builtin_voices: tuple[str, ...] = ()
    blends_voices: bool = False
    voice_languages: Mapping[str, str] | None = None
    requires_speaker: bool = False
    requires_reference_text: bool = False
    speed_range: tuple[float, float] | None = None
    languages: tuple[str, ...] = ()
    limits: Mapping[str, Any] | None = None
    formats: tuple[str, ...] = ()
    sample_rate: int | None = None
    streams: bool = False
    timestamps: tuple[str, ...] = ()
    translates: bool = False
    subtitles: tuple[str, ...] = ()
    media_types: tuple[str, ...] = ()
    input_modalities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Health:
    ok: bool
    version: str = ""


@dataclass(frozen=True, slots=True)
class Transcript:
    text: str
    job_id: str | None = None
    artifact_id: str | None = None


@dataclass(frozen=True, slots=True)
class Speech:
    path: Path
    job_id: str | None = None
    artifact_id: str | None = None


def _tidy(name: str, value: Any) -> Any:
    """Lists become tuples, times become datetimes, {"min", "max"} a pair; a time that is none is None."""
    if isinstance(value, list):
        return tuple(value)
    if name == "speed_range" and isinstance(value, dict) and {"min", "max"} <= value.keys():
        return (value["min"], value["max"])
    if name.endswith("_at"):
        try:
            return datetime.fromisoformat(value)
        except (ValueError, TypeError):
            return None
    return value


def build(kind: type[T], data: Any) -> T:
    """A dataclass from a JSON object. Unknown members are ignored and nulls are the defaults, so that a newer or
    an older server can be read. Raises `ValueError` where `data` is no object or lacks what every one has."""
    if not isinstance(data, dict):
        raise ValueError(f"{str(data)[:80]!r} is no {kind.__name__}")
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    values = {name: _tidy(name, value) for name, value in data.items() if name in known and value is not None}
    for name, field in known.items():
        if field.default is MISSING and type(values.get(name)).__name__ != field.type:
            raise ValueError(f"a {kind.__name__} without a proper {name!r}")
    return kind(**values)

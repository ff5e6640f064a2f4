"""What a generator is, for whoever offers one, asks one or checks a request against one. Plain Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

SCHEMA_VERSION = 1
MODALITIES = ("audio", "image", "video", "text")

# Tasks, as capabilities print them.
SPEECH = "text-to-speech"
MUSIC = "text-to-music"
TRANSCRIBE = "transcribe"
UNDERSTAND = "understand"


@dataclass(frozen=True, slots=True)
class Capability:
    """All that a face needs to describe a model or to check a request against it.

    `voices` are clips that this deployment registered, `builtin_voices` speakers in the weights. `languages` is
    empty where there is no choice. `speed_range` is (min, max), durations divide by it. `media_types` are those
    that `input_artifacts` may have beyond the contract's own.
    """

    model: str
    modality: str
    task: str
    voices: tuple[str, ...] = ()
    builtin_voices: tuple[str, ...] = ()
    requires_speaker: bool = False
    accepts_speaker: bool = False
    requires_reference_text: bool = False
    speed_range: tuple[float, float] | None = None
    languages: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    formats: tuple[str, ...] = ()
    sample_rate: int | None = None
    streams: bool = False
    honours_seed: bool = False
    timestamps: tuple[str, ...] = ()
    media_types: tuple[str, ...] = ()
    input_modalities: tuple[str, ...] = ()

    @property
    def queue(self) -> str:
        """The queue that this model's jobs wait in."""
        return f"model.{self.model}"

    def as_json(self) -> dict[str, Any]:
        """Every field, for storing; `from_json` reads it back."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"schema": SCHEMA_VERSION} | {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Capability:
        """Unknown members are dropped: an older web process may meet a newer worker's offer."""
        known = {f.name for f in fields(cls)}
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known})


@dataclass(frozen=True, slots=True)
class Input:
    """One input artifact, as a file that the engine may read. `media_type` is what the bytes are."""

    path: Path
    media_type: str


@dataclass(frozen=True, slots=True)
class Output:
    """One finished file under `run.workdir`. `facts` are numbers about it (duration_seconds, sample_rate…)."""

    path: Path
    media_type: str
    facts: Mapping[str, Any] = field(default_factory=dict)


class Cancelled(BaseException):
    """Raised by `run.check()` once the job is to stop. Not an Exception, so that no engine swallows it by accident."""


class Run(Protocol):
    """One job, as an engine sees it."""

    @property
    def params(self) -> Mapping[str, Any]: ...

    @property
    def inputs(self) -> Sequence[Input]: ...

    @property
    def seed(self) -> int | None: ...

    @property
    def workdir(self) -> Path:
        """An empty folder of the job's own; outputs are written here."""

    def progress(self, stage: str, fraction: float | None = None) -> None:
        """Say how far `stage` is (0..1, or None where it cannot be known). Also a `check()`."""

    def check(self) -> None:
        """Call between frames, sentences, steps, tokens: raises `Cancelled` when the job is to stop."""

    def note(self, text: str) -> None:
        """Tell the user something about this job that is not an error, as one sentence."""


@runtime_checkable
class Generator(Protocol):
    """An engine. It lives in a process of its own; only `describe` runs elsewhere, and imports no model library.

    `load` and `generate` raise `errors.JobError` subclasses for what a user should read; anything else becomes
    `inference_failed`.
    """

    @classmethod
    def describe(cls, model: str, options: Mapping[str, Any]) -> Capability:
        """What the model can do, from its configuration alone."""

    def load(self, options: Mapping[str, Any]) -> None:
        """Bring the model into memory."""

    def generate(self, run: Run) -> Iterator[Output]:
        """Do the job; yield each output once its file is complete."""

    def unload(self) -> None:
        """Give the memory back."""

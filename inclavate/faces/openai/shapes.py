"""What the OpenAI-compatible routes' requests and answers look like."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from inclavate import errors, jobs
from inclavate.faces.boundary import idempotency_key, parse_id
from inclavate.fleet import Offered
from inclavate.generators import SPEECH, TRANSCRIBE
from inclavate.models import Artifact

# The contract's own list; a model's `media_types` come on top.
AUDIO_TYPES = {"audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave", "audio/mpeg", "audio/mp3"}


class SpeechRequest(BaseModel):
    """`POST /v1/audio/speech`. SDKs send extras: what is not named here is ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: Annotated[str, Field(min_length=1, max_length=200)]
    input: Any = None
    voice: Any = None
    response_format: Any = None
    speed: Any = None
    speaker_artifact: str | None = None
    reference_text: Any = None
    language: Any = None
    instruct: Any = None
    max_duration_seconds: Any = None
    stream_format: str | None = None

    def submission(self, key_header: str | None) -> jobs.Submission:
        if self.stream_format not in (None, "audio"):
            raise errors.InvalidRequest(
                f"stream_format: only 'audio' is served, not {self.stream_format[:40]!r}.", param="stream_format"
            )
        passed = ("voice", "response_format", "speed", "reference_text", "language", "instruct", "max_duration_seconds")
        params = {"text": self.input} | {name: getattr(self, name) for name in passed}
        speaker = self.speaker_artifact
        return jobs.Submission(
            model=self.model,
            modality="audio",
            task=SPEECH,
            params={name: value for name, value in params.items() if value is not None},
            input_artifacts=[parse_id(speaker, "speaker_artifact")] if speaker is not None else [],
            idempotency_key=idempotency_key(key_header),
            name_of=lambda name: "input" if name == "text" else name,
        )


class TranscriptionRequest(BaseModel):
    """The fields of `POST /v1/audio/transcriptions` beside the file; as a form has them, all are text."""

    model_config = ConfigDict(extra="ignore")

    model: Annotated[str, Field(min_length=1, max_length=200)]
    response_format: str = "json"
    language: str | None = None
    prompt: str | None = None
    stream: str | None = None

    def check_format(self) -> None:
        if self.response_format not in ("json", "text"):
            raise errors.InvalidRequest(
                f"response_format must be json or text, not {self.response_format[:40]!r}: "
                "there are no timestamps to fill another with.",
                param="response_format",
            )
        if (self.stream or "false").lower() not in ("false", "0"):
            raise errors.InvalidRequest("stream: transcripts are not streamed here; leave it out.", param="stream")

    def submission(self, clip: Artifact, key_header: str | None) -> jobs.Submission:
        return jobs.Submission(
            model=self.model,
            modality="text",
            task=TRANSCRIBE,
            params={name: value for name in ("language", "prompt") if (value := getattr(self, name))},
            clip=clip,
            idempotency_key=idempotency_key(key_header),
        )


def model_json(offered: Offered) -> dict[str, Any]:
    return {
        "id": offered.capability.model,
        "object": "model",
        "created": int(offered.seen_at.timestamp()),
        "owned_by": "dppan",
    }

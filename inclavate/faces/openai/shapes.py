"""What the OpenAI-compatible routes' requests and answers look like."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Collection
from datetime import timedelta
from typing import Annotated, Any

import babel
from pydantic import BaseModel, ConfigDict, Field

from inclavate import artifacts, errors, jobs, subtitles, transcripts, voices
from inclavate.faces.boundary import idempotency_key, parse_id
from inclavate.faces.transfers import filename
from inclavate.fleet import Offered
from inclavate.generators import SPEECH, TRANSCRIBE
from inclavate.models import Artifact, Voice

MAX_FILENAME = 255
PURPOSES = ("assistants", "user_data", "vision")
# OpenAI's other purposes, each the first step of something that nobody would take the next step of here.
_PURPOSES_NOT_RUN = {"fine-tune": "fine-tuning", "batch": "batches", "evals": "evaluations"}
# What a file is for that came without a purpose.
_PURPOSE_OF_OTHERS = "user_data"
_EXPIRY_SECONDS = (3600, 30 * 86400)
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]{1,100}/[\w!#$&^.+-]{1,100}", re.ASCII)
_FILE_STATUS = {Artifact.State.READY: "processed", Artifact.State.PENDING: "uploaded", Artifact.State.FAILED: "error"}
# The contract's own list; a model's `media_types` come on top.
_PLAIN_FORMATS = ("json", "text")
_TIMED_FORMATS = ("verbose_json", *subtitles.FORMATS)
# Whisper's own.
_OLD_CODES = {"jw": "jv"}
AUDIO_TYPES = {"audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave", "audio/mpeg", "audio/mp3"}

# Fields of a speech request that are params of the same name.
_SPEECH_PARAMS = (
    "voice",
    "response_format",
    "speed",
    "reference_text",
    "language",
    "instruct",
    "max_duration_seconds",
    "lead_silence_seconds",
    "tail_silence_seconds",
    "normalize",
    "lexicon",
    "subtitles",
)


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
    lead_silence_seconds: Any = None
    tail_silence_seconds: Any = None
    normalize: Any = None
    lexicon: Any = None
    subtitles: Any = None
    stream_format: str | None = None

    def submission(self, key_header: str | None) -> jobs.Submission:
        if self.stream_format not in (None, "audio", "sse"):
            raise errors.InvalidRequest(
                f"stream_format must be audio or sse, not {self.stream_format[:40]!r}.", param="stream_format"
            )
        params = {"text": self.input} | {name: getattr(self, name) for name in _SPEECH_PARAMS}
        # OpenAI's SDKs name a voice of one's own so.
        if isinstance(self.voice, dict) and isinstance(self.voice.get("id"), str):
            params["voice"] = self.voice["id"]
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
    """The fields of `POST /v1/audio/transcriptions` and `/v1/audio/translations` beside the file; as a form has them,
    all are text."""

    model_config = ConfigDict(extra="ignore")

    model: Annotated[str, Field(min_length=1, max_length=200)]
    response_format: str = "json"
    language: str | None = None
    prompt: str | None = None
    stream: str | None = None
    timestamp_granularities: list[str] = []

    def check(self, timestamps: Collection[str]) -> None:
        """Raises `InvalidRequest`; `timestamps` are the granularities of times that the model gives."""
        offered = (*_PLAIN_FORMATS, *(_TIMED_FORMATS if transcripts.SEGMENT in timestamps else ()))
        if self.response_format not in offered:
            why = "" if timestamps else f"; {self.model} gives no timestamps to fill another with"
            raise errors.InvalidRequest(
                f"response_format must be one of {', '.join(offered)}, not {self.response_format[:40]!r}{why}.",
                param="response_format",
            )
        if self.streams and self.response_format not in _PLAIN_FORMATS:
            raise errors.InvalidRequest(
                f"stream: text is streamed, as {' or '.join(_PLAIN_FORMATS)}, not {self.response_format}.",
                param="stream",
            )
        self._check_granularities(timestamps)

    def _check_granularities(self, timestamps: Collection[str]) -> None:
        name = "timestamp_granularities[]"
        if self.timestamp_granularities and self.response_format != "verbose_json":
            raise errors.InvalidRequest(f"{name}: it takes response_format verbose_json.", param=name)
        for word in self.timestamp_granularities:
            if word not in timestamps:
                raise errors.InvalidRequest(
                    f"{name} must be of {', '.join(timestamps)}, not {word[:40]!r}.", param=name
                )

    @property
    def streams(self) -> bool:
        """Raises `InvalidRequest`."""
        word = (self.stream or "false").lower()
        if word not in ("true", "1", "false", "0"):
            raise errors.InvalidRequest(f"stream must be true or false, not {word[:40]!r}.", param="stream")
        return word in ("true", "1")

    @property
    def granularities(self) -> list[str]:
        """What times the answer is made of."""
        match self.response_format:
            case "verbose_json":
                return sorted(set(self.timestamp_granularities)) or [transcripts.SEGMENT]
            case "srt" | "vtt":
                return list(transcripts.GRANULARITIES)
            case _:
                return []

    def submission(
        self, clip: Artifact, key_header: str | None, timestamps: Collection[str], *, translate: bool
    ) -> jobs.Submission:
        """`timestamps` are the granularities of times that the model gives."""
        params: dict[str, Any] = {name: value for name in ("language", "prompt") if (value := getattr(self, name))}
        if wanted := [word for word in self.granularities if word in timestamps]:
            params["timestamps"] = wanted
        if translate:
            params["translate"] = True
        return jobs.Submission(
            model=self.model,
            modality="text",
            task=TRANSCRIBE,
            params=params,
            clip=clip,
            idempotency_key=idempotency_key(key_header),
            # That of two routes it was the one that translates is no field of the request.
            name_of=lambda name: "model" if name == "translate" else name,
        )


def usage_json(seconds: float) -> dict[str, Any]:
    """What a transcription took, as OpenAI counts it for models without tokens."""
    return {"type": "duration", "seconds": math.ceil(seconds)}


def verbose_json(transcript: transcripts.Transcript, text: str, granularities: Collection[str], task: str) -> Any:
    """`text` is empty where the language was not the wanted one."""
    said: dict[str, Any] = {
        "task": task,
        "language": language_name(transcript.language),
        "duration": transcript.duration_seconds,
        "text": text,
        "usage": usage_json(transcript.duration_seconds),
    }
    if transcripts.SEGMENT in granularities:
        segments = ({"id": number, **segment.as_json()} for number, segment in enumerate(transcript.segments))
        said["segments"] = [{name: v for name, v in each.items() if name != "words"} for each in segments]
    if transcripts.WORD in granularities:
        said["words"] = [
            {"word": word.text.strip(), "start": word.start, "end": word.end, "probability": word.probability}
            for word in transcript.words
        ]
    return said


def language_name(code: str | None) -> str:
    """As OpenAI writes it: "english". A code that has no name stays one; empty where nothing was said."""
    names = babel.Locale("en").languages
    return (names.get(_OLD_CODES.get(code, code)) or code).lower() if code else ""


def model_json(offered: Offered) -> dict[str, Any]:
    return {
        "id": offered.capability.model,
        "object": "model",
        "created": int(offered.seen_at.timestamp()),
        "owned_by": "dppan",
    }


# -- files -------------------------------------------------------------------------------------------------------------


class FileRequest(BaseModel):
    """The fields of `POST /v1/files` beside the file; as a form has them, all are text."""

    model_config = ConfigDict(extra="ignore")

    purpose: str
    anchor: str | None = Field(None, alias="expires_after[anchor]")
    seconds: str | None = Field(None, alias="expires_after[seconds]")

    @property
    def expires_after(self) -> timedelta | None:
        """Raises `InvalidRequest`."""
        if self.anchor is None and self.seconds is None:
            return None
        if self.anchor != "created_at":
            came = "none" if self.anchor is None else repr(self.anchor[:40])
            raise errors.InvalidRequest(
                f"expires_after[anchor] must be created_at; {came} came.", param="expires_after[anchor]"
            )
        low, high = _EXPIRY_SECONDS
        text = self.seconds or ""
        if not re.fullmatch(r"[0-9]{1,10}", text) or not low <= int(text) <= high:
            raise errors.InvalidRequest(
                f"expires_after[seconds] must be a whole number from {low} to {high}, not {text[:40]!r}.",
                param="expires_after[seconds]",
            )
        return timedelta(seconds=int(text))


def check_purpose(purpose: str) -> None:
    """Raises `InvalidRequest` unless files may be uploaded for it."""
    accepted = ", ".join(PURPOSES)
    if purpose in _PURPOSES_NOT_RUN:
        raise errors.InvalidRequest(
            f"purpose: this deployment does not run {_PURPOSES_NOT_RUN[purpose]}, so it takes no file for {purpose!r}; "
            f"send one of {accepted}.",
            param="purpose",
        )
    if purpose not in PURPOSES:
        raise errors.InvalidRequest(f"purpose must be one of {accepted}, not {purpose[:40]!r}.", param="purpose")


def check_filename(name: str) -> None:
    """Raises `InvalidRequest` for what is no plain name; a space, a quote and any script are welcome."""
    if len(name) > MAX_FILENAME:
        raise errors.InvalidRequest(
            f"file: its name may have at most {MAX_FILENAME} characters; {len(name):,} came.", param="file"
        )
    if any(unicodedata.category(character) == "Cc" for character in name):
        raise errors.InvalidRequest("file: its name may not hold control characters or NUL.", param="file")
    if "/" in name or "\\" in name or name in (".", ".."):
        raise errors.InvalidRequest(f"file: a name is not a path, and {name[:40]!r} is one.", param="file")


def check_media_type(media_type: str) -> None:
    """Raises `InvalidRequest`; empty is welcome."""
    if media_type and not _MEDIA_TYPE.fullmatch(media_type):
        raise errors.InvalidRequest(
            f"file: its Content-Type must be a media type such as audio/wav, not {media_type[:40]!r}.", param="file"
        )


class FileQuery(BaseModel):
    """What `GET /v1/files` may be asked beside a limit."""

    model_config = ConfigDict(extra="ignore")

    after: str | None = None
    order: str = "desc"
    purpose: str | None = None

    def check(self) -> None:
        """Raises `InvalidRequest`. A purpose that nothing can have here is a question with an empty answer."""
        if self.order not in ("asc", "desc"):
            raise errors.InvalidRequest(f"order must be asc or desc, not {self.order[:40]!r}.", param="order")
        if self.purpose is not None and self.purpose not in _PURPOSES_NOT_RUN:
            check_purpose(self.purpose)


def file_json(artifact: Artifact) -> dict[str, Any]:
    return {
        "id": str(artifact.pk),
        "object": "file",
        "bytes": artifact.size if artifact.state == Artifact.State.READY else 0,
        "created_at": int(artifact.created_at.timestamp()),
        "expires_at": int(artifact.expires_at.timestamp()) if artifact.expires_at else None,
        "filename": filename(artifact),
        "purpose": artifact.purpose or _PURPOSE_OF_OTHERS,
        "status": _FILE_STATUS[Artifact.State(artifact.state)],
        "status_details": None,
    }


def files_json(page: artifacts.Page[Artifact]) -> dict[str, Any]:
    data = [file_json(row) for row in page.rows]
    return {
        "object": "list",
        "data": data,
        "has_more": page.truncated,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }


# -- voices ------------------------------------------------------------------------------------------------------------


class VoiceRequest(BaseModel):
    """The fields of `POST /v1/audio/voices` beside the clip."""

    model_config = ConfigDict(extra="ignore")

    name: str
    consent: str
    reference_text: str = ""
    description: str = ""
    artifact: str | None = None
    type: str = "audio_sample"

    def new_voice(self) -> voices.NewVoice:
        """Raises `InvalidRequest`."""
        if self.type != "audio_sample":
            raise errors.InvalidRequest(
                f"type must be audio_sample, not {self.type[:40]!r}: a voice is made of a clip.", param="type"
            )
        return voices.NewVoice(self.name, self.consent, self.reference_text, self.description)


def voice_json(voice: Voice, models: list[str]) -> dict[str, Any]:
    """A saved voice; `models` are those that speak like a clip."""
    state, reason = voices.state(voice)
    given_at = int(voice.created_at.timestamp())
    return {
        "id": str(voice.pk),
        "object": "audio.voice",
        "type": "audio_sample",
        "name": voice.name,
        "created_at": given_at,
        "description": voice.description or None,
        "state": state,
        "state_reason": reason,
        "reference_text": voice.reference_text or None,
        "consent": {"statement": voice.consent, "account": voice.owner.name, "given_at": given_at},
        "artifact": str(voice.artifact_id),
        "facts": {name: voice.artifact.facts[name] for name in voices.MEASURES if name in voice.artifact.facts},
        "models": models,
    }


def common_voice_json(voice: voices.CommonVoice) -> dict[str, Any]:
    """A voice of the deployment's or of a model's: it has a name and no id."""
    return {
        "id": None,
        "object": "audio.voice",
        "type": voice.kind,
        "name": voice.name,
        "state": voices.READY,
        "models": list(voice.models),
    }

"""Voices: those that owners save, and what a request's `voice` means.

A saved voice is a clip (an artifact of the owner's), and the consent of whoever speaks in it. Whether it may be used is
read from what a worker found in the clip, and kept nowhere else: so the two cannot differ.
"""

from __future__ import annotations

import unicodedata
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import IntegrityError

from inclavate import artifacts, database, errors, fleet
from inclavate.generators import SPEECH, Capability
from inclavate.models import Artifact, Owner, Voice

MAX_PER_OWNER = 100
MAX_NAME = 100
MAX_CONSENT = 1_000
MAX_REFERENCE_TEXT = 2_000
MAX_DESCRIPTION = 1_000

# Engines that speak like a clip use some 3 to 30 s of it, at 16 to 24 kHz; what they do with less is noise.
SECONDS = (1.0, 60.0)
MIN_SAMPLE_RATE = 16_000
MIN_LEVEL_DBFS = -40.0
MAX_SILENCE = 0.7
MAX_CLIPPED = 0.01
# What a worker measures, and an answer shows.
MEASURES = ("duration_seconds", "sample_rate", "channels", "level_dbfs", "silence", "clipped")

PENDING, READY, REFUSED = "pending", "ready", "refused"

# Sound alone often comes in these; one with moving pictures is refused once a worker has seen them.
_CONTAINERS = ("video/webm", "video/x-matroska", "video/mp4", "video/quicktime")
_NAME_SIGNS = " ._-'’()"


# -- what a clip must be -----------------------------------------------------------------------------------------------


def problem(facts: Mapping[str, Any]) -> str | None:
    """Why no engine should speak like a clip of these facts, as a sentence with the measure and its limit; or None."""
    if facts.get("unreadable"):
        return "The clip is broken, or no sound."
    if "width" in facts:
        return "The clip is a video; send its sound alone."
    if problem := _length_problem(facts.get("duration_seconds")):
        return problem
    if any(name not in facts for name in MEASURES):
        return "The clip could not be measured."
    if facts["sample_rate"] < MIN_SAMPLE_RATE:
        return f"The clip has {facts['sample_rate']:,} samples a second; it needs at least {MIN_SAMPLE_RATE:,}."
    if problem := _loudness_problem(facts):
        return problem
    if facts["clipped"] > MAX_CLIPPED:
        return f"{facts['clipped']:.1%} of the clip is cut off at full scale; at most {MAX_CLIPPED:.0%} may be."
    return None


def _length_problem(seconds: float | None) -> str | None:
    low, high = SECONDS
    if seconds is None or low <= seconds <= high:
        return None
    return f"The clip is {seconds:g} s long; it must be {low:g} to {high:g} s."


def _loudness_problem(facts: Mapping[str, Any]) -> str | None:
    if facts["silence"] > MAX_SILENCE:
        return f"{facts['silence']:.0%} of the clip is silence; at most {MAX_SILENCE:.0%} may be."
    if facts["level_dbfs"] < MIN_LEVEL_DBFS:
        return f"The clip is too quiet: its level is {facts['level_dbfs']:g} dBFS; it needs {MIN_LEVEL_DBFS:g}."
    return None


def check_given(clip: Artifact, name: str) -> None:
    """Whether there is a voice in a clip that a request itself gives, in the field `name`, as far as is known by now.

    Raises `InvalidRequest`. How long it is, and how good, is between the caller and the engine.
    """
    kind = artifacts.content_type(clip)
    if kind and not _is_sound(kind):
        raise errors.InvalidRequest(f"{name}: a clip must be sound; artifact {clip.pk} is {kind}.", param=name)
    if clip.facts.get("unreadable"):
        raise errors.InvalidRequest(f"{name}: artifact {clip.pk} is broken, or no sound.", param=name)
    if {"silence", "level_dbfs"} <= clip.facts.keys() and (reason := _loudness_problem(clip.facts)):
        raise errors.InvalidRequest(f"{name}: {reason}", param=name)


def state(voice: Voice) -> tuple[str, str | None]:
    """`PENDING` until a worker has looked into its clip, then `READY`, or `REFUSED` and why."""
    if voice.artifact.inspect_at is not None:
        return PENDING, None
    reason = problem(voice.artifact.facts)
    return (READY, None) if reason is None else (REFUSED, reason)


# -- saving ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewVoice:
    """What is said of a voice that is to be saved. `consent` is the statement of whoever speaks in the clip."""

    name: str
    consent: str
    reference_text: str = ""
    description: str = ""

    def __post_init__(self) -> None:
        """Raises `InvalidRequest`."""
        _check_text("name", self.name, MAX_NAME, is_required=True)
        _check_text("consent", self.consent, MAX_CONSENT, is_required=True)
        _check_text("reference_text", self.reference_text, MAX_REFERENCE_TEXT)
        _check_text("description", self.description, MAX_DESCRIPTION)
        _check_name(self.name)

    @property
    def called(self) -> str:
        """Its name in the one form that is compared."""
        return _folded(self.name)


def _check_text(field: str, text: str, limit: int, *, is_required: bool = False) -> None:
    if is_required and not text.strip():
        raise errors.InvalidRequest(f"{field} is required, and must not be blank.", param=field)
    if len(text) > limit:
        raise errors.InvalidRequest(f"{field} may have at most {limit:,} characters; {len(text):,} came.", param=field)


def _check_name(name: str) -> None:
    is_plain = all(unicodedata.category(c)[0] in "LMN" or c in _NAME_SIGNS for c in name)
    if not is_plain or name != name.strip():
        raise errors.InvalidRequest(
            f"name: letters, digits, and . _ - ' ( ) with spaces between them are taken, not {name!r}.", param="name"
        )
    if _as_id(name) is not None:
        raise errors.InvalidRequest(f"name: {name!r} is an id; a voice is called by a name or by its id.", param="name")


def keep(new: NewVoice, draft: artifacts.Draft, field: str = "file") -> Voice:
    """Save a voice whose clip is this draft, of which all has come; on an error the draft is the caller's to abandon.
    `field` is where the request has the clip.

    Raises `InvalidRequest`, `Conflict` for a name that is taken, `QuotaExhausted`, `Unavailable`.
    """
    owner = draft.artifact.owner
    _check_free(owner, new.called)
    _check_sound(draft.sniffed_type, field)
    # The deployment's time to live is for what jobs read and make.
    draft.artifact.expires_at = None
    draft.store()
    try:
        with database.write() as now:
            _check_count(owner)
            voice = Voice.objects.create(
                owner=owner,
                name=new.called,
                description=new.description,
                artifact=draft.artifact,
                reference_text=new.reference_text,
                consent=new.consent,
                created_at=now,
            )
            draft.seal()
    except IntegrityError:
        raise _taken(new.called) from None
    artifacts.ring_inspection(draft.artifact)
    return voice


def keep_copy(owner: Owner, new: NewVoice, artifact_id: uuid.UUID) -> Voice:
    """Save a voice whose clip is a copy of an artifact: what becomes of that one does not matter to the voice.

    Raises what `keep` does, `NotFound`, `NotReady`, `InputTooLarge`.
    """
    try:
        source = artifacts.get(owner, artifact_id)
    except errors.NotFound as error:
        raise errors.NotFound(f"artifact: {error.message}", param="artifact") from None
    if source.size > settings.MAX_CLIP_BYTES:
        raise errors.InputTooLarge(
            f"artifact: {artifact_id} has {source.size:,} bytes; the limit is {settings.MAX_CLIP_BYTES:,}.",
            param="artifact",
        )
    chunks = artifacts.read(source)
    draft = artifacts.begin(
        owner, Artifact.Origin.UPLOADED, source.media_type, expected_bytes=source.size, filename=source.filename
    )
    try:
        for chunk in chunks:
            draft.write(chunk)
        return keep(new, draft, "artifact")
    finally:
        chunks.close()
        draft.abandon()


def _check_free(owner: Owner, name: str) -> None:
    if Voice.objects.filter(owner=owner, name=name).exists():
        raise _taken(name)
    for voice in common():
        if voice.name == name:
            raise errors.Conflict(f"name: {name!r} is a voice of {', '.join(voice.models)} already.", param="name")


def _taken(name: str) -> errors.Conflict:
    return errors.Conflict(f"name: you have a voice {name!r} already; delete it first.", param="name")


def _check_sound(sniffed_type: str | None, field: str) -> None:
    if sniffed_type is None or not _is_sound(sniffed_type):
        raise errors.InvalidRequest(
            f"{field}: The clip must be sound; it looks like {sniffed_type or 'none'}.", param=field
        )


def _is_sound(media_type: str) -> bool:
    return media_type.startswith("audio/") or media_type in _CONTAINERS


def _check_count(owner: Owner) -> None:
    # Counted with the owner's row locked: else two at one moment both take the last place.
    Owner.objects.select_for_update(no_key=True).get(pk=owner.pk)
    if Voice.objects.filter(owner=owner).count() >= MAX_PER_OWNER:
        raise errors.QuotaExhausted(f"You have {MAX_PER_OWNER} saved voices, which is the limit; delete one.")


# -- reading and deleting ----------------------------------------------------------------------------------------------


def get(owner: Owner, voice_id: uuid.UUID) -> Voice:
    """Raises `NotFound`, the same for another owner's."""
    voice = Voice.objects.select_related("artifact", "owner").filter(pk=voice_id, owner=owner).first()
    if voice is None:
        raise errors.NotFound(f"There is no saved voice {voice_id}.")
    return voice


def saved(owner: Owner) -> list[Voice]:
    """All that this owner saved, the oldest first; at most `MAX_PER_OWNER`."""
    return list(Voice.objects.filter(owner=owner).select_related("artifact", "owner").order_by("created_at", "pk"))


def delete(owner: Owner, voice_id: uuid.UUID) -> None:
    """The voice and its clip. Jobs that are still to read it fail. Raises `NotFound`."""
    voice = get(owner, voice_id)
    # The row goes with the clip's.
    with suppress(errors.NotFound):
        artifacts.delete(owner, voice.artifact_id)


@dataclass(frozen=True, slots=True)
class CommonVoice:
    """A voice that everybody may use: `kind` is "deployment" (a clip of this deployment's) or "builtin"."""

    name: str
    kind: str
    models: tuple[str, ...]


def common() -> list[CommonVoice]:
    """The voices of the models that are offered."""
    models: dict[tuple[str, str], list[str]] = {}
    for capability in _speaking():
        for kind, names in (("deployment", capability.voices), ("builtin", capability.builtin_voices)):
            for name in names:
                models.setdefault((kind, name), []).append(capability.model)
    return [CommonVoice(name, kind, tuple(names)) for (kind, name), names in models.items()]


def models_for_clips() -> list[str]:
    """The models that speak like a clip."""
    return [capability.model for capability in _speaking() if capability.accepts_speaker]


def _speaking() -> list[Capability]:
    return [offer.capability for offer in fleet.offered() if offer.capability.task == SPEECH]


# -- using -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Speaker:
    """What a request's `voice` comes to: the parameters for the engine, and the saved voice, where it means one.

    `offered` are the owner's saved voices, where it means none and no model's, and one of them would have done.
    """

    params: Mapping[str, Any]
    voice: Voice | None = None
    notes: tuple[str, ...] = ()
    offered: tuple[str, ...] = ()


def speaker(owner: Owner, params: Mapping[str, Any], capability: Capability) -> Speaker:
    """A model's own voice comes before a saved one of that name, which is then meant by its id.

    Raises `SpeakerUnsupported` where it is a saved one, and the model takes no clip.
    """
    word = params.get("voice")
    if capability.task != SPEECH or not isinstance(word, str):
        return Speaker(params)
    is_models = word in (*capability.voices, *capability.builtin_voices)
    if (voice := _find(owner, word)) is None:
        wants_one = capability.accepts_speaker and not is_models
        return Speaker(params, offered=tuple(voice.name for voice in saved(owner)) if wants_one else ())
    if is_models:
        note = f"The voice {word!r} is {capability.model}'s own; your saved one of that name is meant by its id."
        return Speaker(params, notes=(note,))
    if not capability.accepts_speaker:
        raise errors.SpeakerUnsupported(
            f"{capability.model} cannot speak like a clip, and so not like the saved voice {voice.name!r}.",
            param="voice",
        )
    passed = {name: value for name, value in params.items() if name != "voice"}
    if capability.requires_reference_text and voice.reference_text:
        passed.setdefault("reference_text", voice.reference_text)
    return Speaker(passed, voice, (f"It speaks like the saved voice {voice.name!r}.",))


def clip(voice: Voice) -> Artifact:
    """What an engine is to speak like. Raises `NotReady`."""
    now, reason = state(voice)
    if now == PENDING:
        raise errors.NotReady(f"The voice {voice.name!r} is pending: its clip is being looked into.", param="voice")
    if now == REFUSED:
        raise errors.NotReady(f"The voice {voice.name!r} was refused. {reason}", param="voice")
    return voice.artifact


def _find(owner: Owner, word: str) -> Voice | None:
    if len(word) > MAX_NAME:
        return None
    rows = Voice.objects.filter(owner=owner).select_related("artifact")
    voice_id = _as_id(word)
    return rows.filter(name=_folded(word)).first() if voice_id is None else rows.filter(pk=voice_id).first()


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _as_id(word: str) -> uuid.UUID | None:
    try:
        found = uuid.UUID(word)
    except ValueError:
        return None
    return found if str(found) == word.lower() else None

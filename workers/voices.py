"""The voices of the deployment: clips in a folder that engines speak like. A worker reads it once, when it starts.

A voice is a file NAME.toml with `clip` (a file beside it), `consent`, and perhaps `reference_text` and `models`.
"""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inclavate import artifacts
from inclavate.errors import InferenceFailed
from inclavate.generators import SPEECH, Capability, Input

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ENDING = re.compile(r"\.[a-z0-9]{1,8}")
_KEYS = {"clip", "consent", "reference_text", "models"}


class VoiceError(ValueError):
    """A voice, or its file, is wrong; the message names it and says what is wrong."""


@dataclass(frozen=True, slots=True)
class DeploymentVoice:
    """`models` is empty for every model that takes a clip; `consent` says by what right the clip is used."""

    name: str
    clip: Path
    consent: str
    reference_text: str = ""
    models: tuple[str, ...] = ()

    def serves(self, capability: Capability) -> bool:
        """Whether the model speaks like this voice: like a clip, and knowing its words where it needs them."""
        return (
            capability.task == SPEECH
            and capability.accepts_speaker
            and self.name not in capability.builtin_voices
            and (not self.models or capability.model in self.models)
            and (bool(self.reference_text) or not capability.requires_reference_text)
        )


# -- the folder --------------------------------------------------------------------------------------------------------


def load(folder: Path) -> list[DeploymentVoice]:
    """The voices of a folder, by name; none where there is no folder. Raises `VoiceError`."""
    return [_read(path) for path in sorted(folder.glob("*.toml"))]


def add(folder: Path, voice: DeploymentVoice) -> DeploymentVoice:
    """Copy its clip into the folder, and write its file last. Raises `VoiceError` for a name that cannot be, or is."""
    if not _NAME.fullmatch(voice.name):
        raise VoiceError(f"a voice's name is 1 to 64 letters, digits, '.', '_' or '-', not {voice.name[:80]!r}.")
    if not voice.consent.strip():
        raise VoiceError("the consent must say by what right the clip is used.")
    described = folder / f"{voice.name}.toml"
    if described.exists():
        raise VoiceError(f"there is a voice {voice.name!r} already; remove it first.")
    ending = voice.clip.suffix.lower()
    clip = folder / f"{voice.name}{ending if _ENDING.fullmatch(ending) and ending != '.toml' else '.clip'}"
    kept = replace(voice, clip=clip)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(voice.clip, clip)
        described.write_text(_described(kept), encoding="utf-8")
    except OSError as error:
        raise VoiceError(f"the voice cannot be written to {folder}: {error.strerror}.") from error
    return kept


def remove(folder: Path, name: str) -> None:
    """Raises `VoiceError` where there is none of that name."""
    voice = next((voice for voice in load(folder) if voice.name == name), None)
    if voice is None:
        known = ", ".join(voice.name for voice in load(folder)) or "none"
        raise VoiceError(f"there is no voice {name!r}; there are: {known}.")
    (folder / f"{name}.toml").unlink()
    voice.clip.unlink(missing_ok=True)


def _read(path: Path) -> DeploymentVoice:
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise VoiceError(f"{path}: cannot be read: {error}.") from error
    if not _NAME.fullmatch(path.stem):
        raise VoiceError(f"{path}: a voice's name is 1 to 64 letters, digits, '.', '_' or '-'.")
    if unknown := said.keys() - _KEYS:
        raise VoiceError(f"{path}: {', '.join(sorted(unknown))}: there is no such key.")
    models = said.get("models", [])
    if not (isinstance(models, list) and all(isinstance(model, str) for model in models)):
        raise VoiceError(f"{path}: models must be a list of names, not {models!r}.")
    clip = path.parent / _text(path, said, "clip")
    if clip.parent != path.parent or not clip.is_file():
        raise VoiceError(f"{path}: clip must be a file beside it, not {said['clip']!r}.")
    words = _text(path, said, "reference_text") if "reference_text" in said else ""
    return DeploymentVoice(path.stem, clip, _text(path, said, "consent"), words, tuple(models))


def _text(path: Path, said: Mapping[str, Any], key: str) -> str:
    value = said.get(key)
    if not isinstance(value, str) or not value.strip():
        raise VoiceError(f"{path}: {key} must be text, and not blank, not {value!r}.")
    return value


def _described(voice: DeploymentVoice) -> str:
    said: dict[str, Any] = {"clip": voice.clip.name, "consent": voice.consent}
    if voice.reference_text:
        said["reference_text"] = voice.reference_text
    if voice.models:
        said["models"] = list(voice.models)
    # A string or a list of JSON is one of TOML too, but for DEL.
    lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in said.items())
    return "".join(lines).replace("\x7f", "\\u007f")


# -- speaking like them ------------------------------------------------------------------------------------------------


class Voices:
    """The deployment's voices as a worker's models have them."""

    def __init__(self, voices: Iterable[DeploymentVoice] = (), capabilities: Iterable[Capability] = ()) -> None:
        known = list(voices)
        self._by_model: dict[str, dict[str, DeploymentVoice]] = {}
        for capability in capabilities:
            served = {voice.name: voice for voice in known if voice.serves(capability)}
            if not capability.requires_reference_text:
                served = {name: replace(voice, reference_text="") for name, voice in served.items()}
            self._by_model[capability.model] = served

    def offered(self, capability: Capability) -> Capability:
        """What the model can do, these voices among it."""
        served = self._by_model.get(capability.model, {})
        return replace(capability, voices=tuple(dict.fromkeys((*capability.voices, *served))))

    def speaker(self, model: str, params: Mapping[str, Any], folder: Path) -> tuple[Mapping[str, Any], list[Input]]:
        """The parameters for the engine, and the clip in `folder` that `voice` has become, where it is one of these.

        Raises `InferenceFailed` where the clip is gone.
        """
        voice = self._by_model.get(model, {}).get(params.get("voice") or "")
        if voice is None:
            return params, []
        path = folder / "voice"
        try:
            shutil.copyfile(voice.clip, path)
            media_type = sniffed(path)
        except OSError as error:
            raise InferenceFailed(f"The clip of the voice {voice.name!r} cannot be read on this worker.") from error
        passed = {name: value for name, value in params.items() if name != "voice"}
        if voice.reference_text:
            passed["reference_text"] = voice.reference_text
        return passed, [Input(path, media_type or "application/octet-stream")]


def sniffed(clip: Path) -> str | None:
    """What the clip's first bytes show it to be. Raises `OSError`."""
    with clip.open("rb") as file:
        return artifacts.sniff(file.read(4096))

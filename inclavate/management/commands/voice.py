"""`inclavate voice add|list|remove`: the clips of the deployment that everybody's speech may be like."""

from __future__ import annotations

import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from inclavate import voices
from workers import inspection
from workers.catalog import CatalogError, load_catalog
from workers.inspection import Inspector
from workers.voices import DeploymentVoice, VoiceError, add, load, remove, sniffed

_RESTART = "Workers offer it after their next start, each from the folder of its own machine."


class Command(BaseCommand):
    help = "Add, list and remove voices of the deployment, in the folder INCLAVATE_VOICES_DIR of this machine."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        new = verbs.add_parser("add", help="check a clip, and copy it into the folder")
        new.add_argument("name")
        new.add_argument("--clip", type=Path, required=True, help="1 to 60 s of one person's speech")
        new.add_argument("--consent", required=True, help="by what right it is used: a consent, a licence")
        new.add_argument("--reference-text", default="", help="the exact words of the clip, for models that need them")
        new.add_argument("--model", action="append", dest="models", default=[], help="serve this model alone (repeat)")
        verbs.add_parser("list", help="the voices, and what is said of them")
        gone = verbs.add_parser("remove", help="remove a voice and its clip")
        gone.add_argument("name")

    def handle(self, *args: Any, verb: str, **options: Any) -> None:
        try:
            match verb:
                case "add":
                    self._add(options)
                case "list":
                    self._list()
                case "remove":
                    remove(settings.VOICES_DIR, options["name"])
                    self.stdout.write(f"Removed the voice {options['name']}. Workers offer it until their next start.")
        except VoiceError as error:
            raise CommandError(f"{error}") from None

    def _add(self, options: dict[str, Any]) -> None:
        clip = options["clip"]
        voice = DeploymentVoice(
            options["name"], clip, options["consent"], options["reference_text"], tuple(options["models"])
        )
        try:
            _check(clip)
        except OSError as error:
            raise CommandError(f"--clip: {clip} cannot be read: {error.strerror}.") from None
        add(settings.VOICES_DIR, voice)
        self.stdout.write(f"Added the voice {voice.name}. {_RESTART}")
        for model in _unknown(voice.models):
            self.stderr.write(f"--model: the catalog {settings.MODELS_FILE} has no {model} that speaks like a clip.")

    def _list(self) -> None:
        for voice in load(settings.VOICES_DIR):
            models = ", ".join(voice.models) or "every model that takes a clip"
            words = "with its words" if voice.reference_text else "without words"
            self.stdout.write(f"{voice.name}  {voice.clip.name}  {words}  {models}  {voice.consent}")


def _unknown(models: tuple[str, ...]) -> list[str]:
    """Those that no worker with this machine's catalog would offer the voice for."""
    try:
        known = load_catalog(settings.MODELS_FILE).models
        return [model for model in models if not (model in known and known[model].capability().accepts_speaker)]
    except CatalogError as error:
        raise CommandError(f"{error}") from None


def _check(clip: Path) -> None:
    """By the measures that saved voices must pass, in the same cage. Raises `CommandError`, `OSError`."""
    if not inspection.is_possible():
        raise CommandError("Looking into a clip takes PyAV, which is not installed: add the extra `whisper`.")
    sniffed_type = sniffed(clip) or ""
    if not sniffed_type.startswith(("audio/", "video/")):
        raise CommandError(f"--clip: {clip} is no sound; it looks like {sniffed_type or 'nothing that is known'}.")
    with tempfile.TemporaryDirectory(prefix="inclavate-voice-") as folder:
        inspector = Inspector(Path(folder), settings.ENVIRONMENT, lambda: False)
        facts = inspector.measure(clip.resolve(), sniffed_type)
    problem = voices.problem(facts or {"unreadable": True})
    if problem is not None:
        raise CommandError(f"--clip: {problem}")

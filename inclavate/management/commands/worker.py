"""`inclavate worker`: waits to be rung, and runs jobs of the models that it offers."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import threading
import warnings
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from celery.exceptions import SecurityWarning
from celery.signals import task_received, worker_ready, worker_shutting_down
from celery.worker.state import reserved_requests
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import Error as DatabaseError

from inclavate import artifacts, fleet, queue
from inclavate.generators import Capability
from workers import inspection, tasks
from workers.catalog import CatalogError, load_catalog
from workers.hosts import Hosts
from workers.inspection import Inspector
from workers.lexicon import Lexicon, LexiconError
from workers.runner import Runner, beat_until, persist
from workers.voices import VoiceError, Voices
from workers.voices import load as load_voices

_TURN_SECONDS = 0.05
_MAX_SLOTS = 64


class Command(BaseCommand):
    help = "Run jobs of this deployment's models."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--name", default=f"{socket.gethostname()}-{os.getpid()}")
        parser.add_argument("--slots", type=int, default=settings.WORKER_SLOTS, help="jobs at a time")
        parser.add_argument("--model", action="append", dest="models", help="offer only this model (may be repeated)")

    def handle(self, *args: Any, name: str, slots: int, models: list[str] | None, **options: Any) -> None:
        _check(name, slots)
        try:
            catalog = load_catalog(settings.MODELS_FILE)
            wanted = models or settings.WORKER_MODELS or catalog.models
            able = [catalog.models[model].capability() for model in dict.fromkeys(wanted)]
            voices = Voices(load_voices(settings.VOICES_DIR), able)
        except (CatalogError, VoiceError, KeyError) as error:
            raise CommandError(f"The worker cannot offer its models: {error}") from None
        try:
            lexicon = Lexicon.load(settings.LEXICON_FILE)
        except LexiconError as error:
            raise CommandError(f"INCLAVATE_LEXICON_FILE: {error}") from None
        offered = [voices.offered(capability) for capability in able]
        engines = Hosts(catalog, settings.MODEL_IDLE_SECONDS, settings.ENVIRONMENT)
        work_dir = settings.DATA_DIR / "work" / name
        runner = Runner(name, engines, work_dir, lexicon, voices)
        inspector = _inspector(runner, work_dir)
        tasks.install(runner, inspector)
        try:
            persist(fleet.register, name, slots, offered)
            persist(_remove_leftovers, name)
        except DatabaseError as error:
            raise CommandError(f"The worker cannot begin: the database does not answer: {error}") from None
        try:
            sys.exit(_serve(runner, inspector, slots, offered))
        finally:
            runner.close()
            if inspector is not None:
                inspector.close()
            fleet.stop(name)


def _inspector(runner: Runner, work_dir: Path) -> Inspector | None:
    if not inspection.is_possible():
        return None
    return Inspector(work_dir, settings.ENVIRONMENT, lambda: runner.is_draining or runner.is_closed)


def _serve(runner: Runner, inspector: Inspector | None, slots: int, offered: list[Capability]) -> int:
    stopping = threading.Event()
    worker_shutting_down.connect(lambda **_: runner.drain(), weak=False)
    turns = Turns()
    worker_ready.connect(turns.begin)
    task_received.connect(turns.hurry)
    beats = [runner.beat, *([inspector.beat] if inspector else [])]
    threading.Thread(target=beat_until, args=(stopping, *beats), name="heartbeat", daemon=True).start()
    # Who cannot look into artifacts listens as well: else, where nobody can, those rings would pile up for ever.
    queues = [*(capability.queue for capability in offered), artifacts.INSPECTIONS]
    for waiting in queues:
        queue.ring(waiting)
    # Celery's warning is about pickled messages; ours are JSON, and a container's user is root.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    worker = queue.app.Worker(
        hostname=runner.name,
        pool="threads",
        concurrency=slots,
        queues=queues,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        loglevel="WARNING",
        quiet=True,
    )
    worker.start()
    stopping.set()
    return int(worker.exitcode or 0)


class Turns:
    """Celery's loop sees that a slot has become free when it turns: once a second, were it not hurried while jobs run.

    Its signals come in the loop's own thread.
    """

    def begin(self, sender: Any, **_: Any) -> None:
        """The loop begins, or begins anew after the bell was away."""
        self._hub = sender.hub
        self._timer: Any = None

    def hurry(self, **_: Any) -> None:
        """A ring came."""
        if self._timer is None:
            self._timer = self._hub.call_repeatedly(_TURN_SECONDS, self._relax)

    def _relax(self) -> None:
        if not reserved_requests:
            self._timer.cancel()
            self._timer = None


def _check(name: str, slots: int) -> None:
    # It names a folder, which is removed with all that is in it.
    if not re.fullmatch(r"(?!\.)[A-Za-z0-9._-]{1,100}", name):
        raise CommandError(
            "--name must be 1 to 100 letters of ASCII, digits, dots (not the first), underscores and dashes, "
            f"not {name[:120]!r}."
        )
    if not 1 <= slots <= _MAX_SLOTS:
        raise CommandError(f"--slots must be between 1 and {_MAX_SLOTS}, not {slots}.")


def _remove_leftovers(name: str) -> None:
    """Work folders of workers that died; one of this name did too: a container starts again as who it was."""
    living = {worker.name for worker in fleet.workers()} - {name}
    for folder in (settings.DATA_DIR / "work").glob("*"):
        if folder.name not in living:
            shutil.rmtree(folder, ignore_errors=True)

"""`inclavate health`: whether a worker, or the sweeper, of this machine lives; what a container's health check asks."""

from __future__ import annotations

import socket
import time
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import Error as DatabaseError

from inclavate import fleet

# A sweep that walks the whole store takes its time.
_SWEEP_PATIENCE_SECONDS = 60.0


class Command(BaseCommand):
    help = (
        "Exit with 0 where a worker of this machine was seen within its lease, with 1 where none was. "
        "With --sweeper: where a sweep of this data folder's sweeper has lately succeeded."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--sweeper", action="store_true", help="ask for the sweeper, not for a worker")

    def handle(self, *args: Any, sweeper: bool, **options: Any) -> None:
        self.stdout.write(f"alive: {_sweeper() if sweeper else _workers()}")


def _workers() -> str:
    try:
        here = [worker.name for worker in fleet.workers() if worker.host == socket.gethostname()]
    except DatabaseError as error:
        raise CommandError(f"The database does not answer: {error}") from None
    if not here:
        raise CommandError("No worker of this machine lives.")
    return ", ".join(here)


def _sweeper() -> str:
    at = fleet.sweeper_beat_at()
    if at is None:
        raise CommandError(f"No sweeper has yet swept with the data folder {settings.DATA_DIR}.")
    seconds, limit = time.time() - at, _SWEEP_PATIENCE_SECONDS + 3 * settings.SWEEP_SECONDS
    if seconds > limit:
        raise CommandError(f"The last sweep that succeeded was {seconds:.0f} s ago; the limit is {limit:.0f} s.")
    return f"swept {max(seconds, 0):.0f} s ago"

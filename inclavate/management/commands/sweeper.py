"""`inclavate sweeper`: releases what nobody holds, expires what is overdue, rings queues that hold a job, and delivers
webhooks."""

from __future__ import annotations

import logging
import signal
import threading
import time
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import Error as DatabaseError
from django.db import close_old_connections

from inclavate import artifacts, fleet, jobs, webhooks
from storage import StoreError

log = logging.getLogger(__name__)

# Walking the whole store is for garbage that only crashes leave.
_STORE_SWEEP_SECONDS = 600.0
# Within what `up` gives a part to stop.
_LAST_WEBHOOKS_SECONDS = 4.0


class Command(BaseCommand):
    help = "Keep the queue and the store tidy, until stopped."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        stopping = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())
        courier = webhooks.Courier(webhooks.poster(), pause_seconds=min(1.0, settings.SWEEP_SECONDS))
        courier.start()
        try:
            self._sweep_until(stopping, courier)
        finally:
            courier.stop(_LAST_WEBHOOKS_SECONDS)

    def _sweep_until(self, stopping: threading.Event, courier: webhooks.Courier) -> None:
        store_swept_at = 0.0
        while not stopping.is_set():
            if not courier.is_whole:
                raise CommandError("A thread that delivers webhooks has died; a sweeper started anew makes its tries.")
            try:
                _sweep()
                # Where it cannot be written, `inclavate health` says that it does not know of any sweep.
                with suppress(OSError):
                    fleet.beat_sweeper()
                if time.monotonic() - store_swept_at > _STORE_SWEEP_SECONDS:
                    store_swept_at = time.monotonic()
                    artifacts.sweep_store()
                    webhooks.prune()
            except (DatabaseError, StoreError) as error:
                log.error("this sweep failed, the next one tries again: %s", error)
            close_old_connections()
            stopping.wait(settings.SWEEP_SECONDS)


def _sweep() -> None:
    swept = jobs.sweep()
    removed = artifacts.sweep()
    pruned = fleet.prune()
    erased = jobs.sweep_old()
    if swept.released or swept.expired or removed or pruned or erased:
        log.info(
            "released %d, expired %d and erased %d jobs, removed %d artifacts, forgot %d workers",
            swept.released,
            swept.expired,
            erased,
            removed,
            pruned,
        )

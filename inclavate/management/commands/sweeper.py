"""`inclavate sweeper`: releases what nobody holds, expires what is overdue, rings queues that hold a job, and delivers
webhooks."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
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
        # A store that hangs holds up what removes bytes; it must hold up neither the release of jobs nor the stop.
        threading.Thread(target=_repeat, args=(stopping, _Tidying()), name="tidying", daemon=True).start()
        try:
            _repeat(stopping, _Releasing(courier))
        finally:
            courier.stop(_LAST_WEBHOOKS_SECONDS)


def _repeat(stopping: threading.Event, sweep: Callable[[], None]) -> None:
    while not stopping.is_set():
        try:
            sweep()
        except (DatabaseError, StoreError) as error:
            log.error("this sweep failed, the next one tries again: %s", error)
        close_old_connections()
        stopping.wait(settings.SWEEP_SECONDS)


class _Releasing:
    """Jobs that nobody holds, are overdue, or wait: what others wait for."""

    def __init__(self, courier: webhooks.Courier) -> None:
        self._courier = courier

    def __call__(self) -> None:
        if not self._courier.is_whole:
            raise CommandError("A thread that delivers webhooks has died; a sweeper started anew makes its tries.")
        swept, pruned = jobs.sweep(), fleet.prune()
        if swept.released or swept.expired or pruned:
            log.info("released %d and expired %d jobs, forgot %d workers", swept.released, swept.expired, pruned)
        # Where it cannot be written, `inclavate health` says that it does not know of any sweep.
        with suppress(OSError):
            fleet.beat_sweeper()


class _Tidying:
    """Rows and bytes whose time is over: nobody waits for it."""

    def __init__(self) -> None:
        self._walked_at = float("-inf")

    def __call__(self) -> None:
        removed, erased = artifacts.sweep(), jobs.sweep_old()
        if removed or erased:
            log.info("removed %d artifacts and erased %d jobs", removed, erased)
        if time.monotonic() - self._walked_at > _STORE_SWEEP_SECONDS:
            self._walked_at = time.monotonic()
            artifacts.sweep_store()
            webhooks.prune()

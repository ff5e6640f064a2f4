"""`inclavate sweep`: erase ended jobs in bulk. It says what it would do, and does it only when told so."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db.models import Count

from inclavate import accounts, database, errors, jobs
from inclavate.models import TERMINAL

_STATES = [state.value for state in TERMINAL]
_MAX_HOURS = 1e6


class Command(BaseCommand):
    help = "Erase ended jobs by state, age and owner, with their outputs. Without --yes it only counts them."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--state", action="append", metavar="STATE", help=f"only these: {', '.join(_STATES)}")
        parser.add_argument("--older-than-hours", type=float, default=0.0, help="only what ended longer ago")
        parser.add_argument("--owner", help="only this account's")
        parser.add_argument("--keep-artifacts", action="store_true", help="erase the records, keep what they made")
        parser.add_argument("--yes", action="store_true", help="do it")

    def handle(self, *args: Any, owner: str | None, yes: bool, **options: Any) -> None:
        _check(options["older_than_hours"], options["state"] or ())
        try:
            whose = accounts.find_owner(owner) if owner is not None else None
        except errors.NotFound as error:
            raise CommandError(error.message) from None
        before = database.now() - timedelta(hours=options["older_than_hours"])
        rows = jobs.finished(owner=whose, states=options["state"] or (), completed_before=before)
        for row in rows.order_by("owner__name", "state").values("owner__name", "state").annotate(n=Count("pk")):
            self.stdout.write(f"{row['n']:8,} {row['state']:10} {row['owner__name']}")
        if not yes:
            self.stdout.write(f"{rows.count():,} jobs would be erased; --yes does it.")
            return
        erased = outputs = 0
        while batch := list(rows.values_list("pk", flat=True)[:200]):
            outputs += sum(jobs.erase(job_id, with_artifacts=not options["keep_artifacts"]) for job_id in batch)
            erased += len(batch)
        self.stdout.write(f"Erased {erased:,} jobs and {outputs:,} of their outputs.")


def _check(hours: float, states: Sequence[str]) -> None:
    if not 0 <= hours <= _MAX_HOURS:
        raise CommandError(f"--older-than-hours must be between 0 and {_MAX_HOURS:,.0f}, not {hours:g}.")
    for state in states:
        if state not in _STATES:
            raise CommandError(f"--state must be one of {', '.join(_STATES)} (may be repeated), not {state!r}.")

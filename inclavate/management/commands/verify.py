"""`inclavate verify`: whether what is counted agrees with the rows and, when told so, the rows with the store."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from inclavate import artifacts, database, errors, jobs


class Command(BaseCommand):
    help = "Compare the kept counts of jobs and bytes with the rows; exit with 1 where something differs."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--store", action="store_true", help="also ask the store for each artifact's object")

    def handle(self, *args: Any, store: bool, **options: Any) -> None:
        found = 0
        try:
            for sentence in _differences(store):
                self.stdout.write(sentence)
                found += 1
        except errors.Unavailable as error:
            raise CommandError(error.message) from None
        if found:
            raise CommandError(f"{found:,} {'difference' if found == 1 else 'differences'}.")
        self.stdout.write("No difference.")


def _differences(with_store: bool) -> Iterator[str]:
    # Of one moment: while the platform works, counts and rows change between two queries.
    with database.snapshot():
        counted = [*jobs.mismatches(), *artifacts.usage_mismatches()]
    yield from counted
    if with_store:
        yield from artifacts.store_mismatches()

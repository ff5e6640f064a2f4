"""`inclavate createuser NAME`: a new account of a hosted deployment."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from inclavate import accounts, errors


class Command(BaseCommand):
    help = "Create an account. Without --password-stdin it has no password, and is used by API keys alone."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--password-stdin", action="store_true", help="read the password's line from stdin")

    def handle(self, *args: Any, name: str, password_stdin: bool, **options: Any) -> None:
        password = sys.stdin.readline().rstrip("\n") if password_stdin else None
        if password == "":
            raise CommandError("There is no password on stdin.")
        try:
            owner = accounts.create_user(name, password)
        except errors.InclavateError as error:
            raise CommandError(error.message) from None
        self.stdout.write(f"Created the account {owner.name}. A key for it: inclavate apikey create {owner.name}")

"""`inclavate createuser NAME`: a new account of a hosted deployment."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from inclavate import accounts, errors


class Command(BaseCommand):
    help = "Create an account. Without --password-stdin it has no password, and is used by API keys alone."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--password-stdin", action="store_true", help="read the password's line from stdin")

    def handle(self, *args: Any, name: str, password_stdin: bool, **options: Any) -> None:
        password = _read_password() if password_stdin else None
        try:
            owner = accounts.create_user(name, password)
        except errors.InclavateError as error:
            raise CommandError(error.message) from None
        self.stdout.write(f"Created the account {owner.name}. A key for it: inclavate apikey create {owner.name}")
        if not settings.IS_HOSTED:
            self.stderr.write(accounts.KEYS_ARE_IGNORED)


def _read_password() -> str:
    try:
        # As bytes: how Python would decode them depends on the locale.
        password = sys.stdin.buffer.readline().decode("utf-8").rstrip("\n") if sys.stdin else ""
    except UnicodeDecodeError:
        raise CommandError("The password on stdin is not UTF-8.") from None
    if not password:
        raise CommandError("There is no password on stdin.")
    return password

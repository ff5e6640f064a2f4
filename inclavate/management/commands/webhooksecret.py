"""`inclavate webhooksecret [OWNER]`: a new secret that the owner's webhooks are signed with from now on."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from inclavate import accounts, errors


class Command(BaseCommand):
    help = "Make a new secret to check webhooks with, and print it this once; the old one ends here."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("owner", nargs="?", help="whose; where nobody signs in it may be left out")

    def handle(self, *args: Any, owner: str | None, **options: Any) -> None:
        if owner is None and settings.IS_HOSTED:
            raise CommandError("Say whose: inclavate webhooksecret OWNER.")
        try:
            found = accounts.find_owner(owner) if owner is not None else accounts.local_owner()
        except errors.NotFound as error:
            raise CommandError(error.message) from None
        self.stdout.write(accounts.webhook_secret(found))

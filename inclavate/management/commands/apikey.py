"""`inclavate apikey create|list|revoke OWNER`: the keys that requests to a hosted deployment come with."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from inclavate import accounts, errors
from inclavate.models import Owner


class Command(BaseCommand):
    help = "Create, list and revoke API keys."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        create = verbs.add_parser("create", help="make a key, and print it this once")
        create.add_argument("owner")
        create.add_argument("--name", default="", help="what the key is for")
        listing = verbs.add_parser("list", help="the keys of an account, without the keys themselves")
        listing.add_argument("owner")
        revoke = verbs.add_parser("revoke", help="make a key useless, at once")
        revoke.add_argument("owner")
        revoke.add_argument("prefix", help="how the key begins, as `list` shows it")

    def handle(self, *args: Any, verb: str, owner: str, **options: Any) -> None:
        try:
            self._do(verb, accounts.find_owner(owner), options)
        except errors.InclavateError as error:
            raise CommandError(error.message) from None

    def _do(self, verb: str, owner: Owner, options: dict[str, Any]) -> None:
        match verb:
            case "create":
                self.stdout.write(accounts.create_key(owner, options["name"]))
                if not settings.IS_HOSTED:
                    self.stderr.write(accounts.KEYS_ARE_IGNORED)
            case "list":
                self._list(owner)
            case "revoke":
                if not accounts.revoke_key(owner, options["prefix"]):
                    raise CommandError(f"{owner.name} has no working key that begins with {options['prefix']!r}.")

    def _list(self, owner: Owner) -> None:
        for key in owner.api_keys.order_by("created_at"):
            state = f"revoked {key.revoked_at:%Y-%m-%d}" if key.revoked_at else "works"
            used = f"last used {key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "never used"
            self.stdout.write(f"{key.prefix}…  {key.created_at:%Y-%m-%d}  {state}  {used}  {key.name}".rstrip())

"""`inclavate health`: whether a worker of this machine lives; what a container's health check asks."""

from __future__ import annotations

import socket
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import Error as DatabaseError

from inclavate import fleet


class Command(BaseCommand):
    help = "Exit with 0 where a worker of this machine was seen within its lease, with 1 where none was."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            here = [worker.name for worker in fleet.workers() if worker.host == socket.gethostname()]
        except DatabaseError as error:
            raise CommandError(f"The database does not answer: {error}") from None
        if not here:
            raise CommandError("No worker of this machine lives.")
        self.stdout.write(f"alive: {', '.join(here)}")

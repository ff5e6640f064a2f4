"""`inclavate web`: the web process."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

import uvicorn
from django.conf import settings
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Serve the API and the pages."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default=settings.HOST)
        parser.add_argument("--port", type=int, default=settings.PORT)

    def handle(self, *args: Any, host: str, port: int, **options: Any) -> None:
        uvicorn.run(
            "inclavate.asgi:application",
            host=host,
            port=port,
            http="httptools",
            loop="uvloop",
            access_log=False,
            server_header=False,
            date_header=True,
            log_config=None,
            backlog=4096,
            # Open streams end with the process; a client reconnects.
            timeout_graceful_shutdown=2,
        )

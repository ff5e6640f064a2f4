"""`inclavate web`: the web process."""

from __future__ import annotations

import asyncio
import signal
import socket
from argparse import ArgumentParser
from types import FrameType
from typing import Any

import uvicorn
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError


class Command(BaseCommand):
    help = "Serve the API and the pages."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default=settings.HOST)
        parser.add_argument("--port", type=int, default=settings.PORT)

    def handle(self, *args: Any, host: str, port: int, **options: Any) -> None:
        if not 1 <= port <= 65535:
            raise CommandError(f"--port must be between 1 and 65535, not {port}.")
        config = uvicorn.Config(
            "inclavate.asgi:application",
            http="httptools",
            loop="uvloop",
            access_log=False,
            server_header=False,
            log_config=None,
            timeout_graceful_shutdown=2,
        )
        try:
            listening = _listen(host, port)
        except OSError as error:
            raise CommandError(f"Cannot listen on {host}:{port}: {error.strerror or error}.") from error
        except UnicodeError:
            # What cannot be encoded for the name service, such as a part of more than 63 letters.
            raise CommandError(f"--host: {host[:80]!r} is no name of a host.") from None
        # uvicorn raises the signal again once it has stopped; that is then the end of this command, not of a crash.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        with listening:
            _Server(config).run([listening])


class _Server(uvicorn.Server):
    """Lets go of all who wait as soon as it is told to stop, so that no stream holds up the end."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Imported late: it needs the application, which uvicorn loads.
        from inclavate.faces import watch

        asyncio.get_running_loop().call_soon_threadsafe(watch.stop)
        super().handle_exit(sig, frame)


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # What a client does not read for this long is not kept for it: the kernel drops the connection.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(settings.SLOW_CLIENT_SECONDS * 1000))
    listening.bind(address)
    listening.listen(4096)
    return listening

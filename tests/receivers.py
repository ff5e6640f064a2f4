"""Real receivers of webhooks on loopback."""

from __future__ import annotations

import ssl
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.driving import until


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """Keeps what it receives. Answers `statuses` in turn, then 200; waits before each answer while it is `held`."""

    statuses: deque[int] = field(default_factory=deque)
    received: list[Received] = field(default_factory=list)
    host: str = "127.0.0.1"
    port: int = 0
    going_on: threading.Event = field(default_factory=threading.Event)
    location: str = ""
    # For ever: parts of a header, or of a body.
    drips: bytes = b""
    body: bytes = b""
    sent_bytes: int = 0

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/hook?token=hidden"

    def until(self, count: int) -> list[Received]:
        until(lambda: len(self.received) >= count)
        return self.received


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.received.append(Received(self.path, dict(self.headers), body))
            receiver.going_on.wait()
            try:
                self._answer(receiver.statuses.popleft() if receiver.statuses else 200)
            except OSError:
                self.close_connection = True

        def _answer(self, status: int) -> None:
            self.send_response(status)
            if receiver.location:
                self.send_header("Location", receiver.location)
            while receiver.drips:
                self.wfile.write(b"".join(self._headers_buffer) + receiver.drips)
                self._headers_buffer.clear()
                threading.Event().wait(0.02)
            self.send_header("Content-Length", str(2**40 if receiver.body else 0))
            self.end_headers()
            while receiver.body:
                receiver.sent_bytes += self.wfile.write(receiver.body)

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


@contextmanager
def receiving(port: int = 0, tls: ssl.SSLContext | None = None, **more: Any) -> Iterator[Receiver]:
    receiver = Receiver(**more)
    receiver.statuses = deque(receiver.statuses)
    receiver.going_on.set()
    server = ThreadingHTTPServer((receiver.host, port), _handler(receiver))
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield receiver
    finally:
        receiver.drips = receiver.body = b""
        receiver.going_on.set()
        server.shutdown()
        thread.join()
        server.server_close()

"""A small HTTP server on loopback that does what a test scripts: it plays a network at fault, not the platform."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Seen:
    """A request that came."""

    path: str
    headers: Message
    body: bytes


class Call(BaseHTTPRequestHandler):
    """One request, as the test's script sees it; `number` counts from 0."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True

    def _serve(self):
        length = self.headers.get("Content-Length")
        self.body = self.rfile.read(int(length)) if length else self._chunks()
        with self.server.lock:
            self.number = len(self.server.calls)
            self.server.calls.append(Seen(self.path, self.headers, self.body))
        self.server.script(self)

    do_GET = do_POST = do_DELETE = _serve  # noqa: N815 (http.server's names)

    def _chunks(self):
        body = b""
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        return body

    def begin(self, status=200, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def answer(self, status=200, data=None, **headers):
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.begin(status, Content_Length=len(body), **headers)
        self.wfile.write(body)

    def stream(self, *events, done=True):
        """Events as (revision, job) pairs; without `done` the connection is then cut."""
        self.begin(Content_Type="text/event-stream", Connection="close")
        for revision, job in events:
            self.wfile.write(f"id: {revision}\ndata: {json.dumps(job)}\n\n: ping\n".encode())
        if done:
            self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def cut(self):
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.close_connection = True
        self.rfile.close()
        self.wfile.close()
        self.connection.close()
        raise ConnectionAbortedError

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, script):
        super().__init__(("127.0.0.1", 0), Call)
        self.script, self.calls, self.lock = script, [], threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        pass


@contextmanager
def serving(script: Callable[[Call], None]) -> Iterator[Server]:
    server = Server(script)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

"""The floors' web process: plain Django behind our own bridge and pool, a bare echo, bare streams, and files."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import django

django.setup(set_prefix=False)

import redis.asyncio  # noqa: E402
import uvicorn  # noqa: E402
from django.conf import settings  # noqa: E402
from django.db import connection  # noqa: E402
from starlette.applications import Starlette  # noqa: E402
from starlette.requests import Request  # noqa: E402
from starlette.responses import Response, StreamingResponse  # noqa: E402
from starlette.routing import Mount, Route  # noqa: E402

from bench.floors.models import Note  # noqa: E402
from bench.floors.transfers import Files  # noqa: E402
from bench.lines import say  # noqa: E402
from inclavate.asgi import Django  # noqa: E402

# An event of a job is about so long.
_EVENT_BYTES = 620


async def echo(request: Request) -> Response:
    return Response(await request.body(), media_type="application/json")


class Topic:
    """A channel's latest message, as an event, for all who stream it."""

    def __init__(self) -> None:
        self.event = b"id: 0\ndata: {}\n\n"
        self.is_over = False
        self.changed = asyncio.Event()

    def hear(self, text: bytes) -> None:
        message = json.loads(text)
        self.event = b"id: %d\ndata: %s\n\n" % (message["revision"], text.ljust(_EVENT_BYTES))
        self.is_over = "stage" not in message
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class Streams:
    """One subscription a channel, however many stream it."""

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        self._pubsub = redis.asyncio.Redis.from_url(settings.REDIS_URL).pubsub(ignore_subscribe_messages=True)

    async def run(self) -> None:
        await self._pubsub.subscribe("floors:idle")
        async for message in self._pubsub.listen():
            self._topics[message["channel"].decode()].hear(message["data"])

    async def stream(self, request: Request) -> Response:
        channel = f"inclavate:job:{request.path_params['job']}"
        if channel not in self._topics:
            self._topics[channel] = Topic()
            await self._pubsub.subscribe(channel)
        return StreamingResponse(_events(self._topics[channel]), media_type="text/event-stream")


async def _events(topic: Topic) -> AsyncIterator[bytes]:
    yield topic.event
    while not topic.is_over:
        await topic.changed.wait()
        yield topic.event
    yield b"data: [DONE]\n\n"


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    streams = Streams()
    app.router.routes.insert(0, Route("/stream/{job}", streams.stream))
    receiving = asyncio.create_task(streams.run(), name="streams")
    say("ready")
    yield
    receiving.cancel()


def main(port: int, folder: Path) -> None:
    with connection.schema_editor() as editor:
        editor.create_model(Note)
    routes = [Route("/echo", echo, methods=["POST"]), *Files(folder).routes, Mount("/", Django())]
    config = uvicorn.Config(
        Starlette(routes=routes, lifespan=_lifespan),
        port=port,
        http="httptools",
        loop="uvloop",
        access_log=False,
        server_header=False,
        log_config=None,
        backlog=4096,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    threading.Thread(target=_stop_with_stdin, args=(server,), daemon=True).start()
    server.run()


def _stop_with_stdin(server: uvicorn.Server) -> None:
    sys.stdin.read()
    server.should_exit = True


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))

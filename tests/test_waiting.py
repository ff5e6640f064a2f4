"""Those who wait for a job: many at once, for long, slowly, and until the process stops."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from tests import platforms
from tests.driving import until
from tests.platforms import Platform

ENDLESS = {"model": "test-tone", "modality": "audio", "params": {"text": "x" * 50, "steps": 9999, "step_seconds": 0.05}}
SHORT = {"model": "test-tone", "modality": "audio", "params": {"text": "x" * 50, "steps": 10, "step_seconds": 0.05}}


@pytest.fixture(scope="module")
def waited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with platforms.running(tmp_path_factory.mktemp("waited"), WORKER_SLOTS="2", SLOW_CLIENT_SECONDS="2") as platform:
        yield platform


def test_a_long_poll_answers_at_the_jobs_end(waited: Platform) -> None:
    job = waited.submit(**SHORT)
    with waited.http as http:
        answer = http.get(f"/v1/generations/{job['id']}?wait=60&include=params").json()
        assert (answer["state"], answer["params"]) == ("completed", SHORT["params"])
        assert http.get(f"/v1/generations/{job['id']}?wait=60").json()["state"] == "completed"


def test_a_long_poll_whose_time_runs_out_answers_with_the_job_as_it_stands(waited: Platform) -> None:
    job = waited.submit(**ENDLESS)
    with waited.http as http:
        assert http.get(f"/v1/generations/{job['id']}?wait=1").json()["state"] in ("queued", "running")
        assert http.get(f"/v1/generations/{job['id']}?wait=-1").status_code == 400
        http.delete(f"/v1/generations/{job['id']}")


def test_three_hundred_watchers_hold_no_thread_each_and_all_see_the_end(waited: Platform) -> None:
    job = waited.submit(**ENDLESS)
    web = waited.part("web")
    threads_before = web.num_threads()
    seen: list[list[str]] = []

    async def watch(client: httpx.AsyncClient, ready: asyncio.Semaphore) -> None:
        lines = []
        async with client.stream("GET", f"/v1/generations/{job['id']}/events") as stream:
            async for line in stream.aiter_lines():
                if not lines:
                    ready.release()
                lines.append(line)
        seen.append(lines)

    async def scenario() -> int:
        ready = asyncio.Semaphore(0)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=waited.url, limits=limits, timeout=60) as client:
            watchers = [asyncio.create_task(watch(client, ready)) for _ in range(300)]
            for _ in watchers:
                await ready.acquire()
            threads = web.num_threads()
            await client.delete(f"/v1/generations/{job['id']}")
            await asyncio.gather(*watchers)
        return threads

    # The pool may still be filling up; its size is the bound, not the number of watchers.
    assert asyncio.run(scenario()) <= threads_before + 8
    assert len(seen) == 300
    assert all("data: [DONE]" in lines for lines in seen)


def test_a_client_that_does_not_read_is_dropped(waited: Platform) -> None:
    size = 64 * 2**20
    with waited.http as http:
        artifact = http.post("/v1/artifacts", content=bytes(size)).json()["id"]
    host, port = waited.url.removeprefix("http://").split(":")
    web = waited.part("web")
    resident = web.memory_info().rss
    with socket.socket() as idle:
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        idle.connect((host, int(port)))
        idle.sendall(f"GET /v1/artifacts/{artifact} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        assert idle.recv(12) == b"HTTP/1.1 200"
        until(lambda: not any(c.raddr and c.raddr.port == idle.getsockname()[1] for c in web.net_connections()))
    assert web.memory_info().rss - resident < size / 2


def test_a_stop_ends_streams_at_once_without_the_ends_mark(waited: Platform) -> None:
    job = waited.submit(**ENDLESS)
    first = waited.part("web")
    with waited.http as http, http.stream("GET", f"/v1/generations/{job['id']}/events") as stream:
        lines = stream.iter_lines()
        next(lines)
        began = time.monotonic()
        first.send_signal(signal.SIGTERM)
        rest = list(lines)
    assert time.monotonic() - began < 10
    assert "data: [DONE]" not in rest
    until(lambda: waited.part("web").pid != first.pid)
    assert f"{first.pid} was ended" not in waited.log.read_text("utf-8")
    until(lambda: _answers(waited))
    with waited.http as http:
        http.delete(f"/v1/generations/{job['id']}")


def _answers(platform: Platform) -> bool:
    try:
        with platform.http as http:
            return http.get("/health").status_code == 200
    except httpx.HTTPError:
        return False

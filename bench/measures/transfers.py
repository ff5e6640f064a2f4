"""Large bodies up and down over HTTP, on each store, beside the least that moves the same bytes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import psutil

from bench.deployments import PARKED_MODEL, Deployment
from bench.figures import OURS, Comparison, Round, Section, percentile
from bench.measures.requests import raw, submission
from bench.plans import Plan
from bench.processes import Helper, PeakMemory, cpu_seconds, machine_busy_seconds, memory_bytes

FOLDER, S3 = "a folder", "S3"
SINK = "a bare Starlette sink: SHA-256, a file, fsync"
SOURCE = "a bare Starlette stream of a file"
BOTO_UP = "boto3, parts of 8 MiB one at a time"
BOTO_DOWN = "boto3, a read loop"
IDLE = "the same polls, without uploads"
_MOVED = {"MB/s": "MB/s", "CPU ms": "CPU ms a MB, web", "MiB": "MiB at most, web"}
_CORES = {"server cores": "cores used, web", "client cores": "cores used, client", "machine cores": "cores used, all"}
COLUMNS = _MOVED | _CORES
COLUMNS_AT_ONCE = _MOVED | {"p50 ms": "poll p50 ms", "p99 ms": "poll p99 ms"} | _CORES
NOTES = (
    "One body at a time. The client sends from a file that is in memory, by `sendfile`, and reads into one buffer. The "
    "sink hashes and writes 1 MiB at a time in an executor; the stream reads 256 KiB at a time in one. boto3 talks to "
    "the S3 server (rclone, on this machine and on the same disk) directly, without a web process, and what it used is "
    "under that of the web process; through Inclavate the same bytes pass through HTTP first and are hashed.",
    "MiB at most is the web process's largest resident size meanwhile, looked at each 20 ms, above what it was after "
    "16 MiB had gone up and down, and before any of these.",
)
NOTES_AT_ONCE = (
    "All bodies begin together, each on a connection of its own. Meanwhile a queued job is polled every 20 ms, on one "
    "connection. What the web process has above its size is counted from before the first body of all.",
)
_WARMING_BYTES = 16 * 2**20
_POLL_SECONDS = 0.02


@dataclass
class Place:
    """A web process that keeps bodies: POST `path`, GET and DELETE `path/:id`."""

    port: int
    web: psutil.Process
    path: str
    headers: Mapping[str, str]
    poll_path: str = ""
    bytes_before: int = field(init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Transfers:
    """`stores` are deployments by the kind of their store; the floor's files lie beside those of the first."""

    def __init__(
        self, stores: Mapping[str, Deployment], floor: Helper, port: int, client: Helper, boto: Helper, plan: Plan
    ) -> None:
        folder = stores[FOLDER].folder
        self._whole, self._small = (
            _made(folder / "whole", plan.transfer_bytes),
            _made(folder / "small", plan.upload_bytes),
        )
        self._client = client
        self._boto = boto
        self._plan = plan
        self._floor = Place(port, floor.usage, "/files", {})
        self._places = {store: _place(deployment) for store, deployment in stores.items()}
        warming = _made(folder / "warming", _WARMING_BYTES)
        for place in (self._floor, *self._places.values()):
            place.bytes_before = 0
            self._both(place, warming)
            place.bytes_before = memory_bytes(place.web)

    def measure(self) -> Iterator[str | Section]:
        """What is being done, then the sections."""
        comparisons = []
        for store, place in self._places.items():
            ways = up, chunked, down = [
                Comparison(what.format(store)) for what in ("up into {}", "up into {}, chunked", "down from {}")
            ]
            floor = self._by_sink if store == FOLDER else self._by_boto
            for number in range(self._plan.transfer_rounds):
                yield f"transfers, {store}, round {number + 1}"
                there, back = self._both(place, self._whole)
                up.add(OURS, there)
                chunked.add(OURS, self._up_only(place, self._whole, is_chunked=True))
                down.add(OURS, back)
                for comparison, (who, figures) in zip(ways, floor(), strict=True):
                    comparison.add(who, figures)
            comparisons += ways
        yield Section(f"Transfers of {self._plan.transfer_bytes // 2**20} MiB", COLUMNS, NOTES, comparisons)
        yield from self._at_once()

    def _at_once(self) -> Iterator[str | Section]:
        count, size = self._plan.uploads_at_once, self._plan.upload_bytes // 2**20
        comparisons = []
        for store, place in self._places.items():
            comparison = Comparison(f"{count} at once into {store}")
            for number in range(self._plan.transfer_rounds):
                yield f"transfers, {count} at once into {store}, round {number + 1}"
                comparison.add(OURS, self._up_with_polls(place, count))
                comparison.add(IDLE, self._polls_alone(place))
                if store == FOLDER:
                    comparison.add(SINK, self._up_only(self._floor, self._small, count))
            comparisons.append(comparison)
        yield Section(f"Uploads of {size} MiB, {count} at once", COLUMNS_AT_ONCE, NOTES_AT_ONCE, comparisons)

    def _by_sink(self) -> list[tuple[str, Round]]:
        """The floor of each way: who, and its figures."""
        there, back = self._both(self._floor, self._whole)
        chunked = self._up_only(self._floor, self._whole, is_chunked=True)
        return [(SINK, there), (SINK, chunked), (SOURCE, back)]

    def _by_boto(self) -> list[tuple[str, Round]]:
        there, back = (self._boto_round(do=do, file=str(self._whole)) for do in ("up", "down"))
        return [(BOTO_UP, there), (BOTO_UP, there), (BOTO_DOWN, back)]

    def _both(self, place: Place, file: Path) -> tuple[Round, Round]:
        """There and back."""
        up, (name,) = self._up(place, file)
        down, _ = self._round(place, file.stat().st_size, head=raw("GET", f"{place.path}/{name}", place.headers))
        _delete(place, [name])
        return up, down

    def _up_only(self, place: Place, file: Path, count: int = 1, is_chunked: bool = False) -> Round:
        figures, names = self._up(place, file, count, is_chunked)
        _delete(place, names)
        return figures

    def _up(self, place: Place, file: Path, count: int = 1, is_chunked: bool = False) -> tuple[Round, list[str]]:
        """The figures, and what the bodies are called there."""
        size = file.stat().st_size
        framing = {"Transfer-Encoding": "chunked"} if is_chunked else {"Content-Length": str(size)}
        head = raw("POST", place.path, {**place.headers, "Content-Type": "application/octet-stream", **framing})
        figures, answers = self._round(place, size, count, head=head, file=str(file), is_chunked=is_chunked)
        return figures, [answer["id"] for answer in answers]

    def _round(self, place: Place, size: int, count: int = 1, **command: Any) -> tuple[Round, list[dict[str, Any]]]:
        """Raises `RuntimeError` where a body is not as long as it should be."""
        cpu, busy = cpu_seconds(place.web), machine_busy_seconds()
        with PeakMemory(place.web) as peak:
            done = self._client.ask(port=place.port, connections=count, **command)
        if [answer["size_bytes"] for answer in done["answers"]] != [size] * count:
            raise RuntimeError(f"bodies of {size} bytes came as {done['answers']}")
        spent, seconds, megabytes = cpu_seconds(place.web) - cpu, done["seconds"], count * size / 1e6
        return {
            "connections": count,
            "MB/s": megabytes / seconds,
            "CPU ms": spent * 1000 / megabytes,
            "MiB": (peak.bytes - place.bytes_before) / 2**20,
            "server cores": spent / seconds,
            "client cores": done["cpu_seconds"] / seconds,
            "machine cores": (machine_busy_seconds() - busy) / seconds,
        }, done["answers"]

    def _boto_round(self, **command: Any) -> Round:
        busy, done = machine_busy_seconds(), self._boto.ask(**command)
        spent, seconds, megabytes = done["cpu_seconds"], done["seconds"], done["size"] / 1e6
        return {
            "connections": 1,
            "MB/s": megabytes / seconds,
            "CPU ms": spent * 1000 / megabytes,
            "server cores": spent / seconds,
            "machine cores": (machine_busy_seconds() - busy) / seconds,
        }

    def _up_with_polls(self, place: Place, count: int) -> Round:
        with ThreadPoolExecutor(1) as pool:
            uploads = pool.submit(self._up, place, self._small, count)
            polls = _polls(place, uploads.done)
            figures, names = uploads.result()
        _delete(place, names)
        return figures | polls

    def _polls_alone(self, place: Place) -> Round:
        ends_at = time.monotonic() + self._plan.load_seconds
        return _polls(place, lambda: time.monotonic() >= ends_at)


def _made(path: Path, size: int) -> Path:
    """A file of bytes that are no known type's."""
    block = bytes(16) + os.urandom(2**20 - 16)
    with path.open("wb") as file:
        for _ in range(size // len(block)):
            file.write(block)
    return path


def _place(deployment: Deployment) -> Place:
    url, headers = f"http://127.0.0.1:{deployment.port}", dict(deployment.headers)
    job = httpx.post(f"{url}/v1/generations", headers=headers, json=submission(PARKED_MODEL)).raise_for_status()
    return Place(deployment.port, deployment.web, "/v1/artifacts", headers, f"/v1/generations/{job.json()['id']}")


def _delete(place: Place, names: list[str]) -> None:
    for name in names:
        httpx.delete(f"{place.url}{place.path}/{name}", headers=dict(place.headers), timeout=60).raise_for_status()


def _polls(place: Place, is_over: Callable[[], bool]) -> Round:
    """One after another on one connection, with a pause between, at least one."""
    milliseconds: list[float] = []
    connection = HTTPConnection("127.0.0.1", place.port, timeout=60)
    try:
        while not milliseconds or not is_over():
            began = time.perf_counter()
            connection.request("GET", place.poll_path, headers=dict(place.headers))
            answer = connection.getresponse()
            content = answer.read()
            milliseconds.append((time.perf_counter() - began) * 1000)
            if answer.status != 200:
                raise RuntimeError(f"a poll was refused: {content[:500]!r}")
            time.sleep(_POLL_SECONDS)
    finally:
        connection.close()
    return {"p50 ms": percentile(milliseconds, 0.5), "p99 ms": percentile(milliseconds, 0.99)}

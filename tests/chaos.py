"""The chaos run: jobs flow while everything that can break does, and at the end nothing is lost, doubled or left over.

    python -m tests.chaos --seed 7 --jobs 1000

The seed fixes what is asked for and the schedule of faults; how the processes meet it is theirs. Any fault found at
the end is printed, and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg

from tests import hosted
from tests.driving import until
from tests.faultproxy import Mode
from tests.hosted import Hosted, Part

OWNERS = ("alice", "bob", "carol")
CLIENTS = 6
SLOTS = 2
# Without a job that ended. In all it takes as long as the machine does.
SETTLE_SECONDS = 90.0
SHOWN = 30
LEASE_SECONDS = float(hosted.QUICK["LEASE_SECONDS"])
# A process that starts while its database is away may give up, and is started again; one that runs may not.
BOOT_SECONDS = 15.0
RESTART_SECONDS = 1.0
# On the average, from one fault to the next.
FAULT_SECONDS = 1.5
BUSY_SECONDS = 20.0
# A worker takes no job with less than 64 MiB.
DISK_BYTES = 96 * 2**20
_BEGAN_AT = time.monotonic()


# -- what the seed fixes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """At `at` seconds, `kind` to the `target`-th of its sort, for `seconds` where it lasts."""

    at: float
    kind: str
    target: int
    seconds: float


KINDS = (
    "kill worker",
    "kill engine",
    "kill web",
    "kill sweeper",
    "stop worker past its lease",
    "drain worker",
    "empty valkey",
    "restart postgres",
    "crash postgres",
    "s3 down",
    "s3 503",
    "s3 cut",
    "s3 stall",
    "fill disk",
)
# What is done to a worker that has a job in hand, and waited for that.
_OF_WORK = ("kill worker", "kill engine", "stop worker past its lease", "drain worker")
_S3_MODES = {"s3 down": Mode.REFUSE, "s3 503": Mode.UNAVAILABLE, "s3 cut": Mode.CUT, "s3 stall": Mode.STALL}


def schedule(seed: int, seconds: float) -> list[Fault]:
    """Every kind in turn, in shuffled rounds, evenly over the time but for some noise."""
    dice = random.Random(f"faults {seed}")
    rounds = max(1, round(seconds / len(KINDS) / FAULT_SECONDS))
    kinds = [kind for _ in range(rounds) for kind in dice.sample(KINDS, len(KINDS))]
    pace = seconds / len(kinds)
    return [
        Fault((place + dice.uniform(0.2, 0.8)) * pace, kind, dice.randrange(2), _lasting(kind, seconds, dice))
        for place, kind in enumerate(kinds)
    ]


def _lasting(kind: str, seconds: float, dice: random.Random) -> float:
    if kind == "s3 down":
        return min(10.0, seconds / 5)
    return dice.uniform(1, 3) + (LEASE_SECONDS if kind == "stop worker past its lease" else 0)


@dataclass(frozen=True)
class Wish:
    """A job that a client wants, when, and what it does besides: upload a clip for it to read, send it again though it
    was answered, cancel it."""

    at: float
    owner: int
    web: int
    body: dict[str, Any]
    clip: bytes | None
    is_sent_twice: bool
    is_cancelled: bool


def wishes(seed: int, jobs: int, seconds: float) -> list[Wish]:
    dice = random.Random(f"jobs {seed}")
    return [_wish(f"chaos-{seed}-{number}", number * seconds / jobs, dice) for number in range(jobs)]


def _wish(key: str, at: float, dice: random.Random) -> Wish:
    steps = {"steps": dice.randint(1, 8), "step_seconds": round(dice.uniform(0, 0.25), 3)}
    body: dict[str, Any] = {"idempotency_key": key}
    clip = None
    if dice.random() < 0.15:
        clip = f"fLaC {key} ".encode() * dice.randint(1, 800)
        body |= {"model": "test-echo", "modality": "text", "params": {"prompt": f"{key}: ", **steps}}
    else:
        body |= {"model": "test-tone", "modality": "audio", "params": {"text": "x" * dice.randint(10, 120), **steps}}
    return Wish(
        at, dice.randrange(len(OWNERS)), dice.randrange(2), body, clip, dice.random() < 0.1, dice.random() < 0.03
    )


# -- clients -----------------------------------------------------------------------------------------------------------


@dataclass
class Diary:
    """What clients were told. Of several threads."""

    accepted: dict[str, str] = field(default_factory=dict)
    ends: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def accept(self, key: str, job: dict[str, Any]) -> None:
        with self.lock:
            first = self.accepted.setdefault(key, job["id"])
            if first != job["id"]:
                self.faults.append(f"the key {key} was answered with job {first}, then with job {job['id']}")
        self.observe(job)

    def observe(self, job: dict[str, Any]) -> None:
        """An end, once told, stays."""
        if job["state"] in ("queued", "running"):
            return
        end = job["state"], job["error_code"], *job["output_artifacts"]
        with self.lock:
            first = self.ends.setdefault(job["id"], end)
            if first != end:
                self.faults.append(f"job {job['id']} ended as {first}, and then as {end}")

    def count(self, answer: str) -> None:
        with self.lock:
            self.answers[answer] += 1

    def fault(self, text: str) -> None:
        with self.lock:
            self.faults.append(text)


class Clients:
    """Threads that submit each wish at its time until it is answered, and look at jobs meanwhile."""

    def __init__(self, urls: list[str], keys: list[str], wanted: list[Wish], diary: Diary) -> None:
        self._urls = urls
        self._keys = keys
        self._wanted = iter(wanted)
        self._lock = threading.Lock()
        self._diary = diary
        self._threads = [threading.Thread(target=self._run, name=f"client {n}", daemon=True) for n in range(CLIENTS)]
        self._began_at = 0.0

    def start(self) -> None:
        self._began_at = time.monotonic()
        for thread in self._threads:
            thread.start()

    @property
    def are_done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        with httpx.Client(timeout=10) as http:
            while (wish := self._next()) is not None:
                time.sleep(max(0.0, self._began_at + wish.at - time.monotonic()))
                try:
                    self._live(http, wish)
                except Exception as error:  # noqa: BLE001 - a thread's own end would go unseen
                    self._diary.fault(f"a client met {error!r}")

    def _next(self) -> Wish | None:
        with self._lock:
            return next(self._wanted, None)

    def _live(self, http: httpx.Client, wish: Wish) -> None:
        body = (
            wish.body if wish.clip is None else wish.body | {"input_artifacts": [self._upload(http, wish, wish.clip)]}
        )
        job = self._submit(http, wish, body)
        if wish.is_sent_twice:
            self._submit(http, wish, body)
        path = f"/v1/generations/{job['id']}"
        if wish.is_cancelled:
            self._ask(http, wish, "DELETE", path)
        if (answer := self._ask(http, wish, "GET", path)) is not None and answer.status_code == 200:
            self._diary.observe(answer.json())
            self._read(http, wish, answer.json()["output_artifacts"])

    def _upload(self, http: httpx.Client, wish: Wish, clip: bytes) -> str:
        """One whose answer was lost is uploaded again: it has no key."""
        answer = self._insist(http, wish, "/v1/artifacts", content=clip, headers={"Content-Type": "audio/flac"})
        return str(answer.json()["id"])

    def _submit(self, http: httpx.Client, wish: Wish, body: dict[str, Any]) -> dict[str, Any]:
        job: dict[str, Any] = self._insist(http, wish, "/v1/generations", json=body).json()
        self._diary.accept(body["idempotency_key"], job)
        return job

    def _insist(self, http: httpx.Client, wish: Wish, path: str, **more: Any) -> httpx.Response:
        """POST to one web process after the other, until it was done."""
        for turn in count(wish.web):
            answer = self._ask(http, wish, "POST", path, turn, **more)
            if answer is not None and answer.is_success:
                return answer
            time.sleep(0.2)
        raise AssertionError

    def _read(self, http: httpx.Client, wish: Wish, outputs: list[str]) -> None:
        """What comes whole must be what the row says; while the store is away it may not come."""
        for artifact in outputs:
            answer = self._ask(http, wish, "GET", f"/v1/artifacts/{artifact}")
            if answer is not None and answer.status_code == 200 and _is_wrong(answer):
                self._diary.fault(f"artifact {artifact} was read whole, and is not what its digest says")

    def _ask(
        self,
        http: httpx.Client,
        wish: Wish,
        method: str,
        path: str,
        turn: int | None = None,
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> httpx.Response | None:
        """The answer, or None where it was lost."""
        url = self._urls[(wish.web if turn is None else turn) % len(self._urls)]
        try:
            answer = http.request(method, url + path, headers=_bearer(self._keys[wish.owner]) | (headers or {}), **more)
        except httpx.TransportError as error:
            self._diary.count(f"{method} {type(error).__name__}")
            return None
        self._diary.count(f"{method} {answer.status_code}")
        if answer.status_code not in (200, 201, 202, 409, 429, 503):
            self._diary.fault(f"{method} {path} answered {answer.status_code}: {answer.text[:200]}")
        return answer


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _is_wrong(answer: httpx.Response) -> bool:
    return answer.headers["etag"].strip('"') != hashlib.sha256(answer.content).hexdigest()


# -- faults ------------------------------------------------------------------------------------------------------------


class Chaos:
    """Does the faults at their times, and starts again what died, as restart policies do. In the main thread."""

    def __init__(self, platform: Hosted, faults: list[Fault], diary: Diary) -> None:
        self.done: Counter[str] = Counter()
        self._platform = platform
        self._diary = diary
        self._order = count()
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._dead: set[int] = set()
        self._s3_fault = 0
        self._began_at = time.monotonic()
        self._started_at: dict[int, float] = {}
        for fault in faults:
            self._plan(fault.at, lambda fault=fault: self._do(fault))

    @property
    def is_over(self) -> bool:
        return not self._agenda

    def step(self) -> None:
        """Whatever is due."""
        now = time.monotonic() - self._began_at
        while self._agenda and self._agenda[0][0] <= now:
            heappop(self._agenda)[2]()
        for part in self._platform.parts:
            if id(part) not in self._dead and not part.is_running:
                self._died(part)

    def _plan(self, at: float, action: Callable[[], None]) -> None:
        heappush(self._agenda, (at, next(self._order), action))

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._plan(time.monotonic() - self._began_at + seconds, action)

    def _died(self, part: Part) -> None:
        """By itself."""
        code = part.process.returncode
        if time.monotonic() - self._started_at.get(id(part), 0.0) > BOOT_SECONDS:
            self._diary.fault(f"{part.role} {part.index} ended by itself, with exit code {code}")
        self.done[f"{part.role} gave up while it started"] += 1
        self._dead.add(id(part))
        self._later(RESTART_SECONDS, lambda: self._start(part))

    def _start(self, part: Part) -> None:
        part.start()
        self._started_at[id(part)] = time.monotonic()
        self._dead.discard(id(part))

    def _do(self, fault: Fault, patience_seconds: float = BUSY_SECONDS) -> None:
        platform = self._platform
        if fault.kind in _OF_WORK and patience_seconds > 0 and not self._is_ripe(fault):
            self._later(0.2, lambda: self._do(fault, patience_seconds - 0.2))
            return
        self.done[fault.kind] += 1
        self._log(f"{fault.kind} {fault.target}")
        match fault.kind:
            case "kill worker":
                self._kill(platform.workers[fault.target])
            case "kill web":
                self._kill(platform.webs[fault.target])
            case "kill sweeper":
                self._kill(platform.sweepers[fault.target % len(platform.sweepers)])
            case "kill engine":
                self._kill_engine(platform.workers[fault.target])
            case "drain worker":
                self._drain(platform.workers[fault.target])
            case "stop worker past its lease":
                self._stop(platform.workers[fault.target], fault.seconds)
            case "empty valkey":
                platform.empty_valkey()
            case "restart postgres":
                self._restart_postgres(signal.SIGINT)
            case "crash postgres":
                self._restart_postgres(signal.SIGQUIT)
            case "fill disk":
                self._fill_disk(platform.workers[fault.target], fault.seconds)
            case _:
                self._break_s3(_S3_MODES[fault.kind], fault.seconds)

    def _log(self, text: str) -> None:
        with (self._platform.folder / "breakdowns.log").open("a") as log:
            log.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f} {text}\n")

    def _kill(self, part: Part) -> None:
        if id(part) not in self._dead:
            self._dead.add(id(part))
            part.process.kill()
            part.process.wait()
            self._later(RESTART_SECONDS, lambda: self._start(part))

    def _is_ripe(self, fault: Fault) -> bool:
        """Whether its worker has a job in hand, and the engine that is to be killed; not where nobody can tell."""
        worker = self._platform.workers[fault.target]
        if id(worker) in self._dead or (fault.kind == "kill engine" and not worker.engines):
            return False
        running = "SELECT count(*) FROM inclavate_job WHERE state = 'running' AND worker LIKE %s"
        try:
            return self._platform.rows(running, f"%-{worker.process.pid}")[0][0] > 0
        except psycopg.Error:
            return False

    def _kill_engine(self, worker: Part) -> None:
        if engines := worker.engines:
            self._log(f"process {engines[-1].pid} is the engine")
            engines[-1].kill()
        else:
            self.done["kill engine"] -= 1

    def _drain(self, part: Part) -> None:
        """An orderly stop; the parts' watch starts it again."""
        if id(part) in self._dead:
            return
        self._dead.add(id(part))
        part.process.terminate()

        def start_once_ended() -> None:
            if part.is_running:
                self._later(0.2, start_once_ended)
                return
            self._start(part)

        self._later(RESTART_SECONDS, start_once_ended)

    def _stop(self, part: Part, seconds: float) -> None:
        process = part.process
        process.send_signal(signal.SIGSTOP)
        self._later(seconds, lambda: process.send_signal(signal.SIGCONT))

    def _restart_postgres(self, how: signal.Signals) -> None:
        self._platform.postgres.end(how)
        self._platform.postgres.start()

    def _fill_disk(self, worker: Part, seconds: float) -> None:
        """Of a worker that has a small one of its own."""
        folder = Path(worker.environment["INCLAVATE_DATA_DIR"])
        if not folder.is_mount():
            self.done["fill disk"] -= 1
            return
        junk = folder / "junk"
        with junk.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(2**20))
        self._later(seconds, lambda: junk.unlink(missing_ok=True))

    def _break_s3(self, mode: Mode, seconds: float) -> None:
        self._s3_fault += 1
        mine = self._s3_fault
        self._platform.proxy.set(mode)

        def mend() -> None:
            if self._s3_fault == mine:
                self._platform.proxy.set(Mode.PASS)

        self._later(seconds, mend)


# -- the end -----------------------------------------------------------------------------------------------------------


def run(folder: Path, seed: int, jobs: int, seconds: float) -> list[str]:
    """Everything, and what was found wrong, as sentences. In the main thread."""
    faults, wanted, diary = schedule(seed, seconds), wishes(seed, jobs, seconds), Diary()
    _say(f"seed {seed}: {jobs} jobs and {len(faults)} breakdowns over {seconds:.0f} s")
    with (
        small_disks(folder, 2),
        hosted.running(folder, webs=2, workers=2, sweepers=1, is_durable=True, WORKER_SLOTS=str(SLOTS)) as platform,
    ):
        os.environ.update(platform.environment, DJANGO_SETTINGS_MODULE="inclavate.settings")
        from tests import chaos_checks

        keys = chaos_checks.new_keys(OWNERS)
        clients = Clients(platform.urls, keys, wanted, diary)
        chaos = Chaos(platform, faults, diary)
        _say("the platform is ready")
        clients.start()
        _until_over(chaos, clients)
        _say(f"everything was broken and is whole again; waiting for the last jobs ({_tally(chaos.done)})")
        settled = _until_settled(chaos, platform)
        _say(f"clients were answered {_tally(diary.answers)}")
        bounds = {"engine_crashed": chaos.done["kill engine"], "of a full disk": SLOTS * chaos.done["fill disk"]}
        checks = chaos_checks.Checks(wanted, keys, diary.accepted, diary.ends, bounds)
        found = [*diary.faults, *settled, *(() if settled else checks.run(platform.urls[0]))]
        _say(_tally(checks.counts))
        engines = [engine for worker in platform.workers for engine in worker.engines]
        platform.end_parts()
        found += [f"the engine process {engine.pid} outlived its worker" for engine in engines if _lives(engine)]
    return found


@contextmanager
def small_disks(folder: Path, workers: int) -> Iterator[None]:
    """A small disk for each worker's data folder, where we may make one."""
    with ExitStack() as stack:
        for number in range(workers):
            disk = folder / f"worker-{number}"
            disk.mkdir(parents=True)
            mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)]
            if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
                _say("disks are not filled: only root can mount small ones, and not in every container")
                break
            stack.callback(subprocess.run, ["umount", str(disk)], check=True)
        yield


def _until_over(chaos: Chaos, clients: Clients) -> None:
    while not (chaos.is_over and clients.are_done):
        chaos.step()
        time.sleep(0.05)


def _until_settled(chaos: Chaos, platform: Hosted) -> list[str]:
    """Until no job waits or runs; whoever dies is still started again."""
    query = "SELECT count(*) FROM inclavate_job WHERE state IN ('queued', 'running')"
    fewest, deadline = sys.maxsize, 0.0
    while left := platform.rows(query)[0][0]:
        if left < fewest:
            fewest, deadline = left, time.monotonic() + SETTLE_SECONDS
        if time.monotonic() > deadline:
            return [f"{left} jobs were left, and none ended for {SETTLE_SECONDS:.0f} s"]
        chaos.step()
        time.sleep(0.2)
    return []


def _lives(process: psutil.Process) -> bool:
    def is_gone() -> bool:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE

    try:
        until(is_gone, 10)
    except psutil.NoSuchProcess:
        return False
    except AssertionError:
        return True
    return False


def _tally(counts: Counter[str]) -> str:
    return ", ".join(f"{name}: {number}" for name, number in sorted(counts.items()))


def _say(text: str) -> None:
    print(f"{time.monotonic() - _BEGAN_AT:6.1f} s  {text}", flush=True)  # noqa: T201


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seconds", type=float, help="over how long the jobs come (0.15 s a job)")
    parser.add_argument("--folder", type=Path, help="where to keep the logs; a temporary folder otherwise")
    given = parser.parse_args()
    # What was begun and mounted is undone.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    seconds = given.seconds or given.jobs * 0.15
    with tempfile.TemporaryDirectory(prefix="inclavate-chaos-", dir="/tmp") as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = run(folder, given.seed, given.jobs, seconds)
    for fault in found[:SHOWN]:
        _say(f"FAULT {fault}")
    again = f"python -m tests.chaos --seed {given.seed} --jobs {given.jobs} --seconds {seconds:g}"
    _say(f"{len(found)} faults; {again} replays it")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m bench`: measure the platform beside its floors, print the report, and keep it in bench/REPORT.md."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from bench import machine, report
from bench.deployments import DEPLOYMENTS, PIPER, Deployment, another_worker, on_sqlite, speaking
from bench.figures import Section
from bench.measures.jobs import Jobs
from bench.measures.listings import Listings
from bench.measures.memory import IDLE_SECONDS, SpeechMemory
from bench.measures.requests import Requests
from bench.measures.speech import Speech, SpeechWorkers
from bench.measures.transfers import FOLDER, S3, Transfers
from bench.measures.watchers import Watchers
from bench.plans import FULL, QUICK, Plan
from bench.processes import Helper
from bench.speaking import Speaker
from tests.servers import free_port, s3_rclone

REPORT = Path(__file__).with_name("REPORT.md")
MEASURES = ("watchers", "requests", "jobs", "transfers", "listings", "speech")
_DJANGO = {"DJANGO_SETTINGS_MODULE": "inclavate.settings"}
_FLOORS_DJANGO = {"DJANGO_SETTINGS_MODULE": "bench.floors.settings"}
_FILES_NEEDED = 4096


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round of each; keeps no report")
    parser.add_argument("--on", choices=DEPLOYMENTS, action="append", help="only this database (may be repeated)")
    parser.add_argument("--only", choices=MEASURES, action="append", help="only this (may be repeated)")
    parser.add_argument("--out", type=Path, help="keep the report there instead")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    is_whole = not (options.quick or options.on or options.only)
    _prepare(plan.limit_seconds)
    text = _measured(plan, options.on or list(DEPLOYMENTS), options.only or MEASURES)
    sys.stdout.write(text)
    if out := options.out or (REPORT if is_whole else None):
        out.write_text(text, "utf-8")
    return 0


def _prepare(limit_seconds: int) -> None:
    """Enough open files for the watchers; and an end, whatever happens."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _FILES_NEEDED:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(_FILES_NEEDED, hard), hard))
    for number in (signal.SIGALRM, signal.SIGTERM):
        signal.signal(number, _stop)
    signal.alarm(limit_seconds)


def _stop(number: int, frame: FrameType | None) -> None:
    """Unwinds, so that every process that was started is ended."""
    sys.exit(f"bench: stopped by {signal.Signals(number).name}")


def _measured(plan: Plan, databases: list[str], measures: tuple[str, ...]) -> str:
    began, load = time.monotonic(), os.getloadavg()[0]
    sections: dict[str, list[Section]] = {}
    with tempfile.TemporaryDirectory(prefix="inclavate-bench-") as name:
        facts = machine.describe(Path(name))
        for database in databases:
            with DEPLOYMENTS[database](Path(name) / database) as deployment:
                sections[deployment.database] = list(_sections(deployment, plan, measures))
    at = datetime.now(UTC).isoformat(" ", "minutes").replace("+00:00", " UTC")
    command = " ".join(["python -m bench", *sys.argv[1:]])
    facts.append(
        f"{at}, `{command}`, {plan.rounds} rounds, {time.monotonic() - began:.0f} s; load before it {load:.1f}"
    )
    return report.render(sections, facts)


def _sections(deployment: Deployment, plan: Plan, measures: tuple[str, ...]) -> Iterator[Section]:
    with ExitStack() as shared:
        start = _starter(deployment, shared)
        port = free_port()
        floor = start("floors.web", _FLOORS_DJANGO, str(port), str(deployment.folder))
        bench = Bench(deployment, plan, floor, port, start("load.http", {}))
        for measure in measures:
            with ExitStack() as own:
                for step in bench.steps(measure, own):
                    if isinstance(step, Section):
                        yield step
                    else:
                        sys.stderr.write(f"{deployment.database}: {step}\n")


def _starter(deployment: Deployment, stack: ExitStack) -> Callable[..., Helper]:
    """Starts a module as a helper that ends with the stack."""

    def start(module: str, django: Mapping[str, str], *words: str) -> Helper:
        environment = {**deployment.environment, **django}
        return stack.enter_context(Helper(f"bench.{module}", deployment.folder, environment, *words))

    return start


@dataclass(frozen=True)
class Bench:
    """One deployment's measures, and the helpers that all of them share."""

    deployment: Deployment
    plan: Plan
    floor: Helper
    port: int
    load: Helper

    def steps(self, measure: str, stack: ExitStack) -> Iterator[str | Section]:
        """What the measure says. What it alone needs is started first, and ends with the stack."""
        start = _starter(self.deployment, stack)
        match measure:
            case "watchers":
                names = {"publisher": "load.publisher", "watchers": "load.watchers", "bus": "floors.bus"}
                helpers = {name: start(module, _DJANGO) for name, module in names.items()} | {"load": self.load}
                return Watchers(self.deployment, self.floor, self.port, helpers, self.plan).measure()
            case "requests":
                return Requests(self.deployment, self.floor, self.port, self.load, self.plan).measure()
            case "jobs":
                rings, engine = start("floors.rings", _DJANGO), start("floors.engine", {})
                return Jobs(self.deployment, self.load, rings, engine, self.plan).measure()
            case "transfers":
                return self._transfers(start, stack)
            case "speech":
                return self._speech(start, stack)
            case _:
                return Listings(self.deployment, self.load, self.plan).measure()

    def _transfers(self, start: Callable[..., Helper], stack: ExitStack) -> Iterator[str | Section]:
        """On SQLite alone: the bytes do not pass through the database."""
        if self.deployment.database != "SQLite":
            return iter(())
        folder = self.deployment.folder / "with-s3"
        url = stack.enter_context(s3_rclone(folder))
        stores = {FOLDER: self.deployment, S3: stack.enter_context(on_sqlite(folder, STORE_URL=url))}
        client, boto = start("load.transfers", {}), start("floors.s3", {}, url)
        return Transfers(stores, self.floor, self.port, client, boto, self.plan).measure()

    def _speech(self, start: Callable[..., Helper], stack: ExitStack) -> Iterator[str | Section]:
        """On SQLite alone: what speaks is the same. Each deployment begins when it is needed."""
        if self.deployment.database != "SQLite":
            return
        folder, plan = self.deployment.folder, self.plan
        engines = start("floors.speech", {}), start("floors.speech", {})
        one = Speaker(stack.enter_context(speaking(folder / "speaking")))
        yield from Speech(one, engines[0], plan).measure()
        two = Speaker(stack.enter_context(speaking(folder / "two-workers", WORKER_MODELS=PIPER)))
        another = stack.enter_context(another_worker(two.deployment))
        yield from SpeechWorkers(one, two, another, self.load, engines, plan).measure()
        idle = speaking(folder / "idle", WORKER_MODELS=PIPER, MODEL_IDLE_SECONDS=str(IDLE_SECONDS))
        yield from SpeechMemory(Speaker(stack.enter_context(idle)), self.load, plan).measure()


if __name__ == "__main__":
    sys.exit(main())

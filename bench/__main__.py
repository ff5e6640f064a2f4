"""`python -m bench`: measure the platform beside its floors, print the report, and keep it in bench/REPORT.md."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from bench import machine, report
from bench.deployments import DEPLOYMENTS, Deployment
from bench.figures import Section
from bench.measures.jobs import Jobs
from bench.measures.requests import Requests
from bench.measures.watchers import Watchers
from bench.plans import FULL, QUICK, Plan
from bench.processes import Helper
from tests.servers import free_port

REPORT = Path(__file__).with_name("REPORT.md")
MEASURES = ("watchers", "requests", "jobs")
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
    with ExitStack() as stack:

        def helper(module: str, django: dict[str, str], *words: str) -> Helper:
            environment = dict(deployment.environment) | django
            return stack.enter_context(Helper(f"bench.{module}", deployment.folder, environment, *words))

        port = free_port()
        floor = helper("floors.web", _FLOORS_DJANGO, str(port))
        load = helper("load.http", {})
        for measure in measures:
            if measure == "watchers":
                names = {"publisher": "load.publisher", "watchers": "load.watchers", "bus": "floors.bus"}
                helpers = {name: helper(module, _DJANGO) for name, module in names.items()} | {"load": load}
                steps = Watchers(deployment, floor, port, helpers, plan).measure()
            elif measure == "requests":
                steps = Requests(deployment, floor, port, load, plan).measure()
            else:
                rings, engine = helper("floors.rings", _DJANGO), helper("floors.engine", {})
                steps = Jobs(deployment, load, rings, engine, plan).measure()
            for step in steps:
                if isinstance(step, Section):
                    yield step
                else:
                    sys.stderr.write(f"{deployment.database}: {step}\n")


if __name__ == "__main__":
    sys.exit(main())

"""Pages of very many artifacts, and what they take, beside the same query put to the database directly."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg

from bench.deployments import Deployment
from bench.figures import OURS, Comparison, Round, Section, percentile
from bench.measures.requests import raw, run_load
from bench.plans import Plan
from bench.processes import Helper, cpu_seconds

SQL = "the same rows by bare SQL"
COLUMNS = {"p50 ms": "p50 ms", "p99 ms": "p99 ms", "CPU ms": "CPU ms a request, web"}
NOTES = (
    "All rows are one owner's: half were made and half uploaded, a tenth have a purpose (half of these `user_data`), "
    "and each was created a second before the last. A page has 100, and its query asks for one more; deep pages "
    "begin behind rows of the list's older half. One request at a time, over HTTP. The SQL is a row comparison behind "
    "a fixed place in the index, all columns but `facts`, by `sqlite3` or `psycopg` in another process; it gives "
    "tuples, not JSON.",
)
_LIMIT = 100
_BATCH_ROWS = 50_000
_ANCHORS = 8
_SQL_SHARE = 0.25

Execute = Callable[[str], list[Any]]

_PAGE = """
SELECT id, owner_id, origin, state, media_type, sniffed_type, size, digest, filename, purpose, store_key, job_id,
       is_transient, inspect_at, inspections, created_at, expires_at
FROM inclavate_artifact WHERE owner_id = {owner} {which} ORDER BY created_at {way}, id {way} LIMIT 101
"""
_USAGE = "SELECT origin, bytes, objects_count FROM inclavate_usage WHERE owner_id = {owner}"

_FILL = """
INSERT INTO inclavate_artifact
    (id, owner_id, origin, state, media_type, sniffed_type, size, digest, filename, purpose, store_key, job_id,
     is_transient, facts, inspect_at, inspections, created_at, expires_at)
WITH RECURSIVE series (n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM series WHERE n + 1 < {last})
SELECT {id}, {owner}, CASE n % 2 WHEN 0 THEN 'uploaded' ELSE 'generated' END, 'ready', 'audio/wav', 'audio/wav',
       44 + n % 1000000, {digest}, CASE n % 10 WHEN 0 THEN 'recording-' || n || '.wav' ELSE '' END,
       CASE n % 20 WHEN 0 THEN 'user_data' WHEN 10 THEN 'batch' ELSE '' END, {store_key}, NULL,
       {no}, '{{"duration_seconds": 1.5, "sample_rate": 24000, "channels": 1}}', NULL, 0, {created_at}, NULL
FROM series
"""
_COUNT = """
INSERT INTO inclavate_usage (owner_id, origin, bytes, objects_count, reserved_bytes, reserved_objects)
SELECT owner_id, origin, sum(size), count(*), 0, 0 FROM inclavate_artifact
WHERE owner_id = {owner} AND state = 'ready' GROUP BY owner_id, origin
ON CONFLICT (owner_id, origin) DO UPDATE SET bytes = excluded.bytes, objects_count = excluded.objects_count
"""


@dataclass(frozen=True)
class Dialect:
    """What the two databases write differently. The times are as Django writes them."""

    values: dict[str, str]
    created_at: str
    tidy: str


_DIALECTS = {
    "SQLite": Dialect(
        {
            "id": "lower(hex(randomblob(16)))",
            "store_key": "lower(hex(randomblob(16)))",
            "digest": "lower(hex(randomblob(32)))",
            "no": "0",
        },
        "strftime('%Y-%m-%d %H:%M:%f', '2026-01-01 00:00:00.125', '-' || {n} || ' seconds') || '000'",
        "ANALYZE",
    ),
    "PostgreSQL": Dialect(
        {
            "id": "gen_random_uuid()",
            "store_key": "gen_random_uuid()::text",
            "digest": "md5(n::text) || md5((-n)::text)",
            "no": "false",
        },
        "timestamptz '2026-01-01 00:00:00.125Z' - {n} * interval '1 second'",
        "VACUUM ANALYZE",
    ),
}


@dataclass(frozen=True)
class Listing:
    """A question as paths and as SQL, each to be asked in turn."""

    what: str
    paths: list[str]
    queries: list[str]


class Listings:
    def __init__(self, deployment: Deployment, load: Helper, plan: Plan) -> None:
        self._deployment = deployment
        self._load = load
        self._plan = plan
        self._dialect = _DIALECTS[deployment.database]
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{deployment.port}", headers=dict(deployment.headers), timeout=60
        )

    def measure(self) -> Iterator[str | Section]:
        """What is being done, then the section."""
        with _connected(self._deployment) as execute:
            yield f"listings, {self._plan.artifacts:,} rows are made"
            owner = self._fill(execute)
            listings = list(self._listings(execute, owner))
            comparisons = [Comparison(listing.what) for listing in listings]
            for number in range(self._plan.rounds):
                yield f"listings, round {number + 1}"
                for listing, comparison in zip(listings, comparisons, strict=True):
                    comparison.add(OURS, self._asked(listing.paths))
                    comparison.add(SQL, self._queried(execute, listing.queries))
        yield Section(f"Listings of {self._plan.artifacts:,} artifacts", COLUMNS, NOTES, comparisons)

    def _fill(self, execute: Execute) -> int:
        """Make the rows, in batches, so that other writers get their turn; whose they are."""
        # The first request makes its owner.
        self._http.get("/v1/artifacts/usage").raise_for_status()
        ((owner,),) = execute("SELECT id FROM inclavate_owner")
        for first in range(0, self._plan.artifacts, _BATCH_ROWS):
            last = min(first + _BATCH_ROWS, self._plan.artifacts)
            made = self._dialect.values | {"created_at": self._dialect.created_at.format(n="n")}
            execute(_FILL.format(first=first, last=last, owner=owner, **made))
        execute(_COUNT.format(owner=owner))
        execute(self._dialect.tidy)
        return int(owner)

    def _listings(self, execute: Execute, owner: int) -> Iterator[Listing]:
        def page(which: str = "", way: str = "DESC") -> str:
            return _PAGE.format(owner=owner, which=which, way=way)

        half, step = self._plan.artifacts // 2, self._plan.artifacts // 2 // _ANCHORS
        anchors = [self._anchor(execute, owner, half + number * step) for number in range(_ANCHORS)]
        behind = [page(f"AND (created_at, id) < ('{at}', '{key}')") for at, key in anchors]
        first = f"/v1/artifacts?limit={_LIMIT}"
        uploaded = page("AND origin = 'uploaded'")
        files = page("AND NOT (purpose = '') AND purpose = 'user_data' AND state = 'ready'", "ASC")
        yield Listing("first page", [first], [page()])
        yield Listing("first page, kind=uploaded", [f"{first}&kind=uploaded"], [uploaded])
        yield Listing("a deep page by after=", [f"{first}&after={uuid.UUID(key)}" for _, key in anchors], behind)
        yield Listing("usage", ["/v1/artifacts/usage"], [_USAGE.format(owner=owner)])
        yield Listing(
            "files: first page, oldest first", [f"/v1/files?limit={_LIMIT}&purpose=user_data&order=asc"], [files]
        )

    def _anchor(self, execute: Execute, owner: int, number: int) -> tuple[str, str]:
        """When that row was created, and its id, as the database has them."""
        at = self._dialect.created_at.format(n=number)
        ((created_at, key),) = execute(
            f"SELECT created_at, id FROM inclavate_artifact WHERE owner_id = {owner} AND created_at = {at}"
        )
        return str(created_at), str(key)

    def _asked(self, paths: list[str]) -> Round:
        requests = [raw("GET", path, self._deployment.headers) for path in paths]
        cpu = cpu_seconds(self._deployment.web)
        done = run_load(self._load, self._deployment.port, requests, 1, seconds=self._plan.load_seconds)
        spent, nanoseconds = cpu_seconds(self._deployment.web) - cpu, done["nanoseconds"]
        return _spread([taken / 1e6 for taken in nanoseconds]) | {"CPU ms": spent * 1000 / len(nanoseconds)}

    def _queried(self, execute: Execute, queries: list[str]) -> Round:
        milliseconds: list[float] = []
        # What was just made may have pushed these pages out.
        for query in queries:
            execute(query)
        ends_at = time.monotonic() + self._plan.load_seconds * _SQL_SHARE
        while time.monotonic() < ends_at:
            for query in queries:
                began = time.perf_counter()
                execute(query)
                milliseconds.append((time.perf_counter() - began) * 1000)
        return _spread(milliseconds)


@contextmanager
def _connected(deployment: Deployment) -> Iterator[Execute]:
    """Statements of the deployment's database, each a transaction of its own; what is made need not last."""
    if deployment.database == "SQLite":
        path = Path(deployment.environment["INCLAVATE_DATA_DIR"]) / "inclavate.sqlite3"
        with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as local:
            local.execute("PRAGMA synchronous = OFF")
            local.execute("PRAGMA cache_size = -400000")
            yield lambda query: local.execute(query).fetchall()
        return
    with psycopg.connect(deployment.environment["INCLAVATE_DATABASE_URL"], autocommit=True) as remote:
        remote.execute("SET synchronous_commit = off")

        def execute(query: str) -> list[Any]:
            cursor = remote.execute(query.encode())
            return cursor.fetchall() if cursor.description else []

        yield execute


def _spread(milliseconds: list[float]) -> Round:
    return {"p50 ms": percentile(milliseconds, 0.5), "p99 ms": percentile(milliseconds, 0.99)}

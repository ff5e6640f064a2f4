"""Write transactions and the database's clock, the same on SQLite and PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime

from django.db import connection, transaction

# SQLite has one writer. Threads of one process queue here, first come first served; left to SQLite's own busy
# handler they would sleep and starve each other.
_sqlite_writer = threading.RLock()


def now() -> datetime:
    """The database's clock (aware, UTC): leases of workers on many machines are compared by one clock."""
    if connection.vendor == "sqlite":
        return datetime.now(UTC)
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        instant: datetime = cursor.fetchone()[0]
    return instant.astimezone(UTC)


def rfc3339(at: datetime) -> str:
    """A time as every answer and webhook writes it: UTC, milliseconds, `Z`."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextmanager
def snapshot() -> Iterator[None]:
    """Reads that all see one moment. On SQLite nobody writes meanwhile."""
    with transaction.atomic():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield


@contextmanager
def write() -> Iterator[datetime]:
    """One write transaction; yields the database's time. Nothing slow belongs inside."""
    with _sqlite_writer if connection.vendor == "sqlite" else nullcontext(), transaction.atomic():
        yield now()

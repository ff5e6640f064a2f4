"""How tests put objects into a store and look at them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from storage import Store

MIB = 2**20
# More than S3's part, so that each store has something unfinished outside the process.
BIG = b"0123456789abcdef" * (9 * MIB // 16)


def put(store: Store, key: str, content: bytes, step: int = MIB) -> None:
    with store.create(key) as writer:
        for position in range(0, len(content), step):
            writer.write(content[position : position + step])
        writer.commit()


def get(store: Store, key: str, start: int = 0, stop: int | None = None) -> bytes:
    return b"".join(store.read(key, start, stop))


def soon() -> datetime:
    """Later than all that has begun, by any clock."""
    return datetime.now(UTC) + timedelta(minutes=1)


def assert_empty(store: Store) -> None:
    assert list(store.entries()) == []
    assert store.sweep(soon()) == 0

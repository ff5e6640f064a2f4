"""How tests put objects into a store and look at them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from storage import PART_BYTES, Store

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


def send_part(store: Store, key: str, token: str, number: int, content: bytes) -> None:
    with store.write_part(key, token, number) as writer:
        for position in range(0, len(content), MIB):
            writer.write(content[position : position + MIB])
        writer.commit()


def part_bytes(number: int, size: int = PART_BYTES) -> bytes:
    """Other bytes for another number, and at each place."""
    words = b"".join(b"%07d %07d|" % (number, position) for position in range(1024))
    return (words * (size // len(words) + 1))[:size]


def soon() -> datetime:
    """Later than all that has begun, by any clock."""
    return datetime.now(UTC) + timedelta(minutes=1)


def assert_empty(store: Store) -> None:
    assert list(store.entries()) == []
    assert store.sweep(soon()) == 0

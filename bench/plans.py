"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    rounds: int
    connections: tuple[int, ...]
    load_seconds: float
    watchers: tuple[int, ...]
    publish_seconds: float
    jobs: int
    starts: int
    rings: int
    transfer_rounds: int
    transfer_bytes: int
    uploads_at_once: int
    upload_bytes: int
    artifacts: int
    speech_words: int
    long_words: int
    long_rounds: int
    short_jobs: int
    memory_jobs: tuple[int, ...]
    idle_rounds: int
    limit_seconds: int


FULL = Plan(
    rounds=3,
    connections=(1, 16),
    load_seconds=0.8,
    watchers=(100, 1000),
    publish_seconds=2.5,
    jobs=30,
    starts=20,
    rings=200,
    transfer_rounds=2,
    transfer_bytes=512 * 2**20,
    uploads_at_once=50,
    upload_bytes=8 * 2**20,
    artifacts=1_000_000,
    speech_words=80,
    long_words=1000,
    long_rounds=1,
    short_jobs=12,
    memory_jobs=(10, 100, 200),
    idle_rounds=2,
    limit_seconds=3000,
)
QUICK = Plan(
    rounds=1,
    connections=(1, 16),
    load_seconds=0.5,
    watchers=(100,),
    publish_seconds=2.0,
    jobs=20,
    starts=10,
    rings=50,
    transfer_rounds=1,
    transfer_bytes=64 * 2**20,
    uploads_at_once=10,
    upload_bytes=2 * 2**20,
    artifacts=20_000,
    speech_words=25,
    long_words=80,
    long_rounds=1,
    short_jobs=6,
    memory_jobs=(5, 20),
    idle_rounds=1,
    limit_seconds=600,
)

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
    limit_seconds=600,
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
    limit_seconds=240,
)

"""Figures of several rounds, and their ratios to what was measured beside them in the same rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

# A figure's name -> its value in one round.
Round = dict[str, float]

OURS = "Inclavate"


@dataclass
class Comparison:
    """One thing done by several: by us, by floors, and by whoever else is to be compared. The first is us."""

    what: str
    rounds: dict[str, list[Round]] = field(default_factory=dict)

    def add(self, who: str, figures: Round) -> None:
        self.rounds.setdefault(who, []).append(figures)

    def figure(self, who: str, name: str) -> float | None:
        """The median of its rounds."""
        values = [figures[name] for figures in self.rounds.get(who, []) if name in figures]
        return median(values) if values else None

    def ratio(self, other: str, name: str) -> float | None:
        """The median of the ratios of each round, ours to the other's."""
        pairs = zip(self.rounds[OURS], self.rounds[other], strict=True)
        ratios = [ours[name] / theirs[name] for ours, theirs in pairs if name in ours and theirs.get(name)]
        return median(ratios) if ratios else None

    @property
    def others(self) -> list[str]:
        return [who for who in self.rounds if who != OURS]


@dataclass(frozen=True)
class Section:
    """Comparisons that have the same figures, by name and heading, and what a reader must know of them."""

    title: str
    columns: dict[str, str]
    notes: Sequence[str]
    comparisons: list[Comparison]


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]

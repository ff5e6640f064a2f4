"""The figures as Markdown."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from bench.figures import OURS, Comparison, Section

# A process runs Python on one core at a time.
_BUSY_CORES = 0.8
_BUSY_SHARE = 0.95
_INTRODUCTION = (
    "Each figure is the median of its rounds. A ratio is ours to the floor's in the same round, and the median of "
    "those: read the ratios, for the times are this machine's, and of that hour. Ours and the floors took turns."
)


def render(sections: Mapping[str, Sequence[Section]], facts: Sequence[str]) -> str:
    """The whole report; the sections are by database."""
    lines = ["# Measured", "", _INTRODUCTION, "", *(f"- {fact}" for fact in facts)]
    for database, measured in sections.items():
        for section in measured:
            lines += ["", f"## {section.title}, on {database}", "", *_section(section)]
    return "\n".join(lines) + "\n"


def _section(section: Section) -> Iterator[str]:
    has_limits = "server cores" in section.columns
    headings = ["", *section.columns.values(), *(["what was the limit"] if has_limits else [])]
    yield _row(headings)
    yield _row(["---"] + ["---:"] * len(section.columns) + (["---"] if has_limits else []))
    for comparison in section.comparisons:
        yield from _rows(comparison, section, has_limits)
    for note in section.notes:
        yield ""
        yield note


def _rows(comparison: Comparison, section: Section, has_limits: bool) -> Iterator[str]:
    for who in comparison.rounds:
        name = f"**{comparison.what}**" if who == OURS else f"– {who}"
        cells = [_figure(comparison.figure(who, column)) for column in section.columns]
        yield _row([name, *cells, *([_limit(comparison, who)] if has_limits else [])])
        if who != OURS:
            ratios = [_ratio(comparison, who, column) for column in section.columns]
            yield _row([f"– *ours to {who}*", *ratios, *([""] if has_limits else [])])


def _ratio(comparison: Comparison, who: str, column: str) -> str:
    # How busy each was says what the limit was; there is nothing to compare.
    ratio = None if column.endswith("cores") or column == "delivered" else comparison.ratio(who, column)
    return "" if ratio is None else f"*{_figure(ratio)}×*"


def _limit(comparison: Comparison, who: str) -> str:
    """What was busy all the time, as far as can be told."""
    names = ("server cores", "client cores", "machine cores", "connections")
    server, client, machine, connections = (comparison.figure(who, name) or 0.0 for name in names)
    if client >= _BUSY_CORES and client > server:
        return "**load generator**"
    if server >= _BUSY_CORES:
        return "web process"
    if machine >= _BUSY_SHARE * (os.cpu_count() or 1):
        return "the machine, others too"
    # Nothing drives watchers faster than their jobs report.
    return {0: "", 1: "one at a time"}.get(int(connections), "waiting: disk, database, locks")


def _figure(value: float | None) -> str:
    """Three digits."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

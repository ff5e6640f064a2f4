"""A report of sections, each of which says by itself when and how it came about: parts may be run one by one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_HEADING = re.compile(r"^## (.+)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether a part's aim was met, and its section's text."""

    is_met: bool
    body: str


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """In Markdown; a column whose heading ends in a colon is aligned to the right."""
    names = [name.rstrip(":") for name in head]
    rule = ["---:" if name.endswith(":") else "---" for name in head]
    cells = [names, rule, *([str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def keep(path: Path, introduction: str, titles: Sequence[str], title: str, body: str) -> None:
    """Write a section into the report, in place of the one of that title. The others stay, in the order of `titles`."""
    kept = dict(_sections(path.read_text("utf-8"))) if path.is_file() else {}
    kept[title] = body
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_whole(introduction, titles, kept), "utf-8")


def _sections(text: str) -> Iterator[tuple[str, str]]:
    _, *parts = _HEADING.split(text)
    return zip(parts[::2], (part.strip() for part in parts[1::2]), strict=True)


def _whole(introduction: str, titles: Sequence[str], bodies: Mapping[str, str]) -> str:
    sections = [f"## {title}\n\n{bodies[title]}" for title in titles if title in bodies]
    missing = [f"Not run yet: {'; '.join(title for title in titles if title not in bodies)}."]
    return "\n\n".join([introduction.strip(), *(missing if len(sections) < len(titles) else ()), *sections]) + "\n"

"""The long forms of what the tests show in short, and a report of them in docs/evidence/.

    python -m tests.prove --only long-piper-joe --seed 7

Each part replaces its own section of the report, as soon as it is done. The exit code is 1 where an aim is missed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.platforms import ROOT
from tests.prove import report, speech

REPORT = ROOT / "docs" / "evidence" / "speech.md"


@dataclass(frozen=True, slots=True)
class Part:
    """`words` is how many the counted text has, where there is one."""

    title: str
    run: Callable[[speech.Studio], report.Finding]
    model: str
    words: int


KINDS = {
    "paragraphs": ("Paragraphs of news and dialogue", speech.paragraphs),
    "rest": ("Figures, lists, addresses and markup", speech.rest),
    "long": ("A long text", speech.long),
}
# Kokoro takes ten times as long as Piper.
WORDS = {"piper-joe": 10_000, "kokoro-82m": 1_000}
PARTS = {
    f"{name}-{model}": Part(f"{title}: {model}", run, model, words)
    for model, words in WORDS.items()
    for name, (title, run) in KINDS.items()
}
_BEGAN_AT = time.monotonic()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.prove", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", metavar="NAME", help=f"one of {', '.join(PARTS)}")
    parser.add_argument("--seed", type=int, default=1, help="of the counted text")
    parser.add_argument("--words", type=int, help="how long the counted text is (10,000; by Kokoro 1,000)")
    parser.add_argument("--out", type=Path, default=REPORT, help="keep the report there instead")
    given = parser.parse_args()
    # What was begun is ended.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    met = [_prove(name, given) for name in given.only or PARTS]
    return 0 if all(met) else 1


def _prove(name: str, given: argparse.Namespace) -> bool:
    """Run a part and keep its section; whether its aim was met."""
    part = PARTS[name]
    words = given.words or part.words
    _say(f"{name} begins")
    with (
        tempfile.TemporaryDirectory(prefix="inclavate-prove-", dir="/tmp") as folder,
        speech.studio(Path(folder), part.model, given.seed, words, _say) as studio,
    ):
        finding = part.run(studio)
    verdict = "The aim was met." if finding.is_met else "**The aim was missed.**"
    command = f"python -m tests.prove --only {name} --seed {given.seed} --words {words}"
    origin = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, `{command}`; {speech.versions(part.model)}."
    body = f"{verdict} {finding.body}\n\n{origin}"
    report.keep(given.out, speech.INTRODUCTION, [each.title for each in PARTS.values()], part.title, body)
    _say(f"{name}: {body.splitlines()[0]}")
    return finding.is_met


def _say(text: str) -> None:
    print(f"{time.monotonic() - _BEGAN_AT:6.1f} s  {text}", flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())

"""What is to be spoken: plain sentences of usual lengths, without anything that would have to be normalised."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice

SENTENCES = (
    "The ferry left the harbour a little after dawn, with two lorries and a handful of sleepy passengers on board.",
    "Nobody spoke much.",
    "A thin rain was falling, and the gulls that usually followed the boat had stayed behind on the roofs of the town.",
    "When the engine changed its note, an old woman put down her knitting and looked out at the grey water.",
    "She had made this crossing every week for thirty years, first to school, then to work, and now to see her sister.",
    "On the far shore a single light was burning.",
    "It belonged to the bakery, whose owner rose long before anyone else and sold warm rolls to whoever came in.",
    "By the time the ramp came down, the clouds had begun to part.",
    "Somebody laughed, a dog barked at the lorries, and the day began as most days did in that part of the world.",
)


def text(words: int) -> str:
    """Whole sentences, over and over, of so many words or a few more, nine to a paragraph."""
    kept: list[str] = []
    count = 0
    for sentence in _all():
        kept.append(sentence)
        count += len(sentence.split())
        if count >= words:
            break
    size = len(SENTENCES)
    return "\n\n".join(" ".join(kept[start : start + size]) for start in range(0, len(kept), size))


def sentences(count: int) -> list[str]:
    """So many, over and over."""
    return list(islice(_all(), count))


def _all() -> Iterator[str]:
    return cycle(SENTENCES)

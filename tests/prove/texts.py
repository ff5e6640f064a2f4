"""What is spoken: passages that were written for it, and a text of any length whose sentences are counted."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from unicode_rbnf import RbnfEngine

from tests.prove.hearing import Sentence

_PASSAGES = Path(__file__).with_name("passages.toml")
_PARAGRAPH = 5
_TEMPLATES = (
    "Letter number {n} came from {place}, where {name} had found {thing}.",
    "In chapter {n} a man walks to {place} and buys {thing} for {name}.",
    "Guest number {n} asked {name} whether {place} was open on Sunday, and left {thing} behind.",
    "Picture {n} shows {name} standing near {place} with {thing} in the rain.",
    "On page {n} the writer says that {name} lost {thing} somewhere behind {place}.",
    "House number {n} belongs to {name}, who keeps {thing} and often looks across at {place}.",
    "The answer to question {n} was that {name} had carried {thing} all the way to {place}.",
    "Train number {n} was late, so {name} waited at {place} and talked about {thing}.",
    "Story {n} begins at {place}, early in the morning, when {name} is looking for {thing}.",
    "Room {n} is the one in which {name} left {thing} before going back to {place}.",
    "Card number {n} tells us that {name} will bring {thing} to {place} tomorrow night.",
    "Winner number {n} was {name}, who took {thing} home and then ran to {place}.",
)
_NAMES = ("Mary", "Peter", "David", "Sarah", "Thomas", "Laura", "Robert", "Helen", "James", "Susan", "George", "Linda")
_PLACES = (
    "the old market",
    "the station",
    "the library",
    "the harbor",
    "the museum",
    "the river",
    "the village school",
    "the stone bridge",
    "the hotel",
    "the garden",
    "the church",
    "the hospital",
    "the white mountain",
    "the football field",
)
_THINGS = (
    "a red bicycle",
    "a wooden table",
    "a silver watch",
    "a box of apples",
    "a pair of brown shoes",
    "a small black dog",
    "a birthday cake",
    "a heavy suitcase",
    "a green umbrella",
    "a bottle of milk",
    "a broken window",
    "a very long letter",
    "a bag of flour",
    "a yellow coat",
)


@dataclass(frozen=True, slots=True)
class Passage:
    """A text as it is written, and the ways in which somebody may read it aloud."""

    kind: str
    text: str
    said: tuple[str, ...]


def passages(name: str) -> list[Passage]:
    """ "paragraphs" or "rest"."""
    rows = tomllib.loads(_PASSAGES.read_text("utf-8"))[name]
    return [Passage(row["kind"], row["text"], tuple(row.get("said", (row["text"],)))) for row in rows]


def counted(words: int, seed: int) -> list[Sentence]:
    """Sentences of at least so many words together, none of which is like those beside it."""
    sentences: list[Sentence] = []
    count = 0
    for number, text in enumerate(_sentences(random.Random(f"counted {seed}")), 1):
        if count >= words:
            break
        sentences.append(Sentence(number, text))
        count += len(text.split())
    return sentences


def joined(sentences: Sequence[Sentence]) -> str:
    """As a text of paragraphs."""
    lines = [
        " ".join(each.text for each in sentences[at : at + _PARAGRAPH]) for at in range(0, len(sentences), _PARAGRAPH)
    ]
    return "\n\n".join(lines)


def _sentences(dice: random.Random) -> Iterator[str]:
    engine = RbnfEngine.for_language("en")
    decks = [_dealt(dice, words) for words in (_TEMPLATES, _NAMES, _PLACES, _THINGS)]
    for number, (template, name, place, thing) in enumerate(zip(*decks, strict=True), 1):
        said = engine.format_number(number).text.replace("\u00ad", "")
        yield template.format(n=said, name=name, place=place, thing=thing)


def _dealt(dice: random.Random, cards: Sequence[str]) -> Iterator[str]:
    """All of them in one order, then again in others, and never the same twice in a row."""
    last = ""
    while True:
        deck = dice.sample(cards, len(cards))
        if deck[0] == last:
            deck.reverse()
        yield from deck
        last = deck[-1]

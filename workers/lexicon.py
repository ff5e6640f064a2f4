"""How words are said that an engine would say wrong: respellings, from the operator's file and from a job."""

from __future__ import annotations

import tomllib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Self

import regex

_WORD = regex.compile(r"[\w\p{M}]")
# Scripts that put no spaces between words: there is no telling where one begins.
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")


class LexiconError(ValueError):
    """The lexicon file is wrong; the message names the file, the word and what is wrong."""


@dataclass(frozen=True)
class Lexicon:
    """Word -> respelling. A word may be several, and hold any characters.

    A word is replaced where it stands whole, in exactly its letters; one written in small letters alone also where the
    text has capitals. Of two words that begin at one place, the longer counts. What was put in is not looked at again.
    """

    entries: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Self:
        """The table `words` of a TOML file. Raises `LexiconError`."""
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise LexiconError(f"{path}: cannot be read: {error}.") from error
        if unknown := [name for name in document if name != "words"]:
            raise LexiconError(f"{path}: {unknown[0]!r} is not known; the only table is 'words'.")
        words = document.get("words", {})
        if not isinstance(words, dict):
            raise LexiconError(f"{path}: 'words' must be a table.")
        for word, said in words.items():
            if not (word.strip() and isinstance(said, str) and said.strip()):
                raise LexiconError(f"{path}: words.{word!r}: a word and how it is said must be text, not {said!r}.")
        return cls(words)

    def with_entries(self, entries: Mapping[str, str]) -> Lexicon:
        """These besides, or instead of those for the same words."""
        return Lexicon({**self.entries, **entries}) if entries else self

    def apply(self, text: str) -> str:
        """The text with every word of the lexicon respelled, in one pass."""
        if not self.entries:
            return text
        return self._pattern.sub(lambda match: self._said(match[0]), text)

    def _said(self, found: str) -> str:
        # The pattern takes "ſ" for "s" too, which `lower` does not.
        word = " ".join(found.split())
        return self._forms.get(word) or self._forms.get(word.lower(), found)

    @cached_property
    def _forms(self) -> dict[str, str]:
        """Each word composed and decomposed, as texts have accents either way."""
        words = {" ".join(word.split()): said for word, said in self.entries.items()}
        forms = {unicodedata.normalize(form, word): said for word, said in words.items() for form in ("NFC", "NFD")}
        return forms | words

    @cached_property
    def _pattern(self) -> regex.Pattern[str]:
        longest_first = sorted(self._forms, key=lambda word: (-len(word), word.islower()))
        return regex.compile("|".join(map(_one, longest_first)))


def _one(word: str) -> str:
    escaped = r"\s{1,3}".join(map(regex.escape, word.split()))
    before = r"(?<![\w\p{M}])" if _needs_edge(word[0]) else ""
    after = r"(?![\w\p{M}])" if _needs_edge(word[-1]) else r"(?!\p{M})"
    return f"{before}{f'(?i:{escaped})' if word == word.lower() else escaped}{after}"


def _needs_edge(character: str) -> bool:
    return bool(_WORD.match(character)) and not _UNSPACED.match(character)

"""Numbers in words, by Unicode's own rules for each language (CLDR)."""

from __future__ import annotations

import re
from functools import cache

from unicode_rbnf import FormatPurpose, RbnfEngine

# Beyond these the words help nobody: longer ones are read digit by digit.
MAX_DIGITS = 15
# Languages whose numbers need no gender or case from the words around them, one aside.
_LANGUAGES = frozenset(("da", "de", "es", "fr", "it", "nl", "pt", "sv", "tr"))
_WHOLE = re.compile(r"(?<![\w.,:/’'+−–°%$€£¥#-])\d{1,15}(?![\w:/’'–-]|\s?[°%$€£¥]|[.,]\S|\.)")


def cardinal(number: int, language: str = "en") -> str:
    """ "two hundred"; for |number| below 10 ** 15."""
    return _words(number, FormatPurpose.CARDINAL, language)


def ordinal(number: int, language: str = "en") -> str:
    return _words(number, FormatPurpose.ORDINAL, language)


def year(number: int) -> str:
    """In English: "nineteen eighty-four"."""
    return _words(number, FormatPurpose.YEAR, "en")


def digits(text: str) -> str:
    """In English, one by one: "two oh seven" is "two zero seven" here."""
    return " ".join(cardinal(int(digit)) for digit in text if digit.isdecimal())


def decimal(text: str) -> str:
    """In English, digits with at most one point and any commas: "3.14" is "three point one four"."""
    whole, point, rest = text.replace(",", "").partition(".")
    if len(whole) > MAX_DIGITS or (len(whole) > 1 and whole[0] == "0"):
        said = digits(whole)
    else:
        said = cardinal(int(whole)) if whole else "zero"
    return f"{said} point {digits(rest)}" if point and rest else said


def whole_numbers(text: str, language: str) -> str:
    """Whole numbers that stand alone, in words, where the language has words that are right anywhere."""
    if language not in _LANGUAGES:
        return text
    return _WHOLE.sub(lambda found: _whole(found[0], language), text)


def _whole(found: str, language: str) -> str:
    # "One" has a gender, and zeros in front mean no quantity.
    return found if int(found) == 1 or (found[0] == "0" and len(found) > 1) else cardinal(int(found), language)


@cache
def _engine(language: str) -> RbnfEngine:
    return RbnfEngine.for_language(language)


@cache
def _small(number: int, purpose: FormatPurpose, language: str) -> str:
    return _format(number, purpose, language)


def _words(number: int, purpose: FormatPurpose, language: str) -> str:
    return _small(number, purpose, language) if 0 <= number < 3000 else _format(number, purpose, language)


def _format(number: int, purpose: FormatPurpose, language: str) -> str:
    return _engine(language).format_number(number, purpose).text.replace("\u00ad", "")

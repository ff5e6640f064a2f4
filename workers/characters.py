"""Characters as a voice knows them: accents in one with their letters; wide, bold and circled ones plain."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

import regex

# Unicode's own bound for text that is put together as it comes ("stream-safe"); sorting more takes the square of time.
_MARKS_TOO_MANY = regex.compile(r"(\p{M}{30})\p{M}+")
_DRAWN: Final = frozenset(
    f"<{kind}>"
    for kind in (
        *("wide", "narrow", "font", "circle", "compat", "square"),
        *("initial", "medial", "final", "isolated", "sub", "super"),
    )
)
# These are read as they are, or have rules of their own: units, "№", "℃", "º", "²".
_KEPT = re.compile(
    "[\u00aa\u00b2\u00b3\u00b5\u00b9\u00ba\u2070\u2074-\u208e\u2100-\u2109\u2116-\u2118\u2120-\u2122\u2125]"
)
# Letters of their own, in spite of what Unicode says that they are like.
_OF_THEIR_OWN = re.compile("[\u0587\u0e00-\u0fff\u3130-\u318f]")
_SUBSCRIPT_DIGITS: Final = range(0x2080, 0x208A)
_NEGATIVE = re.compile(r"NEGATIVE (?:CIRCLED|SQUARED) LATIN CAPITAL LETTER ([A-Z])")
_NUMBER_SIGNS = "\u2460-\u249b\u24ea-\u24ff\u2776-\u2793\u3251-\u325f\u32b1-\u32bf"
_BESIDE_NUMBER_SIGN = re.compile(rf"(?<=[{_NUMBER_SIGNS}])(?=\w)|(?<=\w)(?=[{_NUMBER_SIGNS}])")
_WIDE_MARKS = re.compile("(?<=[０-９Ａ-Ｚａ-ｚ])[！-～](?=[！-～ \n]|\\Z)")
_WIDE_OFFSET: Final = ord("！") - ord("!")


def composed(text: str) -> str:
    """The text with composed accents (NFC), and plain letters and digits for wide, bold, circled and joined ones.

    Other scripts stay as they are written, but for Arabic's shapes of letters. At most 30 marks stay on one letter.
    Takes time linear in the text.
    """
    if text.isascii():
        return text
    text = _WIDE_MARKS.sub(lambda mark: chr(ord(mark[0]) - _WIDE_OFFSET), text)
    text = _BESIDE_NUMBER_SIGN.sub(" ", text)
    text = text.translate({ord(character): _plain(character) for character in set(text)})
    return unicodedata.normalize("NFC", _MARKS_TOO_MANY.sub(r"\1", text))


def ascii_digits(text: str) -> str:
    """The same with every script's digits as 0 to 9, and the Arabic marks between them as ours."""
    if text.isascii():
        return text
    text = _ARABIC_MARK.sub(lambda mark: _ARABIC_MARKS[mark[0]], text)
    return _DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), text)


_DIGIT = re.compile(r"(?![0-9])\d")
_ARABIC_MARKS: Final = {"٫": ".", "٬": ",", "٪": "%"}
_ARABIC_MARK = re.compile(r"(?<=\d)[٫٬](?=\d)|(?<=\d)٪")


def _plain(character: str) -> str:
    """What is read for a character; of what no letter or digit is drawn in, itself."""
    if character.isascii() or _OF_THEIR_OWN.match(character):
        return character
    if ord(character) in _SUBSCRIPT_DIGITS:
        return str(unicodedata.digit(character))
    if _KEPT.match(character):
        return character
    tag, _, _ = unicodedata.decomposition(character).partition(" ")
    if tag not in _DRAWN:
        return _without_decomposition(character)
    plain = "".join(map(_step, character))
    is_word = any(unicodedata.category(c)[0] in "LN" or unicodedata.category(c) == "Sc" for c in plain)
    is_voiced_mark = character in "ﾞﾟ"
    return plain if is_word or is_voiced_mark or tag == "<narrow>" or plain in _WIDE_SIGNS else character


_WIDE_SIGNS: Final = tuple("%+=<>&@#")


def _step(character: str) -> str:
    """Decomposed by as many steps as stay drawings of letters: Korean's letters end where their wide forms do."""
    tag, _, codes = unicodedata.decomposition(character).partition(" ")
    if tag not in _DRAWN or _OF_THEIR_OWN.match(character):
        return character
    return "".join(_step(chr(int(code, 16))) for code in codes.split())


def _without_decomposition(character: str) -> str:
    if negative := _NEGATIVE.fullmatch(unicodedata.name(character, "")):
        return negative[1]
    # "❶" is a number, and nothing more is known of it.
    is_number = re.fullmatch(f"[{_NUMBER_SIGNS}]", character)
    return f"{unicodedata.numeric(character):g}" if is_number else character

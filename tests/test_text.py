from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.text import PIECE_CHARACTERS, split_text

PROSE = st.text(st.sampled_from("ab .,;!?\n\r\t—…。、\"')1\u0301"), max_size=1500)
CLUSTERS = st.sampled_from(["a", "e\u0301\u0323", "👩\u200d👩\u200d👧", "👍🏽", "🇩🇪", "❤\ufe0f", "\ud83d\ude00", "ก็"])


@given(st.one_of(PROSE, st.text(max_size=1500)), st.integers(1, 400))
def test_the_pieces_join_to_the_text_and_none_is_too_long_or_empty(text, limit):
    pieces = list(split_text(text, limit))
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= limit for piece in pieces)


@given(st.lists(CLUSTERS, max_size=300), st.integers(8, 50))
def test_a_letter_and_its_marks_stay_together_where_no_space_is_near(clusters, limit):
    text = "".join(clusters)
    for piece in list(split_text(text, limit))[1:]:
        assert not unicodedata.category(piece[0]).startswith("M")
        assert piece[0] not in "\u200d🏽\ude00"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One two. Three four five.", ["One two. ", "Three four ", "five."]),
        ("He said “no!” and then he left", ["He said “no!” ", "and then he ", "left"]),
        ("one two, three four five", ["one two, ", "three four ", "five"]),
        ("one two three four", ["one two three ", "four"]),
        ("a" * 30, ["a" * 14, "a" * 14, "a" * 2]),
        ("3.14159 and 2.71828", ["3.14159 and ", "2.71828"]),
        ("Head\n\nBody.", ["Head\n\n", "Body."]),
        ("最初の文です。次の文はもう少し長い。", ["最初の文です。", "次の文はもう少し長い。"]),
    ],
)
def test_the_best_place_within_reach_is_chosen(text, expected):
    assert list(split_text(text, 14)) == expected


def test_short_sentences_share_a_piece():
    assert list(split_text("Yes. No. Maybe.")) == ["Yes. No. Maybe."]


def test_nothing_gives_no_piece():
    assert list(split_text("")) == []


@pytest.mark.parametrize("unit", ["a", " ", "\n", "word ", "\n \n", "a.b", "\u0301", "Hello there. "])
def test_a_million_characters_are_cut_in_one_pass(unit):
    text = (unit * (1_000_000 // len(unit) + 1))[:1_000_000]
    pieces = list(split_text(text))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= PIECE_CHARACTERS

from __future__ import annotations

import itertools
import unicodedata

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from workers.text import PIECE_CHARACTERS, Boundary, sentences, split

PROSE = st.text(st.sampled_from("ab .,;!?\n\r\t—…。、\"')1\u0301「」“”"), max_size=1500)
CLUSTERS = st.sampled_from(
    ["a", "e\u0301\u0323", "👩\u200d👩\u200d👧", "👍🏽", "🇩🇪", "❤\ufe0f", "\ud83d\ude00", "ก็", "क्षि", "각"]
)
NUMBERS = st.sampled_from(["3.14", "1,000,000", "10:30", "192.168.0.1", "2024-03-05", "1 000 000", "3/4", "1'000"])
GLUE = st.sampled_from([" ", "", "。", ", ", "字", ". "])


def texts_of(pieces):
    return [piece.text for piece in pieces]


@given(st.one_of(PROSE, st.text(max_size=1500)), st.integers(1, 400), st.sampled_from(["en-us", "fr", "ja", "zz", ""]))
def test_the_pieces_join_to_the_text_and_none_is_too_long_or_empty(text, limit, language):
    for cut in (split, sentences):
        pieces = list(cut(text, limit, language))
        assert "".join(texts_of(pieces)) == text
        assert all(0 < len(piece.text) <= limit for piece in pieces)
        assert [piece.start for piece in pieces] == [0, *itertools.accumulate(len(p.text) for p in pieces)][:-1]
        assert not pieces or pieces[-1].end is Boundary.PARAGRAPH


@given(st.lists(CLUSTERS, max_size=300), st.integers(8, 50))
def test_a_letter_and_its_marks_stay_together_where_no_space_is_near(clusters, limit):
    text = "".join(clusters)
    edges = {0, *(match.end() for match in regex.finditer(r"\X", text))}
    for piece in list(split(text, limit))[1:]:
        assert piece.start in edges
        assert not unicodedata.category(piece.text[0]).startswith("M")
        assert piece.text[0] not in "\u200d🏽\ude00"


@given(st.lists(st.tuples(NUMBERS, GLUE), max_size=60), st.integers(24, 60))
def test_no_cut_falls_into_a_number(parts, limit):
    # A letter on both sides, so that two numbers are never one.
    text = "".join(f"x{number}x{glue}" for number, glue in parts)
    starts = {piece.start for piece in split(text, limit)}
    place = 0
    for number, glue in parts:
        inside = range(place + 2, place + 1 + len(number))
        assert not starts.intersection(inside)
        place += len(number) + 2 + len(glue)


@given(
    st.lists(st.sampled_from(["It rained all day.", "Why?", "No!", "Mr. Brown paid $3.50, e.g. in cash."]), max_size=40)
)
def test_short_sentences_are_merged_and_every_one_can_be_had_alone(said):
    text = " ".join(said)
    assert [text.strip() for text in texts_of(sentences(text))] == said
    for piece, after in itertools.pairwise(texts_of(split(text))):
        first = next(sentences(after)).text
        assert len(piece + first) > PIECE_CHARACTERS


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
        ("我喜欢用iPhone手机打电话给朋友", ["我喜欢用iPhone手机打电", "话给朋友"]),
        ("我今天真的非常喜欢用iPhone手机", ["我今天真的非常喜欢用", "iPhone手机"]),
    ],
)
def test_the_best_place_within_reach_is_chosen(text, expected):
    assert texts_of(split(text, 14)) == expected


@pytest.mark.parametrize(
    ("language", "said"),
    [
        ("en-us", ["Dr. Smith met Mrs. J. R. Brown, Jr. in Washington, D.C. ", "He paid $5.50, i.e. too much."]),
        ("en-us", ["No. 5 is alive. ", "See e.g. Fig. 3. ", "The U.S. Army came at 3 p.m. on Monday."]),
        ("en-gb", ["Wait... what? ", "Visit https://example.com/a.b?c=d. ", "Is that so?! ", "Yes."]),
        ("en-gb", ['She said, "Go away!" and left... ', "Then what? ", '"Really?" he asked. ', "“Yes.” ", "She left."]),
        ("de", ["Das ist z. B. ein Test. ", "Am 3. März 2024 kam Dr. Müller. ", "Nr. 5 lebt."]),
        ("fr-fr", ["M. Dupont est là. ", "Il a dit « Bonjour ! » et partit. ", "C'est fini."]),
        ("ja", ["最初の文です。", "次の文！", "終わり？", "はい。"]),
        ("zh-cn", ["你好。", "我是学生！", "你呢？"]),
        ("hi", ["यह एक वाक्य है। ", "क्या हाल है?"]),
        ("ar", ["مرحبا كيف حالك؟ ", "أنا بخير."]),
        ("th", ["สวัสดีครับ ผมชื่อจอห์น"]),
    ],
)
def test_sentences_of_many_languages_are_known(language, said):
    pieces = list(sentences("".join(said), language=language))
    assert texts_of(pieces) == said
    assert {piece.end for piece in pieces[:-1]} <= {Boundary.SENTENCE}


def test_a_long_quotation_is_cut_between_its_sentences():
    text = 'He said: "' + "I bought Mr. Brown some bread. " * 4 + 'Then I left." And so on.'
    pieces = list(split(text, 50))
    assert texts_of(pieces)[1] == "I bought Mr. Brown some bread. "
    assert {piece.end for piece in pieces[:-1]} == {Boundary.SENTENCE}


def test_each_piece_says_what_ends_it():
    pieces = list(split("One three. Four five, six seven nine.\n\nTen" + "a" * 30, 14))
    assert [piece.end.name for piece in pieces] == [
        *("SENTENCE", "CLAUSE", "WORD", "PARAGRAPH"),
        *("CUT", "CUT", "PARAGRAPH"),
    ]


def test_nothing_gives_no_piece():
    assert list(split("")) == list(sentences("")) == []


def test_pieces_come_before_the_whole_text_was_read():
    pieces = split("One.\n\n" + "word " * 10_000_000)
    assert next(pieces).text == "One.\n\n"
    assert next(pieces).start == 6


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        " ",
        "\n",
        "word ",
        "\n \n",
        "a.b",
        "a.",
        "1.",
        "(",
        "“",
        "\u0301",
        "Hello there. ",
        '"a. " b',
        "\ud800",
        "a b. “",
    ],
)
def test_a_million_characters_are_cut_in_one_pass(unit):
    text = (unit * (1_000_000 // len(unit) + 1))[:1_000_000]
    pieces = texts_of(split(text))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= PIECE_CHARACTERS

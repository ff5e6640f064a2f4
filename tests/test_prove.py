"""What `make prove` measures with: that its texts are what they say, and that it finds what a voice may do to one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.prove.hearing import follow, word_error_rate, words_of
from tests.prove.report import keep, table
from tests.prove.speech import trip
from tests.prove.texts import Passage, counted, joined, passages

SENTENCES = counted(600, seed=1)
PLACES = st.integers(0, len(SENTENCES) - 1)


def heard(sentences) -> list[int]:
    """The numbers of the sentences that are not in order, where these were spoken."""
    return [each.sentence.number for each in follow(SENTENCES, joined(sentences)) if not each.is_in_order]


def test_a_text_that_was_heard_as_it_is_has_every_sentence_in_order_and_every_number():
    fates = follow(SENTENCES, joined(SENTENCES))
    assert all(fate.found == 1.0 and fate.extra == 0.0 and fate.has_number and fate.is_in_order for fate in fates)


@given(place=PLACES)
def test_a_missing_sentence_is_found(place):
    assert heard([*SENTENCES[:place], *SENTENCES[place + 1 :]])


@given(place=PLACES)
def test_a_doubled_sentence_is_found(place):
    assert heard([*SENTENCES[: place + 1], *SENTENCES[place:]])


@given(first=PLACES, second=PLACES)
def test_two_sentences_that_changed_places_are_found(first, second):
    changed = list(SENTENCES)
    changed[first], changed[second] = changed[second], changed[first]
    assert bool(heard(changed)) == (first != second)


@given(data=st.data())
def test_a_few_words_that_were_misheard_lose_no_sentence(data):
    words = joined(SENTENCES).split()
    for place in range(0, len(words), 8):
        words[data.draw(st.integers(place, min(place + 2, len(words) - 1)))] = "hmm"
    assert all(fate.is_in_order for fate in follow(SENTENCES, " ".join(words)))


@pytest.mark.parametrize("words", [100, 1000])
def test_a_counted_text_has_the_words_that_were_asked_for_and_depends_on_its_seed(words):
    text = joined(counted(words, seed=1))
    assert words <= len(text.split()) < words + 30
    assert text == joined(counted(words, seed=1)) != joined(counted(words, seed=2))


def test_each_counted_sentence_has_its_number_as_one_word():
    for sentence in counted(10_000, seed=1):
        assert words_of(sentence.text).count(str(sentence.number)) == 1, sentence


def test_there_are_twenty_paragraphs_of_news_and_dialogue_half_of_them_with_figures():
    kinds = [passage.kind for passage in passages("paragraphs")]
    assert [sum(kind.startswith(start) for kind in kinds) for start in ("news", "dialogue")] == [10, 10]
    assert sum("figures" in kind for kind in kinds) == 10
    for passage in passages("paragraphs"):
        assert 35 <= len(passage.text.split()) <= 60, passage
        assert bool(re.search(r"\d", passage.text)) == ("figures" in passage.kind)


@pytest.mark.parametrize("name", ["paragraphs", "rest"])
def test_how_a_passage_is_read_aloud_is_written_in_words(name):
    for passage in passages(name):
        assert not re.search(r"[\d@$%#*|]", "".join(passage.said)), passage


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("Dr. Moore paid $3.5 million.", "Doctor Moore paid three point five million dollars."),
        ("at 7:45 p.m.", "at seven forty-five pm"),
        ("12.5% of 52,000", "twelve point five percent of fifty-two thousand"),
        ("Nov. 14 is not here, November 14th is", "Nov fourteen is not here, November fourteenth is"),
        ("anna.lee@example.org", "Anna dot Lee at example dot org"),
        ("example.com/news", "example dot com slash news"),
        ("12 km at 80 km/h, 95 °C", "twelve kilometers at eighty kilometres per hour, ninety-five degrees C"),
        ("World War II", "World War Two"),
        ("555-2147", "five five five, two one four seven"),
        ("It's 8 o'clock", "it is eight o'clock"),
    ],
)
def test_the_same_words_are_equal_however_they_are_written(written, read):
    assert words_of(written) == words_of(read)


def test_an_error_rate_counts_words_to_change_drop_and_add():
    assert word_error_rate("one two three four", "one two three four") == 0
    assert word_error_rate("the red dog ran home", "a red dog home again") == pytest.approx(3 / 5)


def test_a_part_that_is_run_again_replaces_its_own_section_of_the_report_alone(tmp_path):
    path, titles = tmp_path / "evidence" / "report.md", ["First", "Second"]
    for title, body in (("Second", "Old."), ("First", "One.\n\n| a |"), ("Second", "New."), ("Second", "New.")):
        keep(path, "\n# Report\n", titles, title, body)
        assert ("Not run yet: First." in path.read_text("utf-8")) == (body == "Old.")
    assert path.read_text("utf-8") == "# Report\n\n## First\n\nOne.\n\n| a |\n\n## Second\n\nNew.\n"


def test_a_table_cannot_be_broken_by_what_stands_in_it():
    assert table(("name", "size:"), [("a|b\nc", 5)]) == "| name | size |\n| --- | ---: |\n| a\\|b c | 5 |"


def test_what_was_heard_is_held_against_the_nearest_reading():
    passage = Passage("time", "8:00", ("eight o'clock sharp", "eight"))
    assert (trip(passage, "eight").said, trip(passage, "8 o'clock harp").said) == ("eight", "eight o'clock sharp")
    assert trip(passage, "8 o'clock harp").otherwise == "sharp → harp"

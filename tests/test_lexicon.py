from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inclavate import fleet, jobs
from inclavate.models import Job, Owner, State
from tests.driving import TEST_MODELS
from workers.catalog import load_catalog
from workers.hosts import Hosts
from workers.lexicon import Lexicon, LexiconError
from workers.runner import Runner

SHIPPED = Path(__file__).resolve().parent.parent / "config" / "lexicon.toml"
WORDS = Lexicon(
    {
        **{
            "Inclavate": "in cla vate",
            "nginx": "engine ex",
            "Polish": "poe lish",
            "polish": "pah lish",
            "C++": "see plus",
        },
        **{
            "New Orleans": "nor lins",
            "new": "noo",
            ".NET": "dot net",
            "a.b|c": "x",
            "café": "ca fay",
            "東京": "とうきょう",
        },
        **{"(": "open", "\\1": "one", "हिन्दी": "hindee"},
    }
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Inclavate, Inclavate's.", "in cla vate, in cla vate's."),
        ("inclavate INCLAVATE Inclavated", "inclavate INCLAVATE Inclavated"),
        ("nginx Nginx NGINX nginxes xnginx", "engine ex engine ex engine ex nginxes xnginx"),
        ("Polish polish POLISH", "poe lish pah lish pah lish"),
        ("New Orleans, new\nNew\nOrleans", "nor lins, noo\nnor lins"),
        ("C++ and .NET, c++", "see plus and dot net, c++"),
        ("a.b|c aXb|c", "x aXb|c"),
        ("Café cafe\u0301 cafés", "ca fay ca fay cafés"),
        ("私は東京に", "私はとうきょうに"),
        ("हिन्दी हिन्दीं", "hindee हिन्दीं"),
        ("f(x) \\1", "fopenx) one"),
        ("", ""),
    ],
)
def test_words_are_respelled_where_they_stand_whole(text, said):
    assert WORDS.apply(text) == said


def test_the_jobs_own_entries_come_before_the_operators():
    both = WORDS.with_entries({"nginx": "en jinx", "Siobhan": "shiv awn"})
    assert both.apply("Siobhan has nginx and Inclavate") == "shiv awn has en jinx and in cla vate"
    assert WORDS.apply("nginx") == "engine ex"


def test_a_respelling_is_not_looked_at_again():
    assert Lexicon({"a": "b a", "b": "a"}).apply("a b a") == "b a a b a"


@given(st.dictionaries(st.text(min_size=1, max_size=8).filter(str.strip), st.text(max_size=8), max_size=12), st.text())
def test_any_words_are_taken(entries, text):
    said = Lexicon(entries).apply(text)
    assert isinstance(said, str)
    assert said == text or entries


@given(st.text(min_size=1, max_size=8).filter(lambda word: word.split() == [word]), st.text(min_size=1, max_size=8))
def test_a_word_of_any_characters_is_found(word, said):
    assert Lexicon({word: said}).apply(f"{word} , {word}") == f"{said} , {said}"


@given(st.from_regex(r"[a-z]{2,8}", fullmatch=True), st.text(st.sampled_from("ab 、.,\n"), max_size=40))
def test_a_word_is_found_in_capitals_and_between_any_marks(word, around):
    lexicon = Lexicon({word: "\N{SNOWMAN}"})
    assert lexicon.apply(f" {word.upper()}, {around}").startswith(" \N{SNOWMAN}, ")


@pytest.mark.parametrize("unit", ["a", "word5 ", "word", " ", "WORD199x "])
def test_a_million_characters_are_searched_in_one_pass(unit):
    lexicon = Lexicon({f"word{n}" + "x" * (n % 7): "y" for n in range(200)})
    assert lexicon.apply(unit * (1_000_000 // len(unit)))


def test_the_shipped_lexicon_loads():
    assert Lexicon.load(SHIPPED).apply("Inclavate") == "in cla vate"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[words]\nnginx = 5", "words.'nginx': a word and how it is said must be text, not 5"),
        ('[words]\nnginx = " "', "words.'nginx'"),
        ('[words]\n" " = "x"', "words.' '"),
        ('[word]\nnginx = "x"', "'word' is not known; the only table is 'words'"),
        ("words = 5", "'words' must be a table"),
        ("[words", "cannot be read"),
    ],
)
def test_a_wrong_file_is_refused_with_the_word(tmp_path, content, message):
    path = tmp_path / "lexicon.toml"
    path.write_text(content)
    with pytest.raises(LexiconError, match="lexicon") as caught:
        Lexicon.load(path)
    assert message in str(caught.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(LexiconError, match="cannot be read"):
        Lexicon.load(tmp_path / "none.toml")


@pytest.mark.database
@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (None, {"nginx": "engine ex", "Inclavate": "in cla vate"}),
        ({"nginx": "en jinx"}, {"nginx": "en jinx", "Inclavate": "in cla vate"}),
    ],
)
def test_the_engine_gets_the_operators_words_and_the_jobs(alice: Owner, tmp_path: Path, own, expected) -> None:
    catalog = load_catalog(TEST_MODELS)
    speaker = catalog.models["test-params"].capability()
    fleet.register("w1", 1, [speaker])
    engines = Hosts(catalog, 3600, {"PATH": os.defpath})
    lexicon = Lexicon({"nginx": "engine ex", "Inclavate": "in cla vate"})
    runner = Runner("w1", engines, tmp_path, lexicon)
    params = {"text": "nginx"} | ({"lexicon": own} if own else {})
    job, _ = jobs.submit(alice, jobs.Submission(model="test-params", modality="audio", params=params))
    try:
        runner.answer(speaker.queue)
    finally:
        engines.close()
    job = Job.objects.get()
    assert (job.state, job.error_message) == (State.COMPLETED, None)
    assert json.loads(job.notes[0])["lexicon"] == expected
    assert job.params.get("lexicon") == own

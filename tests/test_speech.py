"""The loop that every speech engine shares, with voices that show what it does to their sound."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from inclavate import subtitles
from inclavate.errors import JobError, UnsupportedInput
from inclavate.generators import Cancelled, Input, Output
from inclavate.subtitles import Cue
from tests.driving import LocalRun
from tests.engines import Hum, HummingVoice
from workers.encoding import FORMATS
from workers.speech import PAUSE_SECONDS, SpeechRequest, produce, read_request, speak

RATE = HummingVoice.sample_rate
DECIBEL = 10 ** (1 / 20)
# What is kept of the silence that a voice made itself, at both ends of a piece.
KEPT_SECONDS = 0.08
TALE = "One bright day, a fox ran home. It slept well.\n\nThen came the night. “Who is there?” said the owl."


class Abrupt:
    """Begins and ends at full swing, without any silence; each piece as loud as `levels` say in turn."""

    sample_rate = RATE
    language = "en"
    joins_sentences = True

    def __init__(self, *levels: float, seconds: float = 0.5) -> None:
        self.heard: list[str] = []
        self._levels = levels or (0.5,)
        self._seconds = seconds

    def say(self, text: str) -> Iterator[np.ndarray]:
        level = self._levels[len(self.heard) % len(self._levels)]
        self.heard.append(text)
        yield level * np.cos(2 * np.pi * 200 * np.arange(round(self._seconds * RATE)) / RATE)


def run_of(tmp_path: Path, **params: Any) -> LocalRun:
    return LocalRun(tmp_path, params)


def spoken(tmp_path: Path, voice: Any, text: str, **params: Any) -> tuple[np.ndarray, LocalRun, list[Cue]]:
    run, cues = run_of(tmp_path), []
    blocks = list(speak(run, SpeechRequest(text, **params), voice, cues.append))
    assert all(block.dtype == np.float32 and block.ndim == 1 for block in blocks)
    return np.concatenate(blocks), run, cues


def silences(samples: np.ndarray) -> list[float]:
    """How long each stretch of zeros within the sound is, in seconds, from 10 ms on."""
    edges = np.flatnonzero(np.diff(np.pad((samples == 0).astype(int), 1)))
    return [round((end - start) / RATE, 3) for start, end in edges.reshape(-1, 2) if end - start >= RATE / 100]


def test_pauses_grow_with_what_the_text_ends(tmp_path):
    text = f"{'word ' * 45}end, {'word ' * 30}stop.\n\nNew."
    samples, _, _ = spoken(tmp_path, Abrupt(), text)
    pauses = silences(samples)
    assert pauses == pytest.approx([0.15, 0.7], abs=0.02)
    samples, _, _ = spoken(tmp_path, Abrupt(), "One. Two.", subtitles="srt")
    assert silences(samples) == pytest.approx([0.35], abs=0.02)
    lengths = list(PAUSE_SECONDS.values())
    assert lengths == sorted(lengths, reverse=True)


def test_pauses_shrink_with_speed(tmp_path):
    samples, _, _ = spoken(tmp_path, Abrupt(), "One.\n\nTwo.", speed=2.0)
    assert silences(samples) == pytest.approx([0.35], abs=0.02)


def test_a_voices_own_silence_does_not_add_to_the_pauses(tmp_path):
    samples, _, _ = spoken(tmp_path, HummingVoice(), "Some words.\n\nMore words.")
    assert sum(silences(samples)) == pytest.approx(0.7 + 2 * KEPT_SECONDS, abs=0.03)


def test_no_joint_jumps_more_than_the_sound_itself_does(tmp_path):
    samples, _, _ = spoken(tmp_path, Abrupt(), TALE, subtitles="srt")
    own = np.abs(np.diff(next(Abrupt().say("a")))).max() / 0.5 * np.abs(samples).max()
    assert np.abs(np.diff(samples, prepend=0.0, append=0.0)).max() <= own * 1.05


def loudness_of_pieces(samples: np.ndarray) -> list[float]:
    parts = np.split(samples, np.flatnonzero(np.convolve(samples != 0, np.ones(400), "same") == 0))
    return [float(np.sqrt(np.mean(part[part != 0] ** 2))) for part in parts if np.count_nonzero(part) > 800]


def test_pieces_of_different_levels_come_out_alike_and_none_is_pumped(tmp_path):
    text = " ".join(f"Sentence number {n}." for n in range(12))
    samples, _, _ = spoken(tmp_path, Abrupt(0.2, 0.5, 0.9), text, subtitles="srt")
    levels = loudness_of_pieces(samples)
    assert len(levels) == 12
    assert max(levels) / min(levels) < DECIBEL
    peaks = [np.abs(part).max() for part in np.array_split(samples[200:3800], 18)]
    assert max(peaks) / min(peaks) < 1.01


def test_a_whisper_among_words_is_not_raised_to_a_shout(tmp_path):
    text = " ".join(f"Sentence number {n}." for n in range(6))
    samples, _, _ = spoken(tmp_path, Abrupt(0.5, 0.5, 0.5, 0.5, 0.01), text, subtitles="srt")
    levels = loudness_of_pieces(samples)
    assert levels[4] < levels[0] / 5


@pytest.mark.parametrize("level", [1e-3, 0.3, 1.0, 3.0, 40.0])
def test_the_peak_stays_under_one_decibel_below_full_scale(tmp_path, level):
    class Spiky(Abrupt):
        def say(self, text: str) -> Iterator[np.ndarray]:
            sound = next(super().say(text))
            sound[len(sound) // 2] = 9 * level
            yield sound

    samples, _, _ = spoken(tmp_path, Spiky(level), TALE)
    assert 0.3 < np.abs(samples).max() < 0.891


def test_what_is_no_number_becomes_silence_or_full_scale_not_an_error(tmp_path):
    class Broken(Abrupt):
        def say(self, text: str) -> Iterator[np.ndarray]:
            sound = next(super().say(text))
            sound[100:200] = np.nan
            yield sound

    samples, _, _ = spoken(tmp_path, Broken(), "Some words.")
    assert np.isfinite(samples).all()


def test_silence_in_front_and_behind_is_as_long_as_asked(tmp_path):
    samples, _, cues = spoken(
        tmp_path, Abrupt(), "Words.", lead_silence_seconds=1.5, tail_silence_seconds=2.25, subtitles="srt"
    )
    assert silences(samples) == pytest.approx([1.5, 2.25], abs=0.01)
    assert cues == [Cue(1.5, pytest.approx(2.0, abs=0.001), "Words.")]


def test_a_longest_duration_ends_after_the_last_sentence_that_fits(tmp_path):
    samples, run, cues = spoken(
        tmp_path, Abrupt(), "One. Two. Three. Four.", max_duration_seconds=2.0, tail_silence_seconds=0.1
    )
    assert [cue.text.strip() for cue in cues] == ["One.", "Two."]
    assert len(samples) / RATE == pytest.approx(0.5 + 0.35 + 0.5 + 0.1, abs=0.002)
    assert run.notes == ["The speech was cut at max_duration_seconds, 2 s."]
    assert run.reported[-1] == ("generating", 1.0)


def test_a_first_sentence_that_is_too_long_is_faded_out(tmp_path):
    samples, run, _ = spoken(tmp_path, Abrupt(seconds=5), "A long one. Two.", max_duration_seconds=1.25)
    assert len(samples) == round(1.25 * RATE)
    assert samples[-1] == 0
    assert np.abs(samples[-RATE // 50 :]).max() <= np.abs(samples).max()
    assert np.abs(samples[-10:]).max() < 0.1 * np.abs(samples).max()
    assert len(run.notes) == 1


def test_what_fits_is_not_touched_and_says_nothing(tmp_path):
    whole, run, _ = spoken(tmp_path, Abrupt(), "One. Two.", subtitles="srt")
    limited, limited_run, _ = spoken(tmp_path, Abrupt(), "One. Two.", max_duration_seconds=len(whole) / RATE)
    assert np.array_equal(whole, limited)
    assert run.notes == limited_run.notes == []


def test_progress_counts_the_characters_that_were_spoken(tmp_path):
    text = f"{'word ' * 40}end.\n\n{'word ' * 9}end."
    _, run, _ = spoken(tmp_path, Abrupt(), text)
    assert [fraction for _, fraction in run.reported] == pytest.approx([0.0, 206 / len(text), 1.0], abs=0.01)


def test_a_cancel_is_met_between_pieces(tmp_path):
    run = LocalRun(tmp_path, {}, stop_at=4)
    voice = Abrupt()
    with pytest.raises(Cancelled):
        list(produce(run, SpeechRequest("A.\n\nB.\n\nC.\n\nD."), voice))
    assert len(voice.heard) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["...", "?!\n\n—", "()", "***", " \n "])
def test_where_nothing_can_be_spoken_no_block_and_no_file_comes(tmp_path, text):
    with pytest.raises(UnsupportedInput, match="The text has nothing"):
        next(speak(run_of(tmp_path), SpeechRequest(text, lead_silence_seconds=1.0), HummingVoice()))
    with pytest.raises(UnsupportedInput):
        list(produce(run_of(tmp_path), SpeechRequest(text), HummingVoice()))
    assert list(tmp_path.iterdir()) == []


def test_an_unspeakable_piece_among_others_leaves_its_pause_and_no_more(tmp_path):
    samples, _, cues = spoken(tmp_path, HummingVoice(), "...\n\nWords.\n\n***\n\nWords.", subtitles="vtt")
    assert [cue.text.strip() for cue in cues] == ["Words.", "Words."]
    assert max(silences(samples)) < 0.7 + KEPT_SECONDS + 0.01


def test_short_sentences_are_said_together_only_where_that_sounds_better(tmp_path):
    voice = Abrupt()
    spoken(tmp_path, voice, "Zero. One. Two.\n\nThree.")
    # The first alone: somebody may wait for it.
    assert voice.heard == ["Zero.", "One. Two.", "Three."]
    voice.joins_sentences = False
    spoken(tmp_path, voice, "One. Two.\n\nThree.")
    assert voice.heard[3:] == ["One.", "Two.", "Three."]


def test_a_voice_gets_each_piece_in_one_clean_line(tmp_path):
    voice = Abrupt()
    spoken(tmp_path, voice, "Hello\0there,\n  you.\n\n\ud800Next \u00a0one.")
    assert voice.heard == ["Hello there, you.", "Next one."]


def test_a_million_characters_are_spoken_in_order_with_flat_memory(tmp_path):
    class Ticking(HummingVoice):
        said = 0

        def say(self, text: str) -> Iterator[np.ndarray]:
            type(self).said += len(text)
            yield 0.5 * np.cos(np.arange(8 * len(text), dtype=np.float32))

    text = ("A sentence of some length, with a clause in it. " * 21_000)[:1_000_000]
    few, many = text[:50_000], text
    peaks = []
    for each in (few, many):
        tracemalloc.start()
        try:
            [output] = produce(run_of(tmp_path), SpeechRequest(each), Ticking())
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert Ticking.said > 0.97 * (len(few) + len(many))
    assert output.facts["duration_seconds"] > 1000
    # The whole text is held, cleaned, once or twice; its sound is not.
    assert peaks[1] - peaks[0] < 4 * len(many)


@pytest.mark.parametrize("response_format", FORMATS)
def test_every_format_holds_the_same_speech(tmp_path, response_format):
    engine = Hum()
    engine.load({})
    [output] = engine.generate(run_of(tmp_path, text=TALE, response_format=response_format))
    [wav] = engine.generate(run_of(tmp_path, text=TALE))
    assert output.facts["duration_seconds"] == pytest.approx(wav.facts["duration_seconds"], abs=0.001)
    if response_format not in ("pcm", "aac"):
        samples, rate = soundfile.read(output.path)
        assert rate == output.facts["sample_rate"]
        assert len(samples) / rate == pytest.approx(wav.facts["duration_seconds"], abs=0.1)
        assert np.abs(samples).max() < 0.891


@pytest.mark.parametrize("kind", subtitles.FORMATS)
def test_subtitles_have_each_sentence_when_it_is_heard(tmp_path, kind):
    engine = Hum()
    engine.load({})
    sound, titles = engine.generate(run_of(tmp_path, text=TALE, subtitles=kind, lead_silence_seconds=0.5))
    cues = parsed(titles.path.read_text("utf-8"), kind)
    assert titles.media_type == {"srt": "application/x-subrip", "vtt": "text/vtt"}[kind]
    assert [cue.text for cue in cues][:3] == [
        "One bright day, a fox ran home.",
        "It slept well.",
        "Then came the night.",
    ]
    samples, rate = soundfile.read(sound.path)
    for cue in cues:
        heard = samples[round(cue.start_seconds * rate) : round(cue.end_seconds * rate)]
        assert len(heard) / rate == pytest.approx(len(cue.text) * 0.01 + KEPT_SECONDS, abs=0.02)
        assert np.sqrt(np.mean(heard**2)) > 0.05
    for earlier, later in pairwise(cues):
        gap = samples[round((earlier.end_seconds + 0.001) * rate) : round((later.start_seconds - 0.001) * rate)]
        assert not gap.any()


def seconds_of(text: str) -> float:
    hours, minutes, seconds = text.replace(",", ".").split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def parsed(text: str, kind: str) -> list[Cue]:
    """A reader of its own for both formats, which fails on anything else."""
    if kind == "vtt":
        head, _, text = text.partition("\n\n")
        assert head == "WEBVTT"
    mark = "," if kind == "srt" else r"\."
    time = rf"(\d\d+:[0-5]\d:[0-5]\d{mark}\d{{3}})"
    cues = []
    for number, block in enumerate(filter(None, text.strip("\n").split("\n\n")), 1):
        found = re.fullmatch(rf"{number}\n{time} --> {time}\n([^\n]+(?:\n[^\n]+)*)", block)
        assert found, block
        words = found[3]
        if kind == "vtt":
            assert not re.search("[<>]", words)
            words = words.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        cues.append(Cue(seconds_of(found[1]), seconds_of(found[2]), words))
    return cues


WORDS = st.text(st.sampled_from("ab -><&\n\r\té\u2028"), min_size=1).filter(str.strip)
CUES = st.lists(st.builds(Cue, st.floats(0, 4e5), st.floats(0, 4e5), WORDS))


@given(CUES, st.sampled_from(subtitles.FORMATS))
def test_any_cues_can_be_read_again(cues, kind):
    read = parsed(subtitles.render(cues, kind), kind)
    assert [cue.text.split() for cue in read] == [cue.text.replace("-->", "->").split() for cue in cues]
    for mine, theirs in zip(cues, read, strict=True):
        assert theirs.start_seconds == pytest.approx(mine.start_seconds, abs=0.001)
        assert theirs.end_seconds == pytest.approx(mine.end_seconds, abs=0.001)


def test_a_request_is_read_with_its_language_as_the_model_writes_it(tmp_path):
    capability = Hum.describe("hum", {"languages": ["en-us", "de"], "speed_range": [0.5, 2.0]})
    asked = read_request(run_of(tmp_path, text="Hi.", language="EN", speed=1.5, voice=None), capability)
    assert asked == SpeechRequest("Hi.", language="en-us", speed=1.5)


def test_a_model_without_a_pace_ignores_the_speed(tmp_path):
    assert read_request(run_of(tmp_path, text="Hi.", speed=3), Hum.describe("hum", {})).speed == 1.0


def test_the_operators_words_are_as_many_as_they_like(tmp_path):
    words = {f"word{number}" * 20: "said" for number in range(300)}
    asked = read_request(run_of(tmp_path, text="Hi.", lexicon=words), Hum.describe("hum", {}))
    assert asked.lexicon == words


def test_a_voice_that_is_gone_since_the_job_was_submitted_fails_it_with_the_list(tmp_path):
    with pytest.raises(UnsupportedInput, match=r"params\.voice: 'cleo' is no voice of hum; it has anna, ben\."):
        read_request(run_of(tmp_path, text="Hi.", voice="cleo"), Hum.describe("hum", {}))


BOOK = "# The fox\n\nIt ran home. It slept.\n\n# ***\n\n\U0001f98a\n\n# The owl: a tale\n\nIt asked who was there."


def read_aloud(tmp_path: Path, book: str, /, **params: Any) -> tuple[list[Output], LocalRun]:
    (tmp_path / "book").write_text(book, "utf-8")
    run = LocalRun(tmp_path, params, [Input(tmp_path / "book", "text/markdown")])
    engine = Hum()
    engine.load({})
    return list(engine.generate(run)), run


def test_each_chapter_of_a_document_is_a_sound_with_its_title(tmp_path):
    outputs, run = read_aloud(tmp_path, BOOK, response_format="flac", subtitles="vtt")
    titles = [(output.filename, output.facts["title"]) for output in outputs]
    assert titles == [
        ("001 The fox.flac", "The fox"),
        ("001 The fox.vtt", "The fox"),
        ("002 The owl a tale.flac", "The owl: a tale"),
        ("002 The owl a tale.vtt", "The owl: a tale"),
    ]
    fox, _, owl, said = outputs
    assert soundfile.info(fox.path).duration == pytest.approx(fox.facts["duration_seconds"], abs=0.001)
    assert [cue.text for cue in parsed(said.path.read_text("utf-8"), "vtt")][-1] == "It asked who was there."
    assert owl.facts["chapter"] == 2
    fractions = [fraction for _, fraction in run.reported if fraction is not None]
    assert fractions == sorted(fractions)
    assert fractions[-1] == pytest.approx(1.0)


def test_a_document_without_a_word_is_refused(tmp_path):
    with pytest.raises(JobError, match="no text in the document"):
        read_aloud(tmp_path, "\U0001f98a\n\n***\n")


def test_a_document_and_a_text_are_not_spoken_both(tmp_path):
    with pytest.raises(UnsupportedInput, match="send one of them"):
        read_aloud(tmp_path, BOOK, text="Hello.")


@pytest.mark.parametrize("response_format", FORMATS)
def test_the_file_that_grows_is_there_when_it_is_announced_and_is_the_output(tmp_path, response_format):
    class Watched(LocalRun):
        def growing(self, path: Path, media_type: str) -> None:
            announced.append((path, media_type, path.is_file()))

    announced: list[tuple[Path, str, bool]] = []
    request = SpeechRequest("One. Two.", response_format=response_format)
    [output] = produce(Watched(tmp_path), request, HummingVoice())
    assert announced == [(output.path, output.media_type, True)]


@pytest.mark.parametrize("response_format", FORMATS)
def test_a_text_that_cannot_be_spoken_announces_no_file_and_leaves_none(tmp_path, response_format):
    run = LocalRun(tmp_path)
    with pytest.raises(UnsupportedInput, match="The text has nothing in it that can be spoken") as refused:
        list(produce(run, SpeechRequest("...", response_format=response_format), HummingVoice()))
    assert refused.value.param == "text"
    assert not hasattr(run, "grown")
    assert list(tmp_path.iterdir()) == []

"""Transcripts with their times: each format of `POST /v1/audio/transcriptions`, read by others' readers."""

from __future__ import annotations

import io
import json
import wave
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import av
import httpx
import numpy as np
import openai
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from inclavate import subtitles
from inclavate.faces.openai.shapes import language_name
from inclavate.transcripts import LINE_CHARACTERS, Segment, Transcript, Word, in_order
from tests.driving import until
from tests.platforms import Platform

MODEL = "whisper-tiny.en"
TEXT = (
    "The council met on Monday to discuss the new bridge. Nobody wanted to pay for it, and the mayor said so.\n\n"
    "Work will begin in the spring, when the river is low and the days are long."
)
HEARD = ("council", "monday", "bridge", "mayor", "spring", "river")


@pytest.fixture(scope="module")
def sdk(platform: Platform) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{platform.url}/v1", api_key="any", timeout=120, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def spoken(sdk: openai.OpenAI) -> bytes:
    return sdk.audio.speech.create(model="piper-joe", voice="joe", input=TEXT).read()


@pytest.fixture(scope="module")
def seconds(spoken: bytes) -> float:
    with wave.open(io.BytesIO(spoken)) as wav:
        return wav.getnframes() / wav.getframerate()


@pytest.fixture
def http(platform: Platform) -> Iterator[httpx.Client]:
    with platform.http as client:
        yield client


def post(http: httpx.Client, clip: bytes, route: str = "transcriptions", **fields: Any) -> httpx.Response:
    return http.post(f"/v1/audio/{route}", files={"file": ("a.wav", clip, "audio/wav")}, data={"model": MODEL} | fields)


def cues(shown: str, kind: str) -> list[tuple[float, float, str]]:
    """As ffmpeg's reader of such files has them."""
    with av.open(io.BytesIO(shown.encode()), format={"srt": "srt", "vtt": "webvtt"}[kind]) as container:
        packets = [packet for packet in container.demux() if packet.size]
        return [
            (
                float(packet.pts * packet.time_base),
                float((packet.pts + packet.duration) * packet.time_base),
                bytes(packet).decode(),
            )
            for packet in packets
        ]


def test_verbose_json_is_what_openais_sdk_expects(sdk: openai.OpenAI, spoken: bytes, seconds: float) -> None:
    heard = sdk.audio.transcriptions.create(
        model=MODEL,
        file=("a.wav", spoken),
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    )
    assert type(heard).model_validate_json(heard.model_dump_json(), strict=True) == heard
    assert heard.language == "english"
    assert heard.duration == pytest.approx(seconds, abs=0.01)
    assert all(word in heard.text.lower() for word in HEARD)
    assert heard.segments is not None
    assert heard.words is not None
    assert "".join(segment.text for segment in heard.segments).strip() == heard.text
    assert [word.word for word in heard.words] == heard.text.split()
    assert [segment.id for segment in heard.segments] == list(range(len(heard.segments)))
    times = [time for segment in heard.segments for time in (segment.start, segment.end)]
    assert times == sorted(times)
    assert times[-1] <= heard.duration


@pytest.mark.parametrize(
    ("granularities", "has_segments", "has_words"),
    [({}, True, False), ({"timestamp_granularities[]": "segment"}, True, False)]
    + [({name: "word"}, False, True) for name in ("timestamp_granularities[]", "timestamp_granularities")]
    + [({name: ["word", "segment"]}, True, True) for name in ("timestamp_granularities[]", "timestamp_granularities")],
)
def test_the_granularities_may_be_bracketed_or_not_and_repeated(
    http: httpx.Client, spoken: bytes, granularities: dict[str, Any], has_segments: bool, has_words: bool
) -> None:
    answer = post(http, spoken, response_format="verbose_json", **granularities)
    assert answer.status_code == 200, answer.text
    assert ("segments" in answer.json(), "words" in answer.json()) == (has_segments, has_words)
    assert answer.json()["task"] == "transcribe"


@pytest.mark.parametrize(("kind", "media_type"), [("srt", "application/x-subrip"), ("vtt", "text/vtt")])
def test_subtitles_are_read_by_another_reader_in_lines_that_fit(
    http: httpx.Client, spoken: bytes, seconds: float, kind: str, media_type: str
) -> None:
    answer = post(http, spoken, response_format=kind)
    assert answer.headers["content-type"].partition(";")[0] == media_type
    read = cues(answer.text, kind)
    assert len(read) >= 3
    shown = " ".join(text for _, _, text in read)
    assert all(word in shown.lower() for word in HEARD)
    times = [time for begin, end, _ in read for time in (begin, end)]
    assert times == sorted(times)
    assert times[-1] <= seconds + 0.05
    for begin, end, text in read:
        assert 0.04 < end - begin <= 7.05
        lines = text.splitlines()
        assert len(lines) <= 2
        assert all(len(line) <= LINE_CHARACTERS for line in lines)


def test_the_times_are_the_jobs_second_artifact(platform: Platform, http: httpx.Client, spoken: bytes) -> None:
    answer = post(http, spoken, response_format="verbose_json")
    job = platform.job(answer.headers["x-dppan-job-id"])
    text, times = job["output_artifacts"]
    assert answer.headers["x-dppan-artifact-id"] == text
    assert http.get(f"/v1/artifacts/{text}").text == answer.json()["text"]
    kept = Transcript.parse(http.get(f"/v1/artifacts/{times}").content)
    assert [segment.text for segment in kept.segments] == [segment["text"] for segment in answer.json()["segments"]]
    assert http.get(f"/v1/artifacts/{times}/meta").json()["facts"]["segments"] == len(kept.segments)


def test_a_native_job_says_which_times_it_wants(platform: Platform, http: httpx.Client, spoken: bytes) -> None:
    clip = http.post("/v1/artifacts", content=spoken, headers={"Content-Type": "audio/wav"}).json()["id"]
    asked = {"model": MODEL, "modality": "text", "input_artifacts": [clip]}
    made = http.post("/v1/generations", json=asked | {"params": {"timestamps": "word"}})
    outputs = platform.until_state(made.json()["id"], "completed")["output_artifacts"]
    assert list(Transcript.parse(http.get(f"/v1/artifacts/{outputs[1]}").content).words)
    for wrong in ("letter", ["segment", "x"], 5, {"a": 1}):
        answer = http.post("/v1/generations", json=asked | {"params": {"timestamps": wrong}})
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("params.timestamps: It must be true or of segment, word, not ")


def test_a_recording_larger_than_an_upload_is_heard_from_the_store(
    platform: Platform, http: httpx.Client, spoken: bytes
) -> None:
    with wave.open(io.BytesIO(spoken)) as wav:
        samples = np.frombuffer(wav.readframes(wav.getnframes()), "<i2")
    quick = np.repeat(np.concatenate([np.zeros(15 * 22_050, "<i2"), samples]), 8) / 32768
    made = io.BytesIO()
    soundfile.write(made, np.stack([quick, quick], axis=1), 8 * 22_050, format="WAV", subtype="DOUBLE")
    assert len(made.getvalue()) > 64 * 2**20
    clip = http.post("/v1/artifacts", content=made.getvalue(), headers={"Content-Type": "audio/wav"}).json()["id"]
    asked = {"model": MODEL, "modality": "text", "input_artifacts": [clip], "params": {"timestamps": True}}
    job = platform.until_state(http.post("/v1/generations", json=asked).json()["id"], "completed")
    text, times = (http.get(f"/v1/artifacts/{output}") for output in job["output_artifacts"])
    assert all(word in text.text.lower() for word in HEARD)
    transcript = Transcript.parse(times.content)
    assert transcript.duration_seconds == pytest.approx(len(quick) / (8 * 22_050), abs=0.01)
    assert transcript.segments[0].start == pytest.approx(15, abs=1)


def test_a_text_is_streamed_while_it_is_heard(sdk: openai.OpenAI, spoken: bytes) -> None:
    events = list(sdk.audio.transcriptions.create(model=MODEL, file=("a.wav", spoken), stream=True))
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    (done,) = (event for event in events if event.type == "transcript.text.done")
    assert "".join(deltas) == done.text
    assert events[-1] is done
    assert done.text == sdk.audio.transcriptions.create(model=MODEL, file=("a.wav", spoken)).text


def test_a_stream_of_silence_is_done_with_an_empty_text(sdk: openai.OpenAI) -> None:
    made = io.BytesIO()
    with wave.open(made, "wb") as wav:
        wav.setparams((1, 2, 16000, 0, "NONE", ""))
        wav.writeframes(bytes(2 * 16000 * 5))
    (done,) = list(sdk.audio.transcriptions.create(model=MODEL, file=("a.wav", made.getvalue()), stream=True))
    assert (done.type, done.text) == ("transcript.text.done", "")
    verbose = sdk.audio.transcriptions.create(
        model=MODEL, file=("a.wav", made.getvalue()), response_format="verbose_json"
    )
    assert (verbose.text, verbose.segments, verbose.duration) == ("", [], 5.0)
    for kind in ("srt", "vtt"):
        shown = sdk.audio.transcriptions.create(model=MODEL, file=("a.wav", made.getvalue()), response_format=kind)
        assert shown in ("", "WEBVTT\n\n")


def test_a_clip_without_samples_is_a_plain_error_before_the_stream(http: httpx.Client) -> None:
    made = io.BytesIO()
    with wave.open(made, "wb") as wav:
        wav.setparams((1, 2, 16000, 0, "NONE", ""))
    answer = post(http, made.getvalue(), stream="true")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "input_unreadable")


def test_a_model_that_cannot_translate_says_so_and_keeps_nothing(platform: Platform, http: httpx.Client) -> None:
    made = io.BytesIO()
    with wave.open(made, "wb") as wav:
        wav.setparams((1, 2, 16000, 0, "NONE", ""))
        wav.writeframes(bytes(3200))
    before = platform.counts()
    answer = post(http, made.getvalue(), route="translations")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model"), answer.text
    assert f"{MODEL} cannot translate into English" in answer.json()["error"]["message"]
    until(lambda: platform.counts() == before)


def test_a_replay_gives_the_times_of_the_first_job(http: httpx.Client, spoken: bytes) -> None:
    headers = {"Idempotency-Key": "times-once"}
    asked: dict[str, Any] = {"files": {"file": ("a.wav", spoken, "audio/wav")}}
    fields = {"model": MODEL, "response_format": "verbose_json"}
    first, again = (http.post("/v1/audio/transcriptions", headers=headers, data=fields, **asked) for _ in range(2))
    assert first.json() == again.json()
    assert first.headers["x-dppan-job-id"] == again.headers["x-dppan-job-id"]
    other = http.post("/v1/audio/transcriptions", headers=headers, data=fields | {"response_format": "text"}, **asked)
    assert other.status_code == 409


def test_languages_are_called_as_openai_calls_them() -> None:
    assert [language_name(code) for code in ("en", "de", "yue", "jw", "zz", None)] == [
        "english",
        "german",
        "cantonese",
        "javanese",
        "zz",
        "",
    ]


WORDS = st.builds(
    lambda start, length, text: Word(start, start + length, f" {text}", 0.5),
    st.floats(-1, 70),
    st.floats(-0.5, 9),
    st.text(st.sampled_from("abc,. é漢-><&"), min_size=1, max_size=50),
)
SEGMENTS = st.lists(
    st.builds(
        lambda start, length, words: Segment(
            start, start + length, "".join(word.text for word in words) or " a", tuple(words)
        ),
        st.floats(-1, 70),
        st.floats(-0.5, 30),
        st.lists(WORDS, max_size=12),
    ),
    max_size=6,
)


@given(SEGMENTS)
def test_whatever_an_engine_says_times_do_not_go_back_and_stay_within_the_recording(segments: list[Segment]) -> None:
    ordered = list(in_order(segments, 10.0, 60.0))
    assert [segment.text for segment in ordered] == [segment.text for segment in segments]
    for parts in ([ordered], [segment.words for segment in ordered]):
        times = [time for group in parts for part in group for time in (part.start, part.end)]
        assert times == sorted(times)
        assert all(10.0 <= time <= 60.0 for time in times)
    again = Transcript.parse(json.dumps(Transcript("en", 60.0, tuple(ordered)).as_json()).encode())
    assert again.segments == tuple(ordered)


@given(SEGMENTS, st.sampled_from(subtitles.FORMATS))
def test_cues_keep_every_word_in_order_and_none_is_without_length(segments: list[Segment], kind: str) -> None:
    made = Transcript("en", 60.0, tuple(in_order(segments, 0.0, 60.0))).cues()
    spoken = "".join(
        character
        for segment in segments
        for character in ("".join(word.text for word in segment.words) or segment.text)
        if not character.isspace()
    )
    assert "".join("".join(cue.text.split()) for cue in made) == spoken
    for cue in made:
        assert cue.end_seconds - cue.start_seconds >= 0.049
    for before, after in pairwise(made):
        assert before.end_seconds <= after.start_seconds

"""What a capability implies for a request: each refusal on both routes, before a job exists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inclavate import errors, fleet
from inclavate.generators import (
    MAX_BLENDED,
    SPEECH,
    TRANSCRIBE,
    Capability,
    Check,
    blend_of,
    match_language,
)
from inclavate.models import Job
from tests.asking import ask

CLIP = "7d444840-9dc0-41d1-b245-5ffdce74fad2"
PLAIN = Capability("plain", "audio", SPEECH, builtin_voices=("joe",), formats=("wav",))
RICH = Capability(
    "rich",
    "audio",
    SPEECH,
    voices=("warm",),
    builtin_voices=("anna", "ben", "c+d"),
    blends_voices=True,
    speed_range=(0.5, 2.0),
    languages=("en-us", "en-gb", "fr", "pt-br"),
    limits={"max_characters": 50},
    formats=("wav", "mp3"),
    subtitles=("srt", "vtt"),
)
SPLIT = Capability(
    "split",
    "audio",
    SPEECH,
    builtin_voices=("amy", "zoe"),
    languages=("de", "en-us"),
    voice_languages={"amy": "en-us", "zoe": "de"},
)
CLONER = Capability(
    "cloner", "audio", SPEECH, voices=("warm",), accepts_speaker=True, requires_speaker=True, formats=("wav",)
)
F5 = Capability(
    "f5",
    "audio",
    SPEECH,
    voices=("warm",),
    accepts_speaker=True,
    requires_speaker=True,
    requires_reference_text=True,
)
MUTE = Capability("mute", "audio", SPEECH)
OFFERED = [PLAIN, RICH, SPLIT, CLONER, F5, MUTE]

# Model, params beside the text, the field that is named, what is said of it.
REFUSED: list[tuple[Capability, dict[str, Any], str, str]] = [
    (PLAIN, {"text": None}, "text", "It is required."),
    (PLAIN, {"text": 5}, "text", "It must be a string, not 5."),
    (PLAIN, {"text": " \n"}, "text", "It must be text, and not blank"),
    (PLAIN, {"text": "?!…"}, "text", "nothing to speak"),
    (RICH, {"text": "x" * 51}, "text", "It may have at most 50 characters; 51 came."),
    (PLAIN, {"voice": "ann"}, "voice", "'ann' is no voice of plain; it has joe."),
    (PLAIN, {"voice": ""}, "voice", "'' is no voice of plain; it has joe."),
    (PLAIN, {"voice": 5}, "voice", "It must be a string, not 5."),
    (PLAIN, {"voice": "joe:1"}, "voice", "'joe:1' is no voice of plain; it has joe."),
    (PLAIN, {"voice": "x" * 500}, "voice", "…' is no voice of plain"),
    (MUTE, {"voice": "joe"}, "voice", "'joe' is no voice of mute; it has none to choose."),
    (RICH, {"voice": "anna:0.6+cleo:0.4"}, "voice", "'cleo' is no voice of rich; it has warm, anna, ben, c+d."),
    (RICH, {"voice": "anna+"}, "voice", "'' is no voice of rich; it has warm, anna, ben, c+d."),
    (RICH, {"voice": "+"}, "voice", "'' is no voice of rich; it has warm, anna, ben, c+d."),
    (RICH, {"voice": "anna:0+ben:1"}, "voice", "a weight is a number above 0"),
    (RICH, {"voice": "anna:1000000+ben:1"}, "voice", "above 0 and below 1,000,000"),
    (RICH, {"voice": "anna:-1+ben:1"}, "voice", "a weight is a number above 0"),
    (RICH, {"voice": "anna:nan+ben"}, "voice", "a weight is a number above 0"),
    (RICH, {"voice": "anna:1+anna:2"}, "voice", "'anna' is in the blend twice."),
    (RICH, {"voice": "+".join(["anna"] * 9)}, "voice", "a blend has at most 8 voices, not 9."),
    (RICH, {"speed": 0.49}, "speed", "It must be between 0.5 and 2.0, not 0.49."),
    (RICH, {"speed": 2.01}, "speed", "It must be between 0.5 and 2.0, not 2.01."),
    (RICH, {"speed": "fast"}, "speed", 'It must be a number, not "fast".'),
    (RICH, {"speed": True}, "speed", "It must be a number, not true."),
    (PLAIN, {"speed": "fast"}, "speed", 'It must be a number, not "fast".'),
    (RICH, {"language": "de"}, "language", "'de' is not one of en-us, en-gb, fr, pt-br."),
    (RICH, {"language": "pt-PT"}, "language", "'pt-PT' is not one of en-us, en-gb, fr, pt-br."),
    (RICH, {"language": ["fr"]}, "language", "It must be a string"),
    (SPLIT, {"language": "de", "voice": "amy"}, "language", "The voice 'amy' speaks en-us, not 'de'."),
    (RICH, {"response_format": "aac"}, "response_format", "'aac' is not one of wav, mp3."),
    (MUTE, {"response_format": "mp3"}, "response_format", "'mp3' is not one of wav."),
    (RICH, {"response_format": 3}, "response_format", "It must be a string, not 3."),
    (RICH, {"subtitles": "ass"}, "subtitles", "'ass' is not one of srt, vtt."),
    (RICH, {"subtitles": True}, "subtitles", "It must be a string, not true."),
    (PLAIN, {"subtitles": "srt"}, "subtitles", "plain gives no subtitles; leave it out."),
    (RICH, {"max_duration_seconds": 0}, "max_duration_seconds", "It must be between 0.1 and 86400.0, not 0."),
    (RICH, {"max_duration_seconds": "1"}, "max_duration_seconds", "It must be a number"),
    (RICH, {"lead_silence_seconds": -1}, "lead_silence_seconds", "It must be between 0.0 and 10.0, not -1."),
    (RICH, {"tail_silence_seconds": 10.5}, "tail_silence_seconds", "It must be between 0.0 and 10.0, not 10.5."),
    (RICH, {"tail_silence_seconds": "long"}, "tail_silence_seconds", "It must be a number"),
    (
        RICH,
        {"max_duration_seconds": 3, "lead_silence_seconds": 2, "tail_silence_seconds": 1},
        "max_duration_seconds",
        "3 s leave no room for speech beside 3 s of silence.",
    ),
    (RICH, {"normalize": "no"}, "normalize", "It must be true or false"),
    (RICH, {"instruct": 4}, "instruct", "It must be a string"),
    (PLAIN, {"speaker_artifact": CLIP}, "speaker_artifact", "plain cannot speak like a clip"),
    (PLAIN, {"reference_text": "Hello."}, "reference_text", "plain takes no reference text; leave it out."),
    (CLONER, {}, "voice", "cloner needs a voice or a speaker_artifact."),
    (CLONER, {"voice": "cold"}, "voice", "'cold' is no voice of cloner; it has warm."),
    (CLONER, {"speaker_artifact": CLIP, "reference_text": "Hi."}, "reference_text", "cloner takes no reference text"),
    (F5, {}, "voice", "f5 needs a voice or a speaker_artifact."),
    (F5, {"voice": "warm", "reference_text": "Hi."}, "reference_text", "The voice is the deployment's"),
    (F5, {"speaker_artifact": CLIP}, "reference_text", "A clip and the exact words said in it are required."),
    (F5, {"speaker_artifact": CLIP, "reference_text": " "}, "reference_text", "A clip and the exact words said in it"),
]


@pytest.fixture(scope="module")
def offered() -> Iterator[None]:
    fleet.register("w1", 1, OFFERED)
    yield
    fleet.register("w1", 1, [])
    fleet.forget_offers()


def identity(case: Any) -> str | None:
    return f"{case.model}" if isinstance(case, Capability) else str(case)[:40]


@pytest.mark.parametrize(("capability", "changes", "name", "sentence"), REFUSED, ids=identity)
def test_the_native_route_refuses_by_name_and_makes_no_job(
    offered: None, capability: Capability, changes: dict[str, Any], name: str, sentence: str
) -> None:
    body = {"model": capability.model, "modality": "audio", "params": {"text": "Hello."} | changes}
    answer = ask("POST", "/v1/generations", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, code_of(name, capability)), answer.text
    shown = name if code_of(name, capability) == "speaker_unsupported" else f"params.{name}: "
    assert sentence in answer.json()["error"]
    assert answer.json()["error"].startswith(shown) or name == "speaker_artifact"
    assert not Job.objects.filter(model=capability.model).exists()


@pytest.mark.parametrize(("capability", "changes", "name", "sentence"), REFUSED, ids=identity)
def test_openais_route_refuses_the_same_and_makes_no_job(
    offered: None, capability: Capability, changes: dict[str, Any], name: str, sentence: str
) -> None:
    fields = {"text": "Hello."} | changes
    body = {"model": capability.model, "input": fields.pop("text"), **fields}
    answer = ask("POST", "/v1/audio/speech", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, code_of(name, capability)), answer.text
    assert (error["type"], error["param"]) == ("invalid_request_error", "input" if name == "text" else name)
    assert sentence in error["message"]
    assert not Job.objects.filter(model=capability.model).exists()


def code_of(name: str, capability: Capability) -> str:
    is_unwanted_clip = name == "speaker_artifact" and not capability.accepts_speaker
    return "speaker_unsupported" if is_unwanted_clip else "invalid_request"


ACCEPTED: list[tuple[Capability, dict[str, Any]]] = [
    (PLAIN, {"speed": 9, "language": "xx", "temperature": 0.5, "unknown": [1]}),
    (PLAIN, {"lead_silence_seconds": 10, "tail_silence_seconds": 0}),
    (RICH, {"voice": "anna:0.6+ben:0.4"}),
    (RICH, {"voice": "warm+anna"}),
    (RICH, {"voice": "c+d"}),
    (RICH, {"language": "EN_us", "subtitles": "vtt", "response_format": "mp3", "normalize": False}),
    (RICH, {"language": "en"}),
    (SPLIT, {"voice": "zoe", "language": "de-AT"}),
    (CLONER, {"voice": "warm"}),
]


@pytest.mark.parametrize(("capability", "changes"), ACCEPTED, ids=identity)
def test_what_the_capability_allows_or_has_no_word_on_is_let_through(
    capability: Capability, changes: dict[str, Any]
) -> None:
    Check(capability, {"text": "Hello."} | changes, 0).run()


def test_two_clips_are_one_too_many() -> None:
    with pytest.raises(errors.InvalidRequest, match="One clip is the most, not 2"):
        Check(CLONER, {"text": "Hello."}, 2).run()


def test_a_capability_survives_its_way_to_the_web_process() -> None:
    for capability in OFFERED:
        assert Capability.from_json(capability.as_json()) == capability


def test_capabilities_show_what_there_is_and_leave_out_what_is_empty(offered: None) -> None:
    shown = {g["model"]: g for g in ask("GET", "/v1/generations/capabilities").json()["generators"]}
    rich, plain = shown["rich"], shown["plain"]
    assert rich["voices"] == ["warm"]
    assert rich["builtin_voices"] == ["anna", "ben", "c+d"]
    assert rich["blends_voices"] is True
    assert rich["speed_range"] == {"min": 0.5, "max": 2.0}
    assert rich["languages"] == ["en-us", "en-gb", "fr", "pt-br"]
    assert (rich["formats"], rich["subtitles"]) == (["wav", "mp3"], ["srt", "vtt"])
    assert set(plain) == {"modality", "model", "task", "ready", "requires_speaker", "builtin_voices", "formats"}
    assert shown["split"]["voice_languages"] == {"amy": "en-us", "zoe": "de"}
    assert shown["f5"]["requires_reference_text"] is True
    assert "requires_reference_text" not in shown["cloner"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("en-us", "en-us"),
        ("EN_US", "en-us"),
        (" en ", "en-gb"),
        ("fr-CA", "fr"),
        ("fr", "fr"),
        ("pt", "pt-br"),
        ("pt-pt", None),
        ("e", None),
        ("", None),
        ("-", None),
    ],
)
def test_a_language_is_matched_as_closely_as_it_can_be(wanted: str, found: str | None) -> None:
    assert match_language(wanted, ["en-gb", "en-us", "fr", "pt-br"]) == found


def test_a_transcribers_language_may_have_a_region() -> None:
    listener = Capability("ear", "text", TRANSCRIBE, languages=("en",))
    Check(listener, {"language": "en-GB"}, 1).run()
    with pytest.raises(errors.InvalidRequest, match="'de' is not one of en"):
        Check(listener, {"language": "de"}, 1).run()


@pytest.mark.parametrize(
    ("voice", "parts"),
    [
        ("anna", {"anna": 1.0}),
        ("anna:3", {"anna": 1.0}),
        ("anna+ben", {"anna": 0.5, "ben": 0.5}),
        ("anna:0.6 + ben:.2", {"anna": 0.75, "ben": 0.25}),
        ("anna:60+ben:40", {"anna": 0.6, "ben": 0.4}),
    ],
)
def test_the_weights_of_a_blend_sum_to_one(voice: str, parts: dict[str, float]) -> None:
    assert blend_of(voice) == pytest.approx(parts)


@given(st.text(st.sampled_from("ab:+.01- é²"), max_size=60))
def test_any_text_is_a_blend_that_sums_to_one_or_an_error(voice: str) -> None:
    try:
        parts = blend_of(voice)
    except ValueError:
        return
    assert 1 <= len(parts) <= MAX_BLENDED
    assert all(weight > 0 for weight in parts.values())
    assert sum(parts.values()) == pytest.approx(1.0)

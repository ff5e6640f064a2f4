"""Saved voices: the verbs on both databases, what a clip must be, and the way of a clip from an upload to an engine."""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from inclavate import artifacts, database, errors, fleet, jobs, voices
from inclavate.generators import SPEECH, Capability
from inclavate.models import Artifact, Job, Owner, Usage, Voice
from tests import platforms
from tests.driving import until
from tests.platforms import Platform
from workers import voices as deployment
from workers.inspection import parse_facts
from workers.probe import read_facts
from workers.sound import WavWriter

CONSENT = "I, Ann, agree that my voice is copied."
CLIP = b"fLaC and so on"
GOOD = {
    "duration_seconds": 6.0,
    "sample_rate": 24_000,
    "channels": 1,
    "level_dbfs": -20.0,
    "silence": 0.1,
    "clipped": 0.0,
}
COPIER = Capability("test-copier", "audio", SPEECH, builtin_voices=("joe",), accepts_speaker=True)
READER = Capability("test-reader", "audio", SPEECH, accepts_speaker=True, requires_reference_text=True)
PLAIN = Capability("test-plain", "audio", SPEECH, builtin_voices=("amy",))
both_databases = pytest.mark.database


@pytest.fixture
def offered(database: None) -> None:
    fleet.register("w1", 1, [COPIER, READER, PLAIN])


def clip_draft(owner: Owner, content: bytes = CLIP) -> artifacts.Draft:
    draft = artifacts.begin(owner, Artifact.Origin.UPLOADED, "audio/flac", filename="ann.flac")
    draft.write(content)
    return draft


def kept(owner: Owner, name: str = "Ann", **more: str) -> Voice:
    draft = clip_draft(owner)
    try:
        return voices.keep(voices.NewVoice(name, CONSENT, **more), draft)
    finally:
        draft.abandon()


def inspected(voice: Voice, **changes: Any) -> Voice:
    """As a worker leaves it that found this in the clip."""
    artifact = artifacts.claim_inspection()
    assert artifact is not None
    assert artifact.pk == voice.artifact_id
    artifacts.finish_inspection(artifact, GOOD | changes)
    return voices.get(voice.owner, voice.pk)


def spoken(owner: Owner, model: str = "test-copier", **params: Any) -> Job:
    submission = jobs.Submission(model=model, modality="audio", params={"text": "Good morning."} | params)
    return jobs.submit(owner, submission)[0]


# -- saving ------------------------------------------------------------------------------------------------------------


@both_databases
def test_a_saved_voice_has_its_clip_and_the_consent_with_its_time_and_account(alice: Owner) -> None:
    before = database.now()
    voice = kept(alice, reference_text="Good evening.", description="warm")
    found = voices.get(alice, voice.pk)
    assert (found.name, found.consent, found.reference_text, found.owner) == ("Ann", CONSENT, "Good evening.", alice)
    assert before - timedelta(seconds=1) <= found.created_at <= database.now() + timedelta(seconds=1)
    assert b"".join(artifacts.read(found.artifact)) == CLIP
    assert artifacts.usage(alice)["uploaded"] == {"bytes": len(CLIP), "objects": 1}
    assert artifacts.usage_mismatches() == []


@both_databases
def test_a_second_voice_of_a_name_is_a_conflict_and_leaves_nothing(alice: Owner, bob: Owner) -> None:
    first = kept(alice)
    with pytest.raises(errors.Conflict, match="'Ann'"):
        kept(alice)
    assert voices.saved(alice) == [first]
    assert (Artifact.objects.count(), artifacts.usage(alice)["objects"]) == (1, 1)
    assert Usage.objects.get(owner=alice, origin="uploaded").reserved_bytes == 0
    assert kept(bob).name == "Ann"


@both_databases
def test_two_at_one_moment_save_one_voice_of_a_name(alice: Owner) -> None:
    together, ended = threading.Barrier(2), []

    def save() -> None:
        from django.db import connections

        together.wait()
        try:
            ended.append(kept(alice))
        except errors.Conflict as error:
            ended.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=save) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(end).__name__ for end in ended) == ["Conflict", "Voice"]
    assert (Voice.objects.count(), Artifact.objects.count()) == (1, 1)
    assert Usage.objects.get(owner=alice, origin="uploaded").reserved_bytes == 0


def test_names_that_look_alike_in_other_bytes_are_one(alice: Owner) -> None:
    kept(alice, "Zoë")
    with pytest.raises(errors.Conflict):
        kept(alice, "Zoe\u0308")


@pytest.mark.parametrize(
    "name", ["", "  ", " ann", "x" * 101, "a\nb", "a\0b", "a:0.5+b:0.5", "../up", str(uuid.UUID(int=7))]
)
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="name"):
        voices.NewVoice(name, CONSENT)


@pytest.mark.parametrize("consent", ["", " \n ", "x" * 1001])
def test_a_consent_must_be_stated_in_a_thousand_characters(consent: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="consent"):
        voices.NewVoice("ann", consent)


def test_the_name_of_a_models_voice_is_not_free(alice: Owner, offered: None) -> None:
    with pytest.raises(errors.Conflict, match="test-copier"):
        kept(alice, "joe")
    assert Artifact.objects.count() == 0


def test_what_is_no_sound_is_refused_at_the_door(alice: Owner) -> None:
    draft = clip_draft(alice, b"\x89PNG\r\n\x1a\n and so on")
    with pytest.raises(errors.InvalidRequest, match="image/png"):
        voices.keep(voices.NewVoice("ann", CONSENT), draft)
    draft.abandon()
    assert Artifact.objects.count() == 0


@both_databases
def test_the_hundred_and_first_voice_is_too_many(alice: Owner) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(voices, "MAX_PER_OWNER", 2)
        kept(alice, "one")
        kept(alice, "two")
        with pytest.raises(errors.QuotaExhausted, match="2 saved voices"):
            kept(alice, "three")
    assert artifacts.usage(alice)["objects"] == 2


@both_databases
def test_a_voice_counts_towards_the_quota(alice: Owner) -> None:
    alice.max_bytes = len(CLIP) + 1
    alice.save()
    kept(alice, "one")
    with pytest.raises(errors.QuotaExhausted):
        kept(alice, "two")
    assert [voice.name for voice in voices.saved(alice)] == ["one"]


@both_databases
def test_a_voice_made_of_an_artifact_outlives_it(alice: Owner, bob: Owner) -> None:
    source = clip_draft(alice).finish()
    with pytest.raises(errors.NotFound):
        voices.keep_copy(bob, voices.NewVoice("ann", CONSENT), source.pk)
    voice = voices.keep_copy(alice, voices.NewVoice("ann", CONSENT), source.pk)
    artifacts.delete(alice, source.pk)
    assert b"".join(artifacts.read(voices.get(alice, voice.pk).artifact)) == CLIP
    assert artifacts.usage_mismatches() == []


# -- its life ----------------------------------------------------------------------------------------------------------


@both_databases
def test_deleting_a_voice_removes_its_clip_and_frees_the_quota(alice: Owner) -> None:
    voice = kept(alice)
    voices.delete(alice, voice.pk)
    assert (Voice.objects.count(), Artifact.objects.count(), artifacts.usage(alice)["objects"]) == (0, 0, 0)
    with pytest.raises(errors.ArtifactGone):
        artifacts.read(voice.artifact)
    with pytest.raises(errors.NotFound):
        voices.delete(alice, voice.pk)


@both_databases
def test_whoever_deletes_the_clip_deletes_the_voice(alice: Owner) -> None:
    voice = kept(alice)
    artifacts.delete(alice, voice.artifact_id)
    assert voices.saved(alice) == []


def test_a_voice_does_not_expire_with_the_deployments_artifacts(alice: Owner) -> None:
    with override_settings(ARTIFACT_TTL_HOURS=1):
        voice = kept(alice)
    assert artifacts.sweep(database.now() + timedelta(hours=2)) == 0
    assert voices.get(alice, voice.pk) == voice


@both_databases
def test_a_strangers_voice_is_not_there(alice: Owner, bob: Owner, offered: None) -> None:
    voice = inspected(kept(alice))
    for act in (voices.get, voices.delete):
        with pytest.raises(errors.NotFound, match=str(voice.pk)):
            act(bob, voice.pk)
    assert voices.saved(bob) == []
    for word in (voice.name, str(voice.pk)):
        with pytest.raises(errors.InvalidRequest, match="is no voice of test-copier"):
            spoken(bob, voice=word)


def test_an_unknown_voice_is_told_those_that_the_caller_saved(alice: Owner, offered: None) -> None:
    inspected(kept(alice, "Ann"))
    with pytest.raises(errors.InvalidRequest, match=r"'Bo' is no voice of test-copier; it has .*\bAnn\."):
        spoken(alice, voice="Bo")


def test_a_voice_is_pending_until_a_worker_has_looked_into_it(alice: Owner) -> None:
    voice = kept(alice)
    assert voices.state(voice) == (voices.PENDING, None)
    assert voices.state(inspected(voice)) == (voices.READY, None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"duration_seconds": 0.4}, r"0\.4 s long; it must be 1 to 60 s"),
        ({"duration_seconds": 61.0}, r"61 s long; it must be 1 to 60 s"),
        ({"sample_rate": 8_000}, r"8,000 samples a second; it needs at least 16,000"),
        ({"level_dbfs": -47.5}, r"-47\.5 dBFS; it needs -40"),
        ({"silence": 0.9}, r"90% of the clip is silence; at most 70%"),
        ({"clipped": 0.03}, r"3\.0% of the clip is cut off at full scale; at most 1%"),
        ({"unreadable": True}, "broken"),
        ({"width": 640}, "video"),
    ],
)
def test_a_clip_that_is_of_no_use_is_refused_by_measure_and_limit(
    alice: Owner, changes: dict[str, Any], said: str
) -> None:
    voice = inspected(kept(alice), **changes)
    state, reason = voices.state(voice)
    assert state == voices.REFUSED
    with pytest.raises(errors.NotReady, match=said):
        voices.clip(voice)
    assert reason is not None


def test_a_clip_that_was_not_measured_is_not_ready(alice: Owner) -> None:
    voice = kept(alice)
    artifact = artifacts.claim_inspection()
    assert artifact is not None
    artifacts.finish_inspection(artifact, {"duration_seconds": 5.0, "sample_rate": 24_000})
    assert voices.state(voices.get(alice, voice.pk)) == (voices.REFUSED, "The clip could not be measured.")


# -- speaking like it --------------------------------------------------------------------------------------------------


@both_databases
def test_a_job_that_names_a_saved_voice_has_its_clip_as_the_speaker(alice: Owner, offered: None) -> None:
    voice = inspected(kept(alice, reference_text="Good evening."))
    for word in ("Ann", str(voice.pk)):
        job = spoken(alice, voice=word)
        assert job.input_artifacts == [str(voice.artifact_id)]
        assert job.params == {"text": "Good morning."}
        assert job.notes == ["It speaks like the saved voice 'Ann'."]


def test_the_words_of_the_clip_come_along_where_the_model_needs_them(alice: Owner, offered: None) -> None:
    voice = inspected(kept(alice, reference_text="Good evening."))
    assert spoken(alice, "test-reader", voice="Ann").params["reference_text"] == "Good evening."
    own = spoken(alice, "test-reader", voice="Ann", reference_text="Other words.")
    assert own.params["reference_text"] == "Other words."
    voices.delete(alice, voice.pk)
    inspected(kept(alice))
    with pytest.raises(errors.InvalidRequest, match="exact words"):
        spoken(alice, "test-reader", voice="Ann")


def test_a_model_without_clips_refuses_a_saved_voice(alice: Owner, offered: None) -> None:
    inspected(kept(alice))
    with pytest.raises(errors.SpeakerUnsupported, match="'Ann'"):
        spoken(alice, "test-plain", voice="Ann")
    assert Job.objects.count() == 0


def test_a_voice_that_is_not_ready_costs_no_job(alice: Owner, offered: None) -> None:
    voice = kept(alice)
    with pytest.raises(errors.NotReady, match="pending"):
        spoken(alice, voice="Ann")
    inspected(voice, silence=0.95)
    with pytest.raises(errors.NotReady, match="refused"):
        spoken(alice, voice="Ann")
    assert Job.objects.count() == 0


def test_a_saved_voice_and_a_clip_are_one_too_many(alice: Owner, offered: None) -> None:
    inspected(kept(alice))
    other = clip_draft(alice).finish()
    submission = jobs.Submission(
        model="test-copier", modality="audio", params={"text": "Hi.", "voice": "Ann"}, input_artifacts=[other.pk]
    )
    with pytest.raises(errors.InvalidRequest, match="send one"):
        jobs.submit(alice, submission)


def speaking_like(owner: Owner, clip: Artifact) -> Job:
    submission = jobs.Submission("test-copier", "audio", {"text": "Hi."}, input_artifacts=[clip.pk])
    return jobs.submit(owner, submission)[0]


@pytest.mark.parametrize(
    ("content", "media_type", "kind"),
    [
        (b"Good evening.", "text/plain", "text/plain"),
        (b"\x89PNG\r\n\x1a\n and so on", "audio/wav", "image/png"),
        (b"%PDF-1.7", "audio/flac", "application/pdf"),
    ],
)
def test_a_clip_that_is_no_sound_costs_no_job(
    alice: Owner, offered: None, content: bytes, media_type: str, kind: str
) -> None:
    draft = artifacts.begin(alice, Artifact.Origin.UPLOADED, media_type)
    draft.write(content)
    clip = draft.finish()
    with pytest.raises(errors.InvalidRequest) as refused:
        speaking_like(alice, clip)
    assert refused.value.message == f"speaker_artifact: a clip must be sound; artifact {clip.pk} is {kind}."
    assert refused.value.param == "speaker_artifact"
    assert Job.objects.count() == 0


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"silence": 0.9}, "90% of the clip is silence; at most 70% may be."),
        ({"level_dbfs": -60.0}, "The clip is too quiet: its level is -60 dBFS; it needs -40."),
        ({"unreadable": True}, "is broken, or no sound."),
    ],
)
def test_a_given_clip_in_which_nobody_speaks_costs_no_job(
    alice: Owner, offered: None, facts: dict[str, Any], sentence: str
) -> None:
    clip = clip_draft(alice).finish()
    claimed = artifacts.claim_inspection()
    assert claimed is not None
    artifacts.finish_inspection(claimed, GOOD | facts)
    with pytest.raises(errors.InvalidRequest) as refused:
        speaking_like(alice, clip)
    assert refused.value.message.startswith("speaker_artifact: ")
    assert refused.value.message.endswith(sentence)
    assert Job.objects.count() == 0


def test_a_given_clip_may_be_shorter_than_a_saved_one_and_is_not_waited_for(alice: Owner, offered: None) -> None:
    clip = clip_draft(alice).finish()
    assert speaking_like(alice, clip).input_artifacts == [str(clip.pk)]
    claimed = artifacts.claim_inspection()
    assert claimed is not None
    artifacts.finish_inspection(claimed, GOOD | {"duration_seconds": 0.5})
    assert speaking_like(alice, clip).input_artifacts == [str(clip.pk)]


def test_a_models_own_voice_comes_first_and_the_job_says_so(alice: Owner, database: None) -> None:
    voice = inspected(kept(alice, "joe"))
    fleet.register("w1", 1, [COPIER])
    job = spoken(alice, voice="joe")
    assert (job.input_artifacts, job.params["voice"]) == ([], "joe")
    assert "your saved one of that name is meant by its id" in job.notes[0]
    assert spoken(alice, voice=str(voice.pk)).input_artifacts == [str(voice.artifact_id)]


@both_databases
def test_a_replayed_request_gives_the_first_job_after_the_voice_is_gone(alice: Owner, offered: None) -> None:
    voice = inspected(kept(alice))
    asked = jobs.Submission(
        model="test-copier", modality="audio", params={"text": "Hi.", "voice": "Ann"}, idempotency_key="k"
    )
    first, _ = jobs.submit(alice, asked)
    voices.delete(alice, voice.pk)
    assert jobs.submit(alice, asked) == (first, False)
    assert first.inputs.get().artifact is None


# -- what a clip is found to be ----------------------------------------------------------------------------------------


def clip_file(path: Path, samples: np.ndarray, rate: int = 24_000) -> Path:
    with WavWriter(path, rate) as wav:
        wav.write(samples)
    return path


def speechlike(seconds: float, rate: int = 24_000, peak: float = 0.5) -> np.ndarray:
    return peak * np.sin(np.arange(round(seconds * rate)) * (2 * np.pi * 220 / rate))


def facts_of(path: Path, samples: np.ndarray, rate: int = 24_000) -> dict[str, Any]:
    facts = read_facts(clip_file(path, samples, rate), "audio", 60)
    assert parse_facts(json.dumps(facts).encode()) == facts
    return facts


def test_the_level_is_that_of_the_sound_and_silence_is_told_apart(tmp_path: Path) -> None:
    samples = np.concatenate((speechlike(3.0), np.zeros(72_000)))
    facts = facts_of(tmp_path / "a.wav", samples)
    # A sine of peak 0.5 has an RMS of 0.354.
    assert facts["level_dbfs"] == pytest.approx(-9.0, abs=0.1)
    assert facts["silence"] == pytest.approx(0.5, abs=0.01)
    assert facts["clipped"] == 0.0
    assert voices.problem(facts) is None


def test_what_is_cut_off_at_full_scale_is_counted(tmp_path: Path) -> None:
    facts = facts_of(tmp_path / "a.wav", np.clip(speechlike(2.0, peak=3.0), -1.0, 1.0))
    assert facts["clipped"] > 0.5
    assert "cut off" in (voices.problem(facts) or "")


def test_silence_and_whispers_and_telephones_are_refused(tmp_path: Path) -> None:
    assert "silence" in (voices.problem(facts_of(tmp_path / "a.wav", np.zeros(48_000))) or "")
    assert "too quiet" in (voices.problem(facts_of(tmp_path / "b.wav", speechlike(2.0, peak=0.008))) or "")
    assert "8,000" in (voices.problem(facts_of(tmp_path / "c.wav", speechlike(2.0, 8_000), 8_000)) or "")


@given(st.lists(st.integers(1, 4000), min_size=1, max_size=20), st.floats(0.0, 1.0), st.integers(4_000, 96_000))
@hypothesis_settings(max_examples=50, deadline=None)
def test_the_measures_are_the_same_however_the_samples_come(sizes: list[int], level: float, rate: int) -> None:
    from workers.probe import Levels

    samples = np.full(sum(sizes), level, np.float32)
    whole, parts = Levels(), Levels()
    whole.add(samples, rate)
    for size in sizes:
        parts.add(samples[:size], rate)
    assert whole.facts() == pytest.approx(parts.facts(), abs=0.1)
    assert parse_facts(json.dumps(parts.facts()).encode()) == parts.facts()


# -- over HTTP ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def http(platform: Platform) -> Iterator[httpx.Client]:
    with platform.http as client:
        yield client
        for voice in client.get("/v1/audio/voices").json()["data"]:
            if voice["id"]:
                client.delete(f"/v1/audio/voices/{voice['id']}")


@pytest.fixture(scope="module")
def good_clip(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return clip_file(tmp_path_factory.mktemp("clip") / "ann.wav", speechlike(3.0)).read_bytes()


def post(http: httpx.Client, clip: bytes | None, **fields: str) -> httpx.Response:
    files = {"file": ("ann.wav", clip, "audio/wav")} if clip is not None else {"none": ("", b"")}
    fields = {"name": "Ann", "consent": CONSENT} | fields
    if clip is None:
        return http.post("/v1/audio/voices", files=[(name, (None, value)) for name, value in fields.items()])
    return http.post("/v1/audio/voices", files=files, data=fields)


def ready(http: httpx.Client, voice_id: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        voice = http.get(f"/v1/audio/voices/{voice_id}").json()
        return voice if voice["state"] != "pending" else None

    return until(look)


def test_a_clip_becomes_a_voice_that_an_engine_reads(platform: Platform, http: httpx.Client, good_clip: bytes) -> None:
    answer = post(http, good_clip, reference_text="Good evening.", description="warm")
    assert answer.status_code == 201, answer.text
    voice = ready(http, answer.json()["id"])
    assert (voice["object"], voice["type"], voice["name"]) == ("audio.voice", "audio_sample", "Ann")
    assert (voice["state"], voice["state_reason"], voice["facts"]["duration_seconds"]) == ("ready", None, 3.0)
    assert voice["consent"]["statement"] == CONSENT
    assert voice["consent"]["account"] == "local"
    assert {"test-parrot", "test-parrot-words"} <= set(voice["models"])

    for model, word in (("test-parrot", "Ann"), ("test-parrot-words", voice["id"])):
        made = platform.submit(model=model, modality="audio", params={"text": "Good morning.", "voice": word})
        job = platform.until_state(made["id"], "completed")
        assert job["input_artifacts"] == [voice["artifact"]]
        facts = http.get(f"/v1/artifacts/{job['output_artifacts'][0]}/meta").json()["facts"]
        assert facts["clip_digests"] == [hashlib.sha256(good_clip).hexdigest()]
        assert facts["given"] == ({"reference_text": "Good evening."} if model == "test-parrot-words" else {})


def test_openais_sdk_saves_a_voice_speaks_like_it_and_deletes_it(
    platform: Platform, http: httpx.Client, good_clip: bytes
) -> None:
    with openai.OpenAI(base_url=f"{platform.url}/v1", api_key="any", max_retries=0) as sdk:
        voice = sdk.audio.voices.create(name="Ann", consent=CONSENT, audio_sample=("ann.wav", good_clip, "audio/wav"))
        assert (voice.object, voice.type, voice.name) == ("audio.voice", "audio_sample", "Ann")
        ready(http, voice.id)
        for given_voice in ("Ann", {"id": voice.id}):
            sound = sdk.audio.speech.create(model="test-parrot", input="Good morning.", voice=given_voice)
            assert sound.read()[:4] == b"RIFF"
        gone = sdk.audio.voices.delete(voice.id)
        assert (gone.object, gone.deleted) == ("audio.voice.deleted", True)
        with pytest.raises(openai.BadRequestError, match="no voice of test-parrot"):
            sdk.audio.speech.create(model="test-parrot", input="Good morning.", voice="Ann")


def test_the_list_has_what_one_saved_and_what_the_models_have(http: httpx.Client, good_clip: bytes) -> None:
    post(http, good_clip)
    listed = http.get("/v1/audio/voices").json()
    assert listed["object"] == "list"
    assert [voice["name"] for voice in listed["data"] if voice["id"]] == ["Ann"]
    low = next(voice for voice in listed["data"] if voice["name"] == "low")
    assert (low["id"], low["type"], low["state"]) == (None, "builtin", "ready")
    assert {"test-tone", "test-parrot"} <= set(low["models"])


def test_a_clip_that_cannot_be_read_fails_its_job_by_the_name_of_its_field(
    platform: Platform, http: httpx.Client
) -> None:
    clip = http.post("/v1/artifacts", content=b"fLaC, more or less").json()["id"]
    asked = {"model": "test-parrot", "input": "Good morning.", "speaker_artifact": clip}
    answer = http.post("/v1/audio/speech", json=asked)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "speaker_artifact")
    if error["code"] == "input_unreadable":
        job = platform.job(answer.headers["x-dppan-job-id"])
        assert job["error_message"] == "speaker_artifact: The input is not audio that can be read."
    else:
        # A worker had looked into it before.
        assert error["message"] == f"speaker_artifact: artifact {clip} is broken, or no sound."


def test_an_artifact_becomes_a_voice(http: httpx.Client, good_clip: bytes) -> None:
    uploaded = http.post("/v1/artifacts", content=good_clip, headers={"Content-Type": "audio/wav"}).json()
    answer = post(http, None, artifact=uploaded["id"])
    assert answer.status_code == 201, answer.text
    voice = answer.json()
    assert voice["artifact"] != uploaded["id"]
    assert http.delete(f"/v1/audio/voices/{voice['id']}").json()["deleted"] is True
    assert http.get(f"/v1/artifacts/{voice['artifact']}/meta").status_code == 404
    assert http.delete(f"/v1/artifacts/{uploaded['id']}").status_code == 204


def test_a_broken_clip_is_refused_in_the_end_and_says_why(http: httpx.Client) -> None:
    voice = ready(http, post(http, b"fLaC" + bytes(3000)).json()["id"])
    assert (voice["state"], voice["state_reason"]) == ("refused", "The clip is broken, or no sound.")
    answer = http.post("/v1/audio/speech", json={"model": "test-parrot", "input": "Hi.", "voice": "Ann"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_ready")
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("fields", "has_clip", "status", "param"),
    [
        ({"name": ""}, True, 400, "name"),
        ({"consent": ""}, True, 400, "consent"),
        ({"artifact": str(uuid.uuid4())}, True, 400, "file"),
        ({}, False, 400, "file"),
        ({"artifact": "x"}, False, 400, "artifact"),
        ({"artifact": str(uuid.uuid4())}, False, 404, "artifact"),
        ({"type": "prompt"}, True, 400, "type"),
        ({"name": "low"}, True, 409, "name"),
    ],
)
def test_a_bad_voice_is_refused_and_leaves_nothing(
    platform: Platform,
    http: httpx.Client,
    good_clip: bytes,
    fields: dict[str, str],
    has_clip: bool,
    status: int,
    param: str,
) -> None:
    before = platform.counts()
    answer = post(http, good_clip if has_clip else None, **fields)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param
    assert platform.counts() == before


def test_a_clip_that_is_empty_or_no_sound_is_refused_by_the_field_that_it_came_in(http: httpx.Client) -> None:
    for clip in (b"", b"Good morning."):
        answer = post(http, clip, name="Ed")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file"), answer.text
    text = http.post("/v1/artifacts", content=b"Good morning.", headers={"Content-Type": "text/plain"}).json()["id"]
    answer = post(http, None, name="Ed", artifact=text)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "artifact"), answer.text


def test_a_voice_that_is_not_there_is_404_and_a_word_is_400(http: httpx.Client) -> None:
    for method in ("GET", "DELETE"):
        assert http.request(method, f"/v1/audio/voices/{uuid.uuid4()}").status_code == 404
        assert http.request(method, "/v1/audio/voices/low").status_code == 400


# -- the deployment's own ----------------------------------------------------------------------------------------------


def clip_at(folder: Path, samples: np.ndarray | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return clip_file(folder / "given.wav", speechlike(3.0) if samples is None else samples)


texts = st.text(min_size=1, max_size=50).filter(lambda text: text.strip() and text.isprintable())


@given(consent=texts | st.just("a\nb\t\x7f\\"), words=texts, models=st.lists(texts, max_size=3))
@hypothesis_settings(max_examples=50, deadline=None)
def test_what_is_said_of_a_deployments_voice_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, consent: str, words: str, models: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("voices")
    clip = folder / "given.wav"
    clip.write_bytes(CLIP)
    added = deployment.add(folder / "kept", deployment.DeploymentVoice("warm", clip, consent, words, tuple(models)))
    assert deployment.load(folder / "kept") == [added]
    assert added.clip.read_bytes() == CLIP
    deployment.remove(folder / "kept", "warm")
    assert list((folder / "kept").iterdir()) == []


@pytest.mark.parametrize(
    ("described", "said"),
    [
        ("clip = 1", "clip must be text"),
        ("clip = 'none.wav'\nconsent = 'c'", "must be a file beside it"),
        ("clip = '../given.wav'\nconsent = 'c'", "must be a file beside it"),
        ("clip = 'a.wav'", "consent must be text"),
        ("clip = 'a.wav'\nconsent = 'c'\nmodels = 'm'", "models must be a list"),
        ("clip = 'a.wav'\nconsent = 'c'\nlicence = 'x'", "licence: there is no such key"),
        ("clip", "cannot be read"),
    ],
)
def test_a_voices_file_that_is_wrong_says_how(tmp_path: Path, described: str, said: str) -> None:
    (tmp_path / "given.wav").write_bytes(CLIP)
    folder = tmp_path / "voices"
    folder.mkdir()
    (folder / "a.wav").write_bytes(CLIP)
    (folder / "warm.toml").write_text(described)
    with pytest.raises(deployment.VoiceError, match=said):
        deployment.load(folder)


def test_a_deployments_voice_serves_models_that_can_speak_like_it(tmp_path: Path) -> None:
    voice = deployment.DeploymentVoice("warm", tmp_path / "a.wav", "c")
    assert [voice.serves(capability) for capability in (COPIER, READER, PLAIN)] == [True, False, False]
    with_words = replace(voice, reference_text="Good evening.")
    assert [with_words.serves(capability) for capability in (COPIER, READER)] == [True, True]
    assert not replace(voice, models=("other",)).serves(COPIER)
    assert not replace(voice, name="joe").serves(COPIER)


def test_the_command_adds_lists_and_removes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with override_settings(VOICES_DIR=tmp_path / "voices"):
        clip = str(clip_at(tmp_path))
        call_command("voice", "add", "warm", "--clip", clip, "--consent", "Ann, by contract", "--model", "m")
        call_command("voice", "list")
        printed = capsys.readouterr()
        assert "warm  warm.wav  without words  m  Ann, by contract" in printed.out
        assert "has no m that speaks like a clip" in printed.err
        with pytest.raises(CommandError, match="already"):
            call_command("voice", "add", "warm", "--clip", clip, "--consent", "c")
        call_command("voice", "remove", "warm")
        with pytest.raises(CommandError, match="there are: none"):
            call_command("voice", "remove", "warm")


def test_the_command_holds_a_clip_to_the_same_measures(tmp_path: Path) -> None:
    silent = clip_at(tmp_path / "silent", np.zeros(48_000))
    text = tmp_path / "a.txt"
    text.write_text("words")
    with override_settings(VOICES_DIR=tmp_path / "voices"):
        for clip, said in ((silent, "silence"), (text, "is no sound"), (tmp_path / "none", "cannot be read")):
            with pytest.raises(CommandError, match=said):
                call_command("voice", "add", "warm", "--clip", str(clip), "--consent", "c")
    assert not (tmp_path / "voices").exists()


def test_a_deployments_voice_reaches_the_engine_as_its_clip(tmp_path: Path, good_clip: bytes) -> None:
    (tmp_path / "warm.wav").write_bytes(good_clip)
    voice = deployment.DeploymentVoice("warm", tmp_path / "warm.wav", "Ann, by contract", "Good evening.")
    deployment.add(tmp_path / "voices", voice)
    with (
        platforms.running(tmp_path / "platform", VOICES_DIR=str(tmp_path / "voices")) as platform,
        platform.http as http,
    ):
        listed = [voice for voice in http.get("/v1/audio/voices").json()["data"] if voice["name"] == "warm"]
        assert [voice["type"] for voice in listed] == ["deployment"]
        assert {"test-parrot", "test-parrot-words"} <= set(listed[0]["models"])
        assert post(http, good_clip, name="warm").status_code == 409
        for model, words in (("test-parrot", {}), ("test-parrot-words", {"reference_text": "Good evening."})):
            made = platform.submit(model=model, modality="audio", params={"text": "Good morning.", "voice": "warm"})
            job = platform.until_state(made["id"], "completed")
            facts = http.get(f"/v1/artifacts/{job['output_artifacts'][0]}/meta").json()["facts"]
            assert facts["clip_digests"] == [hashlib.sha256(good_clip).hexdigest()]
            assert facts["given"] == words
        refused = {"text": "Hi.", "voice": "warm", "reference_text": "Other words."}
        answer = http.post(
            "/v1/generations", json={"model": "test-parrot-words", "modality": "audio", "params": refused}
        )
        assert (answer.status_code, "deployment's" in answer.json()["error"]) == (400, True)

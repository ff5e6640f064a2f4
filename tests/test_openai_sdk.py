"""The real OpenAI SDK over a real socket, on the real Piper and Whisper."""

from __future__ import annotations

import io
import threading
import uuid
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import soundfile

from tests.driving import until
from tests.platforms import Platform

SENTENCE = "The quick brown fox jumps over the lazy dog."
HEARD = {"quick", "brown", "lazy", "dog"}


@pytest.fixture(scope="module")
def sdk(platform: Platform) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{platform.url}/v1", api_key="any", timeout=120, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def spoken(sdk: openai.OpenAI) -> bytes:
    return sdk.audio.speech.create(model="piper-joe", voice="joe", input=SENTENCE).read()


@pytest.fixture
def http(platform: Platform) -> Any:
    with platform.http as client:
        yield client


def words(text: str) -> set[str]:
    return set(text.lower().replace(".", " ").split())


def test_models_list_names_both_real_models(sdk: openai.OpenAI) -> None:
    assert {"piper-joe", "whisper-tiny.en"} <= {model.id for model in sdk.models.list()}
    assert sdk.models.retrieve("piper-joe").owned_by == "dppan"
    with pytest.raises(openai.NotFoundError, match="There is no model 'nobody'"):
        sdk.models.retrieve("nobody")


def test_speech_is_a_wav_that_players_read(spoken: bytes) -> None:
    with wave.open(io.BytesIO(spoken)) as wav:
        assert (wav.getnchannels(), wav.getsampwidth(), wav.getframerate()) == (1, 2, 22050)
        assert 1 < wav.getnframes() / wav.getframerate() < 10


def test_streaming_response_writes_a_file_and_names_the_artifact(
    platform: Platform, sdk: openai.OpenAI, tmp_path: Path
) -> None:
    target = tmp_path / "out.wav"
    with sdk.audio.speech.with_streaming_response.create(
        model="piper-joe", voice="joe", input="Good morning.", response_format="wav"
    ) as response:
        response.stream_to_file(target)
        artifact = response.headers["x-dppan-artifact-id"]
        job = platform.job(response.headers["x-dppan-job-id"])
    assert job["output_artifacts"] == [artifact]
    with platform.http as http:
        assert http.get(f"/v1/artifacts/{artifact}").content == target.read_bytes()


@pytest.mark.parametrize(
    ("response_format", "media_type", "ending"),
    [
        ("wav", "audio/wav", "wav"),
        ("pcm", "audio/pcm", "pcm"),
        ("flac", "audio/flac", "flac"),
        ("mp3", "audio/mpeg", "mp3"),
        ("opus", "audio/ogg", "ogg"),
        ("aac", "audio/aac", "aac"),
    ],
)
def test_each_of_openais_formats_comes_under_its_own_type(
    platform: Platform, sdk: openai.OpenAI, response_format: Any, media_type: str, ending: str
) -> None:
    response = sdk.audio.speech.with_raw_response.create(
        model="test-hum", voice="anna:2+ben", input=SENTENCE, response_format=response_format
    )
    artifact = response.headers["x-dppan-artifact-id"]
    assert response.headers["content-type"] == media_type
    assert response.headers["content-disposition"] == f'attachment; filename="{artifact}.{ending}"'
    with platform.http as http:
        kept = http.get(f"/v1/artifacts/{artifact}")
    assert (kept.headers["content-type"], kept.content) == (media_type, response.content)
    if response_format == "pcm":
        seconds = len(response.content) / 2 / 24_000
    elif response_format != "aac":
        samples, rate = soundfile.read(io.BytesIO(response.content))
        seconds = len(samples) / rate
    else:
        seconds = response.content.count(response.content[:4]) * 1024 / 8000
    assert seconds == pytest.approx(len(SENTENCE) * 0.01, abs=0.6)


@pytest.mark.parametrize("how", ["path", "bytes", "tuple", "file"])
def test_transcription_hears_what_was_said(sdk: openai.OpenAI, spoken: bytes, tmp_path: Path, how: str) -> None:
    path = tmp_path / "clip.wav"
    path.write_bytes(spoken)
    with path.open("rb") as file:
        forms: dict[str, Any] = {
            "path": path,
            "bytes": spoken,
            "tuple": ('a "quoted" ünïcode.wav', spoken, "audio/wav"),
            "file": file,
        }
        heard = sdk.audio.transcriptions.create(model="whisper-tiny.en", file=forms[how])
    assert words(heard.text) >= HEARD


def test_the_text_format_is_bare_text(sdk: openai.OpenAI, spoken: bytes) -> None:
    heard = sdk.audio.transcriptions.create(
        model="whisper-tiny.en", file=("a.wav", spoken), response_format="text", temperature=0.5
    )
    assert words(str(heard)) >= HEARD


def test_the_upload_goes_with_its_job_and_the_transcript_stays(http: httpx.Client, spoken: bytes) -> None:
    before = http.get("/v1/artifacts/usage").json()["uploaded"]
    answer = http.post(
        "/v1/audio/transcriptions",
        files={"file": ("a.wav", spoken, "audio/wav")},
        data={"model": "whisper-tiny.en"},
    )
    until(lambda: http.get("/v1/artifacts/usage").json()["uploaded"] == before)
    kept = http.get(f"/v1/artifacts/{answer.headers['x-dppan-artifact-id']}")
    assert kept.text == answer.json()["text"]
    assert kept.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"input": ""}, openai.BadRequestError, "input: It must be text, and not blank"),
        ({"input": "x" * 1_000_001}, openai.BadRequestError, "at most 1,000,000 characters; 1,000,001 came."),
        ({"voice": "alloy"}, openai.BadRequestError, "'alloy' is no voice of piper-joe; it has joe."),
        (
            {"response_format": "ogg"},
            openai.BadRequestError,
            "response_format: 'ogg' is not one of wav, pcm, flac, mp3",
        ),
        ({"speed": 4.0}, openai.BadRequestError, "speed: It must be between 0.5 and 2.0, not 4.0."),
        ({"model": "tts-1"}, openai.UnprocessableEntityError, "No generator 'tts-1' for text-to-speech"),
        ({"model": "whisper-tiny.en"}, openai.UnprocessableEntityError, "there are: piper-joe, kokoro-82m"),
        ({"extra_body": {"speaker_artifact": "x"}}, openai.BadRequestError, "speaker_artifact: 'x' is no id"),
        (
            {"extra_body": {"speaker_artifact": "7d444840-9dc0-41d1-b245-5ffdce74fad2"}},
            openai.BadRequestError,
            "piper-joe cannot speak like a clip",
        ),
    ],
)
def test_a_bad_speech_request_names_the_field_and_leaves_nothing(
    platform: Platform, sdk: openai.OpenAI, changes: Any, error: type[openai.APIStatusError], sentence: str
) -> None:
    before = platform.counts()
    with pytest.raises(error) as caught:
        sdk.audio.speech.create(**{"model": "piper-joe", "voice": "joe", "input": "Hi."} | changes)
    body: Any = caught.value.body
    assert sentence in body["message"]
    assert set(body) == {"message", "type", "param", "code"}
    assert platform.counts() == before


def wav_file(seconds: float) -> bytes:
    """Silence."""
    made = io.BytesIO()
    with wave.open(made, "wb") as wav:
        wav.setparams((1, 2, 16000, 0, "NONE", ""))
        wav.writeframes(bytes(2 * round(16000 * seconds)))
    return made.getvalue()


WAV = wav_file(0)


@pytest.mark.parametrize(
    ("file", "data", "status", "sentence"),
    [
        (None, {"model": "whisper-tiny.en"}, 400, "file is required"),
        (("a.wav", WAV, "audio/wav"), {}, 400, "model is required."),
        (("a.wav", b"", "audio/wav"), {"model": "whisper-tiny.en"}, 400, "file: it has zero bytes"),
        (("a.wav", b"just words" * 50, "audio/wav"), {"model": "whisper-tiny.en"}, 400, "file: it looks like no audio"),
        (("a.png", WAV, "image/png"), {"model": "whisper-tiny.en"}, 400, "file: it is declared as image/png"),
        (("a.wav", b"\x89PNG\r\n\x1a\n", "audio/wav"), {"model": "whisper-tiny.en"}, 400, "looks like image/png"),
        (("a.wav", WAV, "audio/wav"), {"model": "nobody"}, 422, "No generator 'nobody' for transcribe"),
        (
            ("a.wav", WAV, "audio/wav"),
            {"model": "whisper-tiny.en", "response_format": "lrc"},
            400,
            "response_format must be one of json, text, verbose_json, srt, vtt, not 'lrc'.",
        ),
        (
            ("a.wav", WAV, "audio/wav"),
            {"model": "whisper-tiny.en", "stream": "true", "response_format": "srt"},
            400,
            "stream: text is streamed, as json or text, not srt.",
        ),
        (
            ("a.wav", WAV, "audio/wav"),
            {"model": "whisper-tiny.en", "stream": "yes"},
            400,
            "stream must be true or false",
        ),
        (
            ("a.wav", WAV, "audio/wav"),
            {"model": "whisper-tiny.en", "timestamp_granularities[]": "word"},
            400,
            "timestamp_granularities[]: it takes response_format verbose_json.",
        ),
        (
            ("a.wav", WAV, "audio/wav"),
            {"model": "whisper-tiny.en", "response_format": "verbose_json", "timestamp_granularities": "letter"},
            400,
            "timestamp_granularities[] must be of segment, word, not 'letter'.",
        ),
        (("a.wav", WAV, "audio/wav"), {"model": "whisper-tiny.en", "language": "de"}, 400, "'de' is not one of en."),
    ],
)
def test_a_bad_transcription_request_names_the_field_and_leaves_nothing(
    platform: Platform, http: httpx.Client, file: Any, data: dict[str, str], status: int, sentence: str
) -> None:
    before = platform.counts()
    files = {"file": file} if file else {"other": (None, b"x")}
    answer = http.post("/v1/audio/transcriptions", files=files, data=data)
    assert answer.status_code == status, answer.text
    assert sentence in answer.json()["error"]["message"]
    assert platform.counts() == before


def test_a_clip_without_samples_is_the_jobs_error_as_400(http: httpx.Client) -> None:
    answer = http.post(
        "/v1/audio/transcriptions", files={"file": ("a.wav", WAV, "audio/wav")}, data={"model": "whisper-tiny.en"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "input_unreadable"
    assert answer.headers["x-dppan-job-id"]


def test_a_clip_over_64_mib_is_a_413(platform: Platform, http: httpx.Client) -> None:
    before = platform.counts()
    big = io.BytesIO(WAV + bytes(65 * 2**20))
    answer = http.post(
        "/v1/audio/transcriptions", files={"file": ("a.wav", big, "audio/wav")}, data={"model": "whisper-tiny.en"}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")
    assert answer.json()["error"]["param"] == "file"
    assert platform.counts() == before


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        (b"--b\r\nnonsense", "multipart/form-data; boundary=b"),
        (b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nx', "multipart/form-data; boundary=b"),
        (b"", "multipart/form-data; boundary=b"),
    ],
)
def test_a_broken_form_is_a_400(http: httpx.Client, content: bytes, content_type: str) -> None:
    answer = http.post("/v1/audio/transcriptions", content=content, headers={"Content-Type": content_type})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


def test_a_body_that_is_no_form_is_a_415(http: httpx.Client) -> None:
    assert http.post("/v1/audio/transcriptions", json={"model": "x"}).status_code == 415


# -- keys, waits, and clients that leave -------------------------------------------------------------------------------


def test_a_speech_key_is_the_generations_key_too(platform: Platform, sdk: openai.OpenAI, http: httpx.Client) -> None:
    key = str(uuid.uuid4())
    job = platform.submit(
        model="test-tone", modality="audio", params={"text": "one", "voice": "low"}, idempotency_key=key
    )
    response = sdk.audio.speech.with_raw_response.create(
        model="test-tone", input="one", voice="low", extra_headers={"Idempotency-Key": key}
    )
    assert response.headers["x-dppan-job-id"] == job["id"]
    [output] = platform.job(job["id"])["output_artifacts"]
    http.delete(f"/v1/artifacts/{output}")
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.audio.speech.create(model="test-tone", input="one", voice="low", extra_headers={"Idempotency-Key": key})
    assert caught.value.code == "artifact_gone"


def test_a_transcription_key_with_the_same_bytes_is_a_replay(
    platform: Platform, http: httpx.Client, spoken: bytes
) -> None:
    def ask(clip: bytes) -> httpx.Response:
        return http.post(
            "/v1/audio/transcriptions",
            files={"file": ("a.wav", clip, "audio/wav")},
            data={"model": "whisper-tiny.en"},
            headers={"Idempotency-Key": key},
        )

    key = str(uuid.uuid4())
    first, again, other = ask(spoken), ask(spoken), ask(spoken + b"\0\0")
    assert first.headers["x-dppan-job-id"] == again.headers["x-dppan-job-id"]
    assert first.json() == again.json()
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_mismatch")


def leave_early(http: httpx.Client, **headers: str) -> str:
    """Ask for ten seconds of slow speech, hang up once its job exists; the job's id."""
    before = {g["id"] for g in http.get("/v1/generations").json()["generations"]}
    request = {"model": "test-tone-slow", "input": "Hello."}
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/audio/speech", json=request, headers=headers, timeout=httpx.Timeout(30, read=1))
    [made] = [g["id"] for g in http.get("/v1/generations").json()["generations"] if g["id"] not in before]
    return str(made)


def test_a_client_that_goes_away_cancels_its_job(platform: Platform, http: httpx.Client) -> None:
    platform.until_state(leave_early(http), "cancelled")


@pytest.mark.parametrize("header", ["Idempotency-Key", "x-inclavate-on-disconnect"])
def test_a_client_that_can_come_back_keeps_its_job(platform: Platform, http: httpx.Client, header: str) -> None:
    value = str(uuid.uuid4()) if header == "Idempotency-Key" else "keep"
    job_id = leave_early(http, **{header: value})
    until(lambda: (platform.job(job_id)["progress_fraction"] or 0) > 0.2)
    assert not platform.job(job_id)["cancel_requested"]
    http.delete(f"/v1/generations/{job_id}")


def test_a_job_cancelled_by_another_is_a_409_not_to_be_retried(platform: Platform, http: httpx.Client) -> None:
    def cancel() -> None:
        [running] = until(
            lambda: [
                g["id"]
                for g in http.get("/v1/generations").json()["generations"]
                if g["model"] == "test-tone-slow" and g["progress_stage"] == "generating" and g["state"] == "running"
            ]
        )
        http.delete(f"/v1/generations/{running}")

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with platform.http as other:
        answer = other.post("/v1/audio/speech", json={"model": "test-tone-slow", "input": "Hello."})
    canceller.join()
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "cancelled")
    assert answer.headers["x-should-retry"] == "false"


def test_silence_is_the_empty_text(http: httpx.Client) -> None:
    answer = http.post(
        "/v1/audio/transcriptions",
        files={"file": ("s.wav", wav_file(3), "audio/wav")},
        data={"model": "whisper-tiny.en"},
    )
    assert (answer.status_code, answer.json()) == (200, {"text": ""})

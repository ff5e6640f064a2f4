"""The native API over a real socket, with real processes behind it."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import uuid
from http.client import HTTPResponse
from typing import Any

import httpx
import pytest

from tests.driving import until
from tests.platforms import Platform

TONE = {"model": "test-tone", "modality": "audio", "params": {"text": "a tone of some length"}}
SLOW = {"model": "test-tone", "modality": "audio", "params": {"text": "x" * 50, "steps": 200, "step_seconds": 0.05}}
MISSING = "7d444840-9dc0-41d1-b245-5ffdce74fad2"


@pytest.fixture
def http(platform: Platform) -> Any:
    with platform.http as client:
        yield client


def events_of(lines: Any) -> list[Any]:
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


# -- what runs here ----------------------------------------------------------------------------------------------------


def test_health_says_alive_and_which_version(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"ok": True, "version": "0.1.0"}


def test_capabilities_name_the_real_models_with_what_they_honour(http: httpx.Client) -> None:
    generators = {g["model"]: g for g in http.get("/v1/generations/capabilities").json()["generators"]}
    joe, tiny = generators["piper-joe"], generators["whisper-tiny.en"]
    assert joe["builtin_voices"] == ["joe"]
    assert (joe["modality"], joe["task"], joe["requires_speaker"]) == ("audio", "text-to-speech", False)
    assert joe["limits"]["max_characters"] == 1_000_000
    assert "voices" not in joe
    assert joe["formats"] == ["wav", "pcm", "flac", "mp3", "opus", "aac"]
    assert (joe["languages"], joe["subtitles"]) == (["en-us"], ["srt", "vtt"])
    kokoro = generators["kokoro-82m"]
    assert (len(kokoro["builtin_voices"]), kokoro["blends_voices"], kokoro["sample_rate"]) == (5, True, 24_000)
    assert "requires_reference_text" not in joe
    assert (tiny["modality"], tiny["task"], tiny["kind"]) == ("text", "transcribe", "understand")
    assert tiny["input_modalities"] == ["audio"]
    assert joe["ready"]
    assert tiny["ready"]


def test_models_lists_every_model_of_capabilities_in_openais_shape(http: httpx.Client) -> None:
    listed = http.get("/v1/models").json()
    offered = http.get("/v1/generations/capabilities").json()["generators"]
    assert listed["object"] == "list"
    assert [m["id"] for m in listed["data"]] == [g["model"] for g in offered]
    assert {(m["object"], m["owned_by"]) for m in listed["data"]} == {("model", "dppan")}


def test_every_response_has_a_request_id_and_keeps_a_plain_one(http: httpx.Client) -> None:
    assert http.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    made = http.get("/nowhere", headers={"x-request-id": "bad id"}).headers["x-request-id"]
    assert uuid.UUID(made)


# -- a job, whole ------------------------------------------------------------------------------------------------------


def test_a_job_is_accepted_watched_finished_and_downloaded(platform: Platform, http: httpx.Client) -> None:
    answer = http.post("/v1/generations", json=TONE | {"seed": 42})
    job = answer.json()
    assert answer.status_code == 202
    expected = {"state": "queued", "modality": "audio", "model": "test-tone", "seed": 42, "output_artifacts": []}
    assert expected.items() <= job.items()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", job["created_at"])
    done = platform.until_state(job["id"], "completed")
    assert done["error_code"] is None
    assert (done["progress_stage"], done["progress_fraction"]) == ("publishing", 1.0)
    assert (done["attempts"], done["artifacts_deleted"]) == (1, 0)
    [output] = done["output_artifacts"]
    audio = http.get(f"/v1/artifacts/{output}")
    meta = http.get(f"/v1/artifacts/{output}/meta").json()
    assert audio.content[:4] == b"RIFF"
    assert audio.headers["content-type"] == "audio/wav"
    assert (meta["size_bytes"], meta["digest"]) == (len(audio.content), hashlib.sha256(audio.content).hexdigest())


def test_subtitles_are_a_second_artifact_under_their_own_name(platform: Platform, http: httpx.Client) -> None:
    params = {"text": "One sentence. Another one.", "subtitles": "srt", "response_format": "mp3", "language": "en"}
    job = platform.submit(model="test-hum", modality="audio", params=params)
    sound, titles = platform.until_state(job["id"], "completed")["output_artifacts"]
    metas = [http.get(f"/v1/artifacts/{output}/meta").json() for output in (sound, titles)]
    assert [meta["media_type"] for meta in metas] == ["audio/mpeg", "application/x-subrip"]
    assert metas[1]["facts"] == {"cues": 2}
    answer = http.get(f"/v1/artifacts/{titles}")
    assert answer.text.startswith("1\n00:00:00,000 --> 00:00:00,")
    assert answer.headers["content-disposition"] == f'attachment; filename="{titles}.srt"'


def test_params_come_only_where_they_are_asked_for(platform: Platform, http: httpx.Client) -> None:
    job = platform.submit(**TONE)
    assert "params" not in http.get(f"/v1/generations/{job['id']}").json()
    assert http.get(f"/v1/generations/{job['id']}?include=params").json()["params"] == TONE["params"]


def test_a_listing_has_params_cut_and_says_which_outputs_are_gone(platform: Platform, http: httpx.Client) -> None:
    job = platform.submit(**TONE | {"params": {"text": "y" * 2500}})
    output = platform.until_state(job["id"], "completed")["output_artifacts"][0]
    assert http.delete(f"/v1/artifacts/{output}").status_code == 204
    listed = next(g for g in http.get("/v1/generations").json()["generations"] if g["id"] == job["id"])
    assert (listed["output_artifacts"], listed["artifacts_deleted"], listed["error_code"]) == ([], 1, None)
    assert (len(listed["params"]["text"]), listed["params_truncated"]) == (2000, True)
    assert http.get(f"/v1/generations/{job['id']}").json()["output_artifacts"] == [output]


def test_lists_page_by_offset_and_after_and_clamp_the_limit(platform: Platform, http: httpx.Client) -> None:
    for _ in range(3):
        platform.submit(**TONE)
    page = http.get("/v1/generations?limit=2&ignored=1").json()
    assert len(page["generations"]) == 2
    assert page["truncated"]
    last = page["generations"][-1]["id"]
    [by_offset] = http.get("/v1/generations?limit=1&offset=2").json()["generations"]
    [after] = http.get(f"/v1/generations?limit=1&after={last}").json()["generations"]
    assert after["id"] == by_offset["id"]
    assert http.get("/v1/generations?limit=99999999999999999999&offset=99999999999999999999").status_code == 200


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("limit=0", "limit must be at least 1, not 0."),
        ("offset=-99999999999999999999", "offset must be at least 0, not -99999999999999999999."),
        ("limit=ten", "limit must be a whole number, not 'ten'."),
        ("offset=-1", "offset must be at least 0, not -1."),
        ("after=x", "after: 'x' is no id; ids are lower-case UUIDs."),
    ],
)
@pytest.mark.parametrize("path", ["/v1/generations", "/v1/artifacts"])
def test_a_bad_page_is_refused_by_name(http: httpx.Client, path: str, query: str, sentence: str) -> None:
    answer = http.get(f"{path}?{query}")
    assert (answer.status_code, answer.json()) == (400, {"error": sentence, "code": "invalid_request"})


# -- idempotency -------------------------------------------------------------------------------------------------------


def test_the_same_key_answers_202_then_200_with_the_first_job(platform: Platform, http: httpx.Client) -> None:
    body = SLOW | {"idempotency_key": str(uuid.uuid4())}
    first = http.post("/v1/generations", json=body)
    again = http.post("/v1/generations", json=body)
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["id"] == again.json()["id"]
    http.delete(f"/v1/generations/{first.json()['id']}")
    platform.until_state(first.json()["id"], "cancelled")
    assert http.post("/v1/generations", json=body).status_code == 200


def test_a_key_used_for_another_request_is_a_409_not_to_be_retried(platform: Platform, http: httpx.Client) -> None:
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    assert http.post("/v1/generations", json=TONE, headers=headers).status_code == 202
    other = http.post("/v1/generations", json=TONE | {"seed": 1}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_mismatch")
    assert other.headers["x-should-retry"] == "false"


def test_keys_in_header_and_body_must_agree(http: httpx.Client) -> None:
    answer = http.post("/v1/generations", json=TONE | {"idempotency_key": "a"}, headers={"Idempotency-Key": "b"})
    assert answer.status_code == 400
    assert "differ" in answer.json()["error"]


# -- bad input ---------------------------------------------------------------------------------------------------------

BAD_REQUESTS = [
    ({"modality": "audio"}, 400, "model is required."),
    ({"model": "test-tone"}, 400, "modality is required."),
    (TONE | {"modality": "smell"}, 400, "modality must be one of audio, image, video, text, not 'smell'."),
    (TONE | {"modality": "image"}, 422, "No generator 'test-tone' for modality 'image'; there is none at all."),
    (TONE | {"model": "nobody"}, 422, "No generator 'nobody'"),
    (TONE | {"colour": "red"}, 400, "colour is no field of this request."),
    (TONE | {"params": "text"}, 400, "params: "),
    (TONE | {"params": {"text": ""}}, 400, 'params.text: It must be text, and not blank; "" came.'),
    (
        TONE | {"params": {"text": "...!"}},
        400,
        'text: It has nothing to speak: no letter, digit or spoken symbol in "...!".',
    ),
    (TONE | {"params": {"text": "\u200b\u200b"}}, 400, "params.text: It has nothing to speak"),
    *(
        (TONE | {"params": {"text": text, "normalize": False}}, 400, "params.text: It has nothing to speak")
        for text in (
            "👍🏽 👩\u200d👩\u200d👧",
            "🇩🇪🏴\U000e0067\U000e007f",
            "5\ufe0f\u20e3",
            "❤\ufe0f ❤ ★",
            "---\n***",
            "```",
            "| |\n|-|",
        )
    ),
    (TONE | {"params": {"text": "x", "lexicon": ["a"]}}, 400, "params.lexicon: It must be an object of words"),
    (TONE | {"params": {"text": "x", "lexicon": {"a": 1}}}, 400, 'not blank; {"a": 1} came.'),
    (TONE | {"params": {"text": "x", "lexicon": {"a": " "}}}, 400, "params.lexicon: A word and how it is said"),
    (TONE | {"params": {"text": "x", "lexicon": {"a" * 101: "b"}}}, 400, "strings of 1 to 100 characters"),
    (
        TONE | {"params": {"text": "x", "lexicon": {str(n): "b" for n in range(201)}}},
        400,
        "params.lexicon: It may have at most 200 entries; 201 came.",
    ),
    (TONE | {"params": {}}, 400, "params.text: It is required."),
    (TONE | {"params": {"text": "a\0b"}}, 400, "params.text: text may hold neither NUL nor half of a surrogate pair."),
    (TONE | {"seed": True}, 400, "seed: Input should be a valid integer; true came."),
    (TONE | {"idempotency_key": "a\nb"}, 400, "printable characters; some of those that came are not."),
    (TONE | {"metadata": {"a b": "c"}}, 400, "metadata"),
    (TONE | {"metadata": {str(n): "c" for n in range(17)}}, 400, "metadata"),
    (TONE | {"webhook_url": "ftp://example.org"}, 400, "webhook_url"),
    (TONE | {"params": {"text": "   \n"}}, 400, "params.text: It must be text, and not blank; "),
    (TONE | {"params": {"text": 7}}, 400, "params.text: It must be a string, not 7."),
    (TONE | {"params": {"text": "x" * 1_000_001}}, 400, "at most 1,000,000 characters; 1,000,001 came."),
    (TONE | {"params": {"text": "a", "voice": "ann"}}, 400, "'ann' is no voice of test-tone; it has low, high."),
    (TONE | {"params": {"text": "a", "speed": 9}}, 400, "params.speed: It must be between 0.5 and 2.0, not 9."),
    (TONE | {"params": {"text": "a", "response_format": "mp3"}}, 400, "'mp3' is not one of wav."),
    (TONE | {"seed": "one"}, 400, "seed: "),
    (TONE | {"seed": 2**63}, 400, "seed: a whole number is out of range (64 bits)."),
    (TONE | {"deadline_seconds": 0}, 400, "deadline_seconds: "),
    (TONE | {"deadline_seconds": 86401}, 400, "deadline_seconds: "),
    (TONE | {"priority": 11}, 400, "priority: "),
    (TONE | {"idempotency_key": ""}, 400, "idempotency_key must be 1 to 255 printable characters; 0 came."),
    (TONE | {"idempotency_key": "a\nb"}, 400, "idempotency_key must be 1 to 255 printable characters"),
    (TONE | {"input_artifacts": ["x"]}, 400, "input_artifacts: 'x' is no id; ids are lower-case UUIDs."),
    (TONE | {"input_artifacts": [MISSING]}, 400, "test-tone cannot speak like a clip"),
    ({"model": "whisper-tiny.en", "modality": "text"}, 400, "needs at least one of input_artifacts."),
    ({"model": "whisper-tiny.en", "modality": "text", "input_artifacts": [MISSING]}, 404, "There is no artifact"),
]


@pytest.mark.parametrize(("body", "status", "sentence"), BAD_REQUESTS)
def test_a_bad_request_says_what_is_wrong_and_leaves_nothing(
    platform: Platform, http: httpx.Client, body: Any, status: int, sentence: str
) -> None:
    before = platform.counts()
    answer = http.post("/v1/generations", json=body)
    assert (answer.status_code, set(answer.json())) == (status, {"error", "code"}), answer.text
    assert sentence in answer.json()["error"]
    assert platform.counts() == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[]", "must be a JSON object, not an array."),
        (b"null", "must be a JSON object, not null."),
        (b"true", "must be a JSON object, not true or false."),
        (b"1.5", "must be a JSON object, not a number."),
        (b'"a"', "must be a JSON object, not a string."),
        (b"[" * 100_000, "nested deeper than 64."),
    ],
)
def test_another_json_value_is_named_as_json_has_it(http: httpx.Client, content: bytes, said: str) -> None:
    answer = http.post("/v1/generations", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"].endswith(said)


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"{", "application/json", 400),
        (b"", "application/json", 400),
        (b'{"a": NaN}', "application/json", 400),
        (b'{"a": 1e999}', "application/json", 400),
        (b'{"model": "\\ud800", "modality": "audio"}', "application/json", 400),
        (b'{"model": "a\\u0000b", "modality": "audio"}', "application/json", 400),
        (b'{"a":' * 100 + b"1" + b"}" * 100, "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"  ", "application/json", 400),
        (b"{}", "text/plain", 415),
        (b"model=a", "application/x-www-form-urlencoded", 415),
    ],
)
def test_a_body_that_is_not_our_json_is_refused(
    http: httpx.Client, content: bytes, content_type: str, status: int
) -> None:
    answer = http.post("/v1/generations", content=content, headers={"Content-Type": content_type})
    assert (answer.status_code, answer.json()["code"]) == (status, "invalid_request"), answer.text


def test_a_body_over_the_limit_is_refused_however_it_comes(http: httpx.Client) -> None:
    def chunked() -> Any:
        for _ in range(17):
            yield b"x" * 2**20

    for content in (b"x" * (17 * 2**20), chunked()):
        answer = http.post("/v1/generations", content=content, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("path", ["/v1/generations/{}", "/v1/artifacts/{}"])
def test_a_malformed_id_is_400_and_a_missing_one_404(http: httpx.Client, path: str, method: str) -> None:
    assert http.request(method, path.format("abc")).status_code == 400
    assert http.request(method, path.format(MISSING.upper())).status_code == (
        400 if MISSING.upper() != MISSING else 404
    )
    missing = http.request(method, path.format(MISSING))
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


def test_anothers_job_and_artifact_are_the_same_404_as_missing_ones(platform: Platform, http: httpx.Client) -> None:
    job = platform.submit(**TONE)
    output = platform.until_state(job["id"], "completed")["output_artifacts"][0]
    platform.give_to_a_stranger(job["id"], output)
    paths = [f"/v1/generations/{job['id']}", f"/v1/artifacts/{output}"]
    requests = [("GET", p) for p in (*paths, f"{paths[0]}/events", f"{paths[1]}/meta")] + [("DELETE", p) for p in paths]
    for method, path in requests:
        answer = http.request(method, path)
        missing = http.request(method, path.replace(job["id"], MISSING).replace(output, MISSING))
        own_words = answer.text.replace(job["id"], MISSING).replace(output, MISSING)
        assert (answer.status_code, own_words) == (missing.status_code, missing.text) == (404, missing.text)
    assert job["id"] not in {g["id"] for g in http.get("/v1/generations").json()["generations"]}
    assert output not in {a["id"] for a in http.get("/v1/artifacts").json()["artifacts"]}
    speak = {"model": "whisper-tiny.en", "modality": "text", "input_artifacts": [output]}
    assert http.post("/v1/generations", json=speak).status_code == 404


@pytest.mark.parametrize("path", ["/v1/generations/{}/events", "/v1/artifacts/{}/meta"])
def test_ids_below_a_resource_are_checked_too(http: httpx.Client, path: str) -> None:
    assert http.get(path.format("abc")).status_code == 400
    assert http.get(path.format(MISSING)).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/generations", {"GET", "POST", "HEAD"}),
        ("POST", f"/v1/generations/{MISSING}", {"GET", "DELETE", "HEAD"}),
        ("PUT", f"/v1/artifacts/{MISSING}", {"GET", "DELETE", "HEAD"}),
        ("PUT", "/v1/artifacts", {"GET", "POST", "HEAD"}),
        ("POST", "/static/site.css", {"GET", "HEAD"}),
        ("GET", "/v1/audio/speech", {"POST"}),
        ("POST", "/v1/models", {"GET", "HEAD"}),
        ("POST", "/health", {"GET", "HEAD"}),
        ("POST", "/", {"GET", "HEAD"}),
    ],
)
def test_another_method_is_405_in_the_envelope(http: httpx.Client, method: str, path: str, allowed: set[str]) -> None:
    answer = http.request(method, path)
    assert (answer.status_code, "error" in answer.json()) == (405, True)
    assert set(answer.headers["allow"].split(", ")) == allowed
    assert f"{method} is no method of {path}" in str(answer.json()["error"])


@pytest.mark.parametrize(
    "query",
    [
        "model=%00",
        "metadata.k=%00",
        "metadata.%00=1",
        "since=0001-01-01T00:00:00%2B23:59",
        "since=9999-12-31T23:59:59-23:59",
    ],
)
def test_what_no_database_can_hold_is_refused_in_a_query(http: httpx.Client, query: str) -> None:
    answer = http.get(f"/v1/generations?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


def test_an_unknown_path_is_a_404_in_the_envelope_of_its_face(http: httpx.Client) -> None:
    for path in ("/v1/nothing", "/static/nothing.css", "/a%0ab", "/health/"):
        answer = http.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert http.get("/v1/audio/nothing").json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}])
def test_another_host_or_origin_is_refused(http: httpx.Client, headers: dict[str, str]) -> None:
    for request in (http.build_request("POST", "/v1/generations", json=TONE), http.build_request("GET", "/")):
        request.headers.update(headers)
        answer = http.send(request)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("Host: [::1", 403),
        ("Host: [zz]", 403),
        ("Host: x@127.0.0.1", 403),
        ("Host: localhost\r\nOrigin: http://[x", 403),
        ("Host: localhost\r\nHost: localhost", 400),
        ("Host: [::1]:80", 200),
        ("Host: LOCALHOST:1", 200),
    ],
)
def test_an_odd_head_is_answered_in_the_envelope(platform: Platform, head: str, status: int) -> None:
    answer = raw(platform, f"GET /health HTTP/1.1\r\n{head}\r\nConnection: close\r\n\r\n")
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert "x-request-id: " in answer
    assert status == 200 or '"code":' in answer


@pytest.mark.parametrize("path", ["/v1/generations", "/v1/audio/speech", "/v1/audio/transcriptions", "/v1/artifacts"])
def test_a_body_announced_over_the_limit_is_refused_before_it_comes(platform: Platform, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000000\r\n"
    kind = "multipart/form-data; boundary=b" if path.endswith("transcriptions") else "application/json"
    assert raw(platform, f"{head}Content-Type: {kind}\r\n\r\n").startswith("HTTP/1.1 413 ")


def test_a_path_cannot_forge_a_line_of_the_log(platform: Platform, http: httpx.Client) -> None:
    http.get("/v1/models/x%0a2026-11-30%20ERROR%20forged%1b[31m")
    log = until(lambda: text if "ERROR forged" in (text := platform.log.read_text("utf-8")) else None)
    [line] = [line for line in log.splitlines() if "ERROR forged" in line]
    assert "inclavate.access GET /v1/models/x\\n2026-11-30 ERROR forged\\x1b[31m 404" in line


def raw(platform: Platform, request: str) -> str:
    """What the server answers to these bytes: the head, and the body that it announces."""
    host, port = platform.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(request.encode())
        answer = HTTPResponse(connection)
        answer.begin()
        head = "".join(f"{name.lower()}: {value}\n" for name, value in answer.getheaders())
        return f"HTTP/1.1 {answer.status} {answer.reason}\n{head}\n{answer.read().decode()}"


def test_the_servers_own_page_is_let_in(platform: Platform, http: httpx.Client) -> None:
    answer = http.post("/v1/generations", json=TONE, headers={"Origin": platform.url})
    assert answer.status_code == 202


# -- events ------------------------------------------------------------------------------------------------------------


def test_events_follow_a_job_to_its_end(platform: Platform, http: httpx.Client) -> None:
    params = {"text": "x" * 50, "steps": 8, "step_seconds": 0.15}
    job = platform.submit(**TONE | {"params": params})
    with http.stream("GET", f"/v1/generations/{job['id']}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert (stream.headers["cache-control"], stream.headers["x-accel-buffering"]) == ("no-cache", "no")
        lines = list(stream.iter_lines())
    seen = events_of(lines)
    ids = [int(line[4:]) for line in lines if line.startswith("id: ")]
    assert ids == sorted(set(ids))
    assert lines[-2:] == ["data: [DONE]", ""]
    assert seen[-1]["state"] == "completed"
    assert seen[-1] == http.get(f"/v1/generations/{job['id']}").json()
    fractions = [e["progress_fraction"] for e in seen if e["progress_stage"] == "generating"]
    assert fractions == sorted(fractions)
    assert len([f for f in fractions if 0 < f < 1]) >= 1
    assert all(e["state"] == "running" for e in seen if e["progress_stage"] is not None and e is not seen[-1])


def test_events_of_a_finished_job_are_its_outcome_and_the_end(platform: Platform, http: httpx.Client) -> None:
    job = platform.submit(**TONE)
    platform.until_state(job["id"], "completed")
    lines = http.get(f"/v1/generations/{job['id']}/events", headers={"Last-Event-ID": "99"}).text.splitlines()
    assert [e["state"] for e in events_of(lines)] == ["completed"]
    assert lines[-2] == "data: [DONE]"


def test_head_of_a_stream_is_answered_while_the_job_runs(platform: Platform, http: httpx.Client) -> None:
    job = platform.submit(**SLOW)
    path = f"/v1/generations/{job['id']}/events"
    with http.stream("GET", path) as stream:
        head = http.head(path)
        for name in ("content-type", "cache-control", "x-accel-buffering"):
            assert head.headers[name] == stream.headers[name]
    assert (head.status_code, head.content, "content-length" in head.headers) == (200, b"", False)
    assert http.head(f"/v1/generations/{MISSING}/events").status_code == 404
    assert http.delete(f"/v1/generations/{job['id']}").status_code == 200


def test_leaving_the_stream_leaves_the_job(platform: Platform, http: httpx.Client) -> None:
    job = platform.submit(**TONE | {"params": {"text": "x" * 50, "steps": 10, "step_seconds": 0.1}})
    with http.stream("GET", f"/v1/generations/{job['id']}/events") as stream:
        next(stream.iter_lines())
    assert not platform.until_state(job["id"], "completed")["cancel_requested"]


# -- cancelling --------------------------------------------------------------------------------------------------------


def test_cancelling_a_running_job_stops_its_engine_between_steps(platform: Platform, http: httpx.Client) -> None:
    job = platform.submit(**SLOW)
    until(lambda: platform.job(job["id"])["progress_stage"] == "generating")
    answer = http.delete(f"/v1/generations/{job['id']}")
    assert answer.status_code == 200
    assert answer.json()["cancel_requested"]
    assert platform.until_state(job["id"], "cancelled")["output_artifacts"] == []
    again = http.delete(f"/v1/generations/{job['id']}")
    assert (again.status_code, again.json()["code"]) == (409, "already_finished")
    assert again.headers["x-should-retry"] == "false"


def test_an_engine_that_does_not_listen_is_killed(platform: Platform, http: httpx.Client) -> None:
    # Echo's family reads FLAC by its magic word, whatever follows it.
    upload = http.post("/v1/artifacts", content=b"fLaC words", headers={"Content-Type": "audio/flac"}).json()
    job = platform.submit(
        model="test-crasher", modality="text", input_artifacts=[upload["id"]], params={"prompt": "x", "how": "deaf"}
    )
    until(lambda: platform.job(job["id"])["progress_stage"] == "understanding")
    http.delete(f"/v1/generations/{job['id']}")
    platform.until_state(job["id"], "cancelled")


# -- artifacts ---------------------------------------------------------------------------------------------------------


def uploaded(http: httpx.Client, content: bytes = b"0123456789", media_type: str = "audio/wav") -> dict[str, Any]:
    answer = http.post("/v1/artifacts", content=content, headers={"Content-Type": media_type})
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_an_upload_answers_with_its_digest_and_comes_back_whole(http: httpx.Client) -> None:
    content = bytes(range(256)) * 10_000
    meta = uploaded(http, content)
    assert meta["digest"] == hashlib.sha256(content).hexdigest()
    assert (meta["size_bytes"], meta["state"], meta["expires_at"]) == (len(content), "ready", None)
    answer = http.get(f"/v1/artifacts/{meta['id']}")
    assert answer.content == content
    assert answer.headers["etag"] == f'"{meta["digest"]}"'
    assert (answer.headers["accept-ranges"], answer.headers["x-content-type-options"]) == ("bytes", "nosniff")
    assert answer.headers["content-disposition"].startswith("attachment")


def test_a_chunked_upload_without_a_type_is_octets(http: httpx.Client) -> None:
    answer = http.post("/v1/artifacts", content=iter([b"ab", b"cd"]))
    assert answer.status_code == 201
    assert (answer.json()["size_bytes"], answer.json()["media_type"]) == (4, "application/octet-stream")


@pytest.mark.parametrize(
    ("media_type", "served"),
    [
        ("audio/wav", "audio/wav"),
        ("image/png", "image/png"),
        ("text/plain; charset=utf-8", "text/plain; charset=utf-8"),
        ("text/html", "application/octet-stream"),
        ("image/svg+xml", "application/octet-stream"),
        ("application/javascript", "application/octet-stream"),
    ],
)
def test_only_inert_types_are_served_as_themselves(http: httpx.Client, media_type: str, served: str) -> None:
    assert http.get(f"/v1/artifacts/{uploaded(http, media_type=media_type)['id']}").headers["content-type"] == served


@pytest.mark.parametrize(
    ("header", "status", "content", "content_range"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=0-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=9-9", 206, b"9", "bytes 9-9/10"),
        ("bytes=10-", 416, None, "bytes */10"),
        (f"bytes={'9' * 5000}-", 416, None, "bytes */10"),
        (f"bytes=8-{'9' * 5000}", 206, b"89", "bytes 8-9/10"),
        ("bytes=-5", 416, None, "bytes */10"),
        ("bytes=0-1,3-4", 416, None, "bytes */10"),
        ("lines=1-2", 200, b"0123456789", None),
        ("bytes=x-y", 400, None, None),
        ("bytes=5-2", 400, None, None),
        ("bytes", 400, None, None),
        ("bytes 0-1", 400, None, None),
    ],
)
def test_ranges(http: httpx.Client, header: str, status: int, content: bytes | None, content_range: str | None) -> None:
    answer = http.get(f"/v1/artifacts/{uploaded(http)['id']}", headers={"Range": header})
    assert (answer.status_code, answer.headers.get("content-range")) == (status, content_range)
    assert content is None or answer.content == content


FUTURE = "Fri, 01 Jan 2100 00:00:00 GMT"


def test_conditions_and_head(http: httpx.Client) -> None:
    path = f"/v1/artifacts/{uploaded(http)['id']}"
    head = http.head(path)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "10")
    etag, modified = head.headers["etag"], head.headers["last-modified"]
    assert http.get(path, headers={"If-None-Match": etag}).status_code == 304
    assert http.get(path, headers={"If-None-Match": '"other"'}).status_code == 200
    for since, status in ((modified, 304), (FUTURE, 304), ("Mon, 01 Jan 2024 00:00:00 GMT", 200), ("nonsense", 200)):
        assert http.get(path, headers={"If-Modified-Since": since}).status_code == status
    assert http.get(path, headers={"If-Modified-Since": FUTURE, "If-None-Match": '"other"'}).status_code == 200
    for condition, status in ((etag, 206), ('"other"', 200), (modified, 206), ("nonsense", 200), (FUTURE, 200)):
        answer = http.get(path, headers={"Range": "bytes=0-1", "If-Range": condition})
        assert answer.status_code == status


def test_usage_follows_uploads_and_deletes_by_origin(platform: Platform, http: httpx.Client) -> None:
    before = http.get("/v1/artifacts/usage").json()
    assert {"bytes", "objects", "max_bytes", "max_objects", "generated", "uploaded"} <= set(before)
    meta = uploaded(http)
    after = http.get("/v1/artifacts/usage").json()
    assert after["uploaded"]["bytes"] - before["uploaded"]["bytes"] == 10
    assert after["bytes"] == after["generated"]["bytes"] + after["uploaded"]["bytes"]
    assert http.delete(f"/v1/artifacts/{meta['id']}").status_code == 204
    assert http.get(f"/v1/artifacts/{meta['id']}").status_code == 404
    assert http.get("/v1/artifacts/usage").json()["uploaded"] == before["uploaded"]


def test_the_listing_splits_by_origin_and_an_unknown_kind_is_both(platform: Platform, http: httpx.Client) -> None:
    mine = uploaded(http)["id"]
    made = platform.until_state(platform.submit(**TONE)["id"], "completed")["output_artifacts"][0]

    def listed(kind: str) -> set[str]:
        return {a["id"] for a in http.get(f"/v1/artifacts?limit=1000&kind={kind}").json()["artifacts"]}

    assert mine in listed("uploaded") - listed("generated")
    assert made in listed("generated") - listed("uploaded")
    assert {mine, made} <= listed("typo")


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"", {}, 400),
        (b"x", {"Content-Type": "no type"}, 400),
        (b"x", {"Content-Type": f"audio/wav; {'a' * 300}"}, 400),
        (b"x", {"Content-Encoding": "gzip"}, 415),
    ],
)
def test_a_refused_upload_leaves_nothing(
    platform: Platform, http: httpx.Client, content: bytes, headers: dict[str, str], status: int
) -> None:
    before = platform.counts()
    answer = http.post("/v1/artifacts", content=content, headers=headers)
    assert (answer.status_code, set(answer.json())) == (status, {"error", "code"})
    assert platform.counts() == before


def test_an_upload_announced_over_512_mib_is_refused_before_it_comes(platform: Platform) -> None:
    before = platform.counts()
    host, port = platform.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as raw:
        head = f"POST /v1/artifacts HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {513 * 2**20}\r\n\r\n"
        raw.sendall(head.encode())
        assert raw.recv(4096).startswith(b"HTTP/1.1 413 ")
    assert platform.counts() == before


def test_an_upload_cut_short_leaves_nothing(platform: Platform, http: httpx.Client) -> None:
    before = platform.counts()

    def cut() -> Any:
        yield b"x" * 2**20
        raise RuntimeError("the client's disk broke")

    with pytest.raises(RuntimeError), platform.http as broken:
        broken.post("/v1/artifacts", content=cut())
    until(lambda: platform.counts() == before)

"""`stream_format` of `POST /v1/audio/speech`: heard while it is made, whole in the store at the end."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from openai import OpenAI
from starlette.requests import Request

from inclavate import sounds
from inclavate.errors import Unavailable
from inclavate.faces.openai import live as live_speech
from inclavate.models import Job, Owner, State
from tests import platforms
from tests.driving import engines_of, until
from tests.platforms import Platform

HEADER_BYTES = 44
# Two seconds of work, ten of sound.
ASKED = {"model": "test-tone-live", "input": "x" * 1000}
BYTES = HEADER_BYTES + 10 * 16000 * 2


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with platforms.running(tmp_path_factory.mktemp("live"), WORKER_SLOTS="2", LEASE_SECONDS="5") as platform:
        yield platform


def streamed(platform: Platform, **fields: Any) -> Any:
    return platform.http.stream("POST", "/v1/audio/speech", json=ASKED | {"stream_format": "audio"} | fields)


def stored(platform: Platform, job_id: str) -> bytes:
    [artifact] = platform.until_state(job_id, "completed")["output_artifacts"]
    return platform.http.get(f"/v1/artifacts/{artifact}").content


def events(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    assert not [line for line in text.splitlines() if line.startswith("id:")]
    return [json.loads(line) for line in lines[:-1]]


def test_sound_is_heard_before_the_job_ends_and_is_what_is_stored(live: Platform) -> None:
    with streamed(live) as answer:
        assert (answer.status_code, answer.headers["content-type"]) == (200, "audio/wav")
        job_id = answer.headers["x-dppan-job-id"]
        chunks = answer.iter_bytes()
        first = next(chunks)
        assert live.job(job_id)["state"] == "running"
        heard = first + b"".join(chunks)
    whole = stored(live, job_id)
    assert len(heard) == len(whole) == BYTES
    assert heard[HEADER_BYTES:] == whole[HEADER_BYTES:]
    # Nobody knows the sizes of what is still being said.
    assert (heard[4:8], heard[40:44]) == (b"\xff" * 4, b"\xff" * 4)
    assert int.from_bytes(whole[40:44], "little") == BYTES - HEADER_BYTES


def test_each_of_several_listeners_hears_all_of_it(live: Platform) -> None:
    def hear(_: int) -> bytes:
        with streamed(live, input="y" * 1000) as answer:
            return b"".join(answer.iter_bytes())

    headers = {"idempotency-key": "several listeners"}

    def hear_again(_: int) -> bytes:
        body = ASKED | {"stream_format": "audio"}
        with live.http.stream("POST", "/v1/audio/speech", json=body, headers=headers) as answer:
            return b"".join(answer.iter_bytes())

    with ThreadPoolExecutor(3) as threads:
        heard = list(threads.map(hear_again, range(3)))
    assert {len(sound) for sound in heard} == {BYTES}
    assert len({sound[HEADER_BYTES:] for sound in heard}) == 1
    assert len(hear(0)) == BYTES


def test_a_job_that_is_over_is_streamed_from_the_store(live: Platform) -> None:
    headers = {"idempotency-key": "already over"}
    first = live.http.post("/v1/audio/speech", json=ASKED, headers=headers)
    again = live.http.post("/v1/audio/speech", json=ASKED | {"stream_format": "audio"}, headers=headers)
    assert first.headers["x-dppan-job-id"] == again.headers["x-dppan-job-id"]
    assert first.content == again.content


def test_events_carry_the_same_bytes_and_say_that_they_are_all(live: Platform) -> None:
    with streamed(live, stream_format="sse") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        job_id = answer.headers["x-dppan-job-id"]
        said = events(answer.read().decode())
    assert [event["type"] for event in said[:-1]] == ["speech.audio.delta"] * (len(said) - 1)
    assert len(said) > 5
    assert said[-1]["type"] == "speech.audio.done"
    heard = b"".join(base64.b64decode(event["audio"]) for event in said[:-1])
    assert heard[HEADER_BYTES:] == stored(live, job_id)[HEADER_BYTES:]


def test_openais_sdk_streams_it(live: Platform) -> None:
    client = OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
    asked = client.audio.speech.with_streaming_response.create(
        model="test-tone-live", input="x" * 1000, voice="low", stream_format="audio"
    )
    with asked as answer:
        assert sum(map(len, answer.iter_bytes())) == BYTES


def test_a_listener_who_reads_slowly_hears_all_of_it(live: Platform) -> None:
    # More than lists and sockets hold: the rest comes from the store.
    seconds = 600
    with streamed(live, input="x" * (100 * seconds)) as answer:
        job_id = answer.headers["x-dppan-job-id"]
        live.until_state(job_id, "completed")
        heard = answer.read()
    assert len(heard) == HEADER_BYTES + seconds * 16000 * 2 > 2 * sounds.MOST_BEHIND * 64 * 1024
    assert heard[HEADER_BYTES:] == stored(live, job_id)[HEADER_BYTES:]


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
def test_a_lost_run_ends_the_stream_with_an_error_and_the_job_goes_on(live: Platform, stream_format: str) -> None:
    with streamed(live, model="test-tone-long", stream_format=stream_format) as answer:
        job_id = answer.headers["x-dppan-job-id"]
        lines = answer.iter_raw()
        next(lines)
        worker = live.part("worker")
        engines = engines_of(worker.pid)
        worker.kill()
        if stream_format == "sse":
            last = events(b"".join(lines).decode())[-1]
            assert (last["type"], last["error"]["code"]) == ("error", "unavailable")
        else:
            with pytest.raises(httpx.RemoteProtocolError):
                b"".join(lines)
    until(lambda: not any(engine.is_running() for engine in engines))
    until(lambda: live.job(job_id)["attempts"] == 2)
    live.http.delete(f"/v1/generations/{job_id}")
    live.until_state(job_id, "cancelled")


def test_a_listener_who_goes_away_cancels_the_job(live: Platform) -> None:
    with streamed(live, model="test-tone-long") as answer:
        job_id = answer.headers["x-dppan-job-id"]
        next(answer.iter_raw())
    live.until_state(job_id, "cancelled")


def test_a_listener_who_goes_away_before_the_first_sound_cancels_the_job(live: Platform) -> None:
    with httpx.Client(base_url=live.url, timeout=0.5) as http, pytest.raises(httpx.ReadTimeout):
        http.post("/v1/audio/speech", json=ASKED | {"model": "test-tone-slow-load", "stream_format": "audio"})
    until(lambda: live.rows("SELECT state FROM inclavate_job WHERE model = 'test-tone-slow-load'") == [("cancelled",)])


def test_one_who_said_that_he_comes_back_leaves_the_job_running(live: Platform) -> None:
    body, headers = ASKED | {"stream_format": "audio"}, {"x-inclavate-on-disconnect": "keep"}
    with live.http.stream("POST", "/v1/audio/speech", json=body, headers=headers) as answer:
        job_id = answer.headers["x-dppan-job-id"]
        next(answer.iter_raw())
    assert len(stored(live, job_id)) == BYTES


def test_what_goes_wrong_before_the_first_sound_is_a_plain_error(live: Platform) -> None:
    asked = ASKED | {"model": "test-tone-broken", "stream_format": "sse"}
    refused = live.http.post("/v1/audio/speech", json=asked)
    assert (refused.status_code, refused.json()["error"]["code"]) == (500, "inference_failed")
    wrong = live.http.post("/v1/audio/speech", json=ASKED | {"stream_format": "chunks"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "stream_format")


def test_a_run_that_fails_after_the_first_sound_breaks_the_stream_off(live: Platform) -> None:
    with streamed(live, model="test-tone-failing") as answer:
        job_id = answer.headers["x-dppan-job-id"]
        with pytest.raises(httpx.RemoteProtocolError):
            b"".join(answer.iter_raw())
    assert live.job(job_id)["error_code"] == "inference_failed"
    with streamed(live, model="test-tone-failing", stream_format="sse") as answer:
        last = events(answer.read().decode())[-1]
    assert (last["type"], last["error"]["code"]) == ("error", "inference_failed")


def broken_off(platform: Platform, request_id: str, said: int) -> str:
    """The one line on why an answer was, once it is in the log: nothing else is but that the request was answered."""
    text = until(lambda: text if f" 200 {request_id}" in (text := shown(platform)[said:]) else None)
    assert "Traceback" not in text
    assert " ERROR " not in text
    [line] = [line for line in text.splitlines() if line.endswith(request_id) and " WARNING " in line]
    return line


def shown(platform: Platform) -> str:
    """The log, with what an access line says of the time left out."""
    return re.sub(r" (\d+) \d+ ms ", r" \1 ", platform.log.read_text("utf-8"))


def test_a_cancel_breaks_the_stream_off_with_one_line_in_the_log(live: Platform) -> None:
    said = len(shown(live))
    with streamed(live, model="test-tone-long") as answer:
        request_id, job_id = answer.headers["x-request-id"], answer.headers["x-dppan-job-id"]
        lines = answer.iter_raw()
        next(lines)
        live.http.delete(f"/v1/generations/{job_id}")
        with pytest.raises(httpx.RemoteProtocolError):
            b"".join(lines)
    assert f"an answer was broken off: cancelled: Job {job_id} was cancelled. " in broken_off(live, request_id, said)


def test_what_is_deleted_while_an_archive_streams_breaks_it_off_with_one_line_in_the_log(live: Platform) -> None:
    said = len(shown(live))
    with live.http as http:
        # More than sockets hold.
        first, second = (http.post("/v1/artifacts", content=bytes(size)).json()["id"] for size in (64 * 2**20, 1))
        with http.stream("GET", f"/v1/artifacts/archive?ids={first},{second}") as answer:
            request_id, parts = answer.headers["x-request-id"], answer.iter_raw()
            next(parts)
            live.http.delete(f"/v1/artifacts/{second}")
            with pytest.raises(httpx.RemoteProtocolError):
                sum(map(len, parts))
    assert "an answer was broken off: artifact_gone: The bytes of this artifact" in broken_off(live, request_id, said)


def test_what_is_deleted_while_it_is_downloaded_still_comes_whole(live: Platform) -> None:
    said, size = len(shown(live)), 64 * 2**20
    with live.http as http:
        artifact = http.post("/v1/artifacts", content=bytes(size)).json()["id"]
        with http.stream("GET", f"/v1/artifacts/{artifact}") as answer:
            parts = answer.iter_raw()
            first = len(next(parts))
            live.http.delete(f"/v1/artifacts/{artifact}")
            assert first + sum(map(len, parts)) == size
    assert "Traceback" not in shown(live)[said:]


@pytest.mark.parametrize(
    ("state", "fence", "is_lost"),
    [(State.QUEUED, 0, False), (State.RUNNING, 1, False), (State.QUEUED, 1, True), (State.RUNNING, 2, True)],
)
def test_a_row_that_is_older_than_the_sound_does_not_make_its_run_a_lost_one(
    state: str, fence: int, is_lost: bool
) -> None:
    job = Job(state=State.QUEUED)
    hearing = live_speech.Hearing(Request({"type": "http"}), Owner(), job, 60.0)
    assert hearing._is_next(sounds.Chunk(1, 0, "audio/wav", b"RIFF"), job)
    with pytest.raises(Unavailable) if is_lost else contextlib.nullcontext():
        hearing._check_run(Job(state=state, fence=fence))

"""The HTTP client against a network that misbehaves: a small server on loopback that a test scripts."""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inclavate.client import (
    BadAnswer,
    Client,
    ClientError,
    JobFailed,
    NoModel,
    Refused,
    Unreachable,
    files,
)
from inclavate.client.streams import EventParser, ServerEvent
from tests.driving import until
from tests.network import Call, Seen, serving

ID = "9f1c7b52-0000-4000-8000-000000000000"


@contextmanager
def talking(script: Callable[[Call], None], **options) -> Iterator[tuple[Client, list[Seen], list[float]]]:
    """A client of a scripted server, the calls that came, and the pauses that the client would have made."""
    pauses: list[float] = []
    with serving(script) as server, Client(server.url, **{"sleep": pauses.append, **options}) as client:
        yield client, server.calls, pauses


def job(state="running", **more):
    return {"id": ID, "state": state, "modality": "audio", "model": "piper-joe", **more}


# Event streams


def parse(*chunks: bytes) -> list[ServerEvent]:
    parser = EventParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


def test_events_are_parsed_as_the_standard_says():
    stream = (
        b"\xef\xbb\xbf: a comment\ndata: one\ndata:two\ndata\nid: 7\nevent: change\n\n"
        b"retry: 10\nunknown: x\n\n\ndata:  spaced\r\n\r\nid: a\0b\rdata: \xc3\xa9\r\rdata: never ended\n"
    )
    assert parse(stream) == [
        ServerEvent("one\ntwo\n", "change", "7"),
        ServerEvent(" spaced", "message", "7"),
        ServerEvent("é", "message", "7"),
    ]


LINES = st.lists(
    st.one_of(
        st.sampled_from(
            [b"", b"", b"data", b"data:", b": ping", b"id", b"data: [DONE]", b"event: x", b"\xef\xbb\xbfdata: 1"]
        ),
        st.builds(
            lambda text: b"data: " + text.encode(), st.text(st.characters(exclude_characters="\r\n", codec="utf-8"))
        ),
        st.builds(lambda number: b"id: %d" % number, st.integers(0, 10**9)),
    ),
    max_size=20,
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(st.data())
def test_any_chunking_of_a_stream_gives_the_same_events(data):
    stream = b"".join(line + data.draw(ENDS) for line in data.draw(LINES))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=30)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert parse(*chunks) == parse(stream) == parse(*(bytes([byte]) for byte in stream))


@given(
    st.lists(st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8")), min_size=1), max_size=5), ENDS
)
def test_what_was_written_line_by_line_is_read_back_whole(texts, end):
    stream = b"".join(
        b"".join(b"data: " + line.encode() + end for line in lines) + b": ping" + end + end for lines in texts
    )
    assert [event.data for event in parse(stream)] == ["\n".join(lines) for lines in texts]


def test_a_cut_stream_is_attached_again_and_nothing_is_told_twice():
    def script(call):
        if call.number == 0:
            call.stream((1, job("queued")), (3, job(progress_fraction=0.5)), done=False)
        elif call.number == 1:
            call.cut()
        else:
            call.stream((3, job(progress_fraction=0.5)), (4, job("completed")))

    with talking(script) as (client, calls, _):
        told = list(client.events(ID))
        assert [(one.state, one.revision) for one in told] == [("queued", 1), ("running", 3), ("completed", 4)]
        assert len(calls) == 3


def test_an_older_revision_is_never_told():
    with talking(lambda call: call.stream((5, job()), (4, job("queued")), (6, job("failed")))) as (client, _, _):
        assert [one.revision for one in client.events(ID)] == [5, 6]


def test_a_finished_job_ends_the_events_even_without_done():
    with talking(lambda call: call.stream((9, job("expired")), done=False)) as (client, calls, _):
        assert [one.state for one in client.events(ID)] == ["expired"]
        assert len(calls) == 1


@pytest.mark.parametrize(
    "refusal",
    [
        lambda call: call.answer(200, b"<html>", Content_Type="text/html"),
        lambda call: call.answer(503, {"error": "Busy.", "code": "unavailable"}),
        lambda call: call.answer(500, b"oops"),
        lambda call: call.cut(),
        lambda call: call.stream((1, "no job")),
    ],
    ids=["html", "503", "500", "cut", "nonsense"],
)
def test_where_streams_cannot_be_had_the_job_is_polled(refusal):
    states = iter([job("queued"), job("running"), job("running"), job("completed")])

    def script(call):
        refusal(call) if call.path.endswith("/events") else call.answer(200, next(states))

    with talking(script) as (client, _, pauses):
        assert [one.state for one in client.events(ID)] == ["queued", "running", "completed"]
        assert 1.0 in pauses


def test_a_missing_job_is_refused_at_once():
    with talking(lambda call: call.answer(404, {"error": "No such job.", "code": "not_found"})) as (client, calls, _):
        with pytest.raises(Refused, match="No such job") as caught:
            list(client.events(ID))
        assert (caught.value.status, caught.value.code, len(calls)) == (404, "not_found", 1)


def test_a_watched_server_that_stays_away_is_unreachable():
    with talking(lambda call: call.cut(), patience_seconds=0.0) as (client, _, _), pytest.raises(Unreachable):
        list(client.events(ID))


def test_a_silent_stream_is_taken_for_cut():
    quiet = threading.Event()

    def script(call):
        if call.number == 0:
            call.begin(Content_Type="text/event-stream", Connection="close")
            call.wfile.write(f"id: 1\ndata: {json.dumps(job())}\n\n".encode())
            quiet.wait(30)
        else:
            call.stream((2, job("completed")))

    with talking(script, stream_timeout_seconds=0.2) as (client, _, _):
        assert [one.revision for one in client.events(ID)] == [1, 2]
        quiet.set()


def test_waiting_returns_the_completed_job_and_tells_its_progress():
    told = []
    with talking(lambda call: call.stream((1, job()), (2, job("completed", output_artifacts=["a"])))) as (client, _, _):
        assert client.wait(ID, told.append).output_artifacts == ("a",)
        assert [one.state for one in told] == ["running", "completed"]


@pytest.mark.parametrize("state", ["failed", "cancelled", "expired"])
def test_waiting_for_a_job_that_ends_otherwise_raises(state):
    end = job(state, error_code="stalled", error_message="It made no step for 300 s.")
    with talking(lambda call: call.stream((2, end))) as (client, _, _):
        with pytest.raises(JobFailed, match=f"{state}.*stalled.*no step") as caught:
            client.wait(ID)
        assert caught.value.job.state == state


# Submitting, and trying again


def test_a_submit_is_sent_again_with_the_same_key_after_a_cut():
    def script(call):
        call.cut() if call.number < 2 else call.answer(202, job("queued"))

    with talking(script) as (client, calls, pauses):
        assert client.submit("piper-joe", "audio", {"text": "Hello."}, seed=0).state == "queued"
        bodies = [json.loads(call.body) for call in calls]
        assert bodies[0] == bodies[1] == bodies[2]
        assert bodies[0].keys() == {"model", "modality", "params", "seed", "idempotency_key"}
        assert 0 < pauses[0] <= 0.25
        assert 0.25 <= pauses[1] <= 0.5


def test_two_submits_have_keys_of_their_own_and_a_given_key_is_kept():
    with talking(lambda call: call.answer(202, job("queued"))) as (client, calls, _):
        for key in (None, None, "mine"):
            client.submit("piper-joe", "audio", {}, idempotency_key=key)
        first, second, third = (json.loads(call.body)["idempotency_key"] for call in calls)
        assert first != second
        assert third == "mine"


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_waited_for(status):
    def script(call):
        full = {"error": "Full.", "code": "queue_full"}
        call.answer(status, full, Retry_After=7) if call.number == 0 else call.answer(202, job())

    with talking(script) as (client, _, pauses):
        client.submit("piper-joe", "audio", {})
        assert pauses == [7.0]


def test_tries_are_bounded():
    full = {"error": "Full.", "code": "queue_full"}
    with talking(lambda call: call.answer(429, full, Retry_After=1), tries=3) as (client, calls, pauses):
        with pytest.raises(Refused, match="Full") as caught:
            client.submit("piper-joe", "audio", {})
        assert (caught.value.retry_after_seconds, len(calls), pauses) == (1.0, 3, [1.0, 1.0])


@pytest.mark.parametrize(
    ("status", "headers"),
    [(422, {}), (409, {}), (500, {}), (503, {"x_should_retry": "false"}), (429, {"Retry_After": 3600})],
)
def test_what_a_retry_cannot_mend_is_not_tried_again(status, headers):
    with talking(lambda call: call.answer(status, {"error": "No."}, **headers)) as (client, calls, _):
        with pytest.raises(Refused):
            client.submit("piper-joe", "audio", {})
        assert len(calls) == 1


def test_health_is_tried_once():
    with talking(lambda call: call.answer(503, {"error": "Down."})) as (client, calls, _):
        with pytest.raises(Refused):
            client.health()
        assert len(calls) == 1


# What is not an answer


def test_both_envelopes_are_read():
    openai = {"error": {"message": "No voice 'x'.", "type": "invalid_request_error", "param": "voice", "code": "bad"}}
    with talking(lambda call: call.answer(400, openai)) as (client, _, _), pytest.raises(Refused) as caught:
        client.job(ID)
    assert (caught.value.message, caught.value.code, caught.value.param) == ("No voice 'x'.", "bad", "voice")
    native = {"error": "No such job.", "code": "not_found"}
    with talking(lambda call: call.answer(404, native)) as (client, _, _), pytest.raises(Refused) as caught:
        client.job(ID)
    assert (caught.value.message, caught.value.code, caught.value.param) == ("No such job.", "not_found", None)


@pytest.mark.parametrize("body", [b"<html>Bad Gateway</html>", b"[1]", b'{"error": null}', b"\xff", b""])
def test_a_refusal_without_an_envelope_still_says_its_status(body):
    with talking(lambda call: call.answer(413, body)) as (client, _, _), pytest.raises(Refused, match="413") as caught:
        client.job(ID)
    assert caught.value.code == "http_413"


def misbehave_by_garbage(call):
    call.wfile.write(b"this is not HTTP\r\n\r\n")
    call.close_connection = True


def misbehave_by_half_a_body(call):
    call.begin(Content_Length=1000)
    call.wfile.write(b'{"id": ')
    call.close_connection = True


def misbehave_by_false_gzip(call):
    call.answer(200, b"not gzip", Content_Encoding="gzip")


def misbehave_by_silence(call):
    threading.Event().wait(0.5)
    call.close_connection = True


FAULTS = [
    lambda call: call.cut(),
    misbehave_by_garbage,
    misbehave_by_half_a_body,
    misbehave_by_false_gzip,
    misbehave_by_silence,
    lambda call: call.answer(200, b"<html>"),
    lambda call: call.answer(200, b"\xff\xfe"),
    lambda call: call.answer(200, [1, 2]),
    lambda call: call.answer(200, {"state": "queued"}),
    lambda call: call.answer(200, {"id": {}, "state": [], "text": 1}),
    lambda call: call.answer(200, {"generations": [1], "generators": ["x"], "data": [None]}),
    lambda call: call.answer(301, b"", Location="https://elsewhere.test/"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_of_a_network_is_a_client_error(fault, tmp_path):
    clip = tmp_path / "clip.wav"
    clip.write_bytes(b"RIFF")
    with talking(fault, timeout_seconds=0.2, sync_timeout_seconds=0.2, tries=2, patience_seconds=0.0) as (client, _, _):
        for call in (
            lambda: client.job(ID),
            lambda: client.jobs(),
            lambda: client.capabilities(),
            lambda: client.models(),
            lambda: client.submit("m", "audio", {}),
            lambda: client.upload(clip),
            lambda: client.transcribe(clip, "m"),
        ):
            with pytest.raises(ClientError):
                call()
        assert [path.name for path in tmp_path.iterdir()] == ["clip.wav"]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8001",
        "ftp://x",
        "http://",
        "http://a:b",
        "http://[::1",
        "http://x:99999",
        "http://a\nb",
        "http://\udcff",
    ],
)
def test_an_address_that_is_none_is_said_so(url):
    with pytest.raises(Unreachable, match="no address"):
        Client(url)


def test_nobody_listening_is_unreachable_and_says_where():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with Client(url, sleep=lambda _: None) as client, pytest.raises(Unreachable, match=f"{url}.*refused") as caught:
            client.job(ID)
        assert caught.value.is_unsent


def test_ids_cannot_leave_their_place_in_the_path():
    with talking(lambda call: call.answer(200, job())) as (client, calls, _):
        client.job("../models?x=1#y")
        client.job("\udcff")
        assert [call.path for call in calls] == [
            "/v1/generations/..%2Fmodels%3Fx%3D1%23y",
            "/v1/generations/%ED%B3%BF",
        ]


def test_the_key_is_sent_as_a_bearer():
    with talking(lambda call: call.answer(200, job()), api_key="secret") as (client, calls, _):
        client.job(ID)
        assert calls[0].headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("key", ["clé", "se\ncret", "se\x7fcret", "se\udcffcret"])
def test_a_key_that_cannot_be_sent_is_refused_without_being_shown(key):
    with pytest.raises(ClientError, match=r"The API key may hold printable ASCII") as caught:
        Client("http://127.0.0.1:1", key)
    assert "se" not in str(caught.value).replace("others", "")


def test_text_that_cannot_be_sent_is_a_client_error_and_is_not_tried(clip, tmp_path):
    with talking(lambda call: call.answer(200, {})) as (client, calls, _):
        for act in (
            lambda: client.submit("m", "audio", {"text": "\udcff"}),
            lambda: client.upload(clip, "audio/é"),
            lambda: client.transcribe(clip, "m", idempotency_key="a\nb"),
            lambda: client.speech("Hello.", tmp_path / "a.wav", model="m", idempotency_key="é"),
        ):
            with pytest.raises(ClientError):
                act()
        assert calls == []


# Shapes


def test_unknown_fields_are_ignored_and_nulls_are_defaults():
    row = job(new_field={"a": 1}, seed=None, created_at="2026-08-06T09:14:22.981Z", output_artifacts=["a"], notes=["n"])
    with talking(lambda call: call.answer(200, row)) as (client, _, _):
        told = client.job(ID)
    assert told.created_at.isoformat() == "2026-08-06T09:14:22.981000+00:00"
    assert (told.output_artifacts, told.notes, told.seed, told.priority) == (("a",), ("n",), None, 0)


def test_capabilities_are_read_and_the_first_ready_model_is_found():
    rows = [
        {"modality": "audio", "model": "a", "task": "text-to-speech", "ready": False},
        {"modality": "audio", "model": "b", "task": "text-to-speech", "speed_range": {"min": 0.3, "max": 2.0}},
        {"modality": "text", "model": "c", "task": "transcribe", "ready": False},
    ]
    with talking(lambda call: call.answer(200, {"generators": rows})) as (client, _, _):
        speaker = client.first_ready("text-to-speech")
        assert (speaker.model, speaker.speed_range) == ("b", (0.3, 2.0))
        with pytest.raises(NoModel, match="No transcribe model is ready: c"):
            client.first_ready("transcribe")
        with pytest.raises(NoModel, match="No text-to-music model is offered"):
            client.first_ready("text-to-music")


def test_a_listing_says_whether_there_is_more():
    with talking(lambda call: call.answer(200, {"generations": [job()], "truncated": True})) as (client, calls, _):
        page = client.jobs(limit=1, offset=5)
        assert (len(page.jobs), page.is_truncated) == (1, True)
        assert calls[0].path == "/v1/generations?limit=1&offset=5"


# Bytes

SOUND = bytes(range(256)) * 4000
ETAG = f'"{hashlib.sha256(SOUND).hexdigest()}"'


def send_from(call, start, until, data=SOUND, etag=ETAG):
    if start:
        content_range = f"bytes {start}-{len(data) - 1}/{len(data)}"
        call.begin(206, Content_Length=len(data) - start, ETag=etag, Content_Range=content_range)
    else:
        call.begin(200, Content_Length=len(data), ETag=etag)
    call.wfile.write(data[start:until])
    if until is not None:
        call.close_connection = True


def test_a_cut_download_goes_on_where_it_was(tmp_path):
    def script(call):
        start = int(call.headers.get("Range", "bytes=0-")[len("bytes=") : -1])
        send_from(call, start, start + 100_000 if call.number < 8 else None)

    with talking(script, tries=2) as (client, calls, _):
        path = client.download(ID, tmp_path / "a.wav")
        assert path.read_bytes() == SOUND
        assert [file.name for file in tmp_path.iterdir()] == ["a.wav"]
        ranges = [call.headers.get("Range") for call in calls]
        assert ranges[0] is None
        assert len(set(ranges)) == len(ranges) == 9
        assert {call.headers.get("If-Range") for call in calls[1:]} == {ETAG}


def test_a_download_starts_again_where_the_server_sends_it_all(tmp_path):
    with talking(lambda call: send_from(call, 0, 300_000 if call.number == 0 else None)) as (client, _, _):
        assert client.download(ID, tmp_path / "a.wav").read_bytes() == SOUND


def test_a_download_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "a.wav"
    target.write_bytes(b"old")
    with talking(lambda call: send_from(call, 0, 10), tries=2) as (client, _, _), pytest.raises(Unreachable):
        client.download(ID, target)
    damaged = pytest.raises(BadAnswer, match="SHA-256")
    with talking(lambda call: send_from(call, 0, None, data=b"x" * 10)) as (client, _, _), damaged:
        client.download(ID, target)
    assert [file.name for file in tmp_path.iterdir()] == ["a.wav"]
    assert target.read_bytes() == b"old"


def test_another_range_than_asked_for_is_not_taken(tmp_path):
    def script(call):
        send_from(call, 0, 1000) if call.number == 0 else send_from(call, 5, None)

    with talking(script) as (client, _, _), pytest.raises(BadAnswer, match="another range"):
        client.download(ID, tmp_path / "a.wav")


def test_an_upload_is_streamed_with_its_length(tmp_path):
    source = tmp_path / "clip.wav"
    source.write_bytes(SOUND)
    with talking(lambda call: call.answer(201, {"id": ID, "size_bytes": len(call.body)})) as (client, calls, _):
        assert client.upload(source).size_bytes == len(SOUND)
        assert calls[0].headers["Content-Type"] == "audio/wav"
        assert calls[0].headers["Content-Length"] == str(len(SOUND))
        assert "Transfer-Encoding" not in calls[0].headers
        opened = io.BytesIO(SOUND)
        opened.seek(100)
        client.upload(opened, "audio/mpeg")
        assert calls[1].body == SOUND[100:]
        assert calls[1].headers["Content-Type"] == "audio/mpeg"


def test_a_pipe_is_uploaded_in_chunks():
    class Pipe(io.RawIOBase):
        pieces = [b"abc", b"def"]

        def read(self, size=-1):
            return self.pieces.pop(0) if self.pieces else b""

    with talking(lambda call: call.answer(201, {"id": ID})) as (client, calls, _):
        client.upload(Pipe())
        assert calls[0].body == b"abcdef"


def test_a_pipe_is_sent_again_whole_where_nothing_was_kept(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    headers = {"x_dppan_job_id": "j"}

    def busy_once(call):
        call.answer(503, {"error": "Busy."}) if call.number % 2 == 0 else call.answer(
            201, {"id": ID, "text": "Hello."}, **headers
        )

    for act in (lambda client: client.upload(pipe), lambda client: client.transcribe(pipe, "whisper-tiny.en")):
        writer = threading.Thread(target=pipe.write_bytes, args=[SOUND])
        writer.start()
        with talking(busy_once) as (client, calls, _):
            act(client)
            assert [SOUND in call.body for call in calls] == [True, True]
        writer.join()


def test_a_device_without_an_end_does_not_fill_the_disk(monkeypatch):
    monkeypatch.setattr(files, "MAX_SPOOLED_BYTES", 10**6)
    # The process's own descriptor, so that no path of a device is touched.
    read, write = os.pipe()
    feeder = subprocess.Popen(["yes"], stdout=write)
    os.close(write)
    with (
        os.fdopen(read, "rb") as endless,
        pytest.raises(OSError, match="more than 1,000,000 bytes"),
        files.rewindable(endless),
    ):
        pass
    feeder.wait(10)


@pytest.mark.parametrize("path", ["", "a.wav/", "a/.", "..", "a\0b", "absent/a.wav", "a" * 256])
def test_a_place_where_nothing_can_be_written_is_an_os_error_before_any_request(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with talking(lambda call: call.answer(200, SOUND)) as (client, calls, _):
        with pytest.raises(OSError, match=r"\[Errno") as caught:
            client.download(ID, path)
        assert (caught.value.filename, calls) == (path, [])
        with pytest.raises(OSError, match=r"\[Errno"):
            files.check_target(path)
    assert not list(tmp_path.iterdir())


def test_a_fifo_that_nobody_reads_to_its_end_is_an_error_with_its_name(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: pipe.open("rb").close())
    reader.start()
    with talking(lambda call: call.answer(200, SOUND)) as (client, _, _), pytest.raises(BrokenPipeError) as caught:
        client.download(ID, pipe)
    reader.join()
    assert (caught.value.filename, pipe.is_fifo()) == (str(pipe), True)


def test_a_chain_of_links_is_followed_and_a_loop_is_an_error(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to(tmp_path / "far" / "new.wav")
    (tmp_path / "loop").symlink_to("loop")
    with talking(lambda call: call.answer(200, SOUND)) as (client, calls, _):
        client.download(ID, tmp_path / "one")
        assert (tmp_path / "far" / "new.wav").read_bytes() == SOUND
        assert (tmp_path / "one").is_symlink()
        with pytest.raises(OSError, match="symbolic links"):
            client.download(ID, tmp_path / "loop")
        assert len(calls) == 1


def test_an_upload_is_sent_again_only_where_nothing_was_kept(tmp_path):
    source = tmp_path / "clip.wav"
    source.write_bytes(SOUND)

    def busy_once(call):
        call.answer(503, {"error": "Busy."}) if call.number == 0 else call.answer(201, {"id": ID})

    with talking(busy_once) as (client, calls, _):
        client.upload(source)
        assert [call.body for call in calls] == [SOUND, SOUND]
    with talking(lambda call: call.cut()) as (client, calls, _):
        with pytest.raises(Unreachable):
            client.upload(source)
        assert len(calls) == 1


# Audio routes


def route(**answers):
    """A script that answers by the path's last word, or by its method where that is named."""

    def script(call):
        answers[call.path.rpartition("/")[2].replace("-", "_")](call)

    return script


@pytest.fixture
def clip(tmp_path):
    path = tmp_path / "clip.wav"
    path.write_bytes(b"RIFF....WAVE")
    return path


def test_a_transcription_sends_the_file_and_returns_the_text(clip):
    headers = {"x_dppan_job_id": "j", "x_dppan_artifact_id": "a"}
    with talking(lambda call: call.answer(200, {"text": "Hello."}, **headers)) as (client, calls, _):
        heard = client.transcribe(clip, "whisper-tiny.en", language="en")
    assert (heard.text, heard.job_id, heard.artifact_id) == ("Hello.", "j", "a")
    body = calls[0].body
    for part in (
        b'name="model"',
        b"whisper-tiny.en",
        b'name="language"',
        b'filename="clip.wav"',
        b"Content-Type: audio/wav",
    ):
        assert part in body
    assert calls[0].headers["Idempotency-Key"]


def test_a_transcription_that_was_cut_is_sent_again_whole_with_the_same_key(clip):
    def script(call):
        call.cut() if call.number == 0 else call.answer(200, {"text": "Hello."})

    with talking(script) as (client, calls, _):
        client.transcribe(clip, "whisper-tiny.en")
        assert b"RIFF....WAVE" in calls[1].body
        assert calls[0].headers["Idempotency-Key"] == calls[1].headers["Idempotency-Key"]


def left_behind(call):
    error = {"error": {"message": "The wait ran out.", "type": "server_error", "param": None, "code": "not_ready"}}
    call.answer(504, error, x_dppan_job_id=ID, x_should_retry="false")


def test_a_wait_that_ran_out_goes_on_with_the_job(clip, tmp_path):
    script = route(
        transcriptions=left_behind,
        speech=left_behind,
        events=lambda call: call.stream((1, job()), (2, job("completed", output_artifacts=["out"]))),
        out=lambda call: call.answer(200, b"Hello."),
    )
    with talking(script) as (client, _, _):
        assert client.transcribe(clip, "whisper-tiny.en").text == "Hello."
        said = client.speech("Hello.", tmp_path / "said.wav", model="piper-joe")
        assert (said.path.read_bytes(), said.job_id, said.artifact_id) == (b"Hello.", ID, "out")


def test_a_synchronous_job_that_failed_is_told_as_that_job(clip):
    failed = job("failed", error_code="stalled", error_message="It made no step.")
    script = route(
        transcriptions=lambda call: call.answer(500, {"error": {"code": "stalled"}}, x_dppan_job_id=ID),
        events=lambda call: call.stream((2, failed)),
    )
    with talking(script) as (client, _, _), pytest.raises(JobFailed, match="stalled"):
        client.transcribe(clip, "whisper-tiny.en")


def test_speech_that_was_cut_is_asked_for_again_and_the_file_is_whole(tmp_path):
    def script(call):
        call.begin(200, Content_Length=10, x_dppan_job_id="j", x_dppan_artifact_id="a")
        call.wfile.write(b"0123456789" if call.number else b"0123")
        call.close_connection = True

    with talking(script) as (client, calls, _):
        said = client.speech("Hello.", tmp_path / "said.wav", model="piper-joe", voice="joe", speed=2.0)
        assert said.path.read_bytes() == b"0123456789"
        assert [file.name for file in tmp_path.iterdir()] == ["said.wav"]
    bodies = [json.loads(call.body) for call in calls]
    assert bodies[0] == {"model": "piper-joe", "input": "Hello.", "voice": "joe", "speed": 2.0}
    assert calls[0].headers["Idempotency-Key"] == calls[1].headers["Idempotency-Key"]


def test_the_client_is_plain_python():
    program = "import sys, inclavate.client; sys.exit(bool({'django', 'celery'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


# Against the platform


@pytest.fixture
def live(platform):
    with Client(platform.url) as client:
        yield client


def test_a_real_job_is_watched_to_its_end_and_its_sound_is_whole(live, tmp_path):
    job = live.submit("piper-joe", "audio", {"text": "One. Two. Three."}, idempotency_key="watched")
    told = list(live.events(job.id))
    revisions = [one.revision for one in told]
    assert revisions == sorted(set(revisions))
    assert told[-1].state == "completed"
    assert live.submit("piper-joe", "audio", {"text": "One. Two. Three."}, idempotency_key="watched").id == job.id
    artifact = live.artifact(told[-1].output_artifacts[0])
    sound = live.download(artifact.id, tmp_path / "a.wav").read_bytes()
    assert (len(sound), hashlib.sha256(sound).hexdigest()) == (artifact.size_bytes, artifact.digest)
    until(lambda: not live.artifact(artifact.id).inspecting)
    found = live.artifact(artifact.id)
    assert (found.sniffed_type, found.facts["sample_rate"], len(found.facts["peaks"])) == ("audio/wav", 22_050, 200)


def test_what_is_uploaded_comes_back_and_goes_away(live, tmp_path):
    source = tmp_path / "clip.wav"
    source.write_bytes(SOUND)
    artifact = live.upload(source)
    assert (artifact.media_type, artifact.digest) == ("audio/wav", ETAG.strip('"'))
    assert live.download(artifact.id, tmp_path / "back.wav").read_bytes() == SOUND
    live.delete_artifact(artifact.id)
    with pytest.raises(Refused) as caught:
        live.artifact(artifact.id)
    assert (caught.value.status, caught.value.code) == (404, "not_found")


def test_the_synchronous_routes_speak_and_listen(live, tmp_path):
    said = live.speech("The weather is fine today.", tmp_path / "said.wav", model="piper-joe", voice="joe")
    assert live.artifact(said.artifact_id).size_bytes == said.path.stat().st_size
    heard = live.transcribe(said.path, "whisper-tiny.en")
    assert "weather" in heard.text.lower()
    assert live.job(heard.job_id).state == "completed"
    with pytest.raises(Refused) as caught:
        live.transcribe(said.path, "piper-joe")
    assert caught.value.status in (400, 422)


def test_what_the_server_is_can_be_asked(live):
    assert live.health().ok
    assert {"piper-joe", "whisper-tiny.en"} <= set(live.models())
    assert live.first_ready("text-to-speech").builtin_voices

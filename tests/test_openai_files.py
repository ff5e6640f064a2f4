"""OpenAI's files API over a real socket, by the real SDKs and by what no SDK would send."""

from __future__ import annotations

import io
import json
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from django.conf import settings
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from inclavate import accounts, artifacts
from inclavate.models import Artifact, Owner
from tests.asking import ask
from tests.driving import until
from tests.platforms import Platform

MIB = 2**20
MISSING = "7d444840-9dc0-41d1-b245-5ffdce74fad2"
NODE = Path(__file__).parent / "node"
QUOTED = 'a "quoted" ünïcode — 名前.txt'


@pytest.fixture(scope="module")
def sdk(platform: Platform) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{platform.url}/v1", api_key="any", timeout=120, max_retries=0) as client:
        yield client


@pytest.fixture
def http(platform: Platform) -> Iterator[httpx.Client]:
    with platform.http as client:
        yield client


def upload(http: httpx.Client, content: bytes = b"words", name: str = "a.txt", **fields: str) -> dict[str, Any]:
    answer = http.post(
        "/v1/files", files={"file": (name, content, "text/plain")}, data={"purpose": "user_data"} | fields
    )
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


# -- OpenAI's SDK for Python -------------------------------------------------------------------------------------------


def forms_of(path: Path) -> dict[str, tuple[Any, str]]:
    """Each way to give the SDK a file, and the name that it then sends."""
    content = path.read_bytes()
    return {
        "path": (path, path.name),
        "bytes": (content, "upload"),
        "tuple": ((QUOTED, content), QUOTED),
        "typed tuple": ((QUOTED, content, "text/plain"), QUOTED),
        "file": (path.open("rb"), path.name),
        "memory": (io.BytesIO(content), "upload"),
        "named memory": (("memory.bin", io.BytesIO(content)), "memory.bin"),
    }


@pytest.mark.parametrize("how", ["path", "bytes", "tuple", "typed tuple", "file", "memory", "named memory"])
def test_a_file_comes_back_as_it_was_given(sdk: openai.OpenAI, tmp_path: Path, how: str) -> None:
    path = tmp_path / "clip ünï.txt"
    path.write_bytes(b"\r\n--nearly a boundary\r\n" * 50_000)
    given, name = forms_of(path)[how]
    before = int(time.time())
    file = sdk.files.create(file=given, purpose="user_data")
    assert (file.object, file.filename, file.purpose, file.status) == ("file", name, "user_data", "processed")
    assert (file.bytes, file.expires_at, file.status_details) == (path.stat().st_size, None, None)
    assert before <= file.created_at <= time.time()
    assert sdk.files.retrieve(file.id) == file
    assert sdk.files.content(file.id).read() == path.read_bytes()
    sdk.files.delete(file.id)


def test_every_purpose_that_is_served_is_kept(sdk: openai.OpenAI) -> None:
    for purpose in ("assistants", "user_data", "vision"):
        file = sdk.files.create(file=b"words", purpose=purpose)
        assert file.purpose == purpose
        sdk.files.delete(file.id)


def test_a_file_that_is_deleted_is_gone(platform: Platform, sdk: openai.OpenAI) -> None:
    before = platform.counts()
    file = sdk.files.create(file=b"words", purpose="user_data")
    deleted = sdk.files.delete(file.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (file.id, "file", True)
    for again in (sdk.files.retrieve, sdk.files.content, sdk.files.delete):
        with pytest.raises(openai.NotFoundError) as caught:
            again(file.id)
        assert caught.value.code == "not_found"
    assert platform.counts() == before


@pytest.mark.parametrize("seconds", [3600, 2_592_000])
def test_a_file_expires_when_its_sender_says(platform: Platform, sdk: openai.OpenAI, seconds: int) -> None:
    file = sdk.files.create(
        file=b"words", purpose="user_data", expires_after={"anchor": "created_at", "seconds": seconds}
    )
    assert file.expires_at == file.created_at + seconds
    assert sdk.files.retrieve(file.id).expires_at == file.expires_at
    with platform.http as http:
        assert http.get(f"/v1/artifacts/{file.id}/meta").json()["expires_at"] is not None
    sdk.files.delete(file.id)


def test_a_list_is_paged_by_the_sdk_in_either_order(sdk: openai.OpenAI) -> None:
    made = [sdk.files.create(file=b"words", purpose="assistants").id for _ in range(5)]
    upwards = [file.id for file in sdk.files.list(purpose="assistants", order="asc", limit=2)]
    downwards = [file.id for file in sdk.files.list(purpose="assistants", limit=2)]
    assert upwards == made
    assert downwards == made[::-1]
    page = sdk.files.list(purpose="assistants", order="asc", after=made[1], limit=2)
    assert [file.id for file in page.data] == made[2:4]
    assert page.has_more
    last = sdk.files.list(purpose="assistants", order="asc", after=made[3])
    assert ([file.id for file in last.data], last.has_more) == (made[4:], False)
    for file_id in made:
        sdk.files.delete(file_id)
    assert sdk.files.list(purpose="assistants").data == []


def test_an_error_is_the_sdks_own(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="does not run fine-tuning") as caught:
        sdk.files.create(file=b"words", purpose="fine-tune")
    assert (caught.value.code, caught.value.param) == ("invalid_request", "purpose")
    assert caught.value.type == "invalid_request_error"


# -- OpenAI's SDK for Node ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_node(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What `node/files.mjs` got."""
    node = shutil.which("node")
    if node is None or not (NODE / "node_modules" / "openai").is_dir():
        pytest.skip("OpenAI's SDK for Node is not here: install Node 20 or newer with npm, then `make dev`")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.lstrip("v").partition(".")[0]) < 20:
        pytest.skip(f"OpenAI's SDK for Node uploads from Node 20 on, and this is {version.strip()}")
    path = tmp_path_factory.mktemp("node") / "from ünï.bin"
    path.write_bytes(bytes(range(256)) * 1000)
    done = subprocess.run([node, "files.mjs", f"{platform.url}/v1", path], cwd=NODE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_node_uploads_in_every_way(by_node: Any) -> None:
    names = {how: file["filename"] for how, file in by_node["created"].items()}
    assert names == {
        "path": "from ünï.bin",
        "bytes": "unknown_file",
        "named": 'a "quoted" ünïcode.png',
        "stream": "pieces.bin",
        "web": "web.txt",
        "expiring": "e.txt",
    }
    assert {file["bytes"] for file in by_node["created"].values()} == {256_000}
    assert {(file["purpose"], file["status"]) for file in by_node["created"].values()} == {("vision", "processed")}
    expiring = by_node["created"]["expiring"]
    assert expiring["expires_at"] == expiring["created_at"] + 3600


def test_node_lists_retrieves_reads_and_deletes(by_node: Any) -> None:
    made = [file["id"] for file in by_node["created"].values()]
    assert by_node["page"] == {"ids": made[:2], "hasMore": True}
    assert by_node["listed"] == made
    assert by_node["retrieved"] == by_node["created"]["named"]
    assert by_node["isWhole"]
    assert by_node["deleted"] == {"id": made[1], "object": "file", "deleted": True}


def test_node_raises_its_own_errors(by_node: Any) -> None:
    missing, refused = by_node["missing"], by_node["refused"]
    assert (missing["kind"], missing["status"], missing["code"]) == ("NotFoundError", 404, "not_found")
    assert (refused["kind"], refused["status"]) == ("BadRequestError", 400)
    assert "does not run fine-tuning" in refused["message"]


# -- one artifact, two faces -------------------------------------------------------------------------------------------


def test_a_file_is_an_artifact_of_the_native_api(http: httpx.Client) -> None:
    before = http.get("/v1/artifacts/usage").json()["uploaded"]
    file = upload(http, b"some words", QUOTED)
    after = http.get("/v1/artifacts/usage").json()["uploaded"]
    assert (after["bytes"] - before["bytes"], after["objects"] - before["objects"]) == (10, 1)
    listed = http.get("/v1/artifacts", params={"kind": "uploaded"}).json()["artifacts"][0]
    assert http.get(f"/v1/artifacts/{file['id']}/meta").json() == listed | {"facts": {}, "inspecting": False}
    assert (listed["filename"], listed["purpose"], listed["media_type"]) == (QUOTED, "user_data", "text/plain")
    http.delete(f"/v1/artifacts/{file['id']}")
    assert http.get(f"/v1/files/{file['id']}").status_code == 404


@pytest.mark.parametrize("as_speaker", [True, False])
def test_a_file_is_what_a_job_reads(platform: Platform, http: httpx.Client, as_speaker: bool) -> None:
    file_id = upload(http, b"fLaC words")["id"]
    inputs, speaker = ([], {"speaker_artifact": file_id}) if as_speaker else ([file_id], {})
    job = platform.submit(
        model="test-echo", modality="text", input_artifacts=inputs, params={"prompt": "It says: "} | speaker
    )
    [output] = platform.until_state(job["id"], "completed")["output_artifacts"]
    assert http.get(f"/v1/files/{output}/content").text == "It says: fLaC words"


def test_what_came_without_a_purpose_is_a_file_too_but_in_no_list(http: httpx.Client) -> None:
    made = http.post("/v1/artifacts", content=b"RIFF", headers={"Content-Type": "audio/wav"}).json()
    file = http.get(f"/v1/files/{made['id']}").json()
    assert (file["filename"], file["purpose"], file["bytes"]) == (f"{made['id']}.wav", "user_data", 4)
    assert file["status"] == "processed"
    assert made["id"] not in [file["id"] for file in http.get("/v1/files?limit=10000").json()["data"]]
    assert http.delete(f"/v1/files/{made['id']}").json()["deleted"]


def test_content_has_ranges_conditions_and_a_head(http: httpx.Client) -> None:
    path = f"/v1/files/{upload(http, b'0123456789', QUOTED)['id']}/content"
    whole = http.get(path)
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert "filename*=UTF-8''a%20%22quoted%22%20%C3%BCn" in whole.headers["content-disposition"]
    head = http.head(path)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "10")
    part = http.get(path, headers={"Range": "bytes=2-4"})
    assert (part.status_code, part.content) == (206, b"234")
    past = http.get(path, headers={"Range": "bytes=10-"})
    assert (past.status_code, past.json()["error"]["code"]) == (416, "range_not_satisfiable")
    assert http.get(path, headers={"If-None-Match": whole.headers["etag"]}).status_code == 304


def test_anothers_file_is_the_same_404_as_a_missing_one(platform: Platform, http: httpx.Client) -> None:
    theirs = upload(http)["id"]
    platform.give_to_a_stranger(MISSING, theirs)
    for method, below in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        answers = [http.request(method, f"/v1/files/{file_id}{below}") for file_id in (theirs, MISSING)]
        assert [answer.status_code for answer in answers] == [404, 404]
        assert answers[0].json()["error"] | {"message": ""} == answers[1].json()["error"] | {"message": ""}
    assert http.get("/v1/files", params={"after": theirs}).status_code == 404
    assert theirs not in http.get("/v1/files?limit=10000").text


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/files", {"GET", "HEAD", "POST"}),
        ("PUT", f"/v1/files/{MISSING}", {"DELETE", "GET", "HEAD"}),
        ("POST", f"/v1/files/{MISSING}", {"DELETE", "GET", "HEAD"}),
        ("DELETE", f"/v1/files/{MISSING}/content", {"GET", "HEAD"}),
    ],
)
def test_another_method_is_405(http: httpx.Client, method: str, path: str, allowed: set[str]) -> None:
    answer = http.request(method, path)
    assert (answer.status_code, answer.json()["error"]["type"]) == (405, "invalid_request_error")
    assert set(answer.headers["allow"].split(", ")) == allowed


# -- lists -------------------------------------------------------------------------------------------------------------


def test_a_list_says_where_it_begins_and_ends(http: httpx.Client) -> None:
    made = [upload(http)["id"] for _ in range(2)]
    page = http.get("/v1/files", params={"limit": "2"}).json()
    assert (page["object"], page["first_id"], page["last_id"]) == ("list", made[1], made[0])
    none = http.get("/v1/files", params={"purpose": "batch"}).json()
    assert none == {"object": "list", "data": [], "has_more": False, "first_id": None, "last_id": None}


@pytest.mark.parametrize(
    ("query", "status", "sentence"),
    [
        ("limit=0", 400, "limit must be at least 1, not 0."),
        ("limit=many", 400, "limit must be a whole number, not 'many'."),
        ("order=up", 400, "order must be asc or desc, not 'up'."),
        ("purpose=poetry", 400, "purpose must be one of assistants, user_data, vision, not 'poetry'."),
        ("purpose=%00", 400, "The query may not hold NUL"),
        ("after=file-abc", 400, "after: 'file-abc' is no id"),
        (f"after={MISSING}", 404, "There is no artifact"),
    ],
)
def test_a_bad_page_of_files_is_refused_by_name(http: httpx.Client, query: str, status: int, sentence: str) -> None:
    answer = http.get(f"/v1/files?{query}")
    assert answer.status_code == status
    assert sentence in answer.json()["error"]["message"]


def test_a_limit_above_the_highest_and_an_unknown_parameter_are_no_errors(http: httpx.Client) -> None:
    assert http.get("/v1/files?limit=99999&colour=red").status_code == 200


# -- bad uploads -------------------------------------------------------------------------------------------------------

FORM = {"Content-Type": "multipart/form-data; boundary=b"}


def part(name: str, content: bytes = b"words", more: str = "") -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + content + b"\r\n"


def file_part(content: bytes = b"words", filename: str = "a.txt", more: str = "") -> bytes:
    return part("file", content, f'; filename="{filename}"{more}')


PURPOSE = part("purpose", b"user_data")
END = b"--b--\r\n"
BAD = {
    "no file": (PURPOSE + END, 400, "file is required"),
    "no purpose": (file_part() + END, 400, "purpose is required."),
    "an empty file": (PURPOSE + file_part(b"") + END, 400, "file: it has zero bytes"),
    "a purpose that is not run": (part("purpose", b"batch") + file_part() + END, 400, "does not run batches"),
    "another not run": (part("purpose", b"evals") + file_part() + END, 400, "does not run evaluations"),
    "a bad purpose": (
        part("purpose", b"poetry") + file_part() + END,
        400,
        "purpose must be one of assistants, user_data, vision, not 'poetry'.",
    ),
    "a bad purpose after the file": (file_part() + part("purpose", b"poetry") + END, 400, "not 'poetry'"),
    "two files": (PURPOSE + file_part() + file_part() + END, 400, "One file is taken"),
    "two files of other names": (PURPOSE + file_part() + part("b", b"", '; filename="b"') + END, 400, "One file"),
    "a nested form": (
        PURPOSE + file_part(more="\r\nContent-Type: multipart/mixed; boundary=c") + END,
        400,
        "file: a part may not be a form itself.",
    ),
    "ten thousand fields": (
        PURPOSE + file_part() + b"".join(part(f"f{i}") for i in range(10_000)) + END,
        400,
        "A form may have at most 64 fields.",
    ),
    "a field of megabytes": (file_part() + part("purpose", bytes(2 * MIB)) + END, 400, "at most 65,536 bytes"),
    "a field twice": (PURPOSE + file_part() + PURPOSE + END, 400, "purpose: it came twice"),
    "truncated": (PURPOSE + file_part(b"words" * 10_000)[:-20], 400, "ends before its last boundary"),
    "truncated before its end": (PURPOSE + file_part(), 400, "ends before its last boundary"),
    "another boundary": (PURPOSE.replace(b"--b", b"--c"), 400, "malformed"),
    "a name of 10,000 characters": (
        PURPOSE + file_part(filename="ü" * 10_000) + END,
        400,
        "file: its name may have at most 255 characters; 10,000 came.",
    ),
    "a control character": (PURPOSE + file_part(filename="a\x1b[2Jb") + END, 400, "control characters"),
    "a newline": (PURPOSE + file_part(filename="a\nb") + END, 400, "control characters"),
    "a NUL": (PURPOSE + file_part(filename="a\0b") + END, 400, "control characters or NUL"),
    "a path": (PURPOSE + file_part(filename="../../etc/passwd") + END, 400, "a name is not a path, and '../../etc"),
    "a path of backslashes": (PURPOSE + file_part(filename="..\\\\a") + END, 400, "a name is not a path"),
    "a folder": (PURPOSE + file_part(filename="..") + END, 400, "a name is not a path"),
    "a bad type": (PURPOSE + file_part(more="\r\nContent-Type: words") + END, 400, "must be a media type"),
    "a long type": (PURPOSE + file_part(more=f"\r\nContent-Type: a/{'b' * 300}") + END, 400, "must be a media type"),
    "no anchor": (
        PURPOSE + part("expires_after[seconds]", b"3600") + file_part() + END,
        400,
        "expires_after[anchor] must be created_at; none came.",
    ),
    "another anchor": (
        PURPOSE + part("expires_after[anchor]", b"last_active_at") + file_part() + END,
        400,
        "expires_after[anchor] must be created_at; 'last_active_at' came.",
    ),
    **{
        f"{seconds} seconds": (
            PURPOSE
            + file_part()
            + part("expires_after[anchor]", b"created_at")
            + part("expires_after[seconds]", seconds.encode())
            + END,
            400,
            "expires_after[seconds] must be a whole number from 3600 to 2592000",
        )
        for seconds in ("3599", "2592001", "3600.5", "-3600", "", "9" * 100, "٣٦٠٠")
    },
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_upload_says_what_is_wrong_and_leaves_nothing(platform: Platform, http: httpx.Client, what: str) -> None:
    content, status, sentence = BAD[what]
    before = platform.counts()
    answer = http.post("/v1/files", content=content, headers=FORM)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert sentence in error["message"]
    assert error["type"] == "invalid_request_error"
    assert platform.counts() == before


@pytest.mark.parametrize("content_type", ["multipart/form-data", "application/json", "multipart/mixed; boundary=b"])
def test_a_body_without_a_boundary_is_a_415(http: httpx.Client, content_type: str) -> None:
    answer = http.post("/v1/files", content=PURPOSE + file_part() + END, headers={"Content-Type": content_type})
    assert (answer.status_code, answer.json()["error"]["param"]) == (415, "Content-Type")


def test_a_field_after_the_file_is_as_good_as_one_before(http: httpx.Client) -> None:
    fields = part("expires_after[anchor]", b"created_at") + part("expires_after[seconds]", b"3600")
    answer = http.post("/v1/files", content=file_part() + part("purpose", b"vision") + fields + END, headers=FORM)
    assert answer.status_code == 201, answer.text
    file = http.get(f"/v1/files/{answer.json()['id']}").json()
    assert (file["purpose"], file["expires_at"]) == ("vision", file["created_at"] + 3600)
    http.delete(f"/v1/files/{file['id']}")


def test_names_that_are_merely_odd_are_kept(http: httpx.Client) -> None:
    for name in ("..a", "a..b", "%00", " ", "x" * 255, "👩‍👩‍👧 1\u202f2.png", "CON", "-rf", "$(id)"):
        assert upload(http, name=name)["filename"] == name


@pytest.mark.parametrize("is_announced", [True, False])
def test_a_file_over_64_mib_is_a_413(platform: Platform, http: httpx.Client, is_announced: bool) -> None:
    before = platform.counts()

    def chunks() -> Iterator[bytes]:
        yield PURPOSE + file_part(b"")[:-2]
        for _ in range(65):
            yield bytes(MIB)
        yield b"\r\n" + END

    length = {"Content-Length": str(sum(map(len, chunks())))} if is_announced else {}
    answer = http.post("/v1/files", content=chunks(), headers=FORM | length)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")
    assert "67,108,864 bytes" in answer.json()["error"]["message"]
    assert platform.counts() == before


def head_of(platform: Platform, *lines: str) -> bytes:
    host = platform.url.removeprefix("http://")
    return "\r\n".join(
        ["POST /v1/files HTTP/1.1", f"Host: {host}", *map(": ".join, FORM.items()), *lines, "", ""]
    ).encode()


def say(platform: Platform, raw: bytes, then_close: bool = False) -> bytes:
    """The first of what the server answers to these bytes."""
    host, port = platform.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connected:
        connected.sendall(raw)
        if then_close:
            connected.shutdown(socket.SHUT_WR)
        return connected.recv(65536)


def test_a_body_announced_over_the_cap_is_refused_before_it_comes(platform: Platform) -> None:
    assert say(platform, head_of(platform, f"Content-Length: {80 * MIB}")).startswith(b"HTTP/1.1 413 ")


def test_a_content_length_that_is_too_small_is_a_400(platform: Platform) -> None:
    before = platform.counts()
    body = PURPOSE + file_part() + END
    answer = say(platform, head_of(platform, f"Content-Length: {len(body) - 20}") + body)
    assert answer.startswith(b"HTTP/1.1 400 ")
    until(lambda: platform.counts() == before)


@pytest.mark.parametrize("then_close", [True, False])
def test_a_content_length_that_is_too_large_leaves_nothing(platform: Platform, then_close: bool) -> None:
    """The server waits for what was announced, and the client goes."""
    before = platform.counts()
    body = PURPOSE + file_part(b"words" * MIB) + END
    raw = head_of(platform, f"Content-Length: {len(body) + 20}") + body
    if then_close:
        say(platform, raw, then_close=True)
    else:
        host, port = platform.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as connected:
            connected.sendall(raw)
            until(lambda: pending(platform) > 0)
    until(lambda: platform.counts() == before)


def pending(platform: Platform) -> int:
    return int(platform.rows("SELECT count(*) FROM inclavate_artifact WHERE state = 'pending'")[0][0])


@pytest.mark.parametrize("refused", [True, False])
def test_memory_stays_flat_whatever_comes(platform: Platform, http: httpx.Client, refused: bool) -> None:
    def chunks() -> Iterator[bytes]:
        yield PURPOSE + file_part(b"")[:-2]
        for _ in range(63):
            yield bytes(MIB)
        yield b"\r\n"
        if refused:
            for i in range(10_000):
                yield part(f"f{i}", bytes(60_000))
        yield END

    upload(http)
    web = platform.part("web")
    before = web.memory_info().rss
    restart_peak(web)
    answer = http.post("/v1/files", content=chunks(), headers=FORM)
    assert answer.status_code == (400 if refused else 201), answer.text
    grown = peak(web) - before
    assert grown < 48 * MIB
    if not refused:
        http.delete(f"/v1/files/{answer.json()['id']}")


def restart_peak(process: psutil.Process) -> None:
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def peak(process: psutil.Process) -> int:
    """The most memory that it had, in bytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024


# -- the verbs ---------------------------------------------------------------------------------------------------------


def keep(owner: Owner, purpose: str = "user_data", expires_after: timedelta | None = None) -> Artifact:
    draft = artifacts.begin(owner, Artifact.Origin.UPLOADED, "text/plain", filename="a.txt")
    draft.write(b"words")
    draft.label(purpose, expires_after)
    return draft.finish()


texts = st.text(max_size=300).map(lambda text: text.encode(errors="ignore")) | st.binary(max_size=300)


@pytest.mark.database
@pytest.mark.usefixtures("database")
def test_whatever_a_form_says_is_kept_as_it_was_or_refused() -> None:
    bearer = {"Authorization": f"Bearer {accounts.create_key(accounts.create_user('ann'), 'laptop')}"}

    @hypothesis_settings(max_examples=100, deadline=None)
    @given(texts, texts, st.sampled_from([b"user_data", b"vision"]) | texts)
    def check(name: bytes, media_type: bytes, purpose: bytes) -> None:
        head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\nContent-Type: %s\r\n\r\n'
        body = head % (name, media_type) + b"words\r\n" + part("purpose", purpose) + END
        answer = ask("POST", "/v1/files", content=body, headers=FORM | bearer)
        assert answer.status_code in (201, 400), answer.text
        if answer.status_code == 201:
            kept = ask("GET", f"/v1/files/{answer.json()['id']}", headers=bearer)
            assert kept.json() == answer.json()

    check()


@pytest.mark.database
def test_files_of_one_instant_are_each_listed_once(alice: Owner, bob: Owner) -> None:
    made = [keep(alice) for _ in range(7)]
    keep(bob)
    keep(alice, purpose="")
    artifacts.begin(alice, Artifact.Origin.UPLOADED, "text/plain").label("user_data", None)
    Artifact.objects.filter(owner=alice).update(created_at=made[0].created_at)
    expected = sorted(file.pk for file in made)
    for is_oldest_first in (True, False):
        seen: list[uuid.UUID] = []
        after = None
        while len(page := walk(alice, after, is_oldest_first).rows):
            seen += [row.pk for row in page]
            after = seen[-1]
        assert seen == (expected if is_oldest_first else expected[::-1])


def walk(owner: Owner, after: uuid.UUID | None, is_oldest_first: bool) -> artifacts.Page[Artifact]:
    return artifacts.page_of_files(owner, limit=2, after=after, is_oldest_first=is_oldest_first)


@pytest.mark.database
@pytest.mark.parametrize("purpose", [None, "vision"])
@pytest.mark.parametrize("is_oldest_first", [True, False])
def test_a_deep_page_of_files_is_sought_by_an_index(alice: Owner, purpose: str | None, is_oldest_first: bool) -> None:
    anchor = keep(alice, "vision")
    with CaptureQueriesContext(connection) as queries:
        artifacts.page_of_files(alice, limit=2, after=anchor.pk, purpose=purpose, is_oldest_first=is_oldest_first)
    plan = explain(queries.captured_queries[-1]["sql"])
    assert ("artifact_files_of_purpose" if purpose else "artifact_files") in plan
    assert "created_at" in plan
    assert "TEMP B-TREE" not in plan
    assert "Sort" not in plan


def explain(query: str) -> str:
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute(f"EXPLAIN QUERY PLAN {query}")
        else:
            # A table of one row is sooner read whole.
            cursor.execute("SET enable_seqscan = off")
            cursor.execute("SET enable_bitmapscan = off")
            cursor.execute(f"EXPLAIN {query}")
        plan = "\n".join(str(row) for row in cursor.fetchall())
        if connection.vendor != "sqlite":
            cursor.execute("RESET ALL")
        return plan


@pytest.mark.database
@pytest.mark.parametrize(("hours", "expected"), [(0.0, 7200), (1.0, 3600), (3.0, 7200)])
def test_the_earlier_of_the_files_own_expiry_and_the_deployments_holds(
    alice: Owner, monkeypatch: pytest.MonkeyPatch, hours: float, expected: int
) -> None:
    monkeypatch.setattr(settings, "ARTIFACT_TTL_HOURS", hours)
    file = keep(alice, expires_after=timedelta(hours=2))
    kept = Artifact.objects.get(pk=file.pk)
    assert kept.expires_at == kept.created_at + timedelta(seconds=expected)


@pytest.mark.database
def test_an_expired_file_is_swept_and_no_other(alice: Owner) -> None:
    stays, goes = keep(alice), keep(alice, expires_after=timedelta(hours=1))
    assert artifacts.sweep(goes.created_at + timedelta(minutes=59)) == 0
    assert artifacts.sweep(goes.created_at + timedelta(minutes=61)) == 1
    assert [row.pk for row in artifacts.page_of_files(alice, limit=10).rows] == [stays.pk]
    assert artifacts.usage_mismatches() == []

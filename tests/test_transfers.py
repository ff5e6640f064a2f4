"""Bytes over a real socket: in parts, as a ZIP, checked by a digest, and past us to the store."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx
import pytest

from storage import PART_BYTES
from tests import platforms
from tests.driving import until
from tests.faultproxy import FaultProxy, Mode
from tests.platforms import Platform

WHOLE = os.urandom(PART_BYTES + 12_345)
DIGEST = hashlib.sha256(WHOLE).hexdigest()
MISSING = "7d444840-9dc0-41d1-b245-5ffdce74fad2"


@pytest.fixture
def http(platform: Platform) -> Iterator[httpx.Client]:
    with platform.http as client:
        yield client


def uploaded(http: httpx.Client, content: bytes, media_type: str = "audio/flac") -> str:
    answer = http.post("/v1/artifacts", content=content, headers={"Content-Type": media_type})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


# -- parts -------------------------------------------------------------------------------------------------------------


def begun(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = http.post("/v1/artifacts/uploads", json={"size_bytes": len(WHOLE), "media_type": "video/mp4"} | fields)
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_an_upload_in_parts_is_resumed_and_becomes_an_artifact(platform: Platform, http: httpx.Client) -> None:
    upload = begun(http, digest=DIGEST)
    assert (upload["parts"], upload["part_bytes"], upload["received"]) == (2, PART_BYTES, [])
    at = f"/v1/artifacts/uploads/{upload['id']}"
    last = http.put(f"{at}/parts/2", content=WHOLE[PART_BYTES:])
    assert (last.status_code, last.json()) == (200, {"number": 2, "size_bytes": 12_345})
    # Another day, another client: it asks what is there.
    with platform.http as another:
        assert another.get(at).json()["received"] == [2]
        early = another.post(f"{at}/complete")
        assert (early.status_code, early.json()["code"]) == (409, "not_ready")
        assert another.put(f"{at}/parts/1", content=iter([WHOLE[:100], WHOLE[100:PART_BYTES]])).status_code == 200
        whole = another.post(f"{at}/complete")
    assert whole.status_code == 201
    assert {k: whole.json()[k] for k in ("id", "digest", "size_bytes", "state", "media_type")} == {
        "id": upload["id"],
        "digest": DIGEST,
        "size_bytes": len(WHOLE),
        "state": "ready",
        "media_type": "video/mp4",
    }
    assert http.get(f"/v1/artifacts/{upload['id']}").content == WHOLE
    assert http.get(at).status_code == 404


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"size_bytes": 0}, "size_bytes"),
        ({"size_bytes": "7"}, "size_bytes"),
        ({"size_bytes": None}, "size_bytes"),
        ({"media_type": "no type"}, "media_type"),
        ({"media_type": "audio/wav\r\n\r\n;x"}, "media_type"),
        ({"media_type": "audio/wav\u2028;x"}, "media_type"),
        ({"digest": "abc"}, "digest"),
        ({"filename": "a"}, "filename is no field"),
    ],
)
def test_a_bad_begin_names_its_field_and_leaves_nothing(
    platform: Platform, http: httpx.Client, fields: dict[str, Any], sentence: str
) -> None:
    before = platform.counts()
    answer = http.post("/v1/artifacts/uploads", json={"size_bytes": 5} | fields)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert sentence in answer.json()["error"]
    assert platform.counts() == before


def test_more_than_five_gibibytes_are_a_413(http: httpx.Client) -> None:
    answer = http.post("/v1/artifacts/uploads", json={"size_bytes": 5 * 2**30 + 1})
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


def test_a_wrong_part_is_refused_and_the_upload_stays(platform: Platform, http: httpx.Client) -> None:
    before = platform.counts()
    upload = begun(http)
    at = f"/v1/artifacts/uploads/{upload['id']}"
    tail = WHOLE[PART_BYTES:]
    for number, content, status in (
        ("2", tail + b"x", 413),
        ("2", iter([tail, b"x"]), 413),
        ("2", tail[:-1], 400),
        ("3", b"x", 400),
        ("0", b"x", 400),
        ("one", b"x", 400),
    ):
        assert http.put(f"{at}/parts/{number}", content=content).status_code == status, number
    assert http.get(at).json()["received"] == []
    assert http.post(f"{at}/complete", json={"digest": "0"}).status_code == 400
    assert http.delete(at).status_code == 204
    assert http.delete(at).status_code == 404
    assert http.put(f"{at}/parts/2", content=tail).status_code == 404
    assert platform.counts() == before


def test_a_client_that_goes_in_the_middle_of_a_part_leaves_nothing_of_it(
    platform: Platform, http: httpx.Client
) -> None:
    upload = begun(http)
    at = f"/v1/artifacts/uploads/{upload['id']}"

    def cut() -> Iterator[bytes]:
        yield WHOLE[: 2**21]
        raise RuntimeError("the client's disk broke")

    with pytest.raises(RuntimeError), platform.http as broken:
        broken.put(f"{at}/parts/1", content=cut())
    assert http.get(at).json()["received"] == []
    assert http.delete(at).status_code == 204


def test_a_whole_with_another_digest_is_refused_and_kept_nowhere(platform: Platform, http: httpx.Client) -> None:
    before = platform.counts()
    at = f"/v1/artifacts/uploads/{begun(http, size_bytes=5)['id']}"
    http.put(f"{at}/parts/1", content=b"12345")
    answer = http.post(f"{at}/complete", json={"digest": DIGEST})
    assert (answer.status_code, "digest" in answer.json()["error"]) == (400, True)
    assert platform.counts() == before


# -- a digest that comes along -----------------------------------------------------------------------------------------


def test_an_upload_is_held_to_the_digest_that_came_with_it(platform: Platform, http: httpx.Client) -> None:
    for said in (DIGEST, DIGEST.upper()):
        answer = http.post("/v1/artifacts", content=WHOLE, headers={"x-content-sha256": said})
        assert (answer.status_code, answer.json()["digest"]) == (201, DIGEST)
    before = platform.counts()
    for said in ("0" * 64, "abc", "UNSIGNED-PAYLOAD"):
        answer = http.post("/v1/artifacts", content=WHOLE, headers={"x-content-sha256": said})
        assert (answer.status_code, "x-content-sha256" in answer.json()["error"]) == (400, True)
    assert platform.counts() == before


def test_a_part_and_a_file_are_held_to_their_digests_too(platform: Platform, http: httpx.Client) -> None:
    before = platform.counts()
    tail, wrong = WHOLE[PART_BYTES:], {"x-content-sha256": "0" * 64}
    right = {"x-content-sha256": hashlib.sha256(tail).hexdigest()}
    at = f"/v1/artifacts/uploads/{begun(http)['id']}"
    assert http.put(f"{at}/parts/2", content=tail, headers=wrong).status_code == 400
    assert http.get(at).json()["received"] == []
    assert http.put(f"{at}/parts/2", content=tail, headers=right).status_code == 200
    assert http.delete(at).status_code == 204
    form = {"data": {"purpose": "user_data"}, "files": {"file": ("a.bin", tail)}}
    assert http.post("/v1/files", headers=wrong, **form).status_code == 400
    assert platform.counts() == before
    assert http.post("/v1/files", headers=right, **form).status_code == 201


# -- leaving early -----------------------------------------------------------------------------------------------------


def test_downloads_that_are_left_let_go_of_their_files(platform: Platform, http: httpx.Client) -> None:
    path = f"/v1/artifacts/{uploaded(http, WHOLE * 4)}"
    web = platform.part("web")

    def open_objects() -> int:
        return sum("/objects/" in file.path for file in web.open_files())

    for _ in range(10):
        with platform.http as client, client.stream("GET", path) as answer:
            next(answer.iter_raw(1000))
    until(lambda: open_objects() == 0)
    assert http.get(path).content == WHOLE * 4


# -- archives ----------------------------------------------------------------------------------------------------------


def test_several_artifacts_come_as_one_zip(http: httpx.Client) -> None:
    contents = [b"one" * 1000, WHOLE, b"x"]
    ids = [uploaded(http, content) for content in contents]
    answer = http.get("/v1/artifacts/archive", params={"ids": ",".join(ids)})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/zip")
    with zipfile.ZipFile(io.BytesIO(answer.content)) as packed:
        assert packed.testzip() is None
        assert [packed.read(name) for name in packed.namelist()] == contents
        assert packed.namelist() == [f"{i}.flac" for i in ids]


def test_ids_may_come_one_by_one_and_each_counts_once(http: httpx.Client) -> None:
    first, second = uploaded(http, b"first"), uploaded(http, b"second")
    answer = http.get(f"/v1/artifacts/archive?ids={first}&ids={second}&ids={first}")
    with zipfile.ZipFile(io.BytesIO(answer.content)) as packed:
        assert len(packed.namelist()) == 2


@pytest.mark.parametrize(
    ("ids", "status", "code"),
    [
        ("", 400, "invalid_request"),
        ("nonsense", 400, "invalid_request"),
        (MISSING, 404, "not_found"),
        (",".join(f"{n:08x}-0000-4000-8000-000000000000" for n in range(1001)), 400, "invalid_request"),
    ],
)
def test_a_bad_archive_is_refused_before_it_begins(http: httpx.Client, ids: str, status: int, code: str) -> None:
    answer = http.get("/v1/artifacts/archive", params={"ids": ids})
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_names_in_an_archive_are_plain_and_differ() -> None:
    from inclavate.faces.native.archive import _free_name

    taken: set[str] = set()
    names = [_free_name(name, taken) for name in ("a.wav", "A.WAV", "../../etc/passwd", "..", "", "日" * 200 + ".wav")]
    assert names == ["a.wav", "A (2).WAV", "_.._etc_passwd", "artifact", "artifact (2)", "日" * 66 + ".wav"]


# -- other methods -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/artifacts/uploads", "POST"),
        ("POST", "/v1/artifacts/archive", "GET, HEAD"),
        ("PUT", f"/v1/artifacts/uploads/{MISSING}/complete", "POST"),
        ("POST", f"/v1/artifacts/uploads/{MISSING}/parts/1", "PUT"),
    ],
)
def test_a_word_is_never_taken_for_an_id(http: httpx.Client, method: str, path: str, allowed: str) -> None:
    answer = http.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


# -- past us, to the store ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def direct(tmp_path_factory: pytest.TempPathFactory, rclone_url: str) -> Iterator[Platform]:
    folder: Path = tmp_path_factory.mktemp("direct")
    with platforms.running(folder, STORE_URL=rclone_url, STORE_REDIRECT="on") as running:
        yield running


def test_a_download_is_sent_to_the_store_under_our_headers(direct: Platform) -> None:
    with direct.http as http:
        path = f"/v1/artifacts/{uploaded(http, WHOLE)}"
        sent = http.get(path)
        assert (sent.status_code, sent.headers["cache-control"]) == (307, "no-store")
        assert not sent.headers["location"].startswith(direct.url)
        assert http.head(path).headers["content-length"] == str(len(WHOLE))
        assert http.get(path, headers={"Range": f"bytes={len(WHOLE)}-"}).status_code == 416
        etag = http.head(path).headers["etag"]
        assert http.get(path, headers={"If-None-Match": etag}).status_code == 304
        got = http.get(path, follow_redirects=True)
    assert got.content == WHOLE
    assert got.headers["content-disposition"].startswith("attachment")


def test_parts_go_to_the_store_by_urls_of_its_own(direct: Platform) -> None:
    with direct.http as http:
        upload = begun(http, digest=DIGEST)
        assert set(upload["part_urls"]) == {"1", "2"}
        for number, url in upload["part_urls"].items():
            content = WHOLE[:PART_BYTES] if number == "1" else WHOLE[PART_BYTES:]
            assert httpx.put(url, content=content, timeout=60).status_code == 200
        at = f"/v1/artifacts/uploads/{upload['id']}"
        until(lambda: http.get(at).json()["received"] == [1, 2])
        assert http.post(f"{at}/complete").json()["digest"] == DIGEST
        assert http.get(f"/v1/artifacts/{upload['id']}", follow_redirects=True).content == WHOLE


# -- a store that hangs ------------------------------------------------------------------------------------------------


def test_a_store_that_hangs_holds_up_bytes_alone(tmp_path: Path, rclone_url: str) -> None:
    parts = urlsplit(rclone_url)
    options = dict(parse_qsl(parts.query))
    behind = urlsplit(options["endpoint"])
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(behind.hostname or "", behind.port or 0))
        options["endpoint"] = f"http://127.0.0.1:{proxy.port}"
        url = parts._replace(query=urlencode(options)).geturl()
        platform = stack.enter_context(platforms.running(tmp_path, STORE_URL=url))
        http = stack.enter_context(platform.http)
        path = f"/v1/artifacts/{uploaded(http, WHOLE)}"
        proxy.set(Mode.STALL)
        threads = stack.enter_context(ThreadPoolExecutor(20))
        downloads = [threads.submit(httpx.get, platform.url + path, timeout=300) for _ in range(20)]
        until(lambda: proxy.counts[Mode.STALL] >= 8)
        assert http.get("/health").json()["ok"]
        assert http.get("/v1/generations?limit=1").status_code == 200
        job = platform.submit(model="test-tone", modality="audio", params={"text": "a"})
        assert http.get(f"/v1/generations/{job['id']}").status_code == 200
        proxy.set(Mode.PASS)
        # Those that hung too long were told so; the others are whole.
        answers = [download.result() for download in downloads]
        assert {answer.status_code for answer in answers} <= {200, 503}
        assert {answer.content for answer in answers if answer.status_code == 200} <= {WHOLE}

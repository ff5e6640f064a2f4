"""What only a store in a bucket meets: its URL's options, wrong credentials, a wrong clock, and servers gone or odd.

rclone checks credentials, signatures and times; moto knows of encryption.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

import botocore.auth
import httpx
import pytest

from storage import PART_BYTES, Part, Store, StoreError, StoreFull, open_store
from tests import servers
from tests.storing import BIG, get, part_bytes, put, send_part, soon


def with_parts(
    url: str, *, credentials: str | None = None, bucket: str | None = None, endpoint: str | None = None
) -> str:
    parts = urlsplit(url)
    own_credentials, _, own_bucket = parts.netloc.rpartition("@")
    options = {name: values[0] for name, values in parse_qs(parts.query).items()}
    options |= {"endpoint": endpoint} if endpoint else {}
    who = own_credentials if credentials is None else credentials
    netloc = f"{who}@{bucket or own_bucket}" if who else bucket or own_bucket
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in options.items())
    return parts._replace(netloc=netloc, query=query).geturl()


def endpoint_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["endpoint"][0]


def every_failure(url: str) -> list[BaseException]:
    """What each operation raises."""
    store = open_store(url)

    def write(size: int) -> None:
        put(store, "a", bytes(size))

    calls: list[Callable[[], object]] = [
        lambda: write(1),
        lambda: write(len(BIG)),
        lambda: store.read("a"),
        lambda: store.read("a", 1, 3),
        lambda: store.size("a"),
        lambda: store.delete("a"),
        lambda: list(store.entries()),
        lambda: store.sweep(soon()),
        lambda: store.begin_parts("a"),
        lambda: send_part(store, "a", "0" * 32, 1, b"x"),
        lambda: store.parts("a", "0" * 32),
        lambda: store.complete_parts("a", "0" * 32),
        lambda: store.abort_parts("a", "0" * 32),
    ]

    def failure(call: Callable[[], object]) -> BaseException:
        with pytest.raises(StoreError) as caught:
            call()
        return caught.value

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(failure, calls))


def assert_told(failures: list[BaseException], *words: str, secrets: tuple[str, ...]) -> None:
    for failure in failures:
        assert type(failure) is StoreError
        assert all(word in str(failure) for word in words), str(failure)
        shown = "".join(traceback.format_exception(failure)) + repr(failure)
        assert not any(secret in shown for secret in secrets)


def test_a_missing_bucket_is_told_and_not_taken_for_missing_objects(rclone_url: str, moto_url: str) -> None:
    for url in (rclone_url, moto_url):
        secret = urlsplit(url).password or ""
        failures = every_failure(with_parts(url, bucket="no-such-bucket"))
        assert_told(failures, "no-such-bucket", endpoint_of(url), "NoSuchBucket", secrets=(secret, unquote(secret)))


def test_wrong_credentials_are_told_without_being_shown(rclone_url: str) -> None:
    # Not on moto, which takes any.
    key = urlsplit(rclone_url).username or ""
    for credentials in (f"{key}:WRONG%2FSECRETWORD", "UNKNOWNKEYWORD:WRONG%2FSECRETWORD"):
        failures = every_failure(with_parts(rclone_url, credentials=credentials))
        assert_told(failures, servers.BUCKET, endpoint_of(rclone_url), secrets=("SECRETWORD", "UNKNOWNKEYWORD", key))


def test_an_endpoint_that_nobody_answers_is_told() -> None:
    endpoint = f"http://127.0.0.1:{servers.free_port()}"
    failures = every_failure(f"s3://SOMEKEY:SECRETWORD@objects/p?endpoint={quote(endpoint, safe='')}")
    assert_told(failures, "objects", endpoint, secrets=("SECRETWORD", "SOMEKEY"))


def test_without_credentials_in_the_url_boto3s_own_are_used(rclone_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = urlsplit(rclone_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", unquote(parts.username or ""))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", unquote(parts.password or ""))
    store = open_store(with_parts(rclone_url, credentials=""))
    put(store, "from-the-environment", b"x")
    assert get(open_store(rclone_url), "from-the-environment") == b"x"
    store.delete("from-the-environment")


def without_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))


def test_no_credentials_at_all_are_told(rclone_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_credentials(monkeypatch, tmp_path)
    assert_told(every_failure(with_parts(rclone_url, credentials="")), servers.BUCKET, "credentials", secrets=("\0",))


@pytest.mark.parametrize("minutes", [20, -20])
def test_a_clock_that_is_wrong_by_twenty_minutes_is_told(
    rclone_url: str, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    # Not on moto, which looks at no time. The clock is botocore's.
    clock = botocore.auth.get_current_datetime
    monkeypatch.setattr(
        botocore.auth,
        "get_current_datetime",
        lambda *args, **kwargs: clock(*args, **kwargs) + timedelta(minutes=minutes),
    )
    failures = every_failure(rclone_url)
    assert_told(failures, servers.BUCKET, "time", "too large" if minutes > 0 else "exceeds", secrets=("\0",))


@dataclass(frozen=True)
class Seen:
    """A request that came."""

    path: str
    headers: Message


@dataclass
class OddServer:
    """Has one answer to everything, and such as no server that we run gives."""

    url: str
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    seen: list[Seen] = field(default_factory=list)

    def store(self, credentials: str = "KEY:SECRET", options: str = "") -> Store:
        who = f"{credentials}@" if credentials else ""
        return open_store(f"s3://{who}objects/p?endpoint={quote(self.url, safe='')}{options}")


@pytest.fixture
def odd_server() -> Iterator[OddServer]:
    class Handler(BaseHTTPRequestHandler):
        # For the leave to send a body.
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            odd.seen.append(Seen(self.path, self.headers))
            self.send_response(odd.status)
            for name, value in odd.headers.items():
                self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(odd.body)

        do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        odd = OddServer(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield odd
        server.shutdown()
        thread.join()


# -- what a request says ---------------------------------------------------------------------------------------------


@pytest.fixture
def yes(odd_server: OddServer) -> OddServer:
    """It says yes to what begins, fills and removes objects."""
    odd_server.body = b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>"
    odd_server.headers = {"Content-Length": str(len(odd_server.body)), "ETag": '"e"'}
    return odd_server


def test_path_style_has_the_bucket_in_the_path(yes: OddServer) -> None:
    yes.store().delete("a")
    assert (yes.seen[0].path, f"http://{yes.seen[0].headers['Host']}") == ("/objects/p/a", yes.url)


def test_virtual_style_has_the_bucket_in_the_name_of_the_host(yes: OddServer, monkeypatch: pytest.MonkeyPatch) -> None:
    # The server is asked as a proxy, because no such name leads to loopback.
    monkeypatch.setenv("http_proxy", yes.url)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    open_store("s3://KEY:SECRET@objects/p?endpoint=http://s3.test:9000&style=virtual").delete("a")
    assert yes.seen[0].headers["Host"] == "objects.s3.test:9000"
    assert yes.seen[0].path == "http://objects.s3.test:9000/p/a"


def test_requests_have_signatures_of_version_4_and_no_checksum_that_is_not_required(yes: OddServer) -> None:
    store = yes.store(options="&region=eu-west-3")
    put(store, "a", b"x")
    send_part(store, "a", store.begin_parts("a"), 1, b"x")
    assert len(yes.seen) == 3
    for request in yes.seen:
        assert request.headers["Authorization"].startswith("AWS4-HMAC-SHA256 Credential=KEY/")
        assert "/eu-west-3/s3/" in request.headers["Authorization"]
        assert not [name for name in request.headers if "checksum" in name.lower()]
        assert "aws-chunked" not in request.headers.get("Content-Encoding", "")


def test_a_session_token_goes_with_each_request(yes: OddServer) -> None:
    store = yes.store("KEY:SECRET:TO%2FK%3AEN")
    put(store, "a", b"x")
    store.begin_parts("a")
    assert [request.headers["X-Amz-Security-Token"] for request in yes.seen] == ["TO/K:EN", "TO/K:EN"]
    assert "X-Amz-Security-Token=TO%2FK%3AEN" in str(store.download_url("a", "audio/wav", "inline", 60))


def test_a_session_token_is_not_shown_in_errors(rclone_url: str) -> None:
    key = urlsplit(rclone_url).username or ""
    failures = every_failure(with_parts(rclone_url, credentials=f"{key}:WRONGWORD:TOKEN%2FWORD"))
    assert_told(failures, servers.BUCKET, secrets=("WORD", "TOKEN"))


def test_a_session_token_of_the_environment_is_used(yes: OddServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ACCESS_KEY_ID": "K", "SECRET_ACCESS_KEY": "S", "SESSION_TOKEN": "T"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    yes.store(credentials="").delete("a")
    assert yes.seen[0].headers["X-Amz-Security-Token"] == "T"


ENCRYPTIONS = {
    "": (None, None),
    "&sse=AES256": ("AES256", None),
    "&sse=aws:kms": ("aws:kms", None),
    "&sse=aws:kms&sse_key=arn:aws:kms:eu-west-3:1:key/k": ("aws:kms", "arn:aws:kms:eu-west-3:1:key/k"),
}


@pytest.mark.parametrize("options", ENCRYPTIONS)
def test_what_begins_an_object_says_how_to_encrypt_it(yes: OddServer, options: str) -> None:
    store = yes.store(options=options)
    put(store, "a", b"x")
    with suppress(StoreError):
        # Its completion gets a wrong answer.
        put(store, "a", BIG)
    store.begin_parts("a")
    begun = [request for request in yes.seen if request.path in ("/objects/p/a", "/objects/p/a?uploads")]
    others = [request for request in yes.seen if request not in begun]
    names = ("X-Amz-Server-Side-Encryption", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id")
    assert len(begun) == 3
    assert {tuple(request.headers[name] for name in names) for request in begun} == {ENCRYPTIONS[options]}
    assert others
    assert not any(request.headers[name] for request in others for name in names)


def test_a_server_that_encrypts_gives_the_bytes_back(moto_url: str) -> None:
    store = open_store(f"{moto_url}&sse=AES256")
    for key, content in {"small": b"x", "big": BIG}.items():
        put(store, key, content)
        url = store.download_url(key, "audio/wav", "inline", 60)
        assert httpx.get(str(url)).headers["x-amz-server-side-encryption"] == "AES256"
        assert get(store, key) == content
        store.delete(key)


# -- transfers past this process -------------------------------------------------------------------------------------


@pytest.fixture(params=["rclone_url", "moto_url"])
def either_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def test_a_download_url_gives_the_object_under_its_headers(either_url: str) -> None:
    store = open_store(either_url)
    put(store, "a", BIG)
    disposition = "attachment; filename=\"a.wav\"; filename*=UTF-8''%C3%A9%22.wav"
    url = store.download_url("a", "audio/wav", disposition, 60)
    assert unquote(urlsplit(either_url).password or "") not in unquote(str(url))
    answer = httpx.get(str(url))
    assert answer.content == BIG
    assert (answer.headers["Content-Type"], answer.headers["Content-Disposition"]) == ("audio/wav", disposition)
    part = httpx.get(str(url), headers={"Range": "bytes=3-7"})
    assert part.content == BIG[3:8]
    store.delete("a")
    # moto says 403.
    assert httpx.get(str(url)).status_code in (403, 404)


def test_a_part_url_takes_a_part(either_url: str) -> None:
    store = open_store(either_url)
    token = store.begin_parts("a")
    for number, content in {1: part_bytes(1), 2: b"end"}.items():
        assert httpx.put(str(store.part_url("a", token, number, 60)), content=content).status_code == 200
    assert store.parts("a", token) == [Part(1, PART_BYTES), Part(2, 3)]
    store.complete_parts("a", token)
    assert get(store, "a") == part_bytes(1) + b"end"
    store.delete("a")


def test_a_part_that_came_too_large_by_its_url_is_not_completed(either_url: str) -> None:
    store = open_store(either_url)
    token = store.begin_parts("a")
    httpx.put(str(store.part_url("a", token, 1, 60)), content=bytes(PART_BYTES + 1))
    with pytest.raises(StoreError, match=f"part 1 has {PART_BYTES + 1} bytes"):
        store.complete_parts("a", token)
    store.abort_parts("a", token)


def test_a_url_is_good_for_its_time_and_its_request_only(rclone_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not on moto, which checks no signature.
    store = open_store(rclone_url)
    put(store, "a", b"x")
    url = str(store.download_url("a", "audio/wav", "inline", 60))
    assert httpx.get(url).status_code == 200
    assert httpx.get(url.replace("audio", "video")).status_code == 403
    assert httpx.get(url.replace("/a?", "/b?")).status_code == 403
    assert httpx.put(url, content=b"y").status_code == 403
    clock = botocore.auth.get_current_datetime
    monkeypatch.setattr(
        botocore.auth, "get_current_datetime", lambda *args, **kwargs: clock(*args, **kwargs) - timedelta(seconds=62)
    )
    assert httpx.get(str(store.download_url("a", "audio/wav", "inline", 60))).status_code in (400, 403)
    monkeypatch.undo()
    store.delete("a")


def test_urls_for_others_are_of_the_public_endpoint(rclone_url: str) -> None:
    store = open_store(f"{rclone_url}&public_endpoint=https://files.example.org")
    put(store, "a", b"x")
    token = store.begin_parts("a")
    for url in (store.download_url("a", "audio/wav", "inline", 60), store.part_url("a", token, 1, 60)):
        assert str(url).startswith(f"https://files.example.org/{servers.BUCKET}/tests/a?")
    store.abort_parts("a", token)
    store.delete("a")


def test_a_url_without_credentials_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_credentials(monkeypatch, tmp_path)
    with pytest.raises(StoreError, match="credentials"):
        open_store("s3://objects/p?endpoint=http://127.0.0.1:1").download_url("a", "audio/wav", "inline", 60)


# -- a server of its own kind ----------------------------------------------------------------------------------------


def test_a_listing_goes_past_one_page_and_keeps_to_its_prefix(tmp_path: Path) -> None:
    names = {f"key-{number}" for number in range(1005)}
    bucket = tmp_path / "s3" / servers.BUCKET
    for path in ("many-others/key", "many/Not.A.Key", *(f"many/{name}" for name in names)):
        (bucket / path).parent.mkdir(parents=True, exist_ok=True)
        (bucket / path).write_bytes(b"x")
    with servers.s3_rclone(tmp_path) as url:
        store = open_store(urlsplit(url)._replace(path="/many/").geturl())
        assert {entry.key for entry in store.entries()} == names


@pytest.mark.parametrize(
    "content_range", [None, "bytes 0-9/10", "bytes 2-5/10", "bytes 2-4/3", "bytes 2-4/10", "nonsense"]
)
def test_a_server_that_sends_another_range_is_not_believed(odd_server: OddServer, content_range: str | None) -> None:
    odd_server.status, odd_server.body = 200, b"0123456789"
    odd_server.headers = {"Content-Length": "10"} | ({"Content-Range": content_range} if content_range else {})
    with pytest.raises(StoreError, match="range"):
        odd_server.store().read("a", 2, 5)


def test_a_body_that_is_cut_short_is_an_error(odd_server: OddServer) -> None:
    odd_server.status, odd_server.headers, odd_server.body = 200, {"Content-Length": "10"}, b"01234"
    chunks = odd_server.store().read("a")
    with pytest.raises(StoreError, match="objects"):
        b"".join(chunks)


def test_a_server_without_room_is_told_as_full(odd_server: OddServer) -> None:
    odd_server.status, odd_server.headers, odd_server.body = 507, {"Content-Length": "0"}, b""
    with pytest.raises(StoreFull, match="objects"):
        put(odd_server.store(), "a", b"x")

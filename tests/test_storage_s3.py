"""What only a store in a bucket meets: wrong credentials, a server that is gone, full, or odd."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

from storage import Store, StoreError, StoreFull, open_store
from tests import servers
from tests.storing import BIG, get, put, soon


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


def test_no_credentials_at_all_are_told(rclone_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    assert_told(every_failure(with_parts(rclone_url, credentials="")), servers.BUCKET, "credentials", secrets=("\0",))


def test_a_listing_goes_past_one_page_and_keeps_to_its_prefix(tmp_path: Path) -> None:
    names = {f"key-{number}" for number in range(1005)}
    bucket = tmp_path / "s3" / servers.BUCKET
    for path in ("many-others/key", "many/Not.A.Key", *(f"many/{name}" for name in names)):
        (bucket / path).parent.mkdir(parents=True, exist_ok=True)
        (bucket / path).write_bytes(b"x")
    with servers.s3_rclone(tmp_path) as url:
        store = open_store(urlsplit(url)._replace(path="/many/").geturl())
        assert {entry.key for entry in store.entries()} == names


@dataclass
class OddServer:
    """Has one answer to everything, and such as no server that we run gives."""

    store: Store
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@pytest.fixture(scope="module")
def odd_server() -> Iterator[OddServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(odd.status)
            for name, value in odd.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(odd.body)

        do_PUT = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        odd = OddServer(open_store(f"s3://KEY:SECRET@objects?endpoint=http://127.0.0.1:{server.server_port}"))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield odd
        server.shutdown()


@pytest.mark.parametrize(
    "content_range", [None, "bytes 0-9/10", "bytes 2-5/10", "bytes 2-4/3", "bytes 2-4/10", "nonsense"]
)
def test_a_server_that_sends_another_range_is_not_believed(odd_server: OddServer, content_range: str | None) -> None:
    odd_server.status, odd_server.body = 200, b"0123456789"
    odd_server.headers = {"Content-Length": "10"} | ({"Content-Range": content_range} if content_range else {})
    with pytest.raises(StoreError, match="range"):
        odd_server.store.read("a", 2, 5)


def test_a_body_that_is_cut_short_is_an_error(odd_server: OddServer) -> None:
    odd_server.status, odd_server.headers, odd_server.body = 200, {"Content-Length": "10"}, b"01234"
    chunks = odd_server.store.read("a")
    with pytest.raises(StoreError, match="objects"):
        b"".join(chunks)


def test_a_server_without_room_is_told_as_full(odd_server: OddServer) -> None:
    odd_server.status, odd_server.headers, odd_server.body = 507, {"Content-Length": "0"}, b""
    with pytest.raises(StoreFull, match="objects"):
        put(odd_server.store, "a", b"x")

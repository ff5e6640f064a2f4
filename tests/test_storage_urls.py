"""The URLs that stores are opened by."""

from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from storage import open_store
from tests.storing import assert_empty, put

FOLDER = Path(__file__).resolve().parent.parent


BAD_URLS = {
    "": "begin with",
    "/srv/objects": "begin with",
    "ftp://host/path": "begin with",
    "SECRETWORD": "begin with",
    "file://host/path": "three slashes",
    "file:///": "absolute folder",
    "file:": "absolute folder",
    "file:relative": "absolute folder",
    "file:///a?b=c": r"\?",
    "file:///a%00b": "absolute folder",
    "s3://": "bucket",
    "s3:///prefix": "bucket",
    "s3://KEY:SECRETWORD/prefix": "bucket",
    "s3://KEY:SECRETWORD@": "bucket",
    "s3://KEY:SEC/RETSECRETWORD@bucket": "percent-encode",
    "s3://KEY:SEC?SECRETWORD@bucket": "percent-encode",
    "s3://KEY:SEC#SECRETWORD@bucket": "percent-encode",
    "s3://SECRETWORD@bucket/p": "KEY:SECRET",
    "s3://:SECRETWORD@bucket/p": "KEY:SECRET",
    "s3://KEY:[SECRETWORD@bucket/p": "percent-encoded",
    "s3://KEY:SECRETWORD\u2100@bucket/p": "percent-encoded",
    "s3://KEY:SECRETWORD:@bucket/p": "KEY:SECRET",
    "s3://KEY::SECRETWORD@bucket/p": "KEY:SECRET",
    "s3://KEY:SECRETWORD:TOKEN:MORE@bucket/p": "KEY:SECRET",
    "s3://KEY:SECRETWORD@bucket/p?colour=red": "endpoint, public_endpoint, region, style",
    "s3://KEY:SECRETWORD@bucket/p#fragment": "endpoint, public_endpoint, region, style",
    "s3://KEY:SECRETWORD@bucket/p?region=": "region in an s3: store URL has no value",
    "s3://KEY:SECRETWORD@bucket/p?region=a/b": "region in an s3: store URL has only letters",
    "s3://KEY:SECRETWORD@bucket/p?connect_seconds=0": "connect_seconds in .* is '0', and must be 0.1 to 600",
    "s3://KEY:SECRETWORD@bucket/p?read_seconds=601": "read_seconds .* must be 0.1 to 600",
    "s3://KEY:SECRETWORD@bucket/p?read_seconds=-1": "read_seconds .* must be",
    "s3://KEY:SECRETWORD@bucket/p?read_seconds=soon": "read_seconds .* 'soon'",
    "s3://KEY:SECRETWORD@bucket/p?read_seconds=nan": "read_seconds .* must be",
    "s3://KEY:SECRETWORD@bucket/p?attempts=0": "attempts in an s3: store URL is '0', and must be 1 to 10",
    "s3://KEY:SECRETWORD@bucket/p?attempts=2.5": "attempts .* must be 1 to 10",
    "s3://KEY:SECRETWORD@bucket/p?sse=des": "sse in an s3: store URL is AES256 or aws:kms",
    "s3://KEY:SECRETWORD@bucket/p?sse_key=k": "sse_key goes with",
    "s3://KEY:SECRETWORD@bucket/p?sse=AES256&sse_key=k": "sse_key goes with",
    "s3://KEY:SECRETWORD@bucket/p?public_endpoint=host": "public_endpoint in an s3: store URL is http://",
    "s3://KEY:SECRETWORD@bucket/p?style=round": "path or virtual",
    "s3://KEY:SECRETWORD@bucket/p?endpoint=host:9000": "http://",
    "s3://KEY:SECRETWORD@bucket/p?endpoint=ftp://host": "http://",
    "s3://KEY:SECRETWORD@bucket/p?endpoint=http://": "http://",
    "s3://KEY:SECRETWORD@bucket/p?endpoint=http://host:port": "http://",
    "s3://bucket/p?endpoint=http://user:SECRETWORD%40host": "http://",
}


@pytest.mark.parametrize(("url", "reason"), BAD_URLS.items())
def test_a_bad_url_is_refused_with_the_reason_and_without_its_secret(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        open_store(url)
    assert "SECRETWORD" not in "".join(traceback.format_exception(caught.value)).replace(repr(url), "")


def test_a_folder_store_needs_no_boto3(tmp_path: Path) -> None:
    code = "import sys, storage; storage.open_store(sys.argv[1]); sys.exit('boto3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code, tmp_path.as_uri()], cwd=FOLDER).returncode == 0


def test_each_memory_store_is_its_own() -> None:
    first, second = open_store("memory:"), open_store("memory:")
    put(first, "a", b"x")
    assert_empty(second)

"""A store in a bucket of any S3-compatible server.

    s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=us-east-1&style=path

Credentials come from boto3's own chain (environment, profile, instance role), or percent-encoded in the URL:
`s3://KEY:SECRET@bucket`. `style` is `path` (the default with an endpoint) or `virtual`. Without `endpoint` it is AWS.
All that lies under the prefix is the store's.
"""

from __future__ import annotations

import io
import re
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from storage import (
    PART_BYTES,
    Entry,
    ObjectMissing,
    Store,
    StoreError,
    StoreFull,
    Writer,
    check_key,
    check_range,
    is_key,
    opened,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_OPTIONS = ("endpoint", "region", "style")
_STYLES = ("path", "virtual")


class S3Store(Store):
    """Objects of up to 10,000 parts (78 GiB), in flat memory: one part a writer, one chunk a reader."""

    def __init__(self, client: S3Client, bucket: str, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""

    @classmethod
    def from_url(cls, url: SplitResult) -> S3Store:
        """Raises `ValueError` saying what is wrong, and never quoting what may be a credential."""
        if "@" in f"{url.path}{url.query}{url.fragment}":
            raise ValueError("an s3: store URL has an @ out of place: percent-encode the credentials")
        credentials, _, bucket = url.netloc.rpartition("@")
        if not _BUCKET.fullmatch(bucket):
            raise ValueError("an s3: store URL names a bucket, as s3://bucket/prefix")
        return cls(_client(credentials, _options(url)), bucket, unquote(url.path).strip("/"))

    def __str__(self) -> str:
        return f"bucket {self._bucket!r} at {self._client.meta.endpoint_url}"

    @contextmanager
    def _translated(self, deed: str) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            details = error.response.get("Error", {})
            reason = f"{details.get('Code')}: {details.get('Message')}"
            kind = StoreFull if _status(error) == 507 else StoreError
            raise kind(f"cannot {deed} in {self}: {reason}") from error
        except BotoCoreError as error:
            raise StoreError(f"cannot {deed} in {self}: {error}") from error

    def _name(self, key: str) -> str:
        return self._prefix + check_key(key)

    def create(self, key: str) -> Writer:
        return _S3Writer(self, self._name(key))

    def read(
        self, key: str, start: int = 0, stop: int | None = None, chunk_bytes: int = 256 * 1024
    ) -> Generator[bytes, None, None]:
        check_range(start, stop)
        return opened(self._chunks(key, start, stop, chunk_bytes))

    def _chunks(self, key: str, start: int, stop: int | None, chunk_bytes: int) -> Generator[bytes, None, None]:
        with self._translated(f"read {key}"):
            response = self._get(key, start, stop)
            if response is None:
                yield b""
                return
            with closing(response["Body"]) as body:
                self._check_answer(response, start, stop)
                yield b""
                while chunk := body.read(chunk_bytes):
                    yield chunk

    def _get(self, key: str, start: int, stop: int | None) -> GetObjectOutputTypeDef | None:
        """None where the object has no byte in the range."""
        if start == stop:
            self.size(key)
            return None
        name = self._name(key)
        try:
            if (start, stop) == (0, None):
                return self._client.get_object(Bucket=self._bucket, Key=name)
            last = "" if stop is None else stop - 1
            return self._client.get_object(Bucket=self._bucket, Key=name, Range=f"bytes={start}-{last}")
        except self._client.exceptions.NoSuchKey:
            raise self._missing(key) from None
        except ClientError as error:
            if _status(error) == 416:
                return None
            raise

    def _check_answer(self, response: GetObjectOutputTypeDef, start: int, stop: int | None) -> None:
        """By the Content-Range, not by the status: some servers say 200 and send the range, some ignore it."""
        if (start, stop) == (0, None):
            return
        match = _CONTENT_RANGE.fullmatch(response.get("ContentRange", ""))
        if match:
            first, last, size = map(int, match.groups())
            end = size if stop is None else min(stop, size)
            if (first, last + 1, response["ContentLength"]) == (start, end, end - start):
                return
        raise StoreError(f"cannot read a range in {self}: the server sent another one than it was asked for")

    def size(self, key: str) -> int:
        with self._translated(f"look at {key}"):
            try:
                return self._client.head_object(Bucket=self._bucket, Key=self._name(key))["ContentLength"]
            except ClientError as error:
                if _status(error) != 404:
                    raise
            # An answer to HEAD has no body that could tell a missing key from a missing bucket; this one has.
            self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1)
            raise self._missing(key)

    def _missing(self, key: str) -> ObjectMissing:
        return ObjectMissing(f"there is no object {key} in {self}")

    def delete(self, key: str) -> None:
        with self._translated(f"delete {key}"):
            self._client.delete_object(Bucket=self._bucket, Key=self._name(key))

    def entries(self) -> Iterator[Entry]:
        with self._translated("list objects"):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix):
                for found in page.get("Contents", []):
                    key = found["Key"].removeprefix(self._prefix)
                    if is_key(key):
                        yield Entry(key, found["Size"], found["LastModified"])

    def sweep(self, before: datetime) -> int:
        removed = 0
        # NoSuchUpload is what rclone answers to a listing before its bucket's first upload.
        with self._translated("sweep unfinished uploads"), suppress(self._client.exceptions.NoSuchUpload):
            pages = self._client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix):
                for upload in page.get("Uploads", []):
                    if upload["Initiated"] < before:
                        self._abort_upload(upload["Key"], upload["UploadId"])
                        removed += 1
        return removed

    # What a writer needs, of names in the bucket.

    def put(self, name: str, content: io.BytesIO) -> None:
        with self._translated(f"write {name}"):
            content.seek(0)
            self._client.put_object(Bucket=self._bucket, Key=name, Body=content)

    def begin_upload(self, name: str) -> str:
        with self._translated(f"write {name}"):
            return self._client.create_multipart_upload(Bucket=self._bucket, Key=name)["UploadId"]

    def put_part(self, name: str, upload_id: str, number: int, content: io.BytesIO) -> str:
        with self._translated(f"write {name}"):
            content.seek(0)
            return self._client.upload_part(
                Bucket=self._bucket, Key=name, UploadId=upload_id, PartNumber=number, Body=content
            )["ETag"]

    def complete_upload(self, name: str, upload_id: str, etags: list[str]) -> None:
        with self._translated(f"keep {name}"):
            self._client.complete_multipart_upload(
                Bucket=self._bucket,
                Key=name,
                UploadId=upload_id,
                MultipartUpload={"Parts": [{"PartNumber": n, "ETag": etag} for n, etag in enumerate(etags, 1)]},
            )

    def abort_upload(self, name: str, upload_id: str) -> None:
        with self._translated(f"give up {name}"):
            self._abort_upload(name, upload_id)

    def _abort_upload(self, name: str, upload_id: str) -> None:
        with suppress(self._client.exceptions.NoSuchUpload):
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=name, UploadId=upload_id)


class _S3Writer(Writer):
    """One PutObject for what fits into a part, else a multipart upload."""

    def __init__(self, store: S3Store, name: str) -> None:
        self._store = store
        self._name = name
        self._part = io.BytesIO()
        self._upload_id: str | None = None
        self._etags: list[str] = []
        self._is_open = True

    def write(self, chunk: bytes) -> None:
        self._check_open()
        view = memoryview(chunk)
        while view:
            if self._part.tell() == PART_BYTES:
                self._send_part()
            view = view[self._part.write(view[: PART_BYTES - self._part.tell()]) :]

    def _send_part(self) -> None:
        if self._upload_id is None:
            self._upload_id = self._store.begin_upload(self._name)
        self._etags.append(self._store.put_part(self._name, self._upload_id, len(self._etags) + 1, self._part))
        self._part = io.BytesIO()

    def commit(self) -> None:
        self._check_open()
        if self._upload_id is None:
            self._store.put(self._name, self._part)
        else:
            self._send_part()
            self._store.complete_upload(self._name, self._upload_id, self._etags)
        self._is_open = False
        self._part.close()

    def abort(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._part.close()
        if self._upload_id is not None:
            self._store.abort_upload(self._name, self._upload_id)

    def _check_open(self) -> None:
        if not self._is_open:
            raise ValueError(f"the write of {self._name} is over")


def _status(error: ClientError) -> int:
    return error.response["ResponseMetadata"]["HTTPStatusCode"]


def _options(url: SplitResult) -> dict[str, str]:
    options = dict(parse_qsl(url.query))
    if url.fragment or not options.keys() <= set(_OPTIONS):
        raise ValueError(f"an s3: store URL has no other options than {', '.join(_OPTIONS)}")
    if options.get("style", "path") not in _STYLES:
        raise ValueError("style in an s3: store URL is path or virtual")
    if "endpoint" in options and not _is_endpoint(options["endpoint"]):
        raise ValueError("endpoint in an s3: store URL is http://host:port or https://host:port, without credentials")
    return options


def _is_endpoint(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and "@" not in text
    except ValueError:
        return False


def _client(credentials: str, options: dict[str, str]) -> S3Client:
    key, _, secret = credentials.partition(":")
    if bool(key) != bool(secret):
        raise ValueError("credentials in an s3: store URL are KEY:SECRET, both percent-encoded")
    endpoint = options.get("endpoint")
    style = options.get("style") or ("path" if endpoint else "virtual")
    try:
        session = Session()
        return session.client(
            "s3",
            endpoint_url=endpoint,
            region_name=options.get("region") or session.region_name or "us-east-1",
            aws_access_key_id=unquote(key) or None,
            aws_secret_access_key=unquote(secret) or None,
            config=_config("path" if style == "path" else "virtual"),
        )
    except BotoCoreError as error:
        raise StoreError(f"cannot use the S3 configuration: {error}") from error


def _config(style: Literal["path", "virtual"]) -> Config:
    return Config(
        signature_version="s3v4",
        # Checksums that boto3 adds by default are refused by many servers that are not AWS.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": style},
        connect_timeout=5,
        read_timeout=60,
        retries={"mode": "standard", "total_max_attempts": 3},
        max_pool_connections=64,
    )

"""A store in a bucket of any S3-compatible server; all that lies under its prefix is the store's."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, cast
from urllib.parse import SplitResult

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    IncompleteReadError,
    ReadTimeoutError,
    ResponseStreamingError,
)

from storage import (
    PART_BYTES,
    Entry,
    ObjectMissing,
    Part,
    Store,
    StoreError,
    StoreFull,
    Writer,
    check_key,
    check_number,
    check_parts,
    check_range,
    check_room,
    is_key,
    opened,
)
from storage.s3_url import Place, place

if TYPE_CHECKING:
    from botocore.response import StreamingBody
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef, PartTypeDef

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_CUTS = (ResponseStreamingError, IncompleteReadError, ReadTimeoutError)
_LONG_AGO = datetime.fromtimestamp(0, UTC)
# Of all writers of a store.
_PARTS_IN_MEMORY = 3
_SMALL_BYTES = 64 * 1024
# How often a read goes on after a cut; beside that, each request is tried again by itself.
_MAX_RESUMES = 5


@dataclass(frozen=True, slots=True)
class _Span:
    """The bytes start..end that an answer brings, of one version of an object that has `size` bytes in all."""

    start: int
    end: int
    size: int
    etag: str


class S3Store(Store):
    """Objects of up to 10,000 parts (78 GiB), in flat memory: a few parts for all writers, one chunk a reader."""

    def __init__(self, place: Place) -> None:
        self._client = place.client
        self._signer = place.signer
        self._bucket = place.bucket
        self._prefix = f"{place.prefix}/" if place.prefix else ""
        self._encryption = place.encryption
        self.buffers = _Buffers(_PARTS_IN_MEMORY)

    @classmethod
    def from_url(cls, url: SplitResult) -> S3Store:
        """Raises `ValueError` saying what is wrong, and never quoting what may be a credential."""
        return cls(place(url))

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
            answer = self._get(key, start, stop)
            if answer is None:
                yield b""
                return
            span = self._checked(answer, start, stop)
            with closing(_Body(answer["Body"], span, partial(self._rest, key))) as body:
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

    def _checked(self, answer: GetObjectOutputTypeDef, start: int, stop: int | None) -> _Span:
        span = _span(answer, start, stop)
        if span is None:
            answer["Body"].close()
            raise StoreError(f"cannot read a range in {self}: the server sent another one than it was asked for")
        return span

    def _rest(self, key: str, span: _Span) -> StreamingBody:
        """What an answer that was cut still owes."""
        changed = StoreError(f"cannot read {key} in {self}: it changed while it was read")
        bytes_range, name = f"bytes={span.start}-{span.end - 1}", self._name(key)
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=name, Range=bytes_range, IfMatch=span.etag)
        except ClientError as error:
            if _status(error) in (404, 412, 416):
                raise changed from None
            raise
        # Some servers ignore If-Match.
        if self._checked(answer, span.start, span.end) != span:
            answer["Body"].close()
            raise changed
        return answer["Body"]

    def size(self, key: str) -> int:
        with self._translated(f"look at {key}"):
            size = self._size(self._name(key))
            if size is None:
                raise self._missing(key)
            return size

    def _size(self, name: str) -> int | None:
        """None where there is none."""
        try:
            return self._client.head_object(Bucket=self._bucket, Key=name)["ContentLength"]
        except ClientError as error:
            # An answer to HEAD has no body that could say why.
            self._check_bucket()
            if _status(error) != 404:
                raise
            return None

    def _check_bucket(self) -> None:
        """Fails where it is not an object or an upload that is missing, but the bucket, or the leave to see it."""
        self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1)

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
                    name, upload_id = upload["Key"], upload["UploadId"]
                    if upload["Initiated"] < before and self._touched_at(name, upload_id) < before:
                        self._abort(name, upload_id)
                        removed += 1
        return removed

    def _touched_at(self, name: str, upload_id: str) -> datetime:
        """Of its latest part; long ago where it has none."""
        with suppress(self._client.exceptions.NoSuchUpload):
            return max((found["LastModified"] for _, found in self._listed(name, upload_id)), default=_LONG_AGO)
        return _LONG_AGO

    @contextmanager
    def _in_upload(self, deed: str, key: str) -> Iterator[None]:
        with self._translated(f"{deed} {key}"):
            try:
                yield
            except self._client.exceptions.NoSuchUpload:
                self._check_bucket()
                raise ObjectMissing(f"there is no unfinished upload of {key} in {self} by this token") from None

    def begin_parts(self, key: str) -> str:
        return self.begin_upload(self._name(key))

    def write_part(self, key: str, token: str, number: int) -> Writer:
        return _S3Part(self, check_key(key), token, check_number(number))

    def keep_part(self, key: str, token: str, number: int, content: _Kept) -> None:
        with self._in_upload("write a part of", key):
            self._put_part(self._name(key), token, number, content)

    def parts(self, key: str, token: str) -> list[Part]:
        with self._in_upload("list the parts of", key):
            return [part for part, _ in self._listed(self._name(key), token)]

    def _listed(self, name: str, upload_id: str) -> list[tuple[Part, PartTypeDef]]:
        pages = self._client.get_paginator("list_parts").paginate(Bucket=self._bucket, Key=name, UploadId=upload_id)
        found = [part for page in pages for part in page.get("Parts", [])]
        return [(Part(part["PartNumber"], part["Size"]), part) for part in found]

    def complete_parts(self, key: str, token: str) -> None:
        name, size = self._name(key), None
        try:
            with self._in_upload("keep", key):
                listed = self._listed(name, token)
                check_parts(key, [part for part, _ in listed])
                size = sum(part.size for part, _ in listed)
                self._complete(name, token, [found["ETag"] for _, found in listed])
        except ObjectMissing:
            # It may be completed already, by a call whose answer was lost or by this one.
            if size not in (None, self.size(key)):
                raise

    def abort_parts(self, key: str, token: str) -> None:
        self.abort_upload(self._name(key), token)

    def download_url(self, key: str, media_type: str, disposition: str, seconds: int) -> str | None:
        headers = {"ResponseContentType": media_type, "ResponseContentDisposition": disposition}
        return self._signed("get_object", key, headers, seconds)

    def part_url(self, key: str, token: str, number: int, seconds: int) -> str | None:
        return self._signed("upload_part", key, {"UploadId": token, "PartNumber": check_number(number)}, seconds)

    def _signed(self, method: str, key: str, more: Mapping[str, object], seconds: int) -> str:
        parameters = {"Bucket": self._bucket, "Key": self._name(key), **more}
        with self._translated(f"sign a URL for {key}"):
            return self._signer.generate_presigned_url(method, Params=parameters, ExpiresIn=seconds)

    # What a writer needs, of names in the bucket.

    def put(self, name: str, content: _Kept) -> None:
        with self._translated(f"write {name}"):
            self._client.put_object(Bucket=self._bucket, Key=name, Body=content.body, **self._encryption)

    def begin_upload(self, name: str) -> str:
        with self._translated(f"write {name}"):
            return self._client.create_multipart_upload(Bucket=self._bucket, Key=name, **self._encryption)["UploadId"]

    def put_part(self, name: str, upload_id: str, number: int, content: _Kept) -> str:
        with self._translated(f"write {name}"):
            return self._put_part(name, upload_id, number, content)

    def _put_part(self, name: str, upload_id: str, number: int, content: _Kept) -> str:
        return self._client.upload_part(
            Bucket=self._bucket, Key=name, UploadId=upload_id, PartNumber=number, Body=content.body
        )["ETag"]

    def complete_upload(self, name: str, upload_id: str, etags: list[str], size: int) -> None:
        with self._translated(f"keep {name}"):
            try:
                self._complete(name, upload_id, etags)
            except self._client.exceptions.NoSuchUpload as error:
                # The upload is over for a second attempt, too, where the answer to the first was lost.
                if not error.response["ResponseMetadata"]["RetryAttempts"] or self._size(name) != size:
                    raise

    def _complete(self, name: str, upload_id: str, etags: list[str]) -> None:
        self._client.complete_multipart_upload(
            Bucket=self._bucket,
            Key=name,
            UploadId=upload_id,
            MultipartUpload={"Parts": [{"PartNumber": n, "ETag": etag} for n, etag in enumerate(etags, 1)]},
        )

    def abort_upload(self, name: str, upload_id: str) -> None:
        with self._translated(f"give up {name}"):
            self._abort(name, upload_id)

    def _abort(self, name: str, upload_id: str) -> None:
        try:
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=name, UploadId=upload_id)
        except self._client.exceptions.NoSuchUpload:
            self._check_bucket()


class _Body:
    """The bytes of one version of an object, which go on after a cut where they stopped."""

    def __init__(self, body: StreamingBody, span: _Span, rest: Callable[[_Span], StreamingBody]) -> None:
        self._body = body
        self._span = span
        self._rest = rest
        self._resumes_left = _MAX_RESUMES

    def read(self, length: int) -> bytes:
        while True:
            try:
                chunk = self._body.read(length)
            except _CUTS:
                if not self._span.etag or not self._resumes_left:
                    raise
                self._resume()
            else:
                self._span = replace(self._span, start=self._span.start + len(chunk))
                return chunk

    def _resume(self) -> None:
        self._resumes_left -= 1
        self._body.close()
        self._body = self._rest(self._span)

    def close(self) -> None:
        self._body.close()


class _Buffers:
    """Memory for a few parts, lent again and again: what an allocator is given back in pieces this large it keeps, a
    heap a thread."""

    def __init__(self, count: int) -> None:
        # None is one that is not made yet. Both ends of a list are safe between threads.
        self._free: list[bytearray | None] = [None] * count

    def take(self) -> bytearray | None:
        """One of `PART_BYTES`; None where all are taken."""
        try:
            buffer = self._free.pop()
        except IndexError:
            return None
        return bytearray(PART_BYTES) if buffer is None else buffer

    def give_back(self, buffer: bytearray) -> None:
        self._free.append(buffer if len(buffer) == PART_BYTES else None)


class _Kept:
    """Bytes on their way to a part: where they are more than a few, in one of the buffers, else in a file of the
    system's temporary folder, so that many writers at once, or slow ones, take no more memory than a few."""

    def __init__(self, buffers: _Buffers) -> None:
        self.size = 0
        self._buffers = buffers
        self._small = bytearray()
        self._buffer: bytearray | None = None
        self._file: IO[bytes] | None = None

    def write(self, chunk: bytes | memoryview) -> None:
        """Raises `StoreError` where this machine has no room."""
        end = self.size + len(chunk)
        if end > _SMALL_BYTES and self._buffer is None and self._file is None:
            self._move()
        if self._buffer is not None:
            self._buffer[self.size : end] = chunk
        elif self._file is not None:
            with _in_folder():
                self._file.write(chunk)
        else:
            self._small += chunk
        self.size = end

    def _move(self) -> None:
        """What there is to where more fits."""
        self._buffer = self._buffers.take()
        if self._buffer is not None:
            self._buffer[: self.size] = self._small
        else:
            with _in_folder():
                # `close` closes it.
                self._file = TemporaryFile()  # noqa: SIM115
                self._file.write(self._small)
        self._small = bytearray()

    @property
    def body(self) -> bytes | IO[bytes]:
        """All of it, as boto3 takes it, once nothing more comes; from a file it goes 16 KiB at a time, and slower.
        Raises `StoreError`."""
        if self._file is not None:
            with _in_folder():
                self._file.seek(0)
            return self._file
        if self._buffer is not None:
            del self._buffer[self.size :]
        # boto3 takes a bytearray too, and does not copy it; its types do not say so.
        return cast(bytes, self._small if self._buffer is None else self._buffer)

    def close(self) -> None:
        if self._buffer is not None:
            self._buffers.give_back(self._buffer)
            self._buffer = None
        if self._file is not None:
            # What is still to be flushed is not wanted any more, and may not fit.
            with suppress(OSError):
                self._file.close()


@contextmanager
def _in_folder() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot keep a part in the temporary folder: {error.strerror}") from error


class _Sending(threading.Thread):
    """A part that is sent while the next one fills. A daemon: a store that hangs holds no process back."""

    def __init__(self, send: Callable[[], str]) -> None:
        super().__init__(name="s3-part", daemon=True)
        self._send = send
        self._etag = ""
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._etag = self._send()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._error = error

    def etag(self) -> str:
        """Wait for its end. Raises what the sending raised."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._etag


class _S3Writer(Writer):
    """One PutObject for what fits into a part, else a multipart upload: one part fills while the last is sent."""

    def __init__(self, store: S3Store, name: str) -> None:
        self._store = store
        self._name = name
        self._part = _Kept(store.buffers)
        self._sending: _Sending | None = None
        self._upload_id: str | None = None
        self._etags: list[str] = []
        self._size = 0
        self._is_open = True
        self._is_whole = True

    def write(self, chunk: bytes) -> None:
        self._check_open()
        self._is_whole = False
        view = memoryview(chunk)
        while view:
            if self._part.size == PART_BYTES:
                self._send_part()
            fitting = view[: PART_BYTES - self._part.size]
            self._part.write(fitting)
            view = view[len(fitting) :]
        self._size += len(chunk)
        self._is_whole = True

    def _send_part(self) -> None:
        if self._upload_id is None:
            self._upload_id = self._store.begin_upload(self._name)
        self._await_part()
        part, self._part = self._part, _Kept(self._store.buffers)
        self._sending = _Sending(partial(self._put_part, self._upload_id, len(self._etags) + 1, part))

    def _put_part(self, upload_id: str, number: int, part: _Kept) -> str:
        with closing(part):
            return self._store.put_part(self._name, upload_id, number, part)

    def _await_part(self) -> None:
        if self._sending is not None:
            # It stays where it failed, so that a commit meets the same error again.
            self._etags.append(self._sending.etag())
            self._sending = None

    def commit(self) -> None:
        self._check_open()
        if not self._is_whole:
            raise StoreError(f"cannot keep {self._name} in {self._store}: a write of it failed before")
        if self._upload_id is None:
            self._store.put(self._name, self._part)
        else:
            self._send_part()
            self._await_part()
            self._store.complete_upload(self._name, self._upload_id, self._etags, self._size)
        self._is_open = False
        self._part.close()

    def abort(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._part.close()
        if self._sending is not None:
            # A part that comes after the abort would be kept, and paid for.
            self._sending.join()
        if self._upload_id is not None:
            self._store.abort_upload(self._name, self._upload_id)

    def _check_open(self) -> None:
        if not self._is_open:
            raise ValueError(f"the write of {self._name} is over")


class _S3Part(Writer):
    """One UploadPart."""

    def __init__(self, store: S3Store, key: str, token: str, number: int) -> None:
        self._store = store
        self._key = key
        self._token = token
        self._number = number
        self._content = _Kept(store.buffers)
        self._is_open = True

    def write(self, chunk: bytes) -> None:
        self._check_open()
        check_room(self._content.size, len(chunk))
        self._content.write(chunk)

    def commit(self) -> None:
        self._check_open()
        self._store.keep_part(self._key, self._token, self._number, self._content)
        self.abort()

    def abort(self) -> None:
        self._is_open = False
        self._content.close()

    def _check_open(self) -> None:
        if not self._is_open:
            raise ValueError(f"the write of part {self._number} of {self._key} is over")


def _span(answer: GetObjectOutputTypeDef, start: int, stop: int | None) -> _Span | None:
    """None where the server sent another range than start..stop: by the Content-Range, not by the status, because some
    servers say 200 and send the range, and some ignore it."""
    length, etag = answer["ContentLength"], answer.get("ETag", "")
    if (start, stop) == (0, None):
        return _Span(0, length, length, etag)
    match = _CONTENT_RANGE.fullmatch(answer.get("ContentRange", ""))
    if match:
        first, last, size = map(int, match.groups())
        end = size if stop is None else min(stop, size)
        if (first, last + 1, length) == (start, end, end - start):
            return _Span(start, end, size, etag)
    return None


def _status(error: ClientError) -> int:
    return error.response["ResponseMetadata"]["HTTPStatusCode"]

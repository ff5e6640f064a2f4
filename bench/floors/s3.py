"""boto3's own way into a bucket and out of it, one request at a time, without a web process in front."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from boto3.s3.transfer import TransferConfig
from boto3.session import Session
from botocore.config import Config

from bench.lines import Command, answer

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_PART_BYTES = 8 * 2**20
_READ_BYTES = 256 * 1024
_NAME = "bench-floor"
# As the platform's own client, but for its patience.
_CONFIG = Config(
    signature_version="s3v4",
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
    s3={"addressing_style": "path"},
)
_TRANSFER = TransferConfig(multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES, use_threads=False)


class Bucket:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        options = parse_qs(parts.query)
        self._bucket = parts.netloc.rpartition("@")[2]
        self._client: S3Client = Session().client(
            "s3",
            endpoint_url=options["endpoint"][0],
            region_name=options["region"][0],
            aws_access_key_id=unquote(parts.username or ""),
            aws_secret_access_key=unquote(parts.password or ""),
            config=_CONFIG,
        )

    def handle(self, command: Command) -> dict[str, Any]:
        """Move `file` up, or down what was moved up last; how long it took, and how many bytes it were."""
        began, cpu = time.perf_counter(), time.process_time()
        size = self.up(Path(command["file"])) if command["do"] == "up" else sum(map(len, self.down()))
        return {"size": size, "seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}

    def up(self, path: Path) -> int:
        with path.open("rb") as file:
            self._client.upload_fileobj(file, self._bucket, _NAME, Config=_TRANSFER)
        return path.stat().st_size

    def down(self) -> Iterator[bytes]:
        body = self._client.get_object(Bucket=self._bucket, Key=_NAME)["Body"]
        while chunk := body.read(_READ_BYTES):
            yield chunk


if __name__ == "__main__":
    answer(Bucket(sys.argv[1]).handle)

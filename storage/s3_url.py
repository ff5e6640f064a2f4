"""What the URL of a store in a bucket says, and the boto3 clients that it asks for.

    s3://KEY:SECRET:TOKEN@bucket/prefix?endpoint=http://127.0.0.1:9000&region=us-east-1&style=path

Credentials are percent-encoded, the session token may be left out, and all of them may: then they come from boto3's own
chain (environment, profile, instance role). The options:

    endpoint         where the server is; AWS without it
    public_endpoint  where clients reach it, for presigned URLs; else `endpoint`
    region           else the profile's, else us-east-1
    style            `path` (the default with an endpoint) or `virtual` (the bucket is a part of the host's name)
    connect_seconds  for a connection to stand (5)
    read_seconds     for the next bytes to come or go (60)
    attempts         of each request (3), with growing pauses of random length between them
    sse              server-side encryption, `AES256` or `aws:kms`
    sse_key          the id of the key of `aws:kms`; else the account's own
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from storage import StoreError

if TYPE_CHECKING:
    from botocore.model import OperationModel
    from mypy_boto3_s3 import S3Client

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_REGION = re.compile(r"[A-Za-z0-9-]{1,64}")
_NUMBER = re.compile(r"\d{1,6}(\.\d{1,3})?")
_OPTIONS = (
    "endpoint",
    "public_endpoint",
    "region",
    "style",
    "connect_seconds",
    "read_seconds",
    "attempts",
    "sse",
    "sse_key",
)
_NEEDED_HEADERS = {"GetObject": ("content-length",), "HeadObject": ("content-length",), "UploadPart": ("etag",)}
_CUT_HEAD = b"<Error><Code>RequestTimeout</Code><Message>The answer ended within its head.</Message></Error>"
_MIN_SECONDS, _MAX_SECONDS = 0.1, 600
_MAX_ATTEMPTS = 10


class Encryption(TypedDict, total=False):
    """What a request that begins an object says of its encryption."""

    ServerSideEncryption: Literal["AES256", "aws:kms"]
    SSEKMSKeyId: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where objects lie, and how to get there. `signer` makes URLs for others."""

    client: S3Client
    signer: S3Client
    bucket: str
    prefix: str
    encryption: Encryption


@dataclass(frozen=True, slots=True)
class _Credentials:
    """Each empty where boto3 is to look for itself."""

    key: str = ""
    secret: str = ""
    token: str = ""


def place(url: SplitResult) -> Place:
    """Raises `ValueError` saying what is wrong with the URL, and never quoting what may be a credential."""
    if "@" in f"{url.path}{url.query}{url.fragment}":
        raise ValueError("an s3: store URL has an @ out of place: percent-encode the credentials")
    who, _, bucket = url.netloc.rpartition("@")
    if not _BUCKET.fullmatch(bucket):
        raise ValueError("an s3: store URL names a bucket, as s3://bucket/prefix")
    options, credentials = _options(url), _credentials(who)
    config, encryption = _config(options), _encryption(options)
    client = _client(credentials, options, options.get("endpoint"), config)
    signer = client
    if "public_endpoint" in options:
        signer = _client(credentials, options, options["public_endpoint"], config)
    return Place(client, signer, bucket, unquote(url.path).strip("/"), encryption)


def _options(url: SplitResult) -> dict[str, str]:
    options = dict(parse_qsl(url.query, keep_blank_values=True))
    if url.fragment or not options.keys() <= set(_OPTIONS):
        raise ValueError(f"an s3: store URL has no other options than {', '.join(_OPTIONS)}")
    for name, value in options.items():
        if not value:
            raise ValueError(f"{name} in an s3: store URL has no value")
    for name in ("endpoint", "public_endpoint"):
        if name in options and not _is_endpoint(options[name]):
            raise ValueError(
                f"{name} in an s3: store URL is http://host:port or https://host:port, without credentials"
            )
    if not _REGION.fullmatch(options.get("region", "us-east-1")):
        raise ValueError("region in an s3: store URL has only letters, digits and hyphens")
    return options


def _is_endpoint(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and "@" not in text
    except ValueError:
        return False


def _credentials(text: str) -> _Credentials:
    words = [unquote(word) for word in text.split(":")] if text else []
    if text and (len(words) not in (2, 3) or not all(words)):
        raise ValueError("credentials in an s3: store URL are KEY:SECRET or KEY:SECRET:TOKEN, each percent-encoded")
    return _Credentials(*words)


def _encryption(options: dict[str, str]) -> Encryption:
    match options.get("sse"), options.get("sse_key"):
        case None, None:
            return {}
        case "AES256", None:
            return {"ServerSideEncryption": "AES256"}
        case "aws:kms", None:
            return {"ServerSideEncryption": "aws:kms"}
        case "aws:kms", str(key):
            return {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": key}
    raise ValueError("sse in an s3: store URL is AES256 or aws:kms, and sse_key goes with sse=aws:kms only")


def _config(options: dict[str, str]) -> Config:
    return Config(
        signature_version="s3v4",
        # Checksums that boto3 adds by default are refused by many servers that are not AWS.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": _style(options)},
        connect_timeout=_seconds(options, "connect_seconds", 5),
        read_timeout=_seconds(options, "read_seconds", 60),
        retries={"mode": "standard", "total_max_attempts": _attempts(options)},
        max_pool_connections=64,
    )


def _style(options: dict[str, str]) -> Literal["path", "virtual"]:
    match options.get("style"):
        case "path" | "virtual" as style:
            return style
        case None:
            return "path" if "endpoint" in options else "virtual"
    raise ValueError("style in an s3: store URL is path or virtual")


def _seconds(options: dict[str, str], name: str, default: float) -> float:
    text = options.get(name, str(default))
    if not _NUMBER.fullmatch(text) or not _MIN_SECONDS <= float(text) <= _MAX_SECONDS:
        raise ValueError(f"{name} in an s3: store URL is {text[:20]!r}, and must be {_MIN_SECONDS} to {_MAX_SECONDS}")
    return float(text)


def _attempts(options: dict[str, str]) -> int:
    text = options.get("attempts", "3")
    if text not in map(str, range(1, _MAX_ATTEMPTS + 1)):
        raise ValueError(f"attempts in an s3: store URL is {text[:20]!r}, and must be 1 to {_MAX_ATTEMPTS}")
    return int(text)


def _client(credentials: _Credentials, options: dict[str, str], endpoint: str | None, config: Config) -> S3Client:
    try:
        session = Session()
        client = session.client(
            "s3",
            endpoint_url=endpoint,
            region_name=options.get("region") or session.region_name or "us-east-1",
            aws_access_key_id=credentials.key or None,
            aws_secret_access_key=credentials.secret or None,
            aws_session_token=credentials.token or None,
            config=config,
        )
    except BotoCoreError as error:
        raise StoreError(f"cannot use the S3 configuration: {error}") from error
    client.meta.events.register("before-parse.s3", _fail_cut_head)
    return client


def _fail_cut_head(response_dict: dict[str, Any], operation_model: OperationModel, **_: object) -> None:
    """Make an answer that ended within its head one that boto3 tries again for.

    Python's http.client takes such a head for whole, and boto3 would make an empty listing of it, or no bytes.
    """
    headers = response_dict["headers"]
    needed = _NEEDED_HEADERS.get(operation_model.name, ("content-length", "transfer-encoding"))
    if response_dict["status_code"] == 200 and not any(name in headers for name in needed):
        response_dict.update(status_code=500, body=_CUT_HEAD)

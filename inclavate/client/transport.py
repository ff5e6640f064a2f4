"""One connection pool to one server: what httpx raises becomes ours, and what a retry can mend is retried."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from inclavate.client.errors import BadAnswer, ClientError, Refused, Unreachable

LONGEST_PAUSE_SECONDS = 30.0

T = TypeVar("T")


class Transport:
    """`tries` bounds every retry; `sleep` waits between them. Thread-safe, as httpx's client is."""

    def __init__(
        self, base_url: str, api_key: str | None, timeout: httpx.Timeout, tries: int, sleep: Callable[[float], None]
    ) -> None:
        _check_url(base_url)
        if api_key:
            _check_header(api_key, "The API key")
        self.base_url = base_url
        self.sleep = sleep
        self._tries = tries
        headers = {"User-Agent": "inclavate-client"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
        # Loading the list of authorities takes longer than a request; without TLS nobody looks at it.
        is_tls = urlsplit(base_url).scheme != "http"
        # A proxy from the environment must not come between a machine and its own loopback.
        self.http = httpx.Client(base_url=base_url, headers=headers, timeout=timeout, verify=is_tls, trust_env=False)

    def ask(self, method: str, path: str, **request: Any) -> Any:
        """One request, its JSON; None where there is no body."""
        with self.open(method, path, **request) as response:
            return json_of(response) if response.read() else None

    @contextmanager
    def open(self, method: str, path: str, **request: Any) -> Iterator[httpx.Response]:
        """One request, its successful answer with the body still to be read. All that httpx raises ends here."""
        for name, value in request.get("headers", {}).items():
            _check_header(value, f"The header {name}")
        try:
            with self.http.stream(method, path, **request) as response:
                if not response.is_success:
                    response.read()
                    raise _refusal(response)
                yield response
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise Unreachable(f"{self.base_url} cannot be reached: {_reason(error)}.", is_unsent=True) from error
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL) as error:
            raise Unreachable(f"The connection to {self.base_url} was lost: {_reason(error)}.") from error
        except UnicodeEncodeError as error:
            raise ClientError("The request cannot be sent: it has text that is not Unicode.") from error

    def retrying(
        self, action: Callable[[], T], *, is_repeatable: bool = True, progress: Callable[[], int] = lambda: 0
    ) -> T:
        """`action`, again where that can help. The tries count anew whenever `progress` moved."""
        attempt = 0
        while True:
            before = progress()
            try:
                return action()
            except (Unreachable, Refused) as error:
                attempt = 1 if progress() > before else attempt + 1
                pause = _pause_before_retry(error, attempt, is_repeatable)
                if attempt >= self._tries or pause is None:
                    raise
            self.sleep(pause)


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        is_good = False
    if not is_good:
        raise Unreachable(f"{url!r} is no address of a server; one looks like http://127.0.0.1:8001.", is_unsent=True)


def _check_header(value: str, subject: str) -> None:
    """Here, because the library below would name the value, and a key is a secret."""
    if not (value.isascii() and value.isprintable()):
        raise ClientError(f"{subject} may hold printable ASCII characters only, and holds others.")


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    return re.sub(r"^\[Errno -?\d+\] ", "", str(error)).rstrip(".").lower() or type(error).__name__


def _pause_before_retry(error: Unreachable | Refused, attempt: int, is_repeatable: bool) -> float | None:
    """Seconds to wait before the request is sent again; None where that cannot help or must not be."""
    if isinstance(error, Refused):
        pause = error.retry_after_seconds
        if not error.may_retry or (pause is not None and pause > LONGEST_PAUSE_SECONDS):
            return None
        # 502 and 504 come from a gateway, which may well have passed the request on.
        if not is_repeatable and error.status not in (429, 503):
            return None
        return backoff(attempt) if pause is None else pause
    if isinstance(error, BadAnswer) or not (is_repeatable or error.is_unsent):
        return None
    return backoff(attempt)


def json_of(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        raise BadAnswer(f"The answer from {response.url.host} is not JSON; is this an Inclavate?") from None


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds, from either form of the header."""
    value = response.headers.get("Retry-After", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _refusal(response: httpx.Response) -> ClientError:
    """The exception for an answer that is not 2xx, from either envelope; the body has been read."""
    status = response.status_code
    if status < 400:
        where = response.headers.get("Location", "")
        return BadAnswer(
            f"The server answered {status} where a result was due" + (f" (it points to {where})." if where else ".")
        )
    try:
        error = response.json()
    except ValueError:
        error = None
    error = error if isinstance(error, dict) else {}
    inner = error.get("error")
    if isinstance(inner, dict):
        error, inner = inner, inner.get("message")
    job_id = response.headers.get("x-dppan-job-id")
    return Refused(
        status,
        str(error.get("code") or f"http_{status}"),
        str(inner or f"The server answered {status} {response.reason_phrase}".strip() + "."),
        param=error.get("param"),
        retry_after_seconds=_retry_after(response),
        may_retry=status in (429, 502, 503, 504) and not job_id and response.headers.get("x-should-retry") != "false",
        job_id=job_id,
    )


def backoff(attempt: int) -> float:
    """0.25, 0.5, 1, 2 … 5 s, each less up to half at random, so that clients cut together do not return together."""
    return min(5.0, 0.25 * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)

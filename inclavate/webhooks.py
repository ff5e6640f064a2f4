"""Webhooks: the news of a job's end, written with that end, delivered until the receiver takes it or a day has passed.

A try is claimed by a compare-and-set before it is sent, so that any number of sweepers may deliver. A sweeper that dies
in between sends again: a receiver tells doubles by `webhook-id`. Signed as Standard Webhooks defines it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Collection
from datetime import datetime, timedelta

from django.conf import settings
from django.db import Error as DatabaseError
from django.db import close_old_connections, connection

from inclavate import accounts, database, errors, outbound
from inclavate.models import Delivery, Job

log = logging.getLogger(__name__)

RETRIED_FOR = timedelta(hours=24)
KEPT_FOR = timedelta(days=7)
# Longer than any try takes: until then no other sweeper touches what one has claimed.
_CLAIMED_FOR = timedelta(minutes=1)
_FIRST_DELAY_SECONDS = 5.0
_LONGEST_DELAY_SECONDS = 3600.0
_CANDIDATES = 20
_PRUNED_AT_ONCE = 1000
_GONE = 410


def check(url: str) -> None:
    """Raises `InvalidRequest` for a URL that nothing would ever be sent to. Names are looked up at each try only."""
    try:
        outbound.check(url, _allowed())
    except outbound.BadURL as error:
        raise errors.InvalidRequest(f"webhook_url: {error}.", param="webhook_url") from None


def _allowed() -> outbound.Allowed:
    return outbound.Allowed(settings.WEBHOOK_ALLOW_HOSTS, settings.WEBHOOK_ALLOW_NETWORKS)


def poster() -> outbound.Poster:
    """What sends where the settings allow."""
    return outbound.Poster(_allowed())


def record(job: Job) -> None:
    """Called in the transaction that ends the job: the news is there exactly when the end is."""
    if job.webhook_url is None or job.completed_at is None:
        return
    Delivery.objects.create(
        owner_id=job.owner_id,
        job=job,
        url=job.webhook_url,
        body=json.dumps(_news(job, job.completed_at), separators=(",", ":")),
        created_at=job.completed_at,
        next_try_at=job.completed_at,
    )


def _news(job: Job, ended_at: datetime) -> dict[str, object]:
    return {
        "type": f"generation.{job.state}",
        "timestamp": database.rfc3339(ended_at),
        "data": {
            "id": str(job.pk),
            "state": job.state,
            "modality": job.modality,
            "model": job.model,
            "output_artifacts": job.output_artifacts,
            "error_code": job.error_code,
            "error_message": job.error_message,
            "metadata": job.metadata,
            "created_at": database.rfc3339(job.created_at),
            "completed_at": database.rfc3339(ended_at),
        },
    }


# -- delivering ------------------------------------------------------------------------------------------------------


def claim(at: datetime | None = None, *, passing_over: Collection[int] = ()) -> Delivery | None:
    """Take the next try that is due, of no owner in `passing_over`; None where there is none, or others took all."""
    at = at or database.now()
    due = Delivery.objects.filter(state=Delivery.State.PENDING, next_try_at__lte=at).exclude(owner__in=passing_over)
    # First tries first: receivers that are down must not delay the news of those that are up.
    for found in due.order_by("tries", "next_try_at")[:_CANDIDATES]:
        with database.write():
            same = Delivery.objects.filter(
                pk=found.pk, state=Delivery.State.PENDING, tries=found.tries, next_try_at=found.next_try_at
            )
            if same.update(tries=found.tries + 1, next_try_at=at + _CLAIMED_FOR):
                found.tries += 1
                return found
    return None


def deliver(claimed: Delivery, poster: outbound.Poster, at: datetime | None = None) -> Delivery.State:
    """Make one claimed try, and write down how it went; the state that leaves."""
    headers = _headers(claimed, at or database.now())
    try:
        status = poster.post(claimed.url, claimed.body.encode(), headers)
    except outbound.Unreachable as error:
        status, said = 0, str(error)
    else:
        said = f"answered {status}"
    state = _state_after(claimed, status, at or database.now())
    retry_at = (at or database.now()) + _delay(claimed.tries)
    with database.write():
        Delivery.objects.filter(pk=claimed.pk, state=Delivery.State.PENDING, tries=claimed.tries).update(
            state=state, last_error=said, next_try_at=min(retry_at, claimed.created_at + RETRIED_FOR)
        )
    # Neither URL (it may hold a token) nor body.
    log.info("webhook %s of job %s, try %d: %s; %s", claimed.pk, claimed.job_id, claimed.tries, said, state.value)
    return state


def _state_after(claimed: Delivery, status: int, now: datetime) -> Delivery.State:
    if 200 <= status < 300:
        return Delivery.State.DELIVERED
    if status == _GONE or now >= claimed.created_at + RETRIED_FOR:
        return Delivery.State.FAILED
    return Delivery.State.PENDING


def _delay(tries: int) -> timedelta:
    """Doubled with each try, and up to a quarter more or less, lest what failed together come back together."""
    seconds = min(_FIRST_DELAY_SECONDS * 2.0 ** min(tries - 1, 20), _LONGEST_DELAY_SECONDS)
    return timedelta(seconds=seconds * random.uniform(0.75, 1.25))


def _headers(claimed: Delivery, at: datetime) -> dict[str, str]:
    timestamp = int(at.timestamp())
    key = base64.b64decode(accounts.signing_secret(claimed.owner).removeprefix("whsec_"))
    signed = hmac.digest(key, f"{claimed.pk}.{timestamp}.{claimed.body}".encode(), hashlib.sha256)
    return {
        "Content-Type": "application/json",
        "User-Agent": f"inclavate/{settings.VERSION}",
        "webhook-id": str(claimed.pk),
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
    }


def prune(at: datetime | None = None) -> int:
    """Remove what ended, a week after its job did; how many. In batches: nobody waits long behind one."""
    before = (at or database.now()) - KEPT_FOR
    ended = Delivery.objects.filter(created_at__lt=before).exclude(state=Delivery.State.PENDING)
    pruned = 0
    while old := list(ended.values_list("pk", flat=True)[:_PRUNED_AT_ONCE]):
        with database.write():
            Delivery.objects.filter(pk__in=old).delete()
        pruned += len(old)
    return pruned


class Courier:
    """Delivers what is due in threads of its own, until stopped. One thread looks out, the others send or wait for
    its place; no owner has more than half of them."""

    def __init__(self, poster: outbound.Poster, *, threads: int = 8, pause_seconds: float = 1.0) -> None:
        self._poster = poster
        self._pause_seconds = pause_seconds
        self._share = max(1, threads // 2)
        self._in_hand: Counter[int] = Counter()
        self._counting = threading.Lock()
        self._looking_out = threading.Lock()
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(threads)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def is_whole(self) -> bool:
        """False once a thread met what it cannot go on after."""
        return all(thread.is_alive() for thread in self._threads)

    def stop(self, seconds: float) -> None:
        """Claim nothing more, and give what is being sent so long in all. What takes longer is sent again later."""
        self._stopping.set()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                self._send_next()
            except DatabaseError as error:
                log.error("a webhook's try was lost, and is made again: %s", error)
                self._stopping.wait(self._pause_seconds)
            close_old_connections()
        connection.close()

    def _send_next(self) -> None:
        claimed = self._next()
        if claimed is None:
            return
        try:
            deliver(claimed, self._poster)
        finally:
            self._count(claimed.owner_id, -1)

    def _next(self) -> Delivery | None:
        with self._looking_out:
            while not self._stopping.is_set():
                claimed = self._claim()
                if claimed is not None:
                    self._count(claimed.owner_id, +1)
                    return claimed
                close_old_connections()
                self._stopping.wait(self._pause_seconds)
        return None

    def _claim(self) -> Delivery | None:
        """Without the database there is nothing to send; the look-out tells so, once a pause."""
        try:
            return claim(passing_over=self._busy())
        except DatabaseError as error:
            log.error("no webhook can be sent while the database does not answer: %s", error)
            return None

    def _busy(self) -> list[int]:
        with self._counting:
            return [owner for owner, count in self._in_hand.items() if count >= self._share]

    def _count(self, owner: int, change: int) -> None:
        with self._counting:
            self._in_hand[owner] += change

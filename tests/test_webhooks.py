"""The news of a job's end, from the row to a receiver, on SQLite and on PostgreSQL."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from ipaddress import ip_network
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import transaction
from django.test import override_settings
from standardwebhooks import Webhook, WebhookVerificationError

from inclavate import accounts, database, errors, fleet, jobs, webhooks
from inclavate.generators import SPEECH, Capability
from inclavate.models import Delivery, Job, Owner, State
from inclavate.outbound import Allowed, Poster
from tests import platforms, servers
from tests.driving import until
from tests.receivers import Receiver, receiving
from tests.test_jobs import draft, in_threads

pytestmark = [pytest.mark.database, pytest.mark.usefixtures("database", "offered", "loopback_allowed")]

SPEAKER = Capability("test-speaker", "audio", SPEECH, formats=("wav",))
LOOPBACK = (ip_network("127.0.0.1"),)
POSTER = Poster(Allowed(networks=LOOPBACK))
PENDING, DELIVERED, FAILED = Delivery.State.PENDING, Delivery.State.DELIVERED, Delivery.State.FAILED


@pytest.fixture
def offered(database: None) -> None:
    fleet.register("w1", 1, [SPEAKER])


@pytest.fixture
def loopback_allowed() -> Iterator[None]:
    with override_settings(WEBHOOK_ALLOW_NETWORKS=LOOPBACK, MAX_RUNNING_JOBS_PER_OWNER=0):
        yield


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def submitted(owner: Owner, url: str | None, **more: Any) -> Job:
    submission = jobs.Submission("test-speaker", "audio", {"text": "Hello."}, webhook_url=url, **more)
    return jobs.submit(owner, submission)[0]


def claimed(owner: Owner, url: str | None = "https://a.example/hook", **more: Any) -> jobs.Claim:
    submitted(owner, url, **more)
    claim = jobs.claim(SPEAKER.queue, "w1")
    assert claim is not None
    return claim


def ended(owner: Owner, url: str) -> Delivery:
    """The news of a job that was cancelled."""
    job = submitted(owner, url)
    jobs.cancel(owner, job.pk)
    return Delivery.objects.get(job=job)


def tried(at: datetime | None = None) -> Delivery:
    """What is left of the one delivery that is due after one more try."""
    claim = webhooks.claim(at)
    assert claim is not None
    webhooks.deliver(claim, POSTER, at)
    return Delivery.objects.get(pk=claim.pk)


# -- asking for it -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ftp://a.example", "webhook_url: it must begin with http:// or https://."),
        ("https://ann:pw@a.example", "webhook_url: it must not have a user or a password."),
        ("http://192.168.0.1/hook", "webhook_url: 192.168.0.1 is a private address."),
    ],
)
def test_a_url_that_nothing_is_sent_to_is_refused_at_submit(alice: Owner, url: str, sentence: str) -> None:
    with pytest.raises(errors.InvalidRequest) as refused:
        submitted(alice, url)
    assert (refused.value.message, refused.value.param) == (sentence, "webhook_url")
    assert not Job.objects.exists()


def test_a_replay_is_answered_when_its_url_is_no_longer_allowed(alice: Owner) -> None:
    first = submitted(alice, "http://127.0.0.1:1/", idempotency_key="k")
    with override_settings(WEBHOOK_ALLOW_NETWORKS=()):
        assert submitted(alice, "http://127.0.0.1:1/", idempotency_key="k").pk == first.pk


@pytest.mark.parametrize("word", ["10.0.0.1/8", "10.0.0", "[::1]", "http://a.example", "*"])
def test_a_bad_list_of_allowed_receivers_stops_the_start(tmp_path: Path, word: str) -> None:
    environment = platforms.environment(tmp_path, WEBHOOK_ALLOW=f"a.example {word}")
    command = [sys.executable, "-m", "inclavate.cli", "sweeper"]
    refused = subprocess.run(command, env=environment, cwd=platforms.ROOT, capture_output=True, text=True)
    assert refused.returncode == 2
    assert f"INCLAVATE_WEBHOOK_ALLOW must hold hosts and networks (such as 10.0.0.0/8), not '{word}'" in refused.stderr


# -- written with the end ----------------------------------------------------------------------------------------------


def test_the_news_of_a_completed_job_says_what_it_made(alice: Owner) -> None:
    claim = claimed(alice, metadata={"order": "7"})
    output = draft(claim.job)
    assert jobs.complete(claim, [output])
    job, delivery = Job.objects.get(), Delivery.objects.get()
    news = json.loads(delivery.body)
    times = [news["timestamp"], news["data"].pop("created_at"), news["data"].pop("completed_at")]
    assert [datetime.fromisoformat(time) for time in times] == [
        at.replace(microsecond=at.microsecond // 1000 * 1000)
        for at in (job.completed_at, job.created_at, job.completed_at)
    ]
    assert all(time.endswith("Z") for time in times)
    assert (news["type"], delivery.url, delivery.state) == ("generation.completed", "https://a.example/hook", PENDING)
    assert news["data"] == {
        "id": str(job.pk),
        "state": "completed",
        "modality": "audio",
        "model": "test-speaker",
        "output_artifacts": [str(output.artifact.pk)],
        "error_code": None,
        "error_message": None,
        "metadata": {"order": "7"},
    }


def test_the_news_of_a_failed_job_says_why(alice: Owner) -> None:
    assert jobs.fail(claimed(alice), "inference_failed", "The voice broke.")
    news = json.loads(Delivery.objects.get().body)
    assert (news["type"], news["data"]["error_code"], news["data"]["error_message"]) == (
        "generation.failed",
        "inference_failed",
        "The voice broke.",
    )


def test_a_cancelled_and_an_expired_job_are_news_too(alice: Owner) -> None:
    cancelled = submitted(alice, "https://a.example")
    jobs.cancel(alice, cancelled.pk)
    expired = submitted(alice, "https://a.example", deadline_seconds=1)
    assert jobs.expire(expired.pk, database.now() + timedelta(seconds=2))
    assert jobs.settle_cancel(claimed(alice))
    types = [json.loads(delivery.body)["type"] for delivery in Delivery.objects.order_by("created_at")]
    assert types == ["generation.cancelled", "generation.expired", "generation.cancelled"]


def test_a_job_without_a_url_is_no_news(alice: Owner) -> None:
    assert jobs.complete(claimed(alice, url=None), [])
    assert not Delivery.objects.exists()


def test_a_run_that_is_lost_and_a_worker_that_comes_back_are_no_news(alice: Owner) -> None:
    late = claimed(alice)
    jobs.release_worker("w1")
    assert not Delivery.objects.exists()
    current = jobs.claim(SPEAKER.queue, "w2")
    assert current is not None
    assert jobs.complete(current, [])
    assert not jobs.fail(late, "inference_failed", "late")
    assert json.loads(Delivery.objects.get().body)["type"] == "generation.completed"


def test_the_third_lost_run_is_news(alice: Owner) -> None:
    submitted(alice, "https://a.example")
    for _ in range(3):
        assert jobs.claim(SPEAKER.queue, "w1")
        jobs.release_worker("w1")
    assert json.loads(Delivery.objects.get().body)["data"]["error_code"] == "attempts_exhausted"


def test_an_end_that_is_rolled_back_takes_its_news_along(alice: Owner) -> None:
    claim = claimed(alice)
    with transaction.atomic():
        assert jobs.complete(claim, [])
        assert Delivery.objects.exists()
        transaction.set_rollback(True)
    assert Job.objects.get().state == State.RUNNING
    assert not Delivery.objects.exists()


# -- one try -----------------------------------------------------------------------------------------------------------


def test_a_try_is_signed_as_standard_webhooks_defines_it(alice: Owner, receiver: Receiver) -> None:
    delivery = ended(alice, receiver.url)
    assert tried().state == DELIVERED
    (received,) = receiver.received
    alice.refresh_from_db()
    news = Webhook(alice.webhook_secret).verify(received.body, received.headers)
    assert news["data"]["id"] == str(delivery.job_id)
    assert received.headers["webhook-id"] == str(delivery.pk)
    assert received.headers["Content-Type"] == "application/json"
    assert received.path == "/hook?token=hidden"
    with pytest.raises(WebhookVerificationError):
        Webhook(alice.webhook_secret).verify(received.body + b" ", received.headers)


def test_each_owner_signs_with_a_secret_of_their_own(alice: Owner, bob: Owner, receiver: Receiver) -> None:
    for owner in (alice, bob):
        ended(owner, receiver.url)
        assert tried().state == DELIVERED
    hers, his = receiver.received
    secret = accounts.signing_secret(Owner.objects.get(name="alice"))
    Webhook(secret).verify(hers.body, hers.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(his.body, his.headers)


def test_threads_that_need_the_first_secret_at_once_get_the_same(alice: Owner) -> None:
    none_yet = [Owner.objects.get(name="alice") for _ in range(8)]
    found = in_threads(8, lambda n: accounts.signing_secret(none_yet[n]))
    assert set(found) == {Owner.objects.get(name="alice").webhook_secret}


def test_a_new_secret_is_printed_once_and_signs_from_then_on(alice: Owner, receiver: Receiver) -> None:
    old = accounts.signing_secret(alice)
    ended(alice, receiver.url)
    printed = io.StringIO()
    call_command("webhooksecret", "alice", stdout=printed)
    assert tried().state == DELIVERED
    (received,) = receiver.received
    Webhook(printed.getvalue().strip()).verify(received.body, received.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(old).verify(received.body, received.headers)


def test_without_a_name_the_secret_is_the_local_principals(database: None) -> None:
    with override_settings(IS_HOSTED=False):
        printed = io.StringIO()
        call_command("webhooksecret", stdout=printed)
    assert accounts.local_owner().webhook_secret == printed.getvalue().strip()
    with override_settings(IS_HOSTED=True), pytest.raises(CommandError, match="Say whose"):
        call_command("webhooksecret")
    with pytest.raises(CommandError, match="There is no account 'nobody'"):
        call_command("webhooksecret", "nobody")


def test_the_log_and_the_row_hold_no_secret_no_body_and_no_token(
    alice: Owner, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.statuses.append(500)
    delivery = ended(alice, receiver.url)
    with caplog.at_level(logging.INFO, logger="inclavate"):
        left = tried()
    assert str(delivery.pk) in caplog.text
    assert left.last_error == "answered 500"
    for hidden in (accounts.signing_secret(Owner.objects.get(name="alice")), "token", "generation.cancelled"):
        assert hidden not in caplog.text


@pytest.mark.parametrize("status", [200, 204, 299])
def test_any_2xx_is_the_end(alice: Owner, receiver: Receiver, status: int) -> None:
    receiver.statuses.append(status)
    ended(alice, receiver.url)
    assert tried().state == DELIVERED
    assert webhooks.claim(database.now() + timedelta(days=2)) is None


def test_410_is_the_end_too(alice: Owner, receiver: Receiver) -> None:
    receiver.statuses.append(410)
    ended(alice, receiver.url)
    assert tried().state == FAILED
    assert webhooks.claim(database.now() + timedelta(days=2)) is None


# -- again -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [300, 301, 307, 400, 404, 429, 500, 503])
def test_any_other_answer_is_tried_again_under_the_same_id(alice: Owner, receiver: Receiver, status: int) -> None:
    receiver.statuses.append(status)
    receiver.location = "/elsewhere"
    ended(alice, receiver.url)
    left = tried()
    assert (left.state, left.tries) == (PENDING, 1)
    assert webhooks.claim(left.next_try_at - timedelta(milliseconds=1)) is None
    assert tried(left.next_try_at).state == DELIVERED
    first, second = receiver.received
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.headers["webhook-timestamp"] < second.headers["webhook-timestamp"]
    assert (first.path, second.path) == ("/hook?token=hidden",) * 2


def test_the_news_waits_for_a_receiver_that_is_down(alice: Owner) -> None:
    port = servers.free_port()
    ended(alice, f"http://127.0.0.1:{port}/")
    left = tried()
    assert (left.state, left.last_error.startswith("no connection")) == (PENDING, True)
    with receiving(port) as receiver:
        assert tried(left.next_try_at).state == DELIVERED
    assert len(receiver.received) == 1


def test_tries_grow_rarer_for_a_day_and_then_end(alice: Owner) -> None:
    left = ended(alice, f"http://127.0.0.1:{servers.free_port()}/")
    began, times = left.created_at, [left.next_try_at]
    while (left := tried(times[-1])).state == PENDING:
        times.append(left.next_try_at)
    assert left.state == FAILED
    assert times[-1] - began == webhooks.RETRIED_FOR
    gaps = [(after - before).total_seconds() for before, after in pairwise(times)]
    assert 3.75 <= gaps[0] <= 6.25
    assert all(0.75 * 5 * 2**n <= gap <= 1.25 * 5 * 2**n for n, gap in enumerate(gaps[:9]))
    assert max(gaps) <= 1.25 * 3600
    assert 25 < len(times) < 50


def test_what_failed_together_does_not_come_back_together(alice: Owner) -> None:
    url = f"http://127.0.0.1:{servers.free_port()}/"
    for _ in range(5):
        ended(alice, url)
    at = database.now()
    assert len({tried(at).next_try_at for _ in range(5)}) == 5


def test_a_first_try_goes_before_a_repeated_one(alice: Owner) -> None:
    old = ended(alice, f"http://127.0.0.1:{servers.free_port()}/")
    tried()
    Delivery.objects.update(next_try_at=old.created_at)
    new = ended(alice, "https://a.example")
    order = [webhooks.claim(), webhooks.claim()]
    assert [claim and claim.pk for claim in order] == [new.pk, old.pk]


def test_the_news_outlives_the_jobs_record(alice: Owner, receiver: Receiver) -> None:
    delivery = ended(alice, receiver.url)
    jobs.erase(delivery.job_id)
    assert tried().state == DELIVERED


def test_deliveries_that_ended_are_removed_after_a_week(alice: Owner, receiver: Receiver) -> None:
    ended(alice, receiver.url)
    delivery = tried()
    pending = ended(alice, receiver.url)
    assert webhooks.prune(delivery.created_at + timedelta(days=7)) == 0
    assert webhooks.prune(pending.created_at + timedelta(days=7, seconds=1)) == 1
    assert Delivery.objects.get().pk == pending.pk


# -- several sweepers --------------------------------------------------------------------------------------------------


def test_a_try_is_claimed_once_however_many_ask(alice: Owner) -> None:
    for _ in range(10):
        ended(alice, "https://a.example")
    taken = in_threads(8, lambda _: [webhooks.claim() for _ in range(5)])
    claims = [claim.pk for part in taken for claim in part if claim]
    assert len(claims) == len(set(claims))
    assert set(Delivery.objects.filter(tries=1).values_list("pk", flat=True)) == set(claims)


def test_a_try_whose_sweeper_died_is_made_again_after_a_minute(alice: Owner, receiver: Receiver) -> None:
    ended(alice, receiver.url)
    dead = webhooks.claim(at := database.now())
    assert dead is not None
    assert webhooks.claim(at + timedelta(seconds=59)) is None
    assert tried(at + timedelta(seconds=61)).tries == 2


def test_a_sweeper_that_comes_back_late_changes_nothing(alice: Owner, receiver: Receiver) -> None:
    ended(alice, receiver.url)
    late = webhooks.claim(at := database.now())
    assert late is not None
    assert tried(at + timedelta(seconds=61)).state == DELIVERED
    receiver.statuses.append(410)
    assert webhooks.deliver(late, POSTER) == FAILED
    assert Delivery.objects.get().state == DELIVERED


@contextmanager
def couriers(count: int, threads: int = 4) -> Iterator[list[webhooks.Courier]]:
    running = [webhooks.Courier(POSTER, threads=threads, pause_seconds=0.02) for _ in range(count)]
    for courier in running:
        courier.start()
    try:
        yield running
    finally:
        for courier in running:
            courier.stop(30)


def until_none_is_pending() -> None:
    until(lambda: not Delivery.objects.filter(state=PENDING).exists())


def test_two_sweepers_at_once_send_each_news_once(alice: Owner, bob: Owner, receiver: Receiver) -> None:
    sent = {str(ended(owner, receiver.url).pk) for owner in (alice, bob) for _ in range(15)}
    with couriers(2):
        until_none_is_pending()
    assert Counter(received.headers["webhook-id"] for received in receiver.received) == dict.fromkeys(sent, 1)
    assert set(Delivery.objects.values_list("state", "tries")) == {(DELIVERED, 1)}


def test_one_owners_slow_receiver_does_not_hold_up_anothers(alice: Owner, bob: Owner, receiver: Receiver) -> None:
    with receiving() as slow:
        slow.going_on.clear()
        for _ in range(6):
            ended(alice, slow.url)
        with couriers(1, threads=4) as (courier,):
            slow.until(2)
            for _ in range(3):
                ended(bob, receiver.url)
            receiver.until(3)
            assert (len(slow.received), courier.is_whole) == (2, True)
            slow.going_on.set()
            until_none_is_pending()
    assert len(slow.received) == 6


def test_a_stopped_courier_claims_nothing_more(alice: Owner, receiver: Receiver) -> None:
    with couriers(1) as (courier,):
        courier.stop(30)
        ended(alice, receiver.url)
        assert not courier.is_whole
    assert receiver.received == []
    assert Delivery.objects.get().tries == 0

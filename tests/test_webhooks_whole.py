"""Webhooks through the whole platform."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from standardwebhooks import Webhook

from tests import platforms, servers
from tests.driving import until
from tests.platforms import Platform
from tests.receivers import receiving


@pytest.fixture(scope="module")
def telling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with platforms.running(tmp_path_factory.mktemp("telling"), WEBHOOK_ALLOW="127.0.0.1") as running:
        yield running


def request(url: str, text: str = "Hello.") -> dict[str, object]:
    return {"model": "test-tone", "modality": "audio", "params": {"text": text}, "webhook_url": url}


def new_secret(platform: Platform) -> str:
    environment = platforms.environment(platform.data_dir)
    command = [sys.executable, "-m", "inclavate.cli", "webhooksecret"]
    return subprocess.run(
        command, env=environment, cwd=platforms.ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_a_jobs_end_is_told_with_a_signature_that_holds(telling: Platform) -> None:
    secret = new_secret(telling)
    with receiving() as receiver:
        job = telling.submit(**request(receiver.url), metadata={"order": "7"})
        (received,) = receiver.until(1)
    news = Webhook(secret).verify(received.body, received.headers)
    ended = telling.job(job["id"])
    assert news["type"] == "generation.completed"
    assert news["data"] == {name: ended[name] for name in news["data"]}
    assert secret not in telling.log.read_text("utf-8")


def test_a_forbidden_url_is_a_400(telling: Platform) -> None:
    with telling.http as http:
        answer = http.post("/v1/generations", json=request("http://127.0.0.2/"))
    assert (answer.status_code, answer.json()) == (
        400,
        {"error": "webhook_url: 127.0.0.2 is a loopback address.", "code": "invalid_request"},
    )


def test_the_news_outlives_a_killed_sweeper_and_a_receiver_that_was_down(telling: Platform) -> None:
    port = servers.free_port()
    job = telling.submit(**request(f"http://127.0.0.1:{port}/"))
    telling.until_state(job["id"], "completed")
    failed = "SELECT 1 FROM inclavate_delivery WHERE state = 'pending' AND last_error <> ''"
    until(lambda: telling.rows(failed))
    telling.part("sweeper").send_signal(signal.SIGKILL)
    with receiving(port) as receiver:
        (received,) = receiver.until(1)
    assert job["id"].encode() in received.body

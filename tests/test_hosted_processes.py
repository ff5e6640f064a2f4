"""Hosted mode as it runs: several web processes and workers, owners with keys, and what may not cross between them."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from celery.worker.state import reserved_requests
from kombu.asynchronous import Hub

from tests import hosted
from tests.driving import until
from tests.faultproxy import Mode
from tests.hosted import Hosted

QUICK = {"model": "test-tone", "modality": "audio", "params": {"text": "x" * 50}}
READS = {"model": "test-echo", "modality": "text", "params": {"prompt": "x"}}


def slow(steps: int) -> dict[str, Any]:
    """Takes 0.1 s a step."""
    return QUICK | {"params": {"text": "x" * 50, "steps": steps, "step_seconds": 0.1}}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    """Two web processes, two workers of one slot."""
    with hosted.running(tmp_path_factory.mktemp("hosted")) as platform:
        yield platform


@pytest.fixture(scope="module")
def alice(platform: Hosted) -> str:
    """Her API key."""
    return platform.new_key("alice")


@pytest.fixture(scope="module")
def bob(platform: Hosted) -> str:
    """A stranger's."""
    return platform.new_key("bob")


def submit(platform: Hosted, key: str, body: dict[str, Any], web: int = 0) -> dict[str, Any]:
    with platform.http(key, web) as http:
        answer = http.post("/v1/generations", json=body)
    assert answer.status_code == 202, answer.text
    return answer.json()


def until_over(platform: Hosted, key: str, job_id: str) -> dict[str, Any]:
    with platform.http(key) as http:

        def look() -> dict[str, Any] | None:
            job = http.get(f"/v1/generations/{job_id}").json()
            return None if job["state"] in ("queued", "running") else job

        return until(look)


def jobs_with_key(platform: Hosted, like: str) -> int:
    return platform.rows("SELECT count(*) FROM inclavate_job WHERE idempotency_key LIKE %s", like)[0][0]


def test_two_hundred_clients_with_fifty_keys_make_fifty_jobs(platform: Hosted, alice: str) -> None:
    at_once = threading.Barrier(200)

    def submit_one(client: int) -> tuple[int, str]:
        address = urlsplit(platform.urls[client % 2])
        body = json.dumps(QUICK | {"idempotency_key": f"fifty-{client % 50}"})
        headers = {"Authorization": f"Bearer {alice}", "Content-Type": "application/json"}
        http = HTTPConnection(address.hostname or "", address.port, timeout=100)
        at_once.wait()
        http.request("POST", "/v1/generations", body, headers)
        with http.getresponse() as answer:
            return answer.status, json.load(answer)["id"]

    with ThreadPoolExecutor(200) as threads:
        answers = list(threads.map(submit_one, range(200)))
    assert {status for status, _ in answers} <= {200, 202}
    by_key: dict[int, set[str]] = {}
    for client, (_, job_id) in enumerate(answers):
        by_key.setdefault(client % 50, set()).add(job_id)
    assert [len(ids) for ids in by_key.values()] == [1] * 50
    assert len(set.union(*by_key.values())) == jobs_with_key(platform, "fifty-%") == 50


def test_a_client_that_lost_its_answer_sends_again_and_gets_its_job(platform: Hosted, alice: str) -> None:
    body = QUICK | {"idempotency_key": "lost answer"}
    request = httpx.Request(
        "POST", f"{platform.urls[0]}/v1/generations", json=body, headers={"Authorization": f"Bearer {alice}"}
    )
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    with socket.create_connection((request.url.host, request.url.port or 0)) as client:
        client.sendall(f"POST {request.url.path} HTTP/1.1\r\n{head}\r\n".encode() + request.content)
    until(lambda: jobs_with_key(platform, "lost answer") == 1)
    with platform.http(alice, web=1) as http:
        again = http.post("/v1/generations", json=body)
    assert again.status_code in (200, 202)
    found = "SELECT id::text FROM inclavate_job WHERE idempotency_key = 'lost answer'"
    assert platform.rows(found) == [(again.json()["id"],)]


def kept(platform: Hosted) -> list[Any]:
    """All that an owner is charged for, and every row that a request could have left."""
    tables = ("job", "jobinput", "attempt", "artifact", "delivery")
    counts = [platform.rows(f"SELECT count(*) FROM inclavate_{table}") for table in tables]
    usage = "SELECT owner_id, origin, bytes, objects_count, reserved_bytes, reserved_objects FROM inclavate_usage"
    usage += " WHERE bytes + objects_count + reserved_bytes + reserved_objects > 0"
    turns = "SELECT owner_id, queue, queued, running FROM inclavate_turn"
    objects = sorted(path.name for path in (platform.folder / "s3").rglob("*") if path.is_file())
    return [counts, sorted(platform.rows(usage)), sorted(platform.rows(turns)), objects]


def until_idle(platform: Hosted) -> None:
    until(lambda: platform.rows("SELECT sum(queued + running) FROM inclavate_turn") in ([(0,)], [(None,)]))


ABSENT = "7d444840-9dc0-41d1-b245-5ffdce74fad2"
REFUSED: list[tuple[int, str, dict[str, Any]]] = [
    (400, "/v1/generations", {"json": {"model": "test-tone"}}),
    (400, "/v1/generations", {"json": QUICK | {"priority": 11}}),
    (400, "/v1/generations", {"json": QUICK | {"params": {"text": ""}}}),
    (404, "/v1/generations", {"json": READS | {"input_artifacts": [ABSENT]}}),
    (409, "/v1/generations", {"json": QUICK | {"seed": 5, "idempotency_key": "of another request"}}),
    (415, "/v1/generations", {"content": b"{}", "headers": {"Content-Type": "text/plain"}}),
    (422, "/v1/generations", {"json": QUICK | {"model": "no such model"}}),
    (400, "/v1/artifacts", {"content": b"", "headers": {"Content-Type": "audio/wav"}}),
    (413, "/v1/generations", {"json": QUICK | {"params": {"text": "x" * 2**24}}}),
]


def test_a_refused_request_costs_nothing(platform: Hosted, alice: str) -> None:
    submit(platform, alice, QUICK | {"idempotency_key": "of another request"})
    until_idle(platform)
    before = kept(platform)
    with platform.http(alice) as http:
        answers = [http.post(path, **request).status_code for _, path, request in REFUSED]
    assert answers == [status for status, _, _ in REFUSED]
    assert kept(platform) == before


def id_routes() -> set[tuple[str, str]]:
    """Every route of ours whose path holds an id of somebody's, as (method, path)."""
    from inclavate.faces.native import streams, urls

    own = {(method, route.path) for route in streams.routes for method in route.methods or () if "{id}" in route.path}
    django = {("GET", f"/{pattern.pattern}") for pattern in urls.urlpatterns if "<str:" in str(pattern.pattern)}
    return {(method, path) for method, path in own | django if not path.startswith("/admin")}


def test_a_strangers_key_gets_404_on_every_route_of_an_id(platform: Hosted, alice: str, bob: str) -> None:
    job = until_over(platform, alice, submit(platform, alice, QUICK)["id"])
    [artifact] = job["output_artifacts"]
    asked = id_routes()
    assert {("DELETE", "/v1/generations/{id}"), ("HEAD", "/v1/artifacts/{id}")} <= asked
    before = kept(platform)
    with platform.http(bob) as http:
        for method, path in sorted(asked):
            theirs = job["id"] if "/generations/" in path else artifact
            address = path.replace("{id}", theirs).replace("<str:artifact_id>", theirs)
            assert http.request(method, address).status_code == 404, (method, path)
        for path in (f"/v1/generations?after={job['id']}", f"/v1/artifacts?after={artifact}"):
            assert http.get(path).status_code == 404
        assert http.post("/v1/generations", json=READS | {"input_artifacts": [artifact]}).status_code == 404
        assert job["id"] not in http.get("/v1/generations").text
    assert kept(platform) == before


def test_a_revoked_key_is_401_at_once_and_another_of_its_owner_is_not(platform: Hosted, alice: str) -> None:
    second = platform.manage("apikey", "create", "alice")
    for web in (0, 1):
        with platform.http(second, web) as http:
            assert http.get("/v1/generations").status_code == 200
    platform.manage("apikey", "revoke", "alice", second[:8])
    for web in (0, 1):
        with platform.http(second, web) as http:
            assert http.get("/v1/generations").status_code == 401
        with platform.http(alice, web) as http:
            assert http.get("/v1/generations").status_code == 200


def test_a_job_outlives_each_process_that_had_to_do_with_it(platform: Hosted, alice: str) -> None:
    job = submit(platform, alice, slow(30) | {"idempotency_key": "outlives"})
    platform.webs[0].end(signal.SIGKILL)
    holder = "SELECT worker FROM inclavate_job WHERE idempotency_key = 'outlives' AND state = 'running'"
    [(name,)] = until(lambda: platform.rows(holder))
    [worker] = [worker for worker in platform.workers if name.endswith(f"-{worker.process.pid}")]
    worker.end(signal.SIGKILL)
    platform.empty_valkey()
    platform.webs[0].start()
    worker.start()
    platform.until_ready()
    done = until_over(platform, alice, job["id"])
    assert (done["state"], done["attempts"], len(done["output_artifacts"])) == ("completed", 2, 1)


def test_a_job_waits_for_a_store_that_is_away_with_its_input(platform: Hosted, alice: str) -> None:
    with platform.http(alice) as http:
        clip = http.post("/v1/artifacts", content=b"fLaC words", headers={"Content-Type": "audio/flac"}).json()
        refused = platform.proxy.counts[Mode.REFUSE]
        platform.proxy.set(Mode.REFUSE)
        job = submit(platform, alice, READS | {"input_artifacts": [clip["id"]]})
        # More than the store's own tries: the worker's.
        until(lambda: platform.proxy.counts[Mode.REFUSE] > refused + 6)
        platform.proxy.set(Mode.PASS)
        done = until_over(platform, alice, job["id"])
        assert (done["state"], done["attempts"]) == ("completed", 1), done["error_message"]
        assert http.get(f"/v1/artifacts/{done['output_artifacts'][0]}").content == b"xfLaC words"


SUBMITS_500 = f"""
from inclavate import accounts, jobs
for _ in range(500):
    jobs.submit(accounts.find_owner("alice"), jobs.Submission(**{slow(5)!r}))
"""


def test_among_five_hundred_jobs_of_one_owner_another_owners_is_one_of_the_next_two(
    platform: Hosted, alice: str, bob: str
) -> None:
    """Last in this file: the five hundred are left behind."""
    platform.manage("shell", "--verbosity", "0", "--command", SUBMITS_500)
    waiting = "SELECT count(*) FROM inclavate_job WHERE state = 'queued'"
    job = submit(platform, bob, QUICK)
    [(now, queued)] = platform.rows(f"SELECT clock_timestamp(), ({waiting})")
    assert queued > 300
    assert until_over(platform, bob, job["id"])["state"] == "completed"
    [(started_at,)] = platform.rows("SELECT started_at FROM inclavate_job WHERE id = %s", job["id"])
    between = "SELECT count(*) FROM inclavate_attempt WHERE started_at > %s AND started_at < %s"
    assert platform.rows(between, now, started_at)[0][0] <= 1


class Request:
    """What Celery keeps while a ring is answered."""


def test_the_workers_loop_turns_often_while_a_ring_is_answered_and_rests_after() -> None:
    from inclavate.management.commands.worker import Turns

    hub = Hub()
    turns = Turns()
    turns.begin(sender=type("Consumer", (), {"hub": hub}))
    answered = Request()
    reserved_requests.add(answered)
    turns.hurry()
    assert hub.fire_timers() < 0.1
    reserved_requests.discard(answered)
    until(lambda: hub.fire_timers(min_delay=1) == 1 and not len(hub.timer))
    hub.close()


def test_a_worker_that_starts_while_the_database_is_away_begins_once_it_is_back(platform: Hosted) -> None:
    worker = platform.workers[0]
    worker.end()
    said = len(worker.log.read_text("utf-8", "replace"))
    platform.postgres.end(signal.SIGINT)
    worker.start()
    until(lambda: "trying again in" in worker.log.read_text("utf-8", "replace")[said:])
    platform.postgres.start()
    platform.until_ready()
    assert "Traceback" not in worker.log.read_text("utf-8", "replace")[said:]

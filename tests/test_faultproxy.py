"""The fault proxy misbehaves as told, and only then."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests import network
from tests.driving import until
from tests.faultproxy import CUT_AFTER_BYTES, Fault, FaultProxy, Mode

BODY = b"x" * (4 * CUT_AFTER_BYTES)


@pytest.fixture(scope="module")
def behind() -> Iterator[network.Server]:
    with network.serving(lambda call: call.answer(data=BODY)) as server:
        yield server


@pytest.fixture
def proxy(behind: network.Server) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", behind.server_port) as proxy:
        yield proxy


def get(proxy: FaultProxy, timeout: float = 10) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{proxy.port}/", timeout=timeout)


def test_it_passes_what_comes_both_ways(proxy: FaultProxy, behind: network.Server) -> None:
    answer = httpx.post(f"http://127.0.0.1:{proxy.port}/there", content=BODY[1:])
    assert answer.content == BODY
    assert (behind.calls[-1].path, behind.calls[-1].body) == ("/there", BODY[1:])


def test_refusing_it_answers_nobody(proxy: FaultProxy, behind: network.Server) -> None:
    seen = len(behind.calls)
    proxy.set(Mode.REFUSE)
    with pytest.raises(httpx.TransportError):
        get(proxy)
    assert len(behind.calls) == seen


def test_unavailable_it_answers_503_to_a_request_that_has_a_body(proxy: FaultProxy, behind: network.Server) -> None:
    seen = len(behind.calls)
    proxy.set(Mode.UNAVAILABLE)
    answer = httpx.post(f"http://127.0.0.1:{proxy.port}/", content=BODY)
    assert (answer.status_code, "SlowDown" in answer.text) == (503, True)
    assert len(behind.calls) == seen


def test_cutting_it_ends_an_answer_before_its_end(proxy: FaultProxy) -> None:
    proxy.set(Mode.CUT)
    with (
        httpx.stream("GET", f"http://127.0.0.1:{proxy.port}/") as answer,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        answer.read()
    assert answer.status_code == 200


def test_cutting_it_ends_a_request_before_its_end(proxy: FaultProxy, behind: network.Server) -> None:
    proxy.set(Mode.CUT)
    with pytest.raises(httpx.TransportError):
        httpx.post(f"http://127.0.0.1:{proxy.port}/cut", content=BODY)
    assert all(call.body != BODY for call in behind.calls if call.path == "/cut")


def test_stalling_it_leaves_a_client_waiting(proxy: FaultProxy) -> None:
    proxy.set(Mode.STALL)
    with pytest.raises(httpx.ReadTimeout):
        get(proxy, timeout=0.2)


def test_a_change_cuts_what_is_open_and_it_passes_again(proxy: FaultProxy) -> None:
    proxy.set(Mode.STALL)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(get, proxy)
        until(lambda: proxy.counts[Mode.STALL])
        proxy.set(Mode.PASS)
        with pytest.raises(httpx.TransportError):
            waiting.result(timeout=10)
    assert get(proxy).content == BODY


def test_a_fault_befalls_so_many_requests_of_its_kind_and_no_others(proxy: FaultProxy) -> None:
    proxy.inject(Fault(Mode.UNAVAILABLE, "^POST /there ", times=2))
    url = f"http://127.0.0.1:{proxy.port}"
    assert httpx.get(f"{url}/there").content == BODY
    assert httpx.post(f"{url}/elsewhere", content=BODY).content == BODY
    assert [httpx.post(f"{url}/there", content=BODY).status_code for _ in range(3)] == [503, 503, 200]
    assert (proxy.counts[Mode.UNAVAILABLE], proxy.faults_left) == (2, 0)


def test_a_lost_answer_is_of_a_request_that_was_done(proxy: FaultProxy, behind: network.Server) -> None:
    proxy.inject(Fault(Mode.LOSE_ANSWER))
    with pytest.raises(httpx.TransportError):
        httpx.post(f"http://127.0.0.1:{proxy.port}/lost", content=BODY)
    assert (behind.calls[-1].path, behind.calls[-1].body) == ("/lost", BODY)
    assert get(proxy).content == BODY


def test_an_answer_is_cut_at_its_byte(proxy: FaultProxy) -> None:
    proxy.inject(Fault(Mode.CUT_ANSWER, after_bytes=2 * CUT_AFTER_BYTES))
    came: list[bytes] = []
    with (
        httpx.stream("POST", f"http://127.0.0.1:{proxy.port}/", content=BODY) as answer,
        pytest.raises(httpx.TransportError),
    ):
        came.extend(answer.iter_raw())
    assert CUT_AFTER_BYTES < sum(map(len, came)) < 2 * CUT_AFTER_BYTES


def test_a_request_is_cut_before_its_end(proxy: FaultProxy, behind: network.Server) -> None:
    proxy.inject(Fault(Mode.CUT_REQUEST))
    with pytest.raises(httpx.TransportError):
        httpx.post(f"http://127.0.0.1:{proxy.port}/cut-request", content=BODY)
    assert all(call.body != BODY for call in behind.calls if call.path == "/cut-request")


def test_a_mode_takes_away_what_is_left_of_a_fault(proxy: FaultProxy) -> None:
    proxy.inject(Fault(Mode.REFUSE, times=100))
    with pytest.raises(httpx.TransportError):
        get(proxy)
    assert proxy.faults_left == 99
    proxy.set(Mode.PASS)
    assert get(proxy).content == BODY

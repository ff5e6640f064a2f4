"""The fault proxy misbehaves as told, and only then."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests import network
from tests.driving import until
from tests.faultproxy import CUT_AFTER_BYTES, FaultProxy, Mode

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

"""The page at `/`: rendered from rows by Django, and shown by a real browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from django.test import Client
from playwright.sync_api import Browser, Page, expect, sync_playwright

from inclavate import accounts, fleet, jobs
from inclavate.generators import SPEECH, Capability
from tests.platforms import Platform

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
STATIC = Path(__file__).parent.parent / "inclavate" / "static"
HOSTILE = "<script>alert(1)</script>\"'&amp;"


# -- rendered in this process ------------------------------------------------------------------------------------------


@pytest.fixture
def client(database: None) -> Client:
    return Client(headers={"host": "localhost:8001"})


def text_of(client: Client) -> str:
    """What a reader of the page reads."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html_of(client))).split())


def html_of(client: Client) -> str:
    answer = client.get("/")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    return answer.content.decode()


def offer(model: str = "voice", **more: object) -> None:
    fleet.register("worker", 1, [Capability(model=model, modality="audio", task=SPEECH, **more)])


def submit(model: str = "voice", text: str = "Hello.") -> jobs.Job:
    return jobs.submit(accounts.local_owner(), jobs.Submission(model, "audio", {"text": text}))[0]


def claim(model: str = "voice") -> jobs.Claim:
    claimed = jobs.claim(f"model.{model}", "worker")
    assert claimed is not None
    return claimed


def test_nothing_yet_is_said_in_words(client: Client) -> None:
    text = text_of(client)
    assert "No worker has offered a model" in text
    assert "No worker runs" in text
    assert "No job yet." in text
    assert "inclavate speak" not in text, "an example that cannot work"


def test_a_living_worker_makes_its_model_ready(client: Client) -> None:
    offer(voices=("anna",), builtin_voices=("joe", "jim"))
    text = text_of(client)
    assert "voice text-to-speech anna, joe, jim ready" in text
    assert "Workers 1" in text
    assert "No worker" not in text


def test_a_stopped_worker_leaves_its_model_without_one(client: Client) -> None:
    offer()
    fleet.stop("worker")
    text = text_of(client)
    assert "voice text-to-speech – no worker since" in text
    assert "No worker runs: jobs are taken, and wait" in text


def test_the_example_names_a_model_that_is_ready(client: Client) -> None:
    fleet.register("gone", 1, [Capability(model="a-gone", modality="audio", task=SPEECH)])
    fleet.stop("gone")
    offer("b-ready")
    text = text_of(client)
    assert '-d \'{"model": "b-ready", "input": "Good morning."}\'' in text
    assert "curl http://localhost:8001/v1/audio/speech" in text


def test_a_running_job_shows_its_stage(client: Client) -> None:
    offer()
    job = submit()
    submit()
    jobs.report(claim(), "generating", 0.416)
    text = text_of(client)
    assert f"{str(job.pk)[:8]} voice running generating 42 %" in text
    assert "Queued 1 Running 1" in text
    assert f'href="/v1/generations/{job.pk}"' in html_of(client)


def test_a_failed_job_shows_why(client: Client) -> None:
    offer()
    submit()
    jobs.fail(claim(), "inference_failed", "The engine gave up.")
    assert "voice failed The engine gave up." in text_of(client)


def test_text_from_jobs_and_workers_is_escaped(client: Client) -> None:
    offer(HOSTILE, builtin_voices=(HOSTILE,))
    submit(HOSTILE)
    jobs.fail(claim(HOSTILE), "inference_failed", HOSTILE)
    html = html_of(client)
    assert "<script" not in html
    assert "&amp;amp;" in html
    # Three cells, and the model's name once more in the example.
    assert text_of(client).count(HOSTILE) == 4 + 1


def test_only_the_ten_newest_jobs_are_listed(client: Client) -> None:
    offer()
    for _ in range(12):
        submit()
    assert html_of(client).count('href="/v1/generations/') == 10 + 1  # and the capabilities


def test_only_the_callers_own_jobs_are_listed(client: Client, bob: jobs.Owner) -> None:
    offer()
    jobs.submit(bob, jobs.Submission("voice", "audio", {"text": "Hello."}))
    text = text_of(client)
    assert "No job yet." in text
    assert "Queued 0" in text


def test_the_page_holds_no_script_and_no_style_of_its_own(client: Client) -> None:
    html = html_of(client)
    assert not re.search(r"<script|<style|\sstyle=|\son\w+=|javascript:", html)
    policy = client.get("/").headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


# -- served by the platform --------------------------------------------------------------------------------------------


def test_head_has_the_headers_of_get_and_no_body(platform: Platform) -> None:
    with platform.http as http:
        head, get = http.head("/"), http.get("/")
    assert head.status_code == get.status_code == 200
    assert head.content == b""
    for name in ("content-type", "content-security-policy", "cache-control", "x-content-type-options"):
        assert head.headers[name] == get.headers[name]


def test_another_method_is_refused(platform: Platform) -> None:
    with platform.http as http:
        answer = http.post("/", json={})
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"


def test_no_other_path_is_answered_with_the_page(platform: Platform) -> None:
    with platform.http as http:
        for path in ("/index.html", "/nothing", "/v1", "/v1/nothing"):
            answer = http.get(path)
            assert answer.status_code == 404, path
            assert answer.json()["code"] == "not_found", path


def test_a_foreign_host_gets_no_page(platform: Platform) -> None:
    with platform.http as http:
        answer = http.get("/", headers={"Host": "evil.example"})
    assert answer.status_code == 403
    assert answer.json()["code"] == "forbidden"


def test_browsers_that_ask_for_the_old_icon_are_shown_the_new_one(platform: Platform) -> None:
    with platform.http as http:
        answer = http.get("/favicon.ico", follow_redirects=True)
    assert answer.headers["content-type"] == "image/svg+xml"


def test_every_static_file_is_served_under_its_type(platform: Platform) -> None:
    types = {".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
    with platform.http as http:
        for file in STATIC.iterdir():
            answer = http.get(f"/static/{file.name}")
            assert (answer.status_code, answer.content) == (200, file.read_bytes())
            assert answer.headers["content-type"] == types[file.suffix]
        assert http.get("/static/../settings.py").status_code == 404
        assert http.get("/static/%2e%2e/settings.py").status_code == 404


# -- shown by a browser ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium here, so the browser's tests of the page are skipped (apt install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(params=["light", "dark"])
def page(browser: Browser, platform: Platform, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A phone's page, shown in either scheme; what it complains of fails the test."""
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, color_scheme=request.param, base_url=platform.url
    )
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("requestfailed", lambda failed: complaints.append(f"failed: {failed.url}"))
    page.on("response", lambda answer: answer.ok or complaints.append(f"{answer.status}: {answer.url}"))
    yield page
    context.close()
    assert complaints == []


def overflow(page: Page) -> int:
    """Pixels by which the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


def contrasts(page: Page) -> dict[str, float]:
    """Of each piece of text, how its colour stands out from the page's (WCAG 2); 4.5 is what readers need."""
    return page.evaluate(
        """() => {
        const canvas = Object.assign(document.createElement("canvas"), {width: 1, height: 1});
        const context = canvas.getContext("2d", {willReadFrequently: true});
        const painted = (colour, alpha, under) => {
            context.globalAlpha = 1; context.fillStyle = under; context.fillRect(0, 0, 1, 1);
            context.globalAlpha = alpha; context.fillStyle = colour; context.fillRect(0, 0, 1, 1);
            return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
        };
        const light = (rgb) => rgb.map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
            .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
        const under = matchMedia("(prefers-color-scheme: dark)").matches ? "#121212" : "#ffffff";
        const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = {};
        while (texts.nextNode()) {
            const text = texts.currentNode.data.trim(), of = texts.currentNode.parentElement;
            if (!text) continue;
            let alpha = 1;
            for (let e = of; e; e = e.parentElement) alpha *= Number(getComputedStyle(e).opacity);
            const pair = [painted(getComputedStyle(of).color, alpha, under), painted(under, 1, under)].map(light);
            found[text.slice(0, 40)] = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
        }
        return found;
    }"""
    )


def test_a_browser_shows_both_real_models_ready(page: Page) -> None:
    page.goto("/")
    expect(page).to_have_title("Inclavate")
    for model, task in (("piper-joe", "text-to-speech"), ("whisper-tiny.en", "transcribe")):
        row = page.get_by_role("row").filter(has=page.get_by_text(model, exact=True))
        expect(row).to_contain_text(task)
        expect(row).to_contain_text("ready")


def test_a_phone_shows_every_state_without_scrolling_sideways(page: Page, platform: Platform) -> None:
    spoken = platform.submit(model="test-tone", modality="audio", params={"text": "x" * 200})
    platform.until_state(spoken["id"], "completed")
    refused = platform.submit(model="test-tone", modality="audio", params={"text": "x", "steps": "W" * 150})
    failed = platform.until_state(refused["id"], "failed")
    slow = platform.submit(model="test-tone-slow", modality="audio", params={"text": "x"})
    try:
        platform.until_state(slow["id"], "running")
        page.goto("/")
        for job, state in ((spoken, "completed"), (refused, "failed"), (slow, "running")):
            row = page.get_by_role("row").filter(has=page.get_by_text(job["id"][:8]))
            expect(row).to_contain_text(state)
            if state == "failed":
                expect(row).to_contain_text(failed["error_message"][:100])
        assert overflow(page) <= 0
        assert {text: ratio for text, ratio in contrasts(page).items() if ratio < 4.5} == {}
    finally:
        with platform.http as http:
            http.delete(f"/v1/generations/{slow['id']}")


def test_its_links_lead_somewhere(page: Page, platform: Platform) -> None:
    platform.submit(model="test-tone", modality="audio", params={"text": "x"})
    page.goto("/")
    links = page.locator("[href]").evaluate_all("all => all.map(one => one.href)")
    assert f"{platform.url}/v1/generations/capabilities" in links
    assert len(links) >= 4
    for link in links:
        answer = page.request.get(link)
        assert answer.ok, link
        assert answer.body(), link


def test_it_can_be_read_by_its_headings_and_labels(page: Page) -> None:
    page.goto("/")
    expect(page.get_by_role("heading", level=1)).to_have_text("Inclavate")
    for name in ("Models", "Work", "Use it"):
        expect(page.get_by_role("region", name=name)).to_be_visible()
    expect(page.get_by_role("columnheader").first).to_be_visible()

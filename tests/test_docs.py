"""What the documents say, held against the code."""

from __future__ import annotations

import re
import sys
import wave
from pathlib import Path
from typing import Any

import pytest

from inclavate.faces.native import streams as native
from inclavate.faces.openai import streams as openai
from inclavate.urls import urlpatterns
from tests.driving import outputs, run_job
from workers.catalog import load_catalog
from workers.hosts import Done, Failed, Hosts

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text("utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, target


def test_the_settings_table_names_every_variable_and_no_other() -> None:
    read = re.findall(
        r'_(?:text|number|flag)\(\s*(?:(?:int|float), )?"([A-Z_]+)"', (ROOT / "inclavate/settings.py").read_text()
    )
    rows = re.findall(r"^\| `INCLAVATE_([A-Z_]+)`", (DOCS / "ARCHITECTURE.md").read_text("utf-8"), re.MULTILINE)
    assert len(read) > 20
    assert sorted(rows) == sorted(read)


def test_the_reference_has_every_route_and_no_other() -> None:
    served = {
        f"{method} {route.path}" for route in (*native.routes, *openai.routes) for method in route.methods - {"HEAD"}
    }
    served |= {f"{method} /{pattern.pattern}" for pattern in urlpatterns for method in _methods(pattern.callback)}
    served = {re.sub(r"<\w+:(\w+)>", r"{\1}", route) for route in served}
    served = {re.sub(r"{(artifact|job)_id}", "{id}", route) for route in served}
    headings = re.findall(r"^### `(\w+ [^`]+)`", (DOCS / "api.md").read_text("utf-8"), re.MULTILINE)
    assert {re.sub(r":(\w+)", r"{\1}", heading) for heading in headings} == served - {"GET /", "GET /favicon.ico"}


def _methods(view: Any) -> set[str]:
    """The methods of a class of DRF's; a plain view of ours is read-only."""
    if not hasattr(view, "cls"):
        return {"GET"}
    return {name.upper() for name in ("get", "post", "put", "patch", "delete") if hasattr(view.cls, name)}


def test_the_example_in_the_text_is_the_one_that_runs() -> None:
    text = (DOCS / "ARCHITECTURE.md").read_text("utf-8")
    (shown,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert shown in (DOCS / "examples" / "beeper.py").read_text("utf-8")
    (offered,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert offered == (DOCS / "examples" / "models.toml").read_text("utf-8")


def test_the_example_engine_speaks_and_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "examples"))
    catalog = load_catalog(DOCS / "examples" / "models.toml")
    assert catalog.models["beeper"].capability().task == "text-to-speech"
    hosts = Hosts(catalog, 300.0, {"PYTHONPATH": str(DOCS / "examples"), "PATH": str(Path(sys.executable).parent)})
    try:
        seen = run_job(hosts, "beeper", tmp_path / "spoken", {"text": "three short words"})
        assert isinstance(seen[-1], Done)
        with wave.open(str(outputs(seen)[0].path)) as sound:
            assert sound.getnframes() == 3 * 2 * 3200
        refused = run_job(hosts, "beeper", tmp_path / "refused", {"text": "word " * 1001})[-1]
        assert isinstance(refused, Failed)
        assert refused.code == "unsupported_input"
    finally:
        hosts.close()

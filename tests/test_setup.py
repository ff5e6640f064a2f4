"""`scripts/setup.py` in a small checkout of its own, with wheels beside it: nothing is fetched. And the locks."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "requirements"

# What pip needs to install the checkout itself, without setuptools: a backend in its own tree.
BACKEND = """
import pathlib, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    files = {
        "project.pth": str(pathlib.Path(__file__).parent),
        "project-1.dist-info/METADATA": "Metadata-Version: 2.1\\nName: project\\nVersion: 1\\n",
        "project-1.dist-info/WHEEL": "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    record = "project-1.dist-info/RECORD"
    files[record] = "".join(f"{name},,\\n" for name in [*files, record])
    with zipfile.ZipFile(pathlib.Path(folder) / "project-1-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return "project-1-py3-none-any.whl"
"""


class Checkout:
    """A project whose lock holds one package, `tiny`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "scripts").mkdir(parents=True)
        (folder / "requirements").mkdir()
        shutil.copy(ROOT / "scripts" / "setup.py", folder / "scripts")
        (folder / "backend.py").write_text(BACKEND)
        (folder / "pyproject.toml").write_text(
            '[project]\nname = "project"\nversion = "1"\n'
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        )
        (folder / "requirements" / "bootstrap.txt").touch()
        self.lock("embedded", "1")
        self.lock("dev", "1")

    def lock(self, name: str, version: str, digest: str | None = None) -> None:
        path = self.folder / f"tiny-{version}-py3-none-any.whl"
        files = {
            "tiny.py": f"version = {version!r}\n",
            f"tiny-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n",
            f"tiny-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(
            f"{file},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},{len(text)}\n"
            for file, text in files.items()
        )
        with zipfile.ZipFile(path, "w") as wheel:
            for file, text in (files | {f"tiny-{version}.dist-info/RECORD": record}).items():
                wheel.writestr(file, text)
        digest = digest or hashlib.sha256(path.read_bytes()).hexdigest()
        text = f"tiny @ {path.as_uri()} --hash=sha256:{digest}\n"
        (self.folder / "requirements" / f"{name}.txt").write_text(text)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(self.folder / "scripts" / "setup.py"), *arguments]

    def setup(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*arguments), capture_output=True, text=True)

    def works(self, version: str = "1") -> bool:
        code = f"import tiny, backend; assert tiny.version == {version!r}"
        return subprocess.run([self.folder / ".venv" / "bin" / "python", "-c", code], cwd="/").returncode == 0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    checkout = Checkout(tmp_path_factory.mktemp("made") / "checkout")
    done = checkout.setup()
    assert done.returncode == 0, done.stderr
    return checkout


def test_without_uv_pip_installs_the_lock_and_the_project(made: Checkout) -> None:
    assert made.works()


def test_a_second_run_does_nothing(made: Checkout) -> None:
    before = {path: path.stat().st_mtime_ns for path in (made.folder / ".venv").rglob("*")}
    done = made.setup()
    assert (done.returncode, done.stderr) == (0, "")
    assert {path: path.stat().st_mtime_ns for path in (made.folder / ".venv").rglob("*")} == before


def test_a_changed_lock_is_installed(made: Checkout) -> None:
    made.lock("embedded", "2")
    assert made.setup().returncode == 0
    assert made.works("2")


def test_a_broken_environment_is_made_anew(made: Checkout) -> None:
    python = made.folder / ".venv" / "bin" / "python"
    python.unlink()
    python.write_text("not a program")
    done = made.setup()
    assert done.returncode == 0, done.stderr
    assert "making it anew" in done.stderr


def test_a_moved_checkout_is_made_anew(made: Checkout, tmp_path: Path) -> None:
    moved = Checkout(tmp_path / "moved")
    shutil.copytree(made.folder / ".venv", moved.folder / ".venv", symlinks=True)
    done = moved.setup()
    assert done.returncode == 0, done.stderr
    assert json.loads((moved.folder / ".venv" / "setup.json").read_text())["root"] == str(moved.folder)
    assert moved.works()


def test_a_package_of_another_digest_than_the_locks_is_refused(made: Checkout) -> None:
    made.lock("embedded", "6", digest="0" * 64)
    done = made.setup()
    assert done.returncode != 0
    assert "setup: this failed" in done.stderr


def test_an_interrupted_run_is_mended_by_the_next(made: Checkout) -> None:
    made.lock("embedded", "3")
    pip = made.folder / ".venv" / "bin" / "pip"
    pip.unlink()
    first = subprocess.Popen(made.command(), stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 60
    while not pip.exists():
        assert first.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert not (made.folder / ".venv" / "setup.json").exists()
    done = made.setup()
    assert done.returncode == 0, done.stderr
    assert made.works("3")


def test_an_unknown_word_is_refused(tmp_path: Path) -> None:
    done = Checkout(tmp_path / "checkout").setup("everything")
    assert done.returncode != 0
    assert "usage" in done.stderr


# The packages of the tests in Node.


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """`tests/node` of a checkout whose lock holds one package, which lies beside it."""
    folder = Checkout(tmp_path / "checkout").folder / "tests" / "node"
    (folder / "tiny").mkdir(parents=True)
    (folder / "tiny" / "package.json").write_text('{"name": "tiny", "version": "1.0.0"}')
    wants = {"name": "node", "dependencies": {"tiny": "file:tiny"}}
    (folder / "package.json").write_text(json.dumps(wants))
    packages = {"": wants, "node_modules/tiny": {"resolved": "tiny", "link": True}, "tiny": {"version": "1.0.0"}}
    lock = {"name": "node", "lockfileVersion": 3, "requires": True, "packages": packages}
    (folder / "package-lock.json").write_text(json.dumps(lock))
    return folder


def install_node_packages(node: Path, **environment: str) -> str:
    """What setup says meanwhile."""
    code = "import setup; setup.install_node_packages()"
    env = {**os.environ, "PYTHONPATH": str(node.parent.parent / "scripts"), **environment}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    return done.stderr


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not here")
def test_node_packages_are_installed_once_for_each_lock(node: Path) -> None:
    assert "installing tests/node" in install_node_packages(node)
    assert (node / "node_modules" / "tiny" / "package.json").exists()
    assert install_node_packages(node) == ""
    lock = node / "package-lock.json"
    lock.write_text(lock.read_text() + "\n")
    assert "installing tests/node" in install_node_packages(node)


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not here")
def test_node_packages_that_cannot_be_had_are_said_to_be_missing_and_tried_again(node: Path) -> None:
    lock = node / "package-lock.json"
    whole = lock.read_text()
    lock.write_text("{}")
    assert "will be skipped" in install_node_packages(node)
    lock.write_text(whole)
    assert "will be skipped" not in install_node_packages(node)
    assert (node / "node_modules" / "tiny").exists()


def test_without_npm_setup_says_what_will_be_skipped(node: Path, tmp_path: Path) -> None:
    assert "no node and npm here" in install_node_packages(node, PATH=str(tmp_path))


# The locks.


def test_the_lock_of_node_has_digests_and_no_source_of_its_own() -> None:
    lock = json.loads((ROOT / "tests" / "node" / "package-lock.json").read_text())
    installed = {name: package for name, package in lock["packages"].items() if name}
    assert "node_modules/openai" in installed
    for package in installed.values():
        assert package["integrity"].startswith("sha512-")
        assert "resolved" not in package


def pins(name: str) -> set[str]:
    return set(re.findall(r"^[a-z0-9.-]+==\S+", (LOCKS / f"{name}.txt").read_text(), re.MULTILINE))


def test_the_tests_run_on_the_very_packages_that_users_get() -> None:
    assert len(pins("embedded")) > 30
    assert pins("embedded") < pins("dev")


@pytest.mark.parametrize("name", ["bootstrap", "embedded", "dev"])
def test_every_locked_package_has_a_digest_and_no_source_of_its_own(name: str) -> None:
    text = (LOCKS / f"{name}.txt").read_text()
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(entries) >= len(pins(name)) > 0
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
    assert re.findall(r"https?:|file:|index-url|find-links| @ ", text) == []


def test_no_lock_holds_torch() -> None:
    names = {pin.partition("==")[0] for name in ("embedded", "dev") for pin in pins(name)}
    assert not names & {"torch", "torchaudio", "torchvision", "triton"}


def test_make_says_what_there_is() -> None:
    done = subprocess.run(["make", "-C", str(ROOT), "--no-print-directory"], capture_output=True, text=True, check=True)
    said = {line.split()[1] for line in done.stdout.splitlines()}
    assert {"setup", "up", "demo", "test", "lint", "lock"} <= said

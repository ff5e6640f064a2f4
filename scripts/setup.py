"""Make `.venv` and install the locked packages: `python3 scripts/setup.py [dev]`.

Plain Python, for it runs before anything is installed. Run again, it does only what is missing.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "setup.json"
# There while packages are being installed: whoever finds it knows that the last one to try did not finish.
UNFINISHED = VENV / "unfinished"
REQUIREMENTS = ROOT / "requirements"
NODE = ROOT / "tests" / "node"
# Goes with the packages, which `npm ci` removes before it installs.
NODE_STAMP = NODE / "node_modules" / "lock.sha256"
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


def say(text: str) -> None:
    sys.stderr.write(f"setup: {text}\n")


def need_python() -> None:
    if sys.version_info < (3, 11):
        sys.exit(
            f"setup: Python 3.11 or newer is needed, and {sys.executable} is {VERSION}. With another one at hand: "
            "make setup PYTHON=python3.12. Debian 12 has 3.11: apt install python3 python3-venv."
        )
    if not all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
        sys.exit(f"setup: Python's venv and ensurepip are missing. On Debian: apt install python{VERSION}-venv.")


def digest(*names: str) -> str:
    return hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in names)).hexdigest()


def wanted(is_dev: bool) -> dict[str, str]:
    """What the stamp says once everything is in place."""
    project = {"root": str(ROOT), "python": VERSION, "project": digest("pyproject.toml", "requirements/bootstrap.txt")}
    locks = ["embedded", "dev"] if is_dev else ["embedded"]
    return {**project, **{name: digest(f"requirements/{name}.txt") for name in locks}}


def stamped() -> dict[str, str]:
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def is_sound(stamp: dict[str, str]) -> bool:
    """Whether `.venv` may be built upon: finished, of this Python, in this place, and able to run."""
    if UNFINISHED.exists() or stamp.get("root", str(ROOT)) != str(ROOT):
        return False
    probe = [str(PYTHON), "-c", "import sys, pip; print('%d.%d' % sys.version_info[:2])"]
    try:
        answer = subprocess.run(probe, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError:
        return False
    return answer.returncode == 0 and answer.stdout.strip() == VERSION


def create() -> None:
    if VENV.is_symlink() or VENV.is_file():
        VENV.unlink()
    elif VENV.exists():
        say("the environment in .venv is unfinished, broken or another Python's; making it anew")
        shutil.rmtree(VENV)
    VENV.mkdir()
    UNFINISHED.touch()
    # With links the environment follows the interpreter's security updates.
    run([sys.executable, "-m", "venv", "--symlinks", str(VENV)])


def run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"setup: this failed, and says why above: {' '.join(command)}")


def pip_install(*arguments: str) -> None:
    run([str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *cache("pip"), *arguments])


def uv_install(*arguments: str) -> bool:
    uv = [str(VENV / "bin" / "uv"), "pip", "install", "--quiet", "--python", str(PYTHON), "--compile-bytecode"]
    command = [*uv, *cache("uv"), *arguments]
    try:
        return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def cache(tool: str, option: str = "--cache-dir") -> list[str]:
    """Installers keep what they download under the home folder; where there is none to write to, under the checkout."""
    home = Path.home()
    is_usable = home.is_dir() and os.access(home, os.W_OK)
    return [] if is_usable else [option, str(ROOT / ".cache" / tool)]


def install_lock(name: str) -> None:
    say(f"installing requirements/{name}.txt")
    arguments = ("--require-hashes", "--no-deps", "-r", str(REQUIREMENTS / f"{name}.txt"))
    if not uv_install(*arguments):
        say("uv could not; trying pip, which may know another mirror and takes a minute")
        pip_install(*arguments)


def install(stamp: dict[str, str], goal: dict[str, str]) -> None:
    UNFINISHED.touch()
    STAMP.unlink(missing_ok=True)
    if stamp.get("project") != goal["project"]:
        pip_install("--require-hashes", "--no-deps", "-r", str(REQUIREMENTS / "bootstrap.txt"))
    for name in ("embedded", "dev"):
        if name in goal and stamp.get(name) != goal[name]:
            install_lock(name)
    if stamp.get("project") != goal["project"]:
        pip_install("--no-deps", "--no-build-isolation", "--editable", str(ROOT))
        # As the packages were: otherwise the first start compiles, in each of its processes.
        run([str(PYTHON), "-m", "compileall", "-qq", "inclavate", "workers", "storage", "migrations"])
    STAMP.write_text(json.dumps({**stamp, **goal}, indent=1) + "\n", encoding="utf-8")
    UNFINISHED.unlink()


def install_system_tools() -> None:
    """The browser that the pages are tested with; its test is skipped, by name, where there is none."""
    if any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")):
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        say("no chromium here, so the browser's test will be skipped. On Debian: apt install chromium")
        return
    say("installing the package chromium by apt-get, for the browser's test")
    install_it = ["apt-get", "install", "--yes", "--quiet=2", "--no-install-recommends", "chromium"]
    for command in (install_it, ["apt-get", "update", "--quiet=2"], install_it):
        done = subprocess.run(
            ["env", "DEBIAN_FRONTEND=noninteractive", *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        if command is install_it and done.returncode == 0:
            return
    say("apt-get could not install chromium; the browser's test will be skipped")


def install_node_packages() -> None:
    """OpenAI's SDK for Node; its tests are skipped, by name, where there is none."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        say("no node and npm here, so the tests of OpenAI's SDK for Node will be skipped")
        return
    goal = digest("tests/node/package.json", "tests/node/package-lock.json")
    if NODE_STAMP.exists() and NODE_STAMP.read_text(encoding="utf-8") == goal:
        return
    say("installing tests/node/package-lock.json")
    done = subprocess.run(
        ["npm", "ci", "--loglevel=error", *cache("npm", "--cache")],
        cwd=NODE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        say("npm could not; the tests of OpenAI's SDK for Node will be skipped")
        return
    NODE_STAMP.parent.mkdir(exist_ok=True)
    NODE_STAMP.write_text(goal, encoding="utf-8")


def main(arguments: list[str]) -> None:
    if arguments not in ([], ["dev"]):
        sys.exit("usage: python3 scripts/setup.py [dev]")
    need_python()
    goal = wanted(is_dev=arguments == ["dev"])
    # Two at once would install over each other: the second waits, and finds everything done.
    with (ROOT / "pyproject.toml").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        begun = time.monotonic()
        stamp = stamped()
        if not is_sound(stamp):
            create()
            stamp = {}
        if not goal.items() <= stamp.items():
            install(stamp, goal)
            say(f"ready in {time.monotonic() - begun:.1f} s")
        if arguments == ["dev"]:
            install_system_tools()
            install_node_packages()


if __name__ == "__main__":
    main(sys.argv[1:])

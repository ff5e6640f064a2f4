"""Looking into artifacts: what they hold is found out by a caged process (`workers.probe`), one at a time."""

from __future__ import annotations

import json
import logging
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.db import Error as DatabaseError
from django.db import connections

from inclavate import artifacts, errors
from inclavate.models import Artifact
from storage import StoreError
from workers.hosts import child_environment

log = logging.getLogger(__name__)

_ROOT = Path(__file__).resolve().parent.parent
_NEEDED = ("av", "numpy")
_MAX_BYTES = 2**30
_ROOM_BYTES = 64 * 2**20
# Together less than the lease that a claim gives.
_COPY_SECONDS = 60.0
_PROBE_SECONDS = 40.0
_POLL_SECONDS = 0.2
_END_SECONDS = 5.0
_MAX_ANSWER_BYTES = 64 * 2**10
_UNREADABLE = {"unreadable": True}
_TOO_LARGE = {"note": f"More than {_MAX_BYTES // 2**30} GiB are not looked into."}


class _Interrupted(Exception):
    """This try ends without the artifact being to blame."""


class Inspector:
    """`answer` comes from one of the worker's slots, `beat` from its heartbeat; the work is done in another thread."""

    def __init__(self, work_dir: Path, environment: Mapping[str, str], is_draining: Callable[[], bool]) -> None:
        self._work_dir = work_dir
        # Libraries would start a thread a core, and each takes from the little memory that there is.
        few = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._environment = child_environment(environment) | few | {"PYTHONDONTWRITEBYTECODE": "1"}
        self._is_draining = is_draining
        self._is_at_work = threading.Lock()
        self._thread: threading.Thread | None = None

    def answer(self) -> None:
        """A ring: look into what is due, one after another. No job waits for that, and it waits for no job."""
        if self._is_able() and self._is_at_work.acquire(blocking=False):
            self._thread = threading.Thread(target=self._work, name="inspection", daemon=True)
            self._thread.start()

    def beat(self) -> None:
        """For rings that were lost, or that no slot was free to take."""
        if not self._is_at_work.locked() and artifacts.is_inspection_due():
            self.answer()

    def close(self) -> None:
        """The worker ends now: what is in hand is handed back."""
        if self._thread is not None:
            self._thread.join(_END_SECONDS)

    def look(self) -> bool:
        """Look into the next artifact that is due; whether there was one."""
        artifact = artifacts.claim_inspection()
        if artifact is None:
            return False
        try:
            facts = self._facts(artifact)
        except _Interrupted as reason:
            log.info("artifact %s is looked into later: %s", artifact.pk, reason)
            artifacts.hand_back_inspection(artifact)
            return True
        if facts is None and artifact.inspections >= artifacts.MAX_INSPECTIONS:
            facts = _UNREADABLE
        if facts is not None:
            artifacts.finish_inspection(artifact, facts)
        return True

    def _work(self) -> None:
        try:
            while self._is_able() and self.look():
                pass
        except DatabaseError as error:
            log.warning("the database did not answer: %s", error)
        finally:
            connections.close_all()
            self._is_at_work.release()

    def _is_able(self) -> bool:
        return not self._is_draining() and self._has_room(0)

    def _has_room(self, size: int) -> bool:
        with suppress(OSError):
            self._work_dir.mkdir(parents=True, exist_ok=True)
            return shutil.disk_usage(self._work_dir).free >= size + _ROOM_BYTES
        return False

    def _facts(self, artifact: Artifact) -> dict[str, Any] | None:
        """None where this try found out nothing, and the next one may. Raises `_Interrupted`."""
        if artifact.size > _MAX_BYTES:
            return _TOO_LARGE
        # Its last try took the worker with it.
        if artifact.inspections > artifacts.MAX_INSPECTIONS:
            return None
        with self._file(artifact) as path:
            try:
                self._copy(artifact, path)
            except errors.ArtifactGone:
                return _UNREADABLE
            except (errors.Unavailable, StoreError, OSError) as error:
                raise _Interrupted(str(error)) from error
            return self.measure(path, artifact.sniffed_type)

    @contextmanager
    def _file(self, artifact: Artifact) -> Iterator[Path]:
        if not self._has_room(artifact.size):
            raise _Interrupted(f"{artifact.size // 2**20} MiB do not fit into the work folder")
        with tempfile.TemporaryDirectory(prefix="inspect-", dir=self._work_dir) as folder:
            yield Path(folder) / "bytes"

    def _copy(self, artifact: Artifact, path: Path) -> None:
        give_up_at = time.monotonic() + _COPY_SECONDS
        with path.open("wb") as file:
            for chunk in artifacts.read(artifact):
                file.write(chunk)
                self._check(give_up_at)

    def _check(self, give_up_at: float) -> None:
        if self._is_draining():
            raise _Interrupted("the worker ends")
        if time.monotonic() > give_up_at:
            raise _Interrupted("the store is too slow")

    def measure(self, path: Path, sniffed_type: str) -> dict[str, Any] | None:
        """The facts of a file whose first bytes show it to be that; None where it could not be found out."""
        kind = sniffed_type.partition("/")[0]
        command = [sys.executable, "-m", "workers.probe", str(path), kind, f"{_PROBE_SECONDS:g}"]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=_ROOT,
                env=self._environment,
                start_new_session=True,
            )
        except OSError as error:
            raise _Interrupted(str(error)) from error
        with process:
            try:
                said = self._listen(process)
            finally:
                # It is not reaped yet, so its number is nobody else's.
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
        if (facts := parse_facts(said)) is None:
            log.warning("a process that looked into an artifact ended without facts (%s)", process.returncode)
        return facts

    def _listen(self, process: subprocess.Popen[bytes]) -> bytes:
        """What it says, up to a little more than it may, until it ends or its time does. Raises `_Interrupted`."""
        assert process.stdout is not None
        said = b""
        give_up_at = time.monotonic() + _PROBE_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while len(said) <= _MAX_ANSWER_BYTES and time.monotonic() < give_up_at:
                if self._is_draining():
                    raise _Interrupted("the worker ends")
                if selector.select(_POLL_SECONDS):
                    chunk = os.read(process.stdout.fileno(), _MAX_ANSWER_BYTES)
                    if not chunk:
                        break
                    said += chunk
        return said


def is_possible() -> bool:
    """Whether what reading media takes is installed; looking does not import it."""
    return all(find_spec(package) is not None for package in _NEEDED)


# -- what a probe said -------------------------------------------------------------------------------------------------


def parse_facts(said: bytes) -> dict[str, Any] | None:
    """The facts that are what they must be: a stranger's bytes may have made the process say anything."""
    if len(said) > _MAX_ANSWER_BYTES:
        return None
    try:
        report = json.loads(said)
    except (ValueError, RecursionError):
        return None
    if not isinstance(report, dict):
        return None
    found = {name: report[name] for name, is_right in _FACTS.items() if name in report and is_right(report[name])}
    return found or None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 < value < 2**31


def _is_quantity(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < 1e9  # type: ignore[operator]


def _is_share(value: object) -> bool:
    return _is_quantity(value) and value <= 1  # type: ignore[operator]


def _is_level(value: object) -> bool:
    return type(value) in (int, float) and -1000 <= value <= 0  # type: ignore[operator]


def _is_word(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[a-z0-9_.-]{1,40}", value) is not None


def _is_sentence(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[ -~]{1,200}", value) is not None


def _are_peaks(value: object) -> bool:
    return isinstance(value, list) and len(value) == 200 and all(_is_share(peak) for peak in value)


_FACTS: Mapping[str, Callable[[object], bool]] = {
    "duration_seconds": _is_quantity,
    "sample_rate": _is_count,
    "channels": _is_count,
    "width": _is_count,
    "height": _is_count,
    "frame_rate": _is_quantity,
    "codec": _is_word,
    "audio_codec": _is_word,
    "peaks": _are_peaks,
    "level_dbfs": _is_level,
    "silence": _is_share,
    "clipped": _is_share,
    "unreadable": lambda value: value is True,
    "note": _is_sentence,
}

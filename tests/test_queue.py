"""The bell while it is away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests import platforms

RINGS_THREE_TIMES = """
import django; django.setup()
from inclavate import queue
for name in ("a", "b", "a"):
    queue.ring(name)
"""


def test_a_bell_that_is_away_is_asked_once_and_not_by_every_submit(tmp_path: Path) -> None:
    environment = platforms.environment(tmp_path, REDIS_URL=f"unix://{tmp_path}/nobody.sock")
    command = [sys.executable, "-c", RINGS_THREE_TIMES]
    rung = subprocess.run(
        command,
        cwd=platforms.ROOT,
        env=environment | {"DJANGO_SETTINGS_MODULE": "inclavate.settings"},
        capture_output=True,
        text=True,
    )
    assert rung.returncode == 0, rung.stderr
    assert rung.stderr.count("was not rung") == 1

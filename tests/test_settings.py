"""Settings: a bad value stops the start with its variable's name, and an odd data folder is one of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import platforms

SHOW = """
import json
from django.core.exceptions import ImproperlyConfigured
try:
    from inclavate import settings
except ImproperlyConfigured as error:
    print(json.dumps({"error": str(error)}))
else:
    from urllib.parse import urlsplit
    name = settings.DATABASES["default"]["NAME"]
    print(json.dumps({"database": name, "run": str(settings.RUN_DIR), "broker": settings.CELERY_BROKER_URL}))
"""


def settings_of(data_dir: Path, **values: str) -> dict[str, str]:
    environment = platforms.environment(data_dir, **values)
    done = subprocess.run(
        [sys.executable, "-c", SHOW], env=environment, cwd=platforms.ROOT, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("PORT", "many", "INCLAVATE_PORT must be a number"),
        ("PORT", "0", "INCLAVATE_PORT must be between 1 and 65535, not 0."),
        ("STORE_URL", "ftp://x", "INCLAVATE_STORE_URL must be file:///…, s3://… or memory:."),
        ("STORE_URL", "nonsense", "INCLAVATE_STORE_URL must be"),
        ("LOG_LEVEL", "LOUD", "INCLAVATE_LOG_LEVEL must be DEBUG, INFO, WARNING, ERROR or CRITICAL, not 'LOUD'."),
        ("LEASE_SECONDS", "1", "INCLAVATE_LEASE_SECONDS (1) must be at least twice INCLAVATE_HEARTBEAT_SECONDS (5)"),
        ("REDIS_URL", "http://x", "INCLAVATE_REDIS_URL must be redis:, rediss: or unix:, not 'http'."),
        ("DATABASE_URL", "mysql://x/y", "INCLAVATE_DATABASE_URL"),
        ("DATABASE_URL", "postgres://x/y", "INCLAVATE_SECRET_KEY must be set"),
        ("ADMIN_TOKEN_FILE", "/nowhere/token", "INCLAVATE_ADMIN_TOKEN_FILE: cannot read '/nowhere/token'"),
    ],
)
def test_a_bad_value_is_named(tmp_path: Path, name: str, value: str, sentence: str) -> None:
    assert sentence in settings_of(tmp_path, **{name: value})["error"]


def test_a_data_folder_longer_than_sqlite_opens_is_named() -> None:
    assert (
        "INCLAVATE_DATA_DIR may have at most 400 bytes" in settings_of(Path("/") / ("a" * 200) / ("b" * 250))["error"]
    )


@pytest.mark.parametrize("name", ["plain", "a b", "a#1", "a?b", "a%20b", "é"])
def test_each_data_folder_holds_its_own_database_whatever_its_name(tmp_path: Path, name: str) -> None:
    found = settings_of(tmp_path / name)
    assert found["database"] == str(tmp_path / name / "inclavate.sqlite3")
    assert found["broker"] == f"redis+socket://{found['run']}/valkey.sock"


def test_a_platform_runs_in_an_oddly_named_folder(tmp_path: Path) -> None:
    with platforms.running(tmp_path / "of it", data_dir=tmp_path / "a#1?b%20c é") as platform:
        job = platform.submit(model="test-tone", modality="audio", params={"text": "x"})
        platform.until_state(job["id"], "completed")
    assert (tmp_path / "a#1?b%20c é" / "inclavate.sqlite3").is_file()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MODELS_FILE", "/nowhere/models.toml"),
        ("WORKER_MODELS", "nobody-s-model"),
        ("LEXICON_FILE", "/nowhere/lexicon.toml"),
    ],
)
def test_up_refuses_what_no_worker_could_start_with(tmp_path: Path, name: str, value: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "inclavate.cli", "up"],
        env=platforms.environment(tmp_path, **{name: value}),
        cwd=platforms.ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert f"INCLAVATE_{name}" in done.stderr
    assert value in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("url", "broker"),
    [
        ("rediss://:word@cache:6380/0", "rediss://:word@cache:6380/0?ssl_cert_reqs=required"),
        ("rediss://cache/0?ssl_ca_certs=/ca.pem", "rediss://cache/0?ssl_ca_certs=/ca.pem"),
        ("redis://cache/0", "redis://cache/0"),
    ],
)
def test_the_bell_verifies_certificates_unless_told_otherwise(url: str, broker: str) -> None:
    from inclavate.settings import _celery_broker

    assert _celery_broker(url) == broker

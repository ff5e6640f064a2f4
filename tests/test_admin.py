"""The admin's routes and commands, on SQLite and on PostgreSQL."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.test import override_settings

from inclavate import accounts, artifacts, database, fleet, jobs
from inclavate.generators import SPEECH, Capability
from inclavate.models import Artifact, Job, Owner, Turn, Usage
from tests.asking import ask
from tests.storing import put

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
    assert (answer.headers["x-should-retry"], "retry-after" in answer.headers) == ("false", False)


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


@pytest.mark.parametrize(
    ("typed", "kept"), [("ann", "ann"), ("ﬁ", "fi"), ("Ärger@x.org", "Ärger@x.org"), ("a" * 150,) * 2]
)
def test_an_account_and_its_owner_have_one_name_in_its_nfkc_form(typed: str, kept: str) -> None:
    assert f"Created the account {kept}." in said("createuser", typed)
    owner = accounts.find_owner(kept)
    assert owner.user is not None
    assert owner.user.username == kept
    assert said("apikey", "create", kept)


@pytest.mark.parametrize(
    "pair", [("ann", "Ann"), ("fi", "ﬁ"), ("Straße", "STRASSE"), ("ÄRGER", "ärger"), ("ann", "ａnn")]
)
def test_a_name_that_looks_like_a_taken_one_is_refused(pair: tuple[str, str]) -> None:
    for first, second in (pair, pair[::-1]):
        kept = accounts.create_user(first)
        with pytest.raises(CommandError, match=f"there is an account '{kept.name}' already"):
            said("createuser", second)
        kept.user.delete()


@pytest.mark.parametrize("name", ["LOCAL", "ｌocal"])
def test_no_account_looks_like_the_local_principal(name: str) -> None:
    with pytest.raises(CommandError, match="is the local principal's"):
        said("createuser", name)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("x" * 101, "at most 100 printable characters; 101 came."), ("a\nb", "some of those that came are not")],
)
def test_a_keys_name_that_cannot_be_listed_is_refused(name: str, sentence: str) -> None:
    said("createuser", "ann")
    with pytest.raises(CommandError, match=sentence):
        said("apikey", "create", "ann", "--name", name)
    assert said("apikey", "list", "ann") == ""
    assert said("apikey", "create", "ann", "--name", "x" * 100)


@pytest.mark.parametrize("command", [("createuser", "bea"), ("apikey", "create", "ann")])
def test_where_nobody_signs_in_it_is_said_that_keys_are_ignored(command: tuple[str, ...]) -> None:
    said("createuser", "ann")
    noted = io.StringIO()
    assert call_command(*command, stdout=io.StringIO(), stderr=noted) is None
    assert noted.getvalue() == ("" if settings.IS_HOSTED else f"{accounts.KEYS_ARE_IGNORED}\n")


# -- verify ------------------------------------------------------------------------------------------------------------


def differences(*options: str) -> list[str]:
    """What `verify` says, each difference a line, where it must fail."""
    output = io.StringIO()
    with pytest.raises(CommandError, match=r"^[0-9,]+ differences?\.$") as failed:
        call_command("verify", *options, stdout=output)
    found = output.getvalue().splitlines()
    assert str(failed.value).startswith(f"{len(found):,} ")
    return found


def test_verify_finds_nothing_where_all_is_well(alice: Owner, bob: Owner) -> None:
    for owner in (alice, bob):
        completed(owner)
        queued(owner)
    assert said("verify") == said("verify", "--store") == "No difference.\n"


def test_verify_names_counts_that_differ_from_the_rows(alice: Owner, bob: Owner) -> None:
    completed(bob)
    queued(alice)
    Turn.objects.filter(owner=alice).update(queued=7)
    Usage.objects.filter(owner=bob).update(bytes=6)
    assert differences() == [
        f"{SPEAKER.queue} of owner {alice.pk}: kept (7, 0), counted (1, 0)",
        f"owner {bob.pk}, generated: kept (6, 1), counted (5, 1)",
    ]


def test_verify_asks_the_store_only_when_told_and_names_what_is_missing_or_of_another_size(alice: Owner) -> None:
    whole, missing, longer = (Artifact.objects.get(job=completed(alice)) for _ in range(3))
    store = artifacts._store()
    store.delete(missing.store_key)
    put(store, longer.store_key, b"more than sound")
    assert said("verify") == "No difference.\n"
    assert sorted(differences("--store")) == sorted(
        [
            f"artifact {missing.pk} of owner {alice.pk}: its object is missing, the row says 5",
            f"artifact {longer.pk} of owner {alice.pk}: its object has 15 bytes, the row says 5",
        ]
    )
    assert Artifact.objects.filter(pk=whole.pk).exists()


def test_verify_looks_at_every_artifact_once_however_many_and_at_no_unfinished_one(alice: Owner) -> None:
    now = database.now()
    fields: dict[str, Any] = {"owner": alice, "origin": "uploaded", "media_type": "audio/wav", "created_at": now}
    ready = [
        Artifact(**fields, state="ready", digest="0" * 64, size=1, store_key=f"no-object-{n}") for n in range(1201)
    ]
    Artifact.objects.bulk_create([*ready, Artifact(**fields, state="pending", store_key="no-object")])
    missing = [line for line in differences("--store") if "is missing" in line]
    assert sorted(line.split()[1] for line in missing) == sorted(str(row.pk) for row in ready)

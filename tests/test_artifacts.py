"""The verbs of artifacts: quota, time to live, sweeping and parts, on SQLite and on PostgreSQL."""

from __future__ import annotations

import hashlib
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from django.db import connection
from django.test import override_settings
from hypothesis import given, settings
from hypothesis import strategies as st

from inclavate import artifacts, database, errors
from inclavate.models import Artifact, Owner, PartedUpload, Usage
from storage import PART_BYTES
from tests.faultproxy import Fault, FaultProxy, Mode

pytestmark = [pytest.mark.database, pytest.mark.usefixtures("database")]

HOUR = timedelta(hours=1)


def kept(owner: Owner, content: bytes = b"0123456789", **more: object) -> Artifact:
    draft = artifacts.begin(owner, Artifact.Origin.UPLOADED, "audio/flac", **more)  # type: ignore[arg-type]
    try:
        draft.write(content)
        return draft.finish()
    except BaseException:
        draft.abandon()
        raise


def read(artifact: Artifact) -> bytes:
    return b"".join(artifacts.read(artifact))


def reserved(owner: Owner) -> tuple[int, int]:
    rows = Usage.objects.filter(owner=owner)
    return sum(row.reserved_bytes for row in rows), sum(row.reserved_objects for row in rows)


def in_threads(count: int, work: Callable[[int], bool]) -> int:
    """In how many of so many threads, begun at one moment, the work succeeds."""
    begun = threading.Barrier(count)

    def run(number: int) -> bool:
        begun.wait(60)
        try:
            return work(number)
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as pool:
        return sum(pool.map(run, range(count)))


# -- quota -------------------------------------------------------------------------------------------------------------


def test_a_quota_of_bytes_is_exact_while_many_upload_at_once(alice: Owner, bob: Owner) -> None:
    alice.max_bytes = 55
    alice.save()

    def upload(number: int) -> bool:
        try:
            kept(alice, b"%010d" % number, expected_bytes=10)
        except errors.QuotaExhausted:
            return False
        return True

    assert in_threads(12, upload) == 5
    assert artifacts.usage(alice)["bytes"] == 50
    assert reserved(alice) == (0, 0)
    assert artifacts.usage_mismatches() == []
    kept(bob)


def test_a_quota_of_objects_is_exact_over_both_origins(alice: Owner) -> None:
    alice.max_objects = 7
    alice.save()

    def make(number: int) -> bool:
        origin = Artifact.Origin.UPLOADED if number % 2 else Artifact.Origin.GENERATED
        try:
            draft = artifacts.begin(alice, origin, "audio/flac")
        except errors.QuotaExhausted:
            return False
        draft.write(b"x")
        draft.finish()
        return True

    assert in_threads(12, make) == 7
    assert (artifacts.usage(alice)["objects"], reserved(alice)) == (7, (0, 0))


def test_an_upload_over_the_quota_is_told_the_limit_and_leaves_nothing(alice: Owner) -> None:
    alice.max_bytes = 15
    alice.save()
    first = kept(alice)
    with pytest.raises(errors.QuotaExhausted, match="15 bytes"):
        kept(alice)
    assert list(Artifact.objects.all()) == [first]
    assert reserved(alice) == (0, 0)
    artifacts.delete(alice, first.pk)
    kept(alice)


def test_the_deployments_quota_holds_where_the_account_has_none_of_its_own(alice: Owner, bob: Owner) -> None:
    bob.max_bytes = 100
    bob.save()
    with override_settings(MAX_BYTES_PER_OWNER=5, MAX_OBJECTS_PER_OWNER=3):
        with pytest.raises(errors.QuotaExhausted):
            kept(alice)
        kept(bob)
        assert (artifacts.usage(alice)["max_bytes"], artifacts.usage(bob)["max_bytes"]) == (5, 100)
        assert artifacts.usage(bob)["max_objects"] == 3


# -- time to live ------------------------------------------------------------------------------------------------------


def test_what_has_expired_is_swept_with_its_bytes_and_frees_the_quota(alice: Owner) -> None:
    with override_settings(ARTIFACT_TTL_HOURS=2):
        short = kept(alice)
    lasting = kept(alice)
    now = database.now()
    assert artifacts.sweep(now + HOUR) == 0
    assert artifacts.sweep(now + 3 * HOUR) == 1
    assert list(Artifact.objects.all()) == [lasting]
    assert artifacts.usage(alice)["objects"] == 1
    with pytest.raises(errors.ArtifactGone):
        artifacts.read(short)


def test_a_sweep_takes_a_batch_and_the_next_one_the_rest(alice: Owner) -> None:
    with override_settings(ARTIFACT_TTL_HOURS=1):
        for _ in range(7):
            kept(alice)
    later = database.now() + 2 * HOUR
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(artifacts, "_SWEEP_ROWS", 5)
        assert [artifacts.sweep(later), artifacts.sweep(later), artifacts.sweep(later)] == [5, 2, 0]


def test_a_slow_upload_outlives_sweeps_while_its_bytes_come(alice: Owner) -> None:
    with override_settings(ARTIFACT_TTL_HOURS=0.001):
        draft = artifacts.begin(alice, Artifact.Origin.UPLOADED, "audio/flac")
    now = database.now()
    Artifact.objects.update(created_at=now - 3 * HOUR, written_at=now - 2 * HOUR)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(artifacts, "_TOUCH_SECONDS", 0.0)
        draft.write(b"a byte a minute")
    assert artifacts.sweep(now) == 0
    assert draft.finish().state == "ready"


def test_an_upload_that_was_swept_gives_back_all_that_it_reserves(alice: Owner) -> None:
    draft = artifacts.begin(alice, Artifact.Origin.UPLOADED, "audio/flac")
    draft.write(b"some")
    assert artifacts.sweep(database.now() + 2 * HOUR) == 1
    with pytest.raises(errors.Conflict):
        draft.write(bytes(9 * 2**20))
    draft.abandon()
    assert (reserved(alice), Artifact.objects.count()) == ((0, 0), 0)


def test_what_is_reserved_while_another_removes_the_row_is_given_back_too(alice: Owner) -> None:
    draft = artifacts.begin(alice, Artifact.Origin.UPLOADED, "audio/flac")
    seen = Artifact.objects.get()
    draft.write(bytes(9 * 2**20))
    artifacts._remove(seen)
    draft.abandon()
    assert reserved(alice) == (0, 0)


def test_an_upload_in_parts_outlives_the_artifacts_time(alice: Owner) -> None:
    with override_settings(ARTIFACT_TTL_HOURS=0.001):
        upload = begun(alice)
    assert artifacts.sweep(database.now() + HOUR) == 0
    assert artifacts.parts(upload).received == []


# -- digests that come along -------------------------------------------------------------------------------------------


def test_bytes_that_are_not_what_their_digest_says_are_refused(alice: Owner) -> None:
    draft = artifacts.begin(alice, Artifact.Origin.UPLOADED, "audio/flac")
    draft.write(b"sound")
    draft.check_digest(hashlib.sha256(b"sound").hexdigest(), "x-content-sha256")
    with pytest.raises(errors.InvalidRequest, match="x-content-sha256"):
        draft.check_digest("0" * 64, "x-content-sha256")
    draft.abandon()


# -- parts -------------------------------------------------------------------------------------------------------------

WHOLE = os.urandom(2 * PART_BYTES + 1000)
DIGEST = hashlib.sha256(WHOLE).hexdigest()


def piece(number: int) -> bytes:
    return WHOLE[(number - 1) * PART_BYTES : number * PART_BYTES]


def put(upload: PartedUpload, number: int, content: bytes | None = None) -> None:
    draft = artifacts.PartDraft(upload, number)
    try:
        draft.write(piece(number) if content is None else content)
        draft.finish()
    finally:
        draft.abandon()


def begun(owner: Owner, digest: str = "", size: int = len(WHOLE)) -> PartedUpload:
    return artifacts.begin_parts(owner, "video/mp4", size, digest)


def completed(upload: PartedUpload, digest: str = "") -> Artifact:
    assembly = artifacts.Assembly(upload, digest)
    try:
        while assembly.step():
            pass
        return assembly.finish()
    finally:
        assembly.close()


@given(order=st.permutations([1, 2, 3, 2, 1]))
@settings(deadline=None, max_examples=5)
def test_parts_may_come_in_any_order_and_again(order: list[int]) -> None:
    owner, _ = Owner.objects.get_or_create(name="alice")
    upload = begun(owner, DIGEST)
    for number in order:
        put(upload, number)
    artifact = completed(upload)
    assert (artifact.state, artifact.size, artifact.digest) == ("ready", len(WHOLE), DIGEST)
    assert read(artifact) == WHOLE
    assert artifacts.usage_mismatches() == []
    assert reserved(owner) == (0, 0)
    artifacts.delete(owner, artifact.pk)


def test_an_upload_says_which_parts_have_come_and_reserves_the_whole(alice: Owner) -> None:
    upload = begun(alice)
    put(upload, 3)
    found = artifacts.parts(artifacts.get_parts(alice, upload.pk))
    assert (found.received, found.missing, found.urls) == ([3], [1, 2], {})
    assert reserved(alice) == (len(WHOLE), 1)
    with pytest.raises(errors.NotReady):
        artifacts.read(artifacts.get(alice, upload.pk))


def test_completing_too_early_names_what_misses_and_loses_nothing(alice: Owner) -> None:
    upload = begun(alice)
    put(upload, 2)
    with pytest.raises(errors.NotReady, match=r"lacks 2 of its 3 parts: 1, 3"):
        completed(upload)
    put(upload, 1)
    put(upload, 3)
    assert read(completed(upload)) == WHOLE


def test_another_digest_gives_the_whole_upload_up(alice: Owner) -> None:
    upload = begun(alice)
    for number in (1, 2, 3):
        put(upload, number)
    with pytest.raises(errors.InvalidRequest, match="digest"):
        completed(upload, "0" * 64)
    assert not Artifact.objects.exists()
    assert reserved(alice) == (0, 0)
    with pytest.raises(errors.NotFound):
        artifacts.get_parts(alice, upload.pk)
    with pytest.raises(errors.NotFound):
        put(upload, 1)


def test_a_part_has_its_size_and_a_number_of_the_upload(alice: Owner) -> None:
    upload = begun(alice)
    with pytest.raises(errors.PayloadTooLarge):
        put(upload, 3, b"x" * 1001)
    with pytest.raises(errors.InvalidRequest, match="part 3 has 1,000 bytes; 999 came"):
        put(upload, 3, b"x" * 999)
    for number in (0, 4):
        with pytest.raises(errors.InvalidRequest, match="parts 1 to 3"):
            put(upload, number, b"x")
    assert artifacts.parts(upload).received == []


def test_giving_up_frees_what_was_reserved_and_strangers_see_nothing(alice: Owner, bob: Owner) -> None:
    upload = begun(alice)
    put(upload, 1)
    with pytest.raises(errors.NotFound):
        artifacts.get_parts(bob, upload.pk)
    artifacts.give_up_parts(upload)
    assert (reserved(alice), Artifact.objects.count(), PartedUpload.objects.count()) == ((0, 0), 0, 0)


def test_more_than_five_gibibytes_or_the_quota_are_refused_at_the_begin(alice: Owner) -> None:
    with pytest.raises(errors.PayloadTooLarge):
        begun(alice, size=5 * 2**30 + 1)
    alice.max_bytes = 100
    alice.save()
    with pytest.raises(errors.QuotaExhausted):
        begun(alice, size=101)
    assert begun(alice, size=100).size == 100


def test_an_upload_that_nobody_completes_is_swept_after_its_day(alice: Owner) -> None:
    upload = begun(alice)
    put(upload, 1)
    now = database.now()
    assert artifacts.sweep(now + 23 * HOUR) == 0
    artifacts.sweep_store(now + 23 * HOUR)
    assert artifacts.parts(upload).received == [1]
    assert artifacts.sweep(now + 25 * HOUR) == 1
    assert (reserved(alice), Artifact.objects.count()) == ((0, 0), 0)


def test_completing_at_once_by_two_gives_one_artifact(alice: Owner) -> None:
    upload = begun(alice, size=1000)
    put(upload, 1, WHOLE[:1000])
    assemblies = [artifacts.Assembly(upload) for _ in range(2)]
    for assembly in assemblies:
        while assembly.step():
            pass
    first, second = (assembly.finish() for assembly in assemblies)
    assert first.pk == second.pk == upload.pk
    assert (artifacts.usage(alice)["objects"], artifacts.usage_mismatches()) == (1, [])


# -- several -----------------------------------------------------------------------------------------------------------


def test_several_come_in_the_order_asked_and_only_to_their_owner(alice: Owner, bob: Owner) -> None:
    first, second = kept(alice), kept(alice)
    assert artifacts.several(alice, [second.pk, first.pk]) == [second, first]
    for ids in ([first.pk, uuid.uuid4()], [kept(bob).pk]):
        with pytest.raises(errors.NotFound):
            artifacts.several(alice, ids)
    with pytest.raises(errors.NotReady):
        artifacts.several(alice, [begun(alice).pk])


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def network(moto_url: str) -> Iterator[FaultProxy]:
    """The store is a bucket for a while, behind this."""
    endpoint = parse_qs(urlsplit(moto_url).query)["endpoint"][0]
    server = urlsplit(endpoint)
    artifacts._store.cache_clear()
    with FaultProxy(str(server.hostname), int(server.port or 0)) as proxy:
        through = moto_url.replace(quote(endpoint, safe=""), quote(f"http://127.0.0.1:{proxy.port}", safe=""))
        with override_settings(STORE_URL=f"{through}&attempts=2"):
            yield proxy
    artifacts._store.cache_clear()


def test_a_store_that_fails_in_the_middle_of_a_download_is_an_error_of_ours(alice: Owner, network: FaultProxy) -> None:
    artifact = kept(alice, bytes(PART_BYTES))
    network.inject(Fault(Mode.CUT_ANSWER, "^GET", times=1000, after_bytes=2**20))
    chunks = artifacts.read(artifact)
    assert next(chunks)
    with pytest.raises(errors.Unavailable):
        list(chunks)
    artifacts.delete(alice, artifact.pk)

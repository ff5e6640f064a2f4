"""What a deployment can do, from what its workers offer; on SQLite and on PostgreSQL."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings

from inclavate import database, errors, fleet
from inclavate.generators import SPEECH, Capability
from inclavate.models import Worker

pytestmark = [pytest.mark.database, pytest.mark.usefixtures("database")]


def speaker(model: str = "a", **more: Any) -> Capability:
    return Capability(model, "audio", SPEECH, **more)


def ready(seconds_later: float = 0) -> dict[str, bool]:
    at = database.now() + timedelta(seconds=seconds_later)
    return {offer.capability.model: offer.is_ready for offer in fleet.offered(at)}


def test_a_model_is_ready_while_a_worker_that_offers_it_lives() -> None:
    fleet.register("w1", 1, [speaker("a"), speaker("b")])
    fleet.register("w2", 1, [speaker("b")])
    assert ready() == {"a": True, "b": True}
    fleet.stop("w1")
    assert ready() == {"a": False, "b": True}


def test_a_worker_that_is_not_heard_of_is_taken_for_dead() -> None:
    fleet.register("w1", 1, [speaker()])
    assert ready(settings.LEASE_SECONDS - 1) == {"a": True}
    assert ready(settings.LEASE_SECONDS + 1) == {"a": False}
    assert [worker.name for worker in fleet.workers()] == ["w1"]
    assert fleet.workers(database.now() + timedelta(seconds=settings.LEASE_SECONDS + 1)) == []


def test_a_model_stays_listed_for_a_day_and_its_jobs_find_it() -> None:
    fleet.register("w1", 1, [speaker()])
    fleet.stop("w1")
    assert fleet.find("a").model == "a"
    assert ready(24 * 3600 - 60) == {"a": False}
    assert ready(24 * 3600 + 60) == {}


def test_pruning_forgets_workers_after_a_day() -> None:
    fleet.register("w1", 1, [speaker()])
    assert fleet.prune(database.now() + timedelta(hours=23)) == 0
    assert fleet.prune(database.now() + timedelta(hours=25)) == 1
    assert not Worker.objects.exists()
    fleet.forget_offers()
    with pytest.raises(errors.NoGenerator, match="there is none at all"):
        fleet.find("a")


def test_models_are_listed_as_the_first_workers_file_has_them() -> None:
    fleet.register("w1", 1, [speaker("quick"), speaker("good"), speaker("best")])
    assert list(ready()) == ["quick", "good", "best"]
    fleet.register("w2", 1, [speaker("another"), speaker("best"), speaker("quick")])
    assert list(ready()) == ["quick", "good", "best", "another"]


def test_the_newest_offer_of_a_model_counts() -> None:
    fleet.register("w1", 1, [speaker(builtin_voices=("old",))])
    fleet.register("w2", 1, [speaker(builtin_voices=("new",))])
    assert fleet.find("a").builtin_voices == ("new",)
    fleet.register("w2", 1, [])
    assert fleet.find("a").builtin_voices == ("old",)


def test_a_capability_survives_being_stored_and_ignores_what_a_newer_one_has() -> None:
    capability = speaker(speed_range=(0.5, 2.0), languages=("en",), limits={"max_characters": 5}, sample_rate=8000)
    assert Capability.from_json(capability.as_json() | {"of_a_newer_version": 1}) == capability

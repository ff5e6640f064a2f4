"""Worker processes: register, heartbeat, offers, prune; and from the offers, what this deployment can do."""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.db.models import Min

from inclavate import database, errors
from inclavate.generators import Capability
from inclavate.models import Offer, Worker

_CACHE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Offered:
    """A model, whether a living worker runs it, and when it was last offered."""

    capability: Capability
    is_ready: bool
    seen_at: datetime


_NOTHING_READ: tuple[float, list[Offered]] = (float("-inf"), [])
_read = _NOTHING_READ


def register(name: str, slots: int, capabilities: Iterable[Capability]) -> None:
    """A worker process begins, and says what it can do."""
    with database.write() as now:
        worker, _ = Worker.objects.update_or_create(
            name=name,
            defaults={
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "slots": slots,
                "started_at": now,
                "seen_at": now,
                "stopped_at": None,
            },
        )
        worker.offers.all().delete()
        Offer.objects.bulk_create(
            Offer(
                worker=worker,
                model=capability.model,
                capability=(data := capability.as_json()),
                digest=hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest(),
                seen_at=now,
            )
            for capability in capabilities
        )
    forget_offers()


def heartbeat(name: str) -> None:
    with database.write() as now:
        Worker.objects.filter(name=name).update(seen_at=now, stopped_at=None)
        Offer.objects.filter(worker__name=name).update(seen_at=now)


def stop(name: str) -> None:
    """A worker process ends, or is known to be dead."""
    with database.write() as now:
        Worker.objects.filter(name=name, stopped_at=None).update(stopped_at=now)
    forget_offers()


def offered(at: datetime | None = None) -> list[Offered]:
    """Every model offered in the last 24 hours, in the order of the models file of the worker that began first to
    offer it; of several offers the newest counts.

    Without `at`, what was read within the last second may answer: each submit asks.
    """
    global _read
    if at is not None:
        return _read_offers(at)
    read_at, offers = _read
    if time.monotonic() - read_at > _CACHE_SECONDS:
        offers = _read_offers(database.now())
        _read = time.monotonic(), offers
    return offers


def forget_offers() -> None:
    """Read anew at the next question: what was offered has changed."""
    global _read
    _read = _NOTHING_READ


def _read_offers(at: datetime) -> list[Offered]:
    newest = Offer.objects.filter(seen_at__gte=at - timedelta(seconds=settings.OFFER_TTL_SECONDS))
    offers = {offer.model: offer for offer in newest.order_by("seen_at")}
    # A worker's offers are written in its file's order, whose first is what clients take that name no model.
    rank = dict(newest.values_list("model").annotate(Min("pk")))
    living = _living(at)
    return [
        Offered(Capability.from_json(offer.capability), name in living, offer.seen_at)
        for name, offer in sorted(offers.items(), key=lambda item: rank.get(item[0], math.inf))
    ]


def _living(at: datetime) -> set[str]:
    since = at - timedelta(seconds=settings.LEASE_SECONDS)
    return set(
        Offer.objects.filter(worker__stopped_at=None, worker__seen_at__gte=since).values_list("model", flat=True)
    )


def find(model: str, modality: str | None = None, task: str | None = None) -> Capability:
    """The model's capability. Raises `NoGenerator`, naming what there is."""
    known = [offer.capability for offer in offered()]
    for capability in known:
        if capability.model == model and modality in (None, capability.modality) and task in (None, capability.task):
            return capability
    wanted = " ".join(filter(None, [task, f"modality {modality!r}" if modality and not task else None]))
    fitting = [c.model for c in known if modality in (None, c.modality) and task in (None, c.task)]
    others = f"there are: {', '.join(fitting)}" if fitting else "there is none at all"
    raise errors.NoGenerator(f"No generator {model!r} for {wanted or 'this'}; {others}.", param="model")


def workers(at: datetime | None = None) -> list[Worker]:
    """The worker processes that live, oldest first."""
    since = (at or database.now()) - timedelta(seconds=settings.LEASE_SECONDS)
    return list(Worker.objects.filter(stopped_at=None, seen_at__gte=since).order_by("started_at"))


def prune(at: datetime | None = None) -> int:
    """Forget workers, and their offers, that nobody saw for 24 hours; how many."""
    at = at or database.now()
    gone, by_model = Worker.objects.filter(seen_at__lt=at - timedelta(seconds=settings.OFFER_TTL_SECONDS)).delete()
    return by_model.get("inclavate.Worker", 0) if gone else 0


# -- the sweeper -------------------------------------------------------------------------------------------------------


def beat_sweeper() -> None:
    """A sweep is done. Raises `OSError`."""
    mark = _sweeper_mark()
    mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mark.touch()


def sweeper_beat_at() -> float | None:
    """When a sweeper with this data folder last ended a sweep, in Unix seconds; None where none ever did."""
    try:
        return _sweeper_mark().stat().st_mtime
    except OSError:
        return None


def _sweeper_mark() -> Path:
    # A file, because it is asked for on the machine itself, also while the database is away.
    return Path(settings.DATA_DIR) / "sweeper.beat"

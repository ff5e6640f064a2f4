"""The Celery app, and the bell. A message means "there may be work on this queue", never "run this job"."""

from __future__ import annotations

import logging
import time

from celery import Celery
from django.conf import settings
from kombu.exceptions import OperationalError

log = logging.getLogger(__name__)

# Where the bell is away, asking it takes a second or two each time: so long it is taken for away without asking.
_AWAY_SECONDS = 5.0

RING = "workers.ring"
# A ring that waited longer than this is stale: the sweeper has rung again since.
_RING_EXPIRES_SECONDS = 15

app = Celery("inclavate", broker=settings.CELERY_BROKER_URL, set_as_current=True)
app.conf.update(
    task_ignore_result=True,
    task_acks_late=False,
    worker_prefetch_multiplier=1,
    # A busy worker must not hold a ring that an idle one could answer.
    worker_disable_prefetch=True,
    worker_hijack_root_logger=False,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_connection_timeout=1,
    broker_transport_options={"socket_timeout": 5, "socket_connect_timeout": 1},
)


class _Bell:
    """Until when this process takes it for away (monotonic seconds)."""

    away_until = 0.0


def ring(queue: str) -> None:
    """Wake a worker of that queue. Never raises: a lost ring costs time, and the sweeper rings again."""
    if time.monotonic() < _Bell.away_until:
        return
    try:
        app.send_task(RING, args=[queue], queue=queue, expires=_RING_EXPIRES_SECONDS, retry=False)
    except (OperationalError, OSError) as error:
        _Bell.away_until = time.monotonic() + _AWAY_SECONDS
        log.warning("queue %s was not rung, nor will any be for %g s: %s", queue, _AWAY_SECONDS, error)

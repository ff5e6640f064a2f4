from __future__ import annotations

import uuid

from django.db import models


class Note(models.Model):
    """A row of about a job's weight, with the one index that its key makes."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    text = models.TextField()
    created_at = models.DateTimeField()

    objects: models.Manager[Note] = models.Manager()

    class Meta:
        app_label = "floors"

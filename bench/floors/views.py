"""Plain Django views: one insert and commit; one read by an indexed key."""

from __future__ import annotations

import json
import threading
import uuid
from contextlib import nullcontext
from datetime import UTC, datetime

from django.db import connection
from django.http import HttpRequest, JsonResponse  # noqa: TID251 - a plain view is what is measured
from django.urls import path

from bench.floors.models import Note

# SQLite has one writer; left to its own waiting, eight threads would measure that instead.
_writer = threading.Lock()


def insert(request: HttpRequest) -> JsonResponse:
    text = json.loads(request.body)["text"]
    with _writer if connection.vendor == "sqlite" else nullcontext():
        note = Note.objects.create(text=text, created_at=datetime.now(UTC))
    return JsonResponse(_shape(note), status=202)


def read(request: HttpRequest, note_id: uuid.UUID) -> JsonResponse:
    return JsonResponse(_shape(Note.objects.get(pk=note_id)))


def _shape(note: Note) -> dict[str, str]:
    return {"id": str(note.pk), "text": note.text, "created_at": note.created_at.isoformat()}


urlpatterns = [path("notes", insert), path("notes/<uuid:note_id>", read)]

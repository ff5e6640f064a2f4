"""The pages: rendered on the server, over the same verbs as the API."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from inclavate import accounts, artifacts, errors, fleet, jobs
from inclavate.faces.boundary import error_headers


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """What runs here."""
    try:
        owner = accounts.identify()
    except errors.Unauthenticated as error:
        kind = "text/plain; charset=utf-8"
        return HttpResponse(error.message, status=error.status, headers=error_headers(error), content_type=kind)
    recent = jobs.page(owner, limit=10)
    context = {
        "version": settings.VERSION,
        "address": request.build_absolute_uri("/").rstrip("/"),
        "offered": fleet.offered(),
        "workers": fleet.workers(),
        "counts": jobs.counts(owner),
        "usage": artifacts.usage(owner),
        "recent": recent.rows,
    }
    return render(request, "home.html", context)

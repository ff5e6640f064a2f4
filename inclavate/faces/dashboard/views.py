"""The pages: rendered on the server, over the same verbs as the API."""

from __future__ import annotations

from collections.abc import Iterable

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.views.decorators.http import require_safe

from inclavate import accounts, artifacts, errors, fleet, jobs
from inclavate.faces.boundary import error_headers
from inclavate.fleet import Offered
from inclavate.generators import SPEECH, Capability

_HEADERS = {
    "Cache-Control": "no-cache",
    # The pages have no script at all, so that nothing in a job's text can ever become one.
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'self'",
}


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """What runs here."""
    try:
        owner = accounts.identify(request.headers.get("Authorization"))
    except errors.Unauthenticated as error:
        headers = error_headers(error)
        return HttpResponse(error.message, "text/plain; charset=utf-8", error.status, headers=headers)
    offered = fleet.offered()
    context = {
        "version": settings.VERSION,
        "address": request.build_absolute_uri("/").rstrip("/"),
        "offered": offered,
        "speaker": _speaker(offered),
        "workers": fleet.workers(),
        "counts": jobs.counts(owner),
        "usage": artifacts.usage(owner),
        "recent": jobs.page(owner, limit=10).rows,
    }
    return HttpResponse(render_to_string("home.html", context), headers=_HEADERS)


def _speaker(offered: Iterable[Offered]) -> Capability | None:
    """The model of the example: the first that speaks, now if there is one."""
    speakers = [offer for offer in offered if offer.capability.task == SPEECH and not offer.capability.requires_speaker]
    return min(speakers, key=lambda offer: not offer.is_ready).capability if speakers else None

"""The admin's routes: they act on every owner's jobs, and ask for the deployment's token."""

from __future__ import annotations

from django.conf import settings
from rest_framework.request import Request
from rest_framework.response import Response

from inclavate import accounts, errors, jobs
from inclavate.faces.boundary import parse_id
from inclavate.faces.views import View

_HEADER = "X-Admin-Token"


class Verify(View):
    authentication_classes = ()

    def get(self, request: Request) -> Response:
        if not accounts.is_admin_token(request.headers.get(_HEADER)):
            raise errors.Forbidden(f"{_HEADER} is not this deployment's token, or there is none.", param=_HEADER)
        return Response({"ok": True})


class Generation(View):
    authentication_classes = ()

    def delete(self, request: Request, job_id: str) -> Response:
        if not settings.ADMIN_TOKEN:
            raise errors.NotConfigured("No admin token is configured here (INCLAVATE_ADMIN_TOKEN).")
        if not accounts.is_admin_token(request.headers.get(_HEADER)):
            raise errors.Unauthenticated(f"{_HEADER} is missing, or is not this deployment's token.", param=_HEADER)
        kept = request.query_params.get("artifacts", "true")
        if kept not in ("true", "false"):
            raise errors.InvalidRequest(f"artifacts must be true or false, not {kept[:40]!r}.", param="artifacts")
        key = parse_id(job_id)
        return Response({"id": str(key), "artifacts_deleted": jobs.erase(key, with_artifacts=kept == "true")})

"""The native API's JSON routes."""

from __future__ import annotations

import uuid
from typing import TypedDict, cast

from rest_framework.request import Request
from rest_framework.response import Response

from inclavate import artifacts, fleet, jobs
from inclavate.faces.boundary import check_json_type, parse_count, parse_id, parse_json, validate
from inclavate.faces.native import shapes
from inclavate.faces.views import View
from inclavate.models import Owner


def _owner(request: Request) -> Owner:
    return cast(Owner, request.user)


class _Window(TypedDict):
    """Which part of a list is asked for."""

    limit: int
    offset: int
    after: uuid.UUID | None


def _window(request: Request) -> _Window:
    query = request.query_params
    return {
        "limit": parse_count(query, "limit", 100, 1, 1000),
        "offset": parse_count(query, "offset", 0, 0),
        "after": parse_id(query["after"], "after") if "after" in query else None,
    }


class Capabilities(View):
    authentication_classes = ()

    def get(self, request: Request) -> Response:
        return Response({"generators": [shapes.generator_json(offer) for offer in fleet.offered()]})


class Generations(View):
    def get(self, request: Request) -> Response:
        only = shapes.job_filter(request.query_params)
        return Response(shapes.jobs_json(jobs.page(_owner(request), **_window(request), only=only)))

    def post(self, request: Request) -> Response:
        # Not `request.data`: DRF takes an empty body for an empty object.
        check_json_type(request.content_type)
        asked = validate(shapes.GenerationRequest, parse_json(request.body))
        submission = asked.submission(request.headers.get("Idempotency-Key"))
        job, _ = jobs.submit(_owner(request), submission)
        return Response(shapes.job_json(job), status=200 if job.is_terminal else 202)


class Artifacts(View):
    """The listing; uploads are a stream's business."""

    def get(self, request: Request) -> Response:
        page = artifacts.page(_owner(request), **_window(request), origin=request.query_params.get("kind"))
        return Response(shapes.artifacts_json(page))


class ArtifactUsage(View):
    def get(self, request: Request) -> Response:
        return Response(artifacts.usage(_owner(request)))


class ArtifactMeta(View):
    def get(self, request: Request, artifact_id: str) -> Response:
        artifact = artifacts.get(_owner(request), parse_id(artifact_id))
        return Response(shapes.meta_json(artifact))

"""The OpenAI-compatible JSON routes that neither stream nor wait."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from inclavate import errors, fleet
from inclavate.faces.openai import shapes
from inclavate.faces.views import View


class Models(View):
    def get(self, request: Request) -> Response:
        return Response({"object": "list", "data": [shapes.model_json(offer) for offer in fleet.offered()]})


class Model(View):
    def get(self, request: Request, model: str) -> Response:
        for offer in fleet.offered():
            if offer.capability.model == model:
                return Response(shapes.model_json(offer))
        raise errors.NotFound(f"There is no model {model[:200]!r}.", param="model")

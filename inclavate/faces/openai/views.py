"""The OpenAI-compatible JSON routes that neither stream nor wait."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from inclavate import errors, fleet
from inclavate.faces.openai import shapes


class Models(APIView):
    def get(self, request: Request) -> Response:
        return Response({"object": "list", "data": [shapes.model_json(offer) for offer in fleet.offered()]})


class Model(APIView):
    def get(self, request: Request, model: str) -> Response:
        for offer in fleet.offered():
            if offer.capability.model == model:
                return Response(shapes.model_json(offer))
        raise errors.NotFound(f"There is no model {model[:200]!r}.", param="model")

"""What Django's JSON routes have in common."""

from __future__ import annotations

from typing import Any

from rest_framework import exceptions
from rest_framework.request import Request
from rest_framework.views import APIView


class View(APIView):
    """What its class does not define is 405, whoever asks, as on Starlette's routes.

    OPTIONS is not defined: DRF would answer it with what it knows of our classes.
    """

    http_method_names = ["get", "post", "put", "patch", "delete", "head"]

    @property
    def allowed_methods(self) -> list[str]:
        return sorted(super().allowed_methods)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if request.method not in self.allowed_methods:
            raise exceptions.MethodNotAllowed(str(request.method))
        super().initial(request, *args, **kwargs)

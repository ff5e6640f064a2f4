"""Who calls, and what they may."""

from __future__ import annotations

from django.conf import settings
from django.db import IntegrityError

from inclavate import errors
from inclavate.models import Owner

_LOCAL = "local"


def local_owner() -> Owner:
    """The one principal of a local deployment."""
    try:
        return Owner.objects.get_or_create(name=_LOCAL)[0]
    except IntegrityError:
        return Owner.objects.get(name=_LOCAL)


def identify() -> Owner:
    """The owner that a request acts for. Raises `Unauthenticated` where nobody can be told."""
    if settings.IS_HOSTED:
        raise errors.Unauthenticated("Sign in, or send an API key as `Authorization: Bearer …`.")
    return local_owner()

"""Who calls, and what they may: owners, their API keys, the admin's token."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError

from inclavate import database, errors
from inclavate.models import ApiKey, Owner

_LOCAL = "local"
_KEY_PREFIX = "ik-"
# Writing each use of a key would be a write a request.
_LAST_USED_STEP = timedelta(minutes=1)


def local_owner() -> Owner:
    """The one principal of a local deployment."""
    try:
        return Owner.objects.get_or_create(name=_LOCAL)[0]
    except IntegrityError:
        return Owner.objects.get(name=_LOCAL)


def identify(authorization: str | None = None) -> Owner:
    """The owner that a request acts for. Raises `Unauthenticated` where nobody can be told."""
    if not settings.IS_HOSTED:
        return local_owner()
    scheme, _, key = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise errors.Unauthenticated("Send an API key as `Authorization: Bearer …`.")
    return _owner_of(key.strip())


def _owner_of(key: str) -> Owner:
    found = ApiKey.objects.select_related("owner__user").filter(digest=_digest(key), revoked_at=None).first()
    if found is None or (found.owner.user is not None and not found.owner.user.is_active):
        raise errors.Unauthenticated("This API key is not known, or was revoked.")
    # To the minute: this process's own clock will do, and asking the database's would be a query a request.
    now = datetime.now(UTC)
    if found.last_used_at is None or now - found.last_used_at > _LAST_USED_STEP:
        ApiKey.objects.filter(pk=found.pk).update(last_used_at=now)
    return found.owner


def create_user(name: str, password: str | None = None) -> Owner:
    """A new account and its owner; without a password it can only use keys. Raises `Conflict` for a taken name."""
    if name == _LOCAL:
        raise errors.InvalidRequest(f"name: {_LOCAL!r} is the local principal's.", param="name")
    try:
        with database.write():
            user = User.objects.create_user(username=name, password=password)
            return Owner.objects.create(name=name, user=user)
    except IntegrityError:
        raise errors.Conflict(f"name: there is an account {name!r} already.", param="name") from None


def find_owner(name: str) -> Owner:
    """Raises `NotFound`."""
    owner = Owner.objects.filter(name=name).first()
    if owner is None:
        raise errors.NotFound(f"There is no account {name!r}.", param="name")
    return owner


def create_key(owner: Owner, name: str) -> str:
    """A new API key, in clear: only its digest is kept, so this is the one time that it can be shown."""
    key = _KEY_PREFIX + secrets.token_urlsafe(32)
    with database.write() as now:
        ApiKey.objects.create(owner=owner, name=name, prefix=key[:8], digest=_digest(key), created_at=now)
    return key


def revoke_key(owner: Owner, prefix: str) -> int:
    """Revoke the owner's keys that begin so, at once; how many."""
    with database.write() as now:
        return ApiKey.objects.filter(owner=owner, prefix=prefix[:8], revoked_at=None).update(revoked_at=now)


def webhook_secret(owner: Owner) -> str:
    """A new secret to sign the owner's webhooks with, as Standard Webhooks writes it; the old one ends here."""
    secret = _new_webhook_secret()
    Owner.objects.filter(pk=owner.pk).update(webhook_secret=secret)
    return secret


def signing_secret(owner: Owner) -> str:
    """The owner's secret, made here where there was none."""
    if not owner.webhook_secret:
        # Two that find none at once must sign with the same one.
        Owner.objects.filter(pk=owner.pk, webhook_secret="").update(webhook_secret=_new_webhook_secret())
        owner.refresh_from_db(fields=["webhook_secret"])
    return owner.webhook_secret


def _new_webhook_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def is_admin_token(token: str | None) -> bool:
    """Compared in constant time. False also where no token is configured."""
    expected: str = settings.ADMIN_TOKEN
    return bool(expected) and hmac.compare_digest((token or "").encode(), expected.encode())


def _digest(key: str) -> str:
    # A key has 256 random bits: a fast hash is enough, and a slow one would be paid on each request.
    return hashlib.sha256(key.encode()).hexdigest()

"""Who calls, and what they may: owners, their API keys, the admin's token."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import unicodedata
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError

from inclavate import database, errors
from inclavate.models import ApiKey, Owner

# What commands say where they make what has no use yet.
KEYS_ARE_IGNORED = "Nobody signs in to a local deployment: until its database is PostgreSQL, keys are ignored."

_LOCAL = "local"
_NAME = re.compile(r"[\w.@+-]{1,150}")
_MAX_KEY_NAME = 100
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
    """A new account and its owner, under the name's NFKC form; without a password it can only use keys.

    Raises `InvalidRequest` for a name that cannot be, `Conflict` for one that is taken or looks like a taken one.
    """
    name = _account_name(name)
    try:
        with database.write():
            if (taken := _looking_like(name)) is not None:
                raise errors.Conflict(f"name: there is an account {taken!r} already.", param="name")
            user = User.objects.create_user(username=name, password=password)
            return Owner.objects.create(name=name, user=user)
    except IntegrityError:
        raise errors.Conflict(f"name: there is an account {name!r} already.", param="name") from None


def _account_name(text: str) -> str:
    name = unicodedata.normalize("NFKC", text)
    if not _NAME.fullmatch(name):
        came = f"not {text!r}" if len(text) <= 40 else f"{len(text)} characters came"
        raise errors.InvalidRequest(f"name must be 1 to 150 letters, digits, and @ . + - _; {came}.", param="name")
    if _folded(name) == _LOCAL:
        raise errors.InvalidRequest(f"name: {_LOCAL!r} is the local principal's.", param="name")
    return name


def _looking_like(name: str) -> str | None:
    """The account whose name differs from this one at most by case or normalisation."""
    # Not by the database: SQLite folds the case of ASCII letters alone.
    names = Owner.objects.values_list("name").union(User.objects.values_list("username"))
    return next((other for (other,) in names if _folded(other) == _folded(name)), None)


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def find_owner(name: str) -> Owner:
    """Raises `NotFound`."""
    owner = Owner.objects.filter(name=name).first()
    if owner is None:
        raise errors.NotFound(f"There is no account {name!r}.", param="name")
    return owner


def create_key(owner: Owner, name: str) -> str:
    """A new API key, in clear: only its digest is kept, so this is the one time that it can be shown.

    Raises `InvalidRequest` for a name of the key that cannot be.
    """
    if len(name) > _MAX_KEY_NAME or not name.isprintable():
        came = f"{len(name)} came" if name.isprintable() else "some of those that came are not"
        raise errors.InvalidRequest(
            f"name: a key's may have at most {_MAX_KEY_NAME} printable characters; {came}.", param="name"
        )
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

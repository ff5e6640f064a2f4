"""Several artifacts as one ZIP, made while it is sent: memory does not grow with it, and nothing touches the disk."""

from __future__ import annotations

import io
import uuid
import zipfile
from collections.abc import AsyncIterator, Iterable

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from inclavate import artifacts, errors
from inclavate.faces.boundary import at_store, endpoint, in_pool, parse_id
from inclavate.faces.transfers import filename, iterate
from inclavate.models import Artifact, Owner

_MAX_ARTIFACTS = 1000
# In UTF-8: most file systems take names of 255 bytes, and a doubled one gets a number.
_MAX_STEM_BYTES, _MAX_ENDING_BYTES = 200, 20


@endpoint
async def archive(request: Request, owner: Owner) -> Response:
    chosen = await in_pool(artifacts.several, owner, _ids(request))
    headers = {"Content-Disposition": 'attachment; filename="artifacts.zip"', "X-Content-Type-Options": "nosniff"}
    return StreamingResponse(_zipped(chosen), headers=headers, media_type="application/zip")


def _ids(request: Request) -> list[uuid.UUID]:
    """`?ids=` once with commas, or again and again. Raises `InvalidRequest`."""
    words = [word for text in request.query_params.getlist("ids") for word in text.split(",") if word]
    ids = list(dict.fromkeys(parse_id(word, "ids") for word in words))
    if not 1 <= len(ids) <= _MAX_ARTIFACTS:
        raise errors.InvalidRequest(f"ids must name 1 to {_MAX_ARTIFACTS:,} artifacts; {len(ids):,} came.", param="ids")
    return ids


class _Sink(io.RawIOBase):
    """What a ZIP writes, until it is taken. Without `tell` and `seek`, so that the ZIP writes sizes behind contents."""

    def __init__(self) -> None:
        self._written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._written += data
        return len(data)

    def take(self) -> bytes:
        taken, self._written = bytes(self._written), bytearray()
        return taken


async def _zipped(chosen: Iterable[Artifact]) -> AsyncIterator[bytes]:
    sink = _Sink()
    taken: set[str] = set()
    # Level 0, because sound and pictures are compressed by themselves; and not plainly stored, because readers of
    # streams refuse such entries where the sizes come behind.
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED, compresslevel=0) as packed:
        for artifact in chosen:
            name = _free_name(filename(artifact), taken)
            with packed.open(name, "w", force_zip64=artifact.size > 2**31 - 1) as file:
                async for chunk in iterate(await at_store(artifacts.read, artifact)):
                    file.write(chunk)
                    yield sink.take()
    yield sink.take()


def _free_name(wanted: str, taken: set[str]) -> str:
    """A plain file name that no earlier entry has, also where a disk takes upper and lower case for one."""
    plain = "".join("_" if c in '/\\:*?"<>|' or not c.isprintable() else c for c in wanted).strip(". ") or "artifact"
    stem, dot, ending = plain.rpartition(".") if "." in plain else (plain, "", "")
    stem, ending = _cut(stem, _MAX_STEM_BYTES), _cut(ending, _MAX_ENDING_BYTES)
    name, number = f"{stem}{dot}{ending}", 1
    while name.lower() in taken:
        number += 1
        name = f"{stem} ({number}){dot}{ending}"
    taken.add(name.lower())
    return name


def _cut(text: str, size: int) -> str:
    return text.encode()[:size].decode(errors="ignore")


routes = [Route("/v1/artifacts/archive", archive, methods=["GET"])]

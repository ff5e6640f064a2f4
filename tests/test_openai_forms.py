"""The reader of multipart forms: whatever comes, and however it is cut, it is the same form or a refusal."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from starlette.requests import Request

from inclavate import errors
from inclavate.faces.openai.forms import FilePart, Form, FormReader

BOUNDARY = "b0undary"
FORM_TYPE = f"multipart/form-data; boundary={BOUNDARY}"
CAP = 4096
# What a boundary is made of, so that a file is full of what is nearly one.
NEARLY = [b"\r", b"\n", b"\r\n", b"-", b"--", b"\r\n--", b"\r\n--b0", b"\r\n--b0undar", b"b0undary", b"\0", b"x"]


@dataclass
class Read:
    """What a reader gave, and what it told while it read."""

    form: Form = field(default_factory=Form)
    file: bytes = b""
    before: dict[str, str] = field(default_factory=dict)


def read(chunks: Sequence[bytes], content_type: str = FORM_TYPE) -> Read:
    seen = Read()
    left = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    left.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> Any:
        return left.pop(0)

    async def begin(part: FilePart, fields: Mapping[str, str]) -> None:
        seen.before = dict(fields)

    async def write(chunk: bytes) -> None:
        seen.file += chunk

    headers = [(b"content-type", content_type.encode("latin-1", "replace"))]
    request = Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)
    seen.form = asyncio.run(FormReader(request, CAP, begin, write).read())
    return seen


def part(head: str | bytes, content: bytes) -> bytes:
    raw = head if isinstance(head, bytes) else head.encode()
    return b"--" + BOUNDARY.encode() + b"\r\nContent-Disposition: form-data; " + raw + b"\r\n\r\n" + content + b"\r\n"


def whole(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--" + BOUNDARY.encode() + b"--\r\n"


def cut(body: bytes, places: Sequence[int]) -> list[bytes]:
    at = sorted({min(place, len(body)) for place in places})
    return [body[i:j] for i, j in zip([0, *at], [*at, len(body)], strict=True)]


names = st.text(st.characters(codec="utf-8", exclude_characters='"\\\r\n\0;', categories=["L", "N"]), min_size=1)
values = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=60)
contents = st.lists(st.sampled_from(NEARLY) | st.binary(max_size=5), max_size=30).map(b"".join)
places = st.lists(st.integers(0, 1500), max_size=40)


@given(st.dictionaries(names, values, max_size=5), contents, st.integers(0, 5), places)
def test_any_chunking_of_a_form_gives_the_same_form(
    fields: dict[str, str], content: bytes, position: int, places: list[int]
) -> None:
    assume("file" not in fields)
    assume(b"--b0undary" not in content)
    parts = [part(f'name="{name}"', value.encode()) for name, value in fields.items()]
    parts.insert(position, part('name="file"; filename="ünï %22q%22.wav"\r\nContent-Type: audio/WAV; x=y', content))
    seen = read(cut(whole(*parts), places))
    assert seen.form == Form(fields, FilePart('ünï "q".wav', "audio/wav"))
    assert seen.file == content
    assert seen.before == dict(list(fields.items())[:position])


@given(st.binary(max_size=600), places, st.sampled_from([FORM_TYPE, "multipart/form-data", "text/plain", ""]))
def test_any_bytes_are_a_form_or_a_refusal(body: bytes, places: list[int], content_type: str) -> None:
    assert is_read_or_refused(cut(body, places), content_type)


@given(st.data(), places)
def test_a_form_with_any_bytes_changed_is_a_form_or_a_refusal(data: st.DataObject, places: list[int]) -> None:
    body = bytearray(whole(part('name="purpose"', b"vision"), part('name="file"; filename="a"', b"\r\n-- abc")))
    for place in data.draw(st.lists(st.integers(0, len(body) - 1), max_size=6)):
        body[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    assert is_read_or_refused(cut(bytes(body), places), FORM_TYPE)


@given(st.text(st.characters(codec="latin-1"), max_size=300))
def test_any_boundary_is_a_boundary_or_a_refusal(boundary: str) -> None:
    assert is_read_or_refused([whole()], f"multipart/form-data; boundary={boundary}")


def is_read_or_refused(chunks: Sequence[bytes], content_type: str) -> bool:
    """Whether it is a form, or a refusal that says something; anything else is raised."""
    try:
        read(chunks, content_type)
    except errors.InclavateError as error:
        return 400 <= error.status < 500 and bool(error.message)
    return True


FILE = part('name="file"; filename="a.txt"', b"words")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (FILE, "ends before its last boundary"),
        (whole(FILE)[:-6], "ends before its last boundary"),
        (b"", "ends before its last boundary"),
        (b"words", "malformed"),
        (whole(FILE, FILE), "One file is taken, in the field `file`."),
        (whole(part('name="other"; filename="a.txt"', b"words")), "One file is taken, in the field `file`."),
        (whole(part('filename="a.txt"', b"words")), "A part has no name"),
        (whole(part('name="purpose"', b"a"), part('name="purpose"', b"a")), "purpose: it came twice"),
        (whole(part('name="a"\r\nContent-Type: multipart/mixed; boundary=c', b"")), "a: a part may not be a form"),
        (whole(part('name="file"\r\nContent-Type: Multipart/Form-Data', b"")), "file: a part may not be a form"),
        (whole(*(part(f'name="f{i}"', b"") for i in range(65))), "at most 64 fields"),
        (whole(*(part('name="f[]"', b"") for i in range(65))), "at most 64 fields"),
        (whole(part('name="a"', b"x" * 65_537)), "a: a field may have at most 65,536 bytes."),
        (whole(part('name="a"', b"\xff")), "a: it is not UTF-8."),
        (whole(part('name="a"', b"\0")), "a: text may not hold NUL."),
        (whole(part(f'name="{"n" * 66_000}"', b"")), "headers may have at most 65,536 bytes."),
        (whole(part('name="a"' + "\r\nA: b" * 20, b"")), "Maximum header count exceeded"),
    ],
)
def test_a_bad_form_is_refused_by_name(body: bytes, sentence: str) -> None:
    with pytest.raises(errors.InvalidRequest, match=re.escape(sentence)) as caught:
        read([body])
    assert len(caught.value.param or "") <= 80


def test_a_list_of_an_sdk_is_one_field_for_each_item() -> None:
    assert read([whole(part('name="include[]"', b"a"), part('name="include[]"', b"b"))]).form.fields == {
        "include[]": "b"
    }


@pytest.mark.parametrize("content_type", ["application/json", "multipart/form-data", "multipart/mixed; boundary=b", ""])
def test_what_is_no_form_with_a_boundary_is_refused(content_type: str) -> None:
    with pytest.raises(errors.UnsupportedBody, match="with its boundary"):
        read([whole(FILE)], content_type)


def test_a_boundary_of_a_thousand_characters_is_refused() -> None:
    with pytest.raises(errors.InvalidRequest, match="Boundary length 1000 exceeds maximum"):
        read([whole(FILE)], f"multipart/form-data; boundary={'b' * 1000}")


def test_a_file_is_refused_as_it_passes_the_cap() -> None:
    big = part('name="file"; filename="a"', bytes(CAP + 1))
    with pytest.raises(errors.PayloadTooLarge, match="file: it may have at most 4,096 bytes; more came"):
        # Without an end: nobody waits for it.
        read([big])
    assert read([whole(part('name="file"; filename="a"', bytes(CAP)))]).file == bytes(CAP)


@pytest.mark.parametrize(("before", "after"), [(b"\r\n", b""), (b"", whole(FILE))])
def test_what_surrounds_the_parts_is_bounded_too(before: bytes, after: bytes) -> None:
    endless = [before + after, *[b"\n" * 2**20] * 9]
    with pytest.raises(errors.PayloadTooLarge, match="more came"):
        read(endless)

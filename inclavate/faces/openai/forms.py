"""A multipart form whose file goes where it is kept while it arrives, and whose fields are bounded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from inclavate import errors

_MAX_FIELDS = 64
_MAX_FIELD_BYTES = 64 * 1024
_MAX_HEADER_BYTES = 8 * 1024


@dataclass(frozen=True, slots=True)
class FilePart:
    """What a part says of its file. `media_type` is empty where it says nothing."""

    filename: str
    media_type: str


@dataclass
class Form:
    fields: dict[str, str] = field(default_factory=dict)
    file: FilePart | None = None


class FormReader:
    """Reads one request's form; `begin` is called once the file part begins, `write` with each of its chunks."""

    def __init__(
        self, request: Request, begin: Callable[[FilePart], Awaitable[None]], write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        self._request = request
        self._begin = begin
        self._write = write
        self._form = Form()
        self._events: list[tuple[str, bytes]] = []
        self._headers: dict[str, bytes] = {}
        self._header_name = b""
        self._header_value = b""
        self._name = ""
        self._value = bytearray()
        self._is_file = False
        self._is_whole = False

    async def read(self) -> Form:
        """The form. Raises `InvalidRequest` naming what is wrong, and whatever `begin` and `write` raise."""
        parser = self._parser()
        try:
            async for chunk in self._request.stream():
                parser.write(chunk)
                await self._handle_events()
            parser.finalize()
        except FormParserError as error:
            raise errors.InvalidRequest(f"The multipart body is malformed: {error}.", param="body") from None
        if not self._is_whole:
            raise errors.InvalidRequest("The multipart body ends before its last boundary.", param="body")
        return self._form

    def _parser(self) -> MultipartParser:
        kind, options = parse_options_header(self._request.headers.get("content-type", ""))
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise errors.UnsupportedBody("Send a multipart/form-data body with its boundary.", param="Content-Type")
        names = ("part_begin", "header_end", "headers_finished", "part_end", "end")
        simple = {f"on_{name}": self._collector(name) for name in names}
        data = {f"on_{name}": self._data_collector(name) for name in ("header_field", "header_value", "part_data")}
        return MultipartParser(boundary, callbacks=simple | data)  # type: ignore[arg-type]

    def _collector(self, name: str) -> Callable[[], None]:
        return lambda: self._events.append((name, b""))

    def _data_collector(self, name: str) -> Callable[[bytes, int, int], None]:
        return lambda data, start, end: self._events.append((name, data[start:end]))

    async def _handle_events(self) -> None:
        events, self._events = self._events, []
        for name, data in events:
            match name:
                case "part_begin":
                    self._headers, self._value = {}, bytearray()
                case "header_field" | "header_value":
                    self._add_to_header(name, data)
                case "header_end":
                    self._end_header()
                case "headers_finished":
                    await self._begin_part()
                case "part_data":
                    await self._part_data(data)
                case "part_end":
                    self._end_part()
                case "end":
                    self._is_whole = True

    def _add_to_header(self, part: str, data: bytes) -> None:
        if part == "header_field":
            self._header_name += data
        else:
            self._header_value += data
        kept = sum(len(name) + len(value) for name, value in self._headers.items())
        if kept + len(self._header_name) + len(self._header_value) > _MAX_HEADER_BYTES:
            raise errors.InvalidRequest(f"A part's headers may have at most {_MAX_HEADER_BYTES:,} bytes.", param="body")

    def _end_header(self) -> None:
        self._headers[self._header_name.decode("latin-1").lower()] = self._header_value
        self._header_name = self._header_value = b""

    async def _begin_part(self) -> None:
        _, options = parse_options_header(self._headers.get("content-disposition", b""))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        self._is_file = b"filename" in options or self._name == "file"
        if not self._is_file:
            return
        if self._name != "file" or self._form.file is not None:
            raise errors.InvalidRequest("One file is taken, in the field `file`.", param=self._name or "file")
        filename = options.get(b"filename", b"").decode("utf-8", "replace").replace("%22", '"')
        media_type = self._headers.get("content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        self._form.file = FilePart(filename[:255], media_type)
        await self._begin(self._form.file)

    async def _part_data(self, data: bytes) -> None:
        if self._is_file:
            await self._write(data)
            return
        self._value += data
        if len(self._value) > _MAX_FIELD_BYTES:
            raise errors.InvalidRequest(
                f"{self._name}: a field may have at most {_MAX_FIELD_BYTES:,} bytes.", param=self._name
            )

    def _end_part(self) -> None:
        if self._is_file:
            return
        if len(self._form.fields) >= _MAX_FIELDS:
            raise errors.InvalidRequest(f"A form may have at most {_MAX_FIELDS} fields.", param="body")
        try:
            text = self._value.decode("utf-8")
        except UnicodeDecodeError:
            raise errors.InvalidRequest(f"{self._name}: it is not UTF-8.", param=self._name) from None
        if "\0" in text:
            raise errors.InvalidRequest(f"{self._name}: text may not hold NUL.", param=self._name)
        self._form.fields[self._name] = text

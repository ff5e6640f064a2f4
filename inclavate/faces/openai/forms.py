"""A multipart form whose file goes where it is kept while it arrives, and whose fields are bounded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from inclavate import errors
from inclavate.faces.boundary import check_announced

_MAX_FIELDS = 64
_MAX_FIELD_BYTES = 64 * 1024
# Wide enough for the name of a file to be refused by its own limit.
_MAX_HEADER_BYTES = 64 * 1024
# What may surround the file: the fields, and every part's headers and boundary.
_MAX_SURROUNDING_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class FilePart:
    """What a part says of its file. `media_type` is empty where it says nothing."""

    filename: str
    media_type: str


@dataclass
class Form:
    """`lists` has the fields that may come several times, by their names without the brackets that SDKs add."""

    fields: dict[str, str] = field(default_factory=dict)
    file: FilePart | None = None
    lists: dict[str, list[str]] = field(default_factory=dict)


Begin = Callable[[FilePart, Mapping[str, str]], Awaitable[None]]


class FormReader:
    """Reads one request's form. `begin` is called once the file begins, with the fields that came before it (others
    may follow), `write` with each of its chunks. The file is one of `file_fields`; errors name the first. A field of
    `list_fields` may come several times, as `name` or `name[]`."""

    def __init__(
        self,
        request: Request,
        max_file_bytes: int,
        begin: Begin,
        write: Callable[[bytes], Awaitable[None]],
        file_fields: tuple[str, ...] = ("file",),
        list_fields: tuple[str, ...] = (),
    ) -> None:
        self._request = request
        self._list_fields = list_fields
        self._file_fields = file_fields
        self._max_bytes = max_file_bytes + _MAX_SURROUNDING_BYTES
        self._max_file_bytes = max_file_bytes
        self._file_bytes = 0
        self._begin = begin
        self._write = write
        self._form = Form()
        self._events: list[tuple[str, bytes]] = []
        self._headers: dict[str, bytes] = {}
        self._header_name = bytearray()
        self._header_value = bytearray()
        self._header_bytes = 0
        self._field_count = 0
        self._name = ""
        self._value = bytearray()
        self._is_file = False
        self._is_whole = False

    async def read(self) -> Form:
        """The form. Raises `InvalidRequest`, `UnsupportedBody`, `PayloadTooLarge`, and what the two callbacks raise."""
        check_announced(self._request, self._max_bytes)
        try:
            await self._read()
        except FormParserError as error:
            raise errors.InvalidRequest(f"The multipart body is malformed: {error}.", param="body") from None
        if not self._is_whole:
            raise errors.InvalidRequest("The multipart body ends before its last boundary.", param="body")
        return self._form

    async def _read(self) -> None:
        parser, came = self._parser(), 0
        async for chunk in self._request.stream():
            came += len(chunk)
            if came > self._max_bytes:
                raise errors.PayloadTooLarge(
                    f"The body may have at most {self._max_bytes:,} bytes; more came.", param="body"
                )
            parser.write(chunk)
            await self._handle_events()

    def _parser(self) -> MultipartParser:
        kind, options = parse_options_header(self._request.headers.get("content-type", ""))
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise errors.UnsupportedBody("Send a multipart/form-data body with its boundary.", param="Content-Type")
        names = ("part_begin", "header_end", "headers_finished", "part_end", "end")
        simple = {f"on_{name}": self._collector(name) for name in names}
        data = {f"on_{name}": self._data_collector(name) for name in ("header_field", "header_value", "part_data")}
        return MultipartParser(
            boundary,
            callbacks=simple | data,  # type: ignore[arg-type]
            max_header_size=2 * _MAX_HEADER_BYTES,
        )

    def _collector(self, name: str) -> Callable[[], None]:
        return lambda: self._events.append((name, b""))

    def _data_collector(self, name: str) -> Callable[[bytes, int, int], None]:
        return lambda data, start, end: self._events.append((name, data[start:end]))

    async def _handle_events(self) -> None:
        events, self._events = self._events, []
        for name, data in events:
            match name:
                case "part_begin":
                    self._headers, self._header_bytes, self._value = {}, 0, bytearray()
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
        kept = self._header_name if part == "header_field" else self._header_value
        kept += data
        self._header_bytes += len(data)
        if self._header_bytes > _MAX_HEADER_BYTES:
            raise errors.InvalidRequest(f"A part's headers may have at most {_MAX_HEADER_BYTES:,} bytes.", param="body")

    def _end_header(self) -> None:
        self._headers[self._header_name.decode("latin-1").lower()] = bytes(self._header_value)
        self._header_name, self._header_value = bytearray(), bytearray()

    async def _begin_part(self) -> None:
        _, options = parse_options_header(self._headers.get("content-disposition", b""))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        self._is_file = b"filename" in options or self._name in self._file_fields
        media_type = self._headers.get("content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        if not self._name:
            raise errors.InvalidRequest("A part has no name in its Content-Disposition.", param="body")
        if media_type.startswith("multipart/"):
            raise errors.InvalidRequest(f"{self._shown}: a part may not be a form itself.", param=self._shown)
        if not self._is_file:
            self._begin_field()
            return
        if self._name not in self._file_fields or self._form.file is not None:
            raise errors.InvalidRequest(f"One file is taken, in the field `{self._file_fields[0]}`.", param=self._shown)
        filename = options.get(b"filename", b"").decode("utf-8", "replace").replace("%22", '"')
        self._form.file = FilePart(filename, media_type)
        await self._begin(self._form.file, self._form.fields)

    @property
    def _shown(self) -> str:
        return self._name[:80]

    def _begin_field(self) -> None:
        self._field_count += 1
        if self._field_count > _MAX_FIELDS:
            raise errors.InvalidRequest(f"A form may have at most {_MAX_FIELDS} fields.", param="body")
        # A list of SDKs' is one such field for each of its items.
        is_list = self._name.endswith("[]") or self._name in self._list_fields
        if self._name in self._form.fields and not is_list:
            raise errors.InvalidRequest(f"{self._shown}: it came twice; a form has it once.", param=self._shown)

    async def _part_data(self, data: bytes) -> None:
        if self._is_file:
            self._file_bytes += len(data)
            if self._file_bytes > self._max_file_bytes:
                raise errors.PayloadTooLarge(
                    f"{self._shown}: it may have at most {self._max_file_bytes:,} bytes; more came.",
                    param=self._shown,
                )
            await self._write(data)
            return
        self._value += data
        if len(self._value) > _MAX_FIELD_BYTES:
            raise errors.InvalidRequest(
                f"{self._shown}: a field may have at most {_MAX_FIELD_BYTES:,} bytes.", param=self._shown
            )

    def _end_part(self) -> None:
        if self._is_file:
            return
        try:
            text = self._value.decode("utf-8")
        except UnicodeDecodeError:
            raise errors.InvalidRequest(f"{self._shown}: it is not UTF-8.", param=self._shown) from None
        if "\0" in text:
            raise errors.InvalidRequest(f"{self._shown}: text may not hold NUL.", param=self._shown)
        if (name := self._name.removesuffix("[]")) in self._list_fields:
            self._form.lists.setdefault(name, []).append(text)
        else:
            self._form.fields[self._name] = text

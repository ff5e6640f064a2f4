"""Text as people paste it, made into what is read aloud: without markup, and with figures as words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

from inclavate.generators import EMOJI
from workers import english
from workers.characters import composed
from workers.numbers import whole_numbers

# The parser's time and memory are bounded by its input, so it sees no more at once.
_CHUNK_CHARACTERS = 8_000

_LINE_END = re.compile(r"\r\n?|[\x0b\x0c\x85\u2028]")
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ud800-\udfff\ue000-\uf8ff\ufe00-\ufe0f\ufeff\uffa0\ufff9-\uffff"
    "\U000e0000-\U0010ffff]+"
)
# Persian and the scripts of India need them between their letters; elsewhere they only hide in words.
_JOINERS = re.compile("(?<![\u0600-\u1cff\ua800-\uabff])[\u200c\u200d]+")
_SPACE = re.compile("[\t\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_BLANK_LINES = re.compile(r"\n[ \n]*\n")
_SPACES = re.compile(" {2,}")
_LOOSE_MARKS = re.compile(r" (?=[.,!?;:\n])")
_REPEATED = re.compile(r"([!?.,;:…。！？、\-–—_=*~#+/\\|^<>•·])\1{3,}")
_REPEATED_MARKS = re.compile(r"([!?‽！？]{3})[!?‽！？]+")
_MARKS = re.compile(r"[*_`\[\]<>&~#|\\]|^ {0,3}(?:[-+=]|\d{1,9}[.)])", re.MULTILINE)
# What stands before a task: whether it is done.
_TICK = re.compile(r"^([ \t]{0,8}(?:[-*+][ \t]{1,4})?)\[[ xX]\][ \t]+(?=\S)", re.MULTILINE)
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
# What the parser would read as something else, though it tells of plain text only.
_ESCAPED = re.compile(r"&#?\w{1,32};|\\[!-/:-@\[-`{-~]")
_PRODUCT = re.compile(r"(?<=[0-9A-Za-z)])\*(?=[0-9A-Za-z(])")
# Stands for an asterisk that multiplies; text has none of its own, as private characters were removed.
_TIMES = "\ue000"
_SILENT_ELEMENTS = re.compile(r"<(script|style|template|svg)\b|<!--", re.IGNORECASE)
_TAG = re.compile(r"</?([a-z][a-z0-9]*)\b", re.IGNORECASE)
_INLINE_TAG = re.compile(
    "a|abbr|acronym|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|img|input|ins|kbd|label|mark|q|s|samp|small|span|"
    "strike|strong|sub|sup|time|tt|u|var|wbr"
)
_BLOCK_TAG = re.compile(
    "address|article|aside|blockquote|body|button|canvas|center|col|colgroup|details|dialog|div|dl|fieldset|figcaption|"
    "figure|footer|form|head|header|hr|html|iframe|legend|link|main|meta|nav|ol|p|picture|pre|section|select|source|"
    "summary|table|tbody|textarea|tfoot|thead|ul|video"
)
_LINE_TAG = re.compile("br|caption|dd|dt|h[1-6]|li|option|title|tr")
_CELL_TAG = re.compile("td|th")
_ENDS = ".!?…。！？।؟:;,：；，、"


def spoken(text: str, language: str) -> str:
    """A piece of readable text as it is said: English (a code such as "en-us") in full, of some languages the whole
    numbers, of others nothing changes. Takes time linear in the text, and never raises.
    """
    base, _, region = language.lower().replace("_", "-").partition("-")
    if base == "en":
        return english.spoken(text, is_british=region not in ("", "us"))
    return whole_numbers(text, base)


def readable(text: str) -> str:
    """A whole document without markup, emoji and what cannot be seen; text that has none of them stays as it is.

    Headings, list items and rows of tables become lines that end as sentences do; blank lines part paragraphs. Letters
    are in one with their accents (NFC), and wide, bold or circled ones are plain. Takes time linear in the text, and
    never raises. Of what is nothing but markup nothing is left.
    """
    visible = _visible(_TICK.sub(r"\1", text))
    # Once more: entities may have stood for anything.
    return _bounded(composed(_visible("".join(_plain(visible)).replace(_TIMES, "*")))).strip()


def _visible(text: str) -> str:
    """The same without emoji and without what shows nothing; every line break is one newline, every space a space."""
    if text.isascii() and text.isprintable():
        return text
    text = _LINE_END.sub("\n", text).replace("\u2029", "\n\n")
    if EMOJI.search(text):
        text = _LOOSE_MARKS.sub("", _SPACES.sub(" ", EMOJI.sub(" ", text)))
    return _SPACE.sub(" ", _JOINERS.sub("", _INVISIBLE.sub("", text)))


def _bounded(text: str) -> str:
    text = _REPEATED_MARKS.sub(r"\1", _REPEATED.sub(r"\1\1\1", text))
    return _BLANK_LINES.sub("\n\n", text)


def _plain(text: str) -> Iterator[str]:
    for chunk in _chunks(_without_silent_elements(text)):
        if not _MARKS.search(chunk):
            yield chunk
            continue
        tokens = _parser().parse(_PRODUCT.sub(_TIMES, chunk))
        if all(map(_is_plain, tokens)) and not _ESCAPED.search(chunk):
            yield chunk
        else:
            yield _Reader().read(tokens).rstrip() + chunk[len(chunk.rstrip()) :]


def _is_plain(token: Token) -> bool:
    if token.type == "inline":
        return all(child.type in ("text", "softbreak") for child in token.children or ())
    return token.type in ("paragraph_open", "paragraph_close")


@cache
def _parser() -> MarkdownIt:
    # Indented text is more often a quotation or HTML than code, and a block of HTML may hold Markdown.
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable(["code", "html_block"])


def _without_silent_elements(text: str) -> str:
    """Scripts, styles and comments taken out, where they end."""
    kept, place = [], 0
    unclosed: set[str] = set()
    while begin := _SILENT_ELEMENTS.search(text, place):
        closing = f"</{begin[1].lower()}" if begin[1] else "-->"
        end = -1 if closing in unclosed else _find(text, closing, begin.end())
        if end < 0:
            # Looked for once only, or many unclosed ones would take the square of the time.
            unclosed.add(closing)
            kept.append(text[place : begin.end()])
            place = begin.end()
            continue
        kept.append(text[place : begin.start()])
        place = end
    return "".join(kept) + text[place:] if kept else text


def _find(text: str, closing: str, start: int) -> int:
    """The end of the closing tag or mark."""
    match = re.compile(re.escape(closing) + (r"[^<>]{0,20}>" if closing[0] == "<" else ""), re.IGNORECASE).search(
        text, start
    )
    return match.end() if match else -1


def _chunks(text: str) -> Iterator[str]:
    """Parts to parse one by one, cut at blank lines, else at lines, else anywhere; a code block goes on in each."""
    chunk: list[str] = []
    size = 0
    fence = ""
    for line in _lines(text):
        is_full = size + len(line) > _CHUNK_CHARACTERS
        if chunk and (is_full or (size > _CHUNK_CHARACTERS // 2 and line.isspace() and not fence)):
            yield "".join(chunk)
            chunk = [f"{fence}\n"] if fence else []
            size = sum(map(len, chunk))
        chunk.append(line)
        size += len(line)
        if mark := _FENCE.match(line):
            fence = _fence_after(fence, mark[1])
    yield "".join(chunk)


def _fence_after(fence: str, mark: str) -> str:
    if not fence:
        return mark
    return "" if mark[0] == fence[0] and len(mark) >= len(fence) else fence


def _lines(text: str) -> Iterator[str]:
    """The lines with their ends, the overlong in parts."""
    start = 0
    while start < len(text):
        end = text.find("\n", start, start + _CHUNK_CHARACTERS) + 1
        if end == 0:
            end = min(len(text), start + _CHUNK_CHARACTERS)
            space = text.rfind(" ", start, end) + 1
            end = space if space and end < len(text) else end
        yield text[start:end]
        start = end


class _Reader:
    """Tokens of Markdown in, lines of text out."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._lead = ""
        self._cells: list[str] | None = None
        # Of each list that is open, whether its items end as sentences do.
        self._lists: list[bool] = []
        self._is_heading = False

    def read(self, tokens: Sequence[Token]) -> str:
        alone = _items_alone(tokens)
        for place, token in enumerate(tokens):
            match token.type:
                case "bullet_list_open" | "ordered_list_open":
                    self._lists.append(place not in alone)
                case "bullet_list_close" | "ordered_list_close":
                    self._lists.pop()
                    self._end_block()
                case _:
                    self._take(token)
        return "\n".join(self._lines)

    def _take(self, token: Token) -> None:
        match token.type:
            case "inline":
                self._inline(_inline_text(token.children or ()))
            case "heading_open" | "heading_close":
                self._is_heading = token.type == "heading_open"
                self._end_block()
            case "list_item_open":
                self._lead = f"{token.info}{token.markup} " if token.info else ""
            case "tr_open":
                self._cells = []
            case "tr_close":
                self._lines.append(_sentence(", ".join(filter(None, self._cells or ()))))
                self._cells = None
            case "fence":
                self._lines.append(token.content.rstrip("\n"))
                self._end_block()
            case "table_close":
                self._end_block()
            case "paragraph_close" if not token.hidden:
                # In a list, too, those with blank lines between them.
                self._blank()

    def _inline(self, text: str) -> None:
        if self._cells is not None:
            self._cells.append(" ".join(text.split()))
            return
        is_sentence = self._is_heading or (self._lists and self._lists[-1])
        self._lines.append(self._lead + (_sentence(text) if is_sentence else text))
        self._lead = ""

    def _end_block(self) -> None:
        if not self._lists:
            self._blank()

    def _blank(self) -> None:
        if self._lines and self._lines[-1]:
            self._lines.append("")


def _items_alone(tokens: Sequence[Token]) -> set[int]:
    """Where ordered lists of one item open: rather a sentence that begins with a number, such as a year."""
    alone: set[int] = set()
    opened: list[int] = []
    counts: list[int] = []
    for place, token in enumerate(tokens):
        match token.type:
            case "bullet_list_open" | "ordered_list_open":
                opened.append(place)
                counts.append(0)
            case "list_item_open":
                counts[-1] += 1
            case "bullet_list_close" | "ordered_list_close":
                begin, count = opened.pop(), counts.pop()
                if count == 1 and token.type == "ordered_list_close":
                    alone.add(begin)
    return alone


def _inline_text(tokens: Sequence[Token]) -> str:
    parts: list[str] = []
    links: list[tuple[str, int]] = []
    for token in tokens:
        match token.type:
            case "text" | "code_inline":
                parts.append(token.content)
            case "softbreak" | "hardbreak":
                parts.append("\n")
            case "image":
                parts.append(_inline_text(token.children or ()))
            case "link_open":
                links.append((str(token.attrs.get("href", "")), len(parts)))
            case "link_close":
                address, begin = links.pop()
                if not "".join(parts[begin:]).strip():
                    parts.append(address)
            case "html_inline":
                _take_tag(parts, token.content)
    return "".join(parts).strip()


def _take_tag(parts: list[str], content: str) -> None:
    """What stands for a tag of HTML; what only looks like one is kept."""
    tag = _TAG.match(content)
    name = tag[1].lower() if tag else ""
    if _CELL_TAG.fullmatch(name):
        if content.startswith("</"):
            parts.append(", ")
    elif _LINE_TAG.fullmatch(name):
        _end_line(parts)
        if name != "br" and content.startswith("</") and parts and parts[-1].strip():
            parts.append(_sentence(parts.pop()))
        parts.append("\n")
    elif _BLOCK_TAG.fullmatch(name):
        _end_line(parts)
        parts.append("\n\n")
    elif not (_INLINE_TAG.fullmatch(name) or content.startswith(("<!", "<?"))):
        parts.append(content)


def _end_line(parts: list[str]) -> None:
    while parts and parts[-1] in (", ", " "):
        parts.pop()


def _sentence(text: str) -> str:
    """The line with a full stop, where nothing ends it yet."""
    text = text.strip()
    last = text[-1:]
    if not last or last in _ENDS or text.rstrip("\"'”’»)]」』")[-1:] in _ENDS:
        return text
    return text + ("。" if _is_wide(last) else ".")


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in "WF" and not "가" <= character <= "힣"

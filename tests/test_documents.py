"""Documents as chapters, hostile ones too; and the way of a document from an upload to a sound for each chapter."""

from __future__ import annotations

import io
import struct
import time
import tracemalloc
import uuid
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import docx
import pytest
from docx.oxml import OxmlElement
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from inclavate import artifacts
from inclavate.errors import InputUnreadable
from inclavate.generators import DOCUMENTS, DOCX, EPUB, HTML, MARKDOWN, PLAIN_TEXT
from tests.platforms import Platform
from workers.documents import Chapter, chapters, file_name
from workers.documents.texts import decode

XHTML = '<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops"><body>{}</body></html>'
CONTAINER = """<?xml version="1.0"?><container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0">
<rootfiles><rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>"""


def read(content: str | bytes, media_type: str, tmp_path: Path) -> list[Chapter]:
    path = tmp_path / "document"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(chapters(path, media_type))


def titles(found: list[Chapter]) -> list[str | None]:
    return [chapter.title for chapter in found]


def zipped(members: dict[str, str | bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content, zipfile.ZIP_STORED if name == "mimetype" else None)
    return file.getvalue()


def package(pages: list[str], nav: str = "", ncx: str = "", spine: str | None = None) -> str:
    items = [f'<item id="p{n}" href="{page}" media-type="application/xhtml+xml"/>' for n, page in enumerate(pages)]
    if nav:
        items.append('<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>')
    if ncx:
        items.append('<item id="ncx" href="toc.ncx" media-type="application/x-dtbncx+xml"/>')
    refs = "".join(f'<itemref idref="p{n}"/>' for n in range(len(pages))) if spine is None else spine
    return (
        '<package xmlns="http://www.idpf.org/2007/opf" version="3.0"><manifest>'
        f"{''.join(items)}</manifest><spine>{refs}</spine></package>"
    )


def book(pages: dict[str, str], nav: str = "", ncx: str = "", spine: str | None = None, **more: str | bytes) -> bytes:
    """An EPUB of these pages in this order; bodies alone, or whole where they begin with a "<?" or a "<!"."""
    members: dict[str, str | bytes] = {
        "mimetype": EPUB,
        "META-INF/container.xml": CONTAINER,
        "OEBPS/book.opf": package(list(pages), nav, ncx, spine),
    }
    for name, body in pages.items():
        members[f"OEBPS/{name}"] = body if body.startswith(("<?", "<!")) else XHTML.format(body)
    if nav:
        members["OEBPS/nav.xhtml"] = XHTML.format(f'<nav epub:type="toc"><h1>Contents</h1>{nav}</nav>')
    if ncx:
        members["OEBPS/toc.ncx"] = ncx
    return zipped(members | more)


def word_file(build: Callable[[Any], None]) -> bytes:
    document, file = docx.Document(), io.BytesIO()
    build(document)
    document.save(file)
    return file.getvalue()


# -- plain text --------------------------------------------------------------------------------------------------------


def test_text_without_chapters_is_one(tmp_path: Path) -> None:
    text = "It was a dark night.\n\nChapter 1 of his life was over."
    assert read(text, PLAIN_TEXT, tmp_path) == [Chapter(None, text)]


def test_lines_that_name_chapters_begin_them(tmp_path: Path) -> None:
    text = "A Book\n\nChapter 1\n\nOnce.\n\nCHAPTER II. The Storm\n\nTwice.\r\n\r\nEpilogue\n\nThe end."
    found = read(text, PLAIN_TEXT, tmp_path)
    assert titles(found) == [None, "Chapter 1", "CHAPTER II. The Storm", "Epilogue"]
    assert found[1].text == "Chapter 1\n\nOnce."
    assert found[0].text == "A Book"


def test_a_table_of_contents_begins_no_chapter(tmp_path: Path) -> None:
    text = "Contents\n\nChapter 1\nChapter 2\n\nChapter 1\n\nOnce.\n\nChapter 2\n\nTwice.\n"
    found = read(text, PLAIN_TEXT, tmp_path)
    assert titles(found) == [None, "Chapter 1", "Chapter 2"]
    assert found[2].text == "Chapter 2\n\nTwice."


def test_form_feeds_begin_chapters_where_no_line_names_one(tmp_path: Path) -> None:
    found = read("One\n\nA text.\fThis page begins in the midst of a text\nand goes on.\f \f", PLAIN_TEXT, tmp_path)
    assert titles(found) == ["One", None]


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("latin-1", "São Paulo é bonito, não?"),
        ("latin-1", "El niño mañana"),
        ("cp1252", "£5 – “quoted”"),
        ("latin-1", "Crème brûlée"),
        ("latin-1", "Café"),
        ("latin-1", "¿Dónde está el baño? ¡Aquí!"),
        ("cp1252", "L’œuvre de l’été coûte 5 € à Noël, là-bas."),
        ("latin-1", "Grüße aus München: es ist schön, aber kälter als gewöhnlich."),
        ("latin-1", "Blåbærsyltetøy på brød"),
        ("latin-1", "La città è più bella perché c'è il caffè."),
        ("cp1250", "Zażółć gęślą jaźń, mówi się w Polsce o każdej pogodzie i porze roku."),
        ("cp1251", "Сегодня хорошая погода, и мы идём гулять в парк после обеда."),
        ("cp1253", "Σήμερα ο καιρός είναι καλός και πηγαίνουμε βόλτα στο πάρκο."),
        ("shift_jis", "今日は天気がいいので、午後から公園へ散歩に行きます。"),
        ("gb18030", "今天天气很好，我们下午去公园散步，然后回家吃饭。"),
    ],
)
def test_a_text_in_an_encoding_that_it_does_not_name_is_read(encoding: str, text: str) -> None:
    assert decode(text.encode(encoding)) == text


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252", "iso-8859-1"])
def test_every_common_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    text = "Die Straße über die Brücke führt nach Süden, hörte sie. Größere Häuser säumen die Straße. " * 20
    assert read(text.encode(encoding), PLAIN_TEXT, tmp_path)[0].text == text.strip()


def test_a_declared_encoding_is_believed(tmp_path: Path) -> None:
    page = '<html><head><meta charset="koi8-r"></head><body><p>Привет, мир</p></body></html>'
    assert read(page.encode("koi8-r"), HTML, tmp_path)[0].text == "Привет, мир"


def test_what_stands_beside_a_page_and_under_it_is_not_read(tmp_path: Path) -> None:
    page = "<header><h1>Fox</h1></header><p>It ran.</p><aside>Buy one!</aside><footer>Imprint</footer>"
    assert [chapter.text for chapter in read(page, HTML, tmp_path)] == ["Fox\n\nIt ran."]


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputUnreadable, match="not text"):
        read(bytes(range(256)) * 40, PLAIN_TEXT, tmp_path)
    for empty in ("", " \n\f ", "...", "\u200b"):
        with pytest.raises(InputUnreadable, match="no text"):
            read(empty, PLAIN_TEXT, tmp_path)


# -- HTML and Markdown -------------------------------------------------------------------------------------------------


def test_what_is_read_is_what_a_reader_would_see_in_its_order(tmp_path: Path) -> None:
    page = """<!DOCTYPE html><html><head><title>T</title><style>p {}</style></head><body>
    <nav><a href="#x">Menu</a></nav><script>let p = "<p>no</p>";</script>
    <p>One <b>bold</b>
       line,<br>and another.</p>Loose text.
    <ul><li>First<li>Second</ul>
    <p hidden>Hidden.</p><p style="display: none">Gone.</p><p aria-hidden="true">Silent.</p>
    <p>A fact.<sup class="footnote-ref"><a href="#fn1">1</a></sup> More&nbsp;&mdash; here&shy;after.</p>
    <aside role="doc-footnote" id="fn1">The note.</aside>
    <pre>a  b
  c</pre><template>Not yet.</template><p>Last."""
    found = read(page, HTML, tmp_path)
    assert found[0].text.split("\n\n") == [
        "One bold line,\nand another.",
        "Loose text.",
        "First",
        "Second",
        "A fact. More\xa0— hereafter.",
        "a b\nc",
        "Last.",
    ]


def test_tables_are_read_row_by_row(tmp_path: Path) -> None:
    table = "<table><tr><th>Name<th>Age</tr><tr><td><p>Ann</p><p>Lee</p><td>7 years.<td></td></tr></table><p>After"
    assert read(table, HTML, tmp_path)[0].text.split("\n\n") == ["Name, Age", "Ann Lee, 7 years.", "After"]


def test_chapters_begin_at_the_highest_headings(tmp_path: Path) -> None:
    found = read("<p>Before<h1>One</h1><p>A<h2>Sub</h2><p>B<h1>Two</h1><p>C", HTML, tmp_path)
    assert found == [Chapter(None, "Before"), Chapter("One", "One\n\nA\n\nSub\n\nB"), Chapter("Two", "Two\n\nC")]


def test_a_documents_title_is_no_chapter_and_is_read_before_the_first(tmp_path: Path) -> None:
    found = read("# The Book\n\n## One\n\nA\n\n### Sub\n\nB\n\n## Two\n\nC\n", MARKDOWN, tmp_path)
    assert found == [Chapter("One", "The Book\n\nOne\n\nA\n\nSub\n\nB"), Chapter("Two", "Two\n\nC")]


def test_markdown_is_read_without_its_signs_and_notes(tmp_path: Path) -> None:
    text = """---
author: Ann
---
One
===

Some *strong* [words](http://a.example/x) and `code`.[^1]

| a | b |
|---|---|
| 1 | 2 |

- x
- y

```
# no heading
```

[^1]: The note.
"""
    found = read(text, MARKDOWN, tmp_path)
    assert titles(found) == ["One"]
    assert found[0].text.split("\n\n") == [
        "One",
        "Some strong words and code.",
        "a, b",
        "1, 2",
        "x",
        "y",
        "# no heading",
    ]


# -- EPUB --------------------------------------------------------------------------------------------------------------

PAGES = {
    "cover.xhtml": "<p>Cover</p>",
    "one.xhtml": "<h2>1</h2><p>Once.</p>",
    "one-b.xhtml": "<p>Still once.</p>",
    "two.xhtml": '<h2 id="two">2</h2><p>Twice.</p><h2 id="three">3</h2><p>Thrice.</p>',
}
NAV = """<ol><li><a href="one.xhtml">The First</a></li>
<li><a href="two.xhtml#two">The Second</a><ol><li><a href="two.xhtml#x">A section</a></li></ol></li>
<li><a href="two.xhtml#three">The Third</a></li></ol>"""


def test_a_books_chapters_are_those_of_its_table_of_contents(tmp_path: Path) -> None:
    found = read(book(PAGES, NAV), EPUB, tmp_path)
    assert found == [
        Chapter(None, "Cover"),
        Chapter("The First", "1\n\nOnce.\n\nStill once."),
        Chapter("The Second", "2\n\nTwice."),
        Chapter("The Third", "3\n\nThrice."),
    ]


def test_an_older_book_has_its_contents_in_an_ncx(tmp_path: Path) -> None:
    points = "".join(
        f"<navPoint><navLabel><text>{title}</text></navLabel><content src='{target}'/></navPoint>"
        for title, target in (("The First", "one.xhtml"), ("The Second", "two.xhtml"))
    )
    ncx = f'<!DOCTYPE ncx PUBLIC "-//NISO//DTD ncx 2005-1//EN" "http://a.example/ncx.dtd"><ncx><navMap>{points}</navMap></ncx>'
    assert titles(read(book(PAGES, ncx=ncx), EPUB, tmp_path)) == [None, "The First", "The Second"]


def test_parts_of_a_book_have_their_chapters_below_them(tmp_path: Path) -> None:
    pages = {"part.xhtml": "<h1>Part I</h1>", "a.xhtml": "<p>A</p>", "b.xhtml": "<p>B</p>"}
    nav = (
        '<ol><li><a href="part.xhtml">Part I</a><ol><li><a href="a.xhtml">One</a></li>'
        '<li><a href="b.xhtml">Two</a></li></ol></li></ol>'
    )
    assert read(book(pages, nav), EPUB, tmp_path) == [Chapter("One", "Part I\n\nA"), Chapter("Two", "B")]


def test_a_book_without_contents_has_a_chapter_a_page(tmp_path: Path) -> None:
    assert titles(read(book(PAGES), EPUB, tmp_path)) == [None, "1", None, "2"]
    assert titles(read(book(PAGES, "<ol><li>broken"), EPUB, tmp_path)) == [None, "1", None, "2"]


def test_pages_are_read_however_they_are_written(tmp_path: Path) -> None:
    pages = {
        "named%20one.xhtml": '<?xml version="1.0" encoding="utf-8"?><!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.1//EN" '
        '"http://a.example/xhtml11.dtd">'
        + XHTML.format("<a id='x'/><p>Caf&eacute; &amp; t&nbsp;ea</p><p><a epub:type='noteref' href='#n'>1</a>End</p>"),
        "broken.xhtml": "<p>Un<b>closed<p>Next",
    }
    content = book(pages)
    content = zipped(
        {
            name.replace("%20", " "): zipfile.ZipFile(io.BytesIO(content)).read(name)
            for name in zipfile.ZipFile(io.BytesIO(content)).namelist()
        }
    )
    found = read(content, EPUB, tmp_path)
    assert [chapter.text for chapter in found] == ["Café & t\xa0ea\n\nEnd", "Unclosed\n\nNext"]


def test_a_page_that_is_not_in_the_reading_order_is_not_read(tmp_path: Path) -> None:
    spine = '<itemref idref="p3"/><itemref idref="p0" linear="no"/><itemref idref="p1"/><itemref idref="none"/>'
    assert titles(read(book(PAGES, spine=spine), EPUB, tmp_path)) == ["2", "1"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"PK\x03\x04 and no more", "broken"),
        (b"", "broken"),
        (zipped({"mimetype": EPUB}), "container.xml' is missing"),
        (zipped({"META-INF/container.xml": "<a>"}), "is no XML"),
        (zipped({"META-INF/container.xml": "<a/>"}), "does not say where"),
        (book(PAGES, spine=""), "no reading order"),
        (zipped({"META-INF/container.xml": CONTAINER, "OEBPS/book.opf": package(["a.xhtml"])}), "'OEBPS/a.xhtml' is"),
        (book({"a.xhtml": "<img src='a.png' alt='x'/>"}), "no text"),
        (
            book(PAGES)[:-40],
            "broken",
        ),
    ],
)
def test_a_book_that_is_incomplete_says_what_is_wrong(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(InputUnreadable, match=said):
        read(content, EPUB, tmp_path)


def test_a_protected_book_is_refused(tmp_path: Path) -> None:
    locked = '<encryption><EncryptedData><CipherReference URI="OEBPS/one.xhtml"/></EncryptedData></encryption>'
    with pytest.raises(InputUnreadable, match="protected"):
        read(book(PAGES, **{"META-INF/encryption.xml": locked}), EPUB, tmp_path)


# -- DOCX --------------------------------------------------------------------------------------------------------------


def test_a_word_file_has_chapters_at_its_headings(tmp_path: Path) -> None:
    def build(document: Any) -> None:
        document.add_heading("The Book", 0)
        document.add_heading("One", 1)
        document.add_paragraph("A text.").add_run(" More\tof it.").add_break()
        document.add_heading("Sub", 2)
        table = document.add_table(2, 2)
        for cell, text in zip((c for row in table.rows for c in row.cells), ("Name", "Age", "Ann", "7"), strict=True):
            cell.text = text
        document.sections[0].header.paragraphs[0].text = "A header"
        document.add_heading("Two", 1)
        document.add_paragraph("B")

    assert read(word_file(build), DOCX, tmp_path) == [
        Chapter("One", "The Book\n\nOne\n\nA text. More of it.\n\nSub\n\nName, Age\n\nAnn, 7"),
        Chapter("Two", "Two\n\nB"),
    ]


def test_of_changes_the_newest_is_read_and_hidden_signs_are_not(tmp_path: Path) -> None:
    def build(document: Any) -> None:
        paragraph = document.add_paragraph("Kept. ")
        gone = OxmlElement("w:del")
        gone.append(paragraph.add_run("Gone.")._r)
        come = OxmlElement("w:ins")
        come.append(paragraph.add_run("Come.")._r)
        paragraph._p.extend((gone, come))
        paragraph.paragraph_format.tab_stops.add_tab_stop(100)

    assert read(word_file(build), DOCX, tmp_path)[0].text == "Kept. Come."


def test_a_style_of_ones_own_is_a_heading_by_what_it_is_based_on(tmp_path: Path) -> None:
    def build(document: Any) -> None:
        style = document.styles.add_style("Fancy", 1)
        style.base_style = document.styles["Heading 1"]
        for title in ("One", "Two"):
            document.add_paragraph(title, "Fancy")
            document.add_paragraph("Text.")

    assert titles(read(word_file(build), DOCX, tmp_path)) == ["One", "Two"]


def test_a_zip_that_is_no_word_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputUnreadable, match=r"'word/document\.xml' is missing"):
        read(zipped({"a.txt": "a"}), DOCX, tmp_path)


# -- hostile ones ------------------------------------------------------------------------------------------------------

LAUGHS = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;">]>'
FILE = '<!DOCTYPE x [<!ENTITY c SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize("head", [LAUGHS, FILE])
def test_entities_are_neither_expanded_nor_fetched(tmp_path: Path, head: str) -> None:
    page = f"{head}{XHTML.format('<p>&c;</p>')}"
    for content, media_type in (
        (book({"a.xhtml": page}), EPUB),
        (book({"a.xhtml": ""}, **{"OEBPS/a.xhtml": page.encode("utf-16")}), EPUB),
        (page, HTML),
        (zipped({"META-INF/container.xml": head + "<container/>"}), EPUB),
    ):
        with pytest.raises(InputUnreadable, match="entities"):
            read(content, media_type, tmp_path)
    body = '<w:document xmlns:w="http://w"><w:body><w:p><w:r><w:t>&c;</w:t></w:r></w:p></w:body></w:document>'
    with pytest.raises(InputUnreadable, match="type of its own"):
        read(zipped({"word/document.xml": head + body}), DOCX, tmp_path)


def test_a_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    bomb = book({"a.xhtml": f"<p>{'a' * (60 * 2**20)}</p>"})
    assert len(bomb) < 2**20
    tracemalloc.start()
    try:
        with pytest.raises(InputUnreadable, match="times its size"):
            read(bomb, EPUB, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 200 * 2**20
    finally:
        tracemalloc.stop()


def test_a_size_that_lies_does_not_matter(tmp_path: Path) -> None:
    content = bytearray(book({"a.xhtml": "<p>word</p>"}))
    for place in range(len(content) - 4):
        if content[place : place + 4] == b"PK\x01\x02":
            content[place + 24 : place + 28] = struct.pack("<I", 2**31)
    path = tmp_path / "lying"
    path.write_bytes(content)
    with suppress(InputUnreadable):
        list(chapters(path, EPUB))


def test_an_archive_of_very_many_members_is_refused_by_its_directory(tmp_path: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(60_000):
            archive.writestr(str(number), b"")
    with pytest.raises(InputUnreadable, match="too many members"):
        read(file.getvalue(), EPUB, tmp_path)


def test_what_is_packed_in_a_way_of_its_own_is_refused(tmp_path: Path) -> None:
    for compression in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with pytest.raises(InputUnreadable, match="packed"):
            read(zipped({"META-INF/container.xml": CONTAINER}, compression), EPUB, tmp_path)


def test_a_document_of_too_many_characters_or_chapters_is_refused(tmp_path: Path) -> None:
    for media_type, limit in ((PLAIN_TEXT, "5,000,000"), (MARKDOWN, "2,000,000"), (HTML, "5,000,000")):
        with pytest.raises(InputUnreadable, match=limit):
            read("word " * 1_000_001, media_type, tmp_path)
    for content, media_type in (
        ("w<p>" * 2_100_000, HTML),
        (zipped({"word/document.xml": f"<a>{'<b/>' * 2_100_000}</a>"}, zipfile.ZIP_STORED), DOCX),
    ):
        with pytest.raises(InputUnreadable, match="2,000,000 elements"):
            read(content, media_type, tmp_path)
    with pytest.raises(InputUnreadable, match="1,000 chapters"):
        read("<h1>A</h1><p>B</p>" * 1001, HTML, tmp_path)
    with pytest.raises(InputUnreadable, match="cannot be read"):
        read("word", "application/pdf", tmp_path)


@pytest.mark.parametrize(
    ("media_type", "unit"),
    [
        *(
            (HTML, unit)
            for unit in ("<div>", "<p>", "<b><p>", "<table><tr><td>", "<h1>", "<", "&", "<!--", "<a name=x>", " ")
        ),
        *((MARKDOWN, unit) for unit in ("[", "*a_ ", "![", "> ", "- ", "|", "[^", "`a", "<http://a", "# a\n")),
        *((PLAIN_TEXT, unit) for unit in ("Chapter 1\n\n", "\f", "i", " ", "第", "chapter ")),
    ],
)
def test_hostile_text_costs_no_more_than_its_length(tmp_path: Path, media_type: str, unit: str) -> None:
    def cost(count: int) -> float:
        text = "word " + unit * count
        begin = time.process_time()
        with suppress(InputUnreadable):
            read(text, media_type, tmp_path)
        return time.process_time() - begin

    short = min(cost(2_000) for _ in range(3))
    # Ten times as long: a hundred times where it grows with the square.
    assert cost(20_000) < 40 * short + 0.5


documents_of_any_bytes = st.binary(max_size=300) | st.text(max_size=200).map(
    lambda text: text.encode("utf-8", "replace")
)


@given(documents_of_any_bytes, st.sampled_from(DOCUMENTS))
@hypothesis_settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, media_type: str) -> None:
    try:
        found = read(content, media_type, tmp_path)
    except InputUnreadable:
        return
    assert found
    assert all(any(c.isalnum() for c in chapter.text) for chapter in found)


WHOLE = {EPUB: book(PAGES, NAV), DOCX: word_file(lambda document: document.add_heading("One", 1))}


@given(st.sampled_from(sorted(WHOLE)), st.data())
@hypothesis_settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_broken_archive_is_read_or_refused(tmp_path: Path, media_type: str, data: st.DataObject) -> None:
    content = bytearray(WHOLE[media_type])
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(InputUnreadable):
        read(bytes(content[: data.draw(st.integers(0, len(content)))]), media_type, tmp_path)


PIECES = (
    "<p>|</p>|<h1>|</h1>|<h2>x</h2>|<table>|<tr>|<td>|</table>|<pre>|</pre>|<br>|a| b |<nav>|</nav>|<div hidden>|"
    "</div>|&amp;|<![CDATA[|]]>|<?x?>|\n|<svg>|</svg>|1"
)
pieces = st.sampled_from(PIECES.split("|"))


@given(st.lists(pieces, max_size=40))
@hypothesis_settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_markup_in_any_order_is_read_or_refused(tmp_path: Path, parts: list[str]) -> None:
    markup = "".join(parts)
    for content, media_type in ((markup, HTML), (markup, MARKDOWN), (book({"a.xhtml": markup}), EPUB)):
        with suppress(InputUnreadable):
            assert read(content, media_type, tmp_path)


# -- names and types ---------------------------------------------------------------------------------------------------


def test_a_chapters_file_is_called_by_its_number_and_title() -> None:
    assert file_name(3, "The  Storm: a/b\n", ".wav") == "003 The Storm a b.wav"
    assert file_name(12, None, ".mp3") == "012.mp3"
    assert file_name(1, "..", ".wav") == "001.wav"
    assert len(file_name(1, "x" * 1000, ".wav")) < 120


@given(st.text(max_size=300))
@hypothesis_settings(max_examples=200)
def test_no_title_makes_a_name_that_is_a_path(title: str) -> None:
    name = file_name(1, title, ".wav")
    assert name.startswith("001")
    assert not {"/", "\\", "\0", "\n"} & set(name)


def test_archives_are_told_apart_by_their_first_members() -> None:
    assert artifacts.sniff(book(PAGES)[:4096]) == EPUB
    assert artifacts.sniff(zipped({"[Content_Types].xml": "x", "word/document.xml": "y"})[:4096]) == DOCX
    assert artifacts.sniff(zipped({"xl/workbook.xml": "y"})[:4096]) == "application/zip"


# -- over HTTP ---------------------------------------------------------------------------------------------------------


def upload(platform: Platform, content: bytes, media_type: str) -> str:
    with platform.http as http:
        answer = http.post("/v1/artifacts", content=content, headers={"Content-Type": media_type})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])


def ask(platform: Platform, **fields: Any) -> Any:
    with platform.http as http:
        return http.post("/v1/generations", json={"model": "test-reader", "modality": "audio"} | fields)


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (b"# One\n\nOnce.\n\n# Two / More\n\nTwice.", "text/markdown; charset=utf-8"),
        (b"<h1>One</h1><p>Once.<h1>Two / More</h1><p>Twice.", HTML),
        (book({"a.xhtml": "<h1>One</h1><p>Once.</p>", "b.xhtml": "<h1>Two / More</h1><p>Twice.</p>"}), EPUB),
        (
            book({"a.xhtml": "<h1>One</h1><p>Once.</p>", "b.xhtml": "<h1>Two / More</h1><p>Twice.</p>"}),
            "application/zip",
        ),
    ],
)
def test_a_document_becomes_a_sound_for_each_chapter(platform: Platform, content: bytes, media_type: str) -> None:
    made = ask(platform, input_artifacts=[upload(platform, content, media_type)])
    assert made.status_code == 202, made.text
    job = platform.until_state(made.json()["id"], "completed")
    with platform.http as http:
        metas = [http.get(f"/v1/artifacts/{output}/meta").json() for output in job["output_artifacts"]]
        assert [meta["facts"]["title"] for meta in metas] == ["One", "Two / More"]
        assert [meta["facts"]["chapter"] for meta in metas] == [1, 2]
        assert [meta["facts"]["text"] for meta in metas] == ["One\n\nOnce.", "Two / More\n\nTwice."]
        assert [meta["filename"] for meta in metas] == ["001 One.wav", "002 Two More.wav"]
        download = http.get(f"/v1/artifacts/{job['output_artifacts'][1]}")
        assert download.headers["content-disposition"] == 'attachment; filename="002 Two More.wav"'


def test_what_cannot_go_with_a_document_is_refused(platform: Platform) -> None:
    document = upload(platform, b"Some words.", PLAIN_TEXT)
    for fields, said in (
        ({"params": {"text": "Hi."}, "input_artifacts": [document]}, "send one of them"),
        ({"input_artifacts": [document, document]}, "One document"),
        ({"params": {}}, "params.text: It is required"),
        ({"input_artifacts": [document], "params": {"voice": "none"}}, "is no voice"),
    ):
        answer = ask(platform, **fields)
        assert answer.status_code == 400, answer.text
        assert said in answer.json()["error"]
    answer = ask(platform, input_artifacts=[document], model="test-tone")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


def test_what_is_no_document_is_refused_by_its_type_and_not_for_the_text_that_is_missing(platform: Platform) -> None:
    for content, declared, said in (
        (b"%PDF-1.4 and so on", "application/pdf", "cannot read application/pdf; it reads text/plain"),
        (b"{}", "application/json", "it reads text/plain"),
        (b"RIFF\x24\0\0\0WAVEfmt ", "audio/wav", "it reads text/plain"),
    ):
        answer = ask(platform, params={}, input_artifacts=[upload(platform, content, declared)])
        assert answer.status_code == 400, answer.text
        assert said in answer.json()["error"]
    answer = ask(platform, params={}, input_artifacts=[str(uuid.uuid4())])
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_a_document_that_is_broken_is_a_failed_job(platform: Platform) -> None:
    made = ask(platform, input_artifacts=[upload(platform, book(PAGES, spine=""), EPUB)])
    job = platform.until_state(made.json()["id"], "failed")
    assert job["error_code"] == "input_unreadable"
    assert "no reading order" in job["error_message"]


def test_a_picture_that_is_called_a_text_is_none(platform: Platform) -> None:
    picture = upload(platform, b"\x89PNG\r\n\x1a\n and so on", PLAIN_TEXT)
    answer = ask(platform, input_artifacts=[picture])
    assert answer.status_code == 400

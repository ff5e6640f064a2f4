from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inclavate.errors import InvalidRequest
from inclavate.generators import SPEECH, Capability, Check, can_be_spoken
from workers.characters import composed
from workers.normalisation import readable, spoken

MARKED = st.text(
    st.sampled_from("ab1 *_`#[](){}<>!|-=+~&;:.,\\\n\t/\"'é字😀\u200d\ufe0f️⃣🇩\u00ad\ue000\ud800\u3164%"), max_size=200
)
SNIPPETS = st.lists(
    st.sampled_from(
        [
            *("# Head\n", "- item\n", "1. one\n", "| a | b |\n|---|---|\n| 1 | 2 |\n", "```\ncode\n```\n", "**bold**"),
            *("_it_ ", "[text](http://x.com)", "![alt](a.png)", "<b>", "</p>", "<script>", "</script>", "<!--", "-->"),
            *("&lt;", "&#128512;", "Hello there. ", "\n\n", "😀", "> quote\n", "~~~", "[a]: http://b\n", "2*3", "\\*"),
            *("5 < 6", "---\n", "<br>", "क्\u200dष"),
        ]
    ),
    max_size=25,
).map("".join)
ANY = st.one_of(MARKED, SNIPPETS, st.text(max_size=200))


@pytest.mark.parametrize(
    "text",
    [
        "2 * 3 * 4",
        "2*3*4 = 24",
        "a_b_c and snake_case",
        "#1 in C#",
        "I <3 you",
        "5 < 6 > 2",
        "The rose is red,\nThe violet blue,\n\nAnd so are you.",
        "1. First we go. 2. Then we stop.",
        "1986. A great year.",
        "AT&T, R&D & more",
        "List<String> and Map<K, V>",
        "He said: “No!” – and left…",
        "array[0] = {x: 1} | y",
        "see [1] and (2)",
        "100 % sicher, «bien sûr», ¿qué?",
        "https://example.com/a_b_c?d=e_f_&g=1",
        "C:\\Users\\me",
        "na\u00efve",
        "汉语，日本語。한국어",
        "هذا نَصٌّ عربيٌّ",
        "क्षत्रिय हिन्दी",
        "שָׁלוֹם",
        "می\u200cخواهم",
        "ภาษาไทย",
        "$x$ costs $5",
        "Hello  there",
    ],
)
def test_text_that_is_no_markup_stays_as_it_is(text):
    assert readable(text) == text
    assert readable(f"Before.\n\n{text}") == f"Before.\n\n{text}"


@pytest.mark.parametrize(
    ("pasted", "expected"),
    [
        ("# Heading\nText *here* is **bold**.", "Heading.\n\nText here is bold."),
        ("Title\n=====\n\nWords", "Title.\n\nWords"),
        ("## Really?", "Really?"),
        ("- one\n- two!\n  - three\n\nafter", "one.\ntwo!\nthree.\n\nafter"),
        ("* [ ] milk\n* eggs", "milk.\neggs."),
        ("1. first\n2. second", "1. first.\n2. second."),
        ("3) third\n4) fourth", "3) third.\n4) fourth."),
        ("| Name | Age |\n|:--|--:|\n| Ada | 36 |", "Name, Age.\nAda, 36."),
        ("`code` and ~~old~~ new", "code and old new"),
        ("```python\nx = a*b*c\n```\nDone", "x = a*b*c\n\nDone"),
        ("[the page](https://example.com/x) says", "the page says"),
        ("![a cat](cat.png)", "a cat"),
        ("See <https://example.com>", "See https://example.com"),
        ("> quoted\n> words", "quoted\nwords"),
        ("above\n\n---\n\nbelow", "above\n\nbelow"),
        ("<p>One <b>two</b></p><p>Three<br>four</p>", "One two\n\nThree\nfour"),
        ("<h1>Title</h1>\n<ul>\n  <li>a</li>\n  <li>b</li>\n</ul>", "Title.\n\na.\n\nb."),
        ("<table><tr><td>a</td><td>b</td></tr></table>", "a, b."),
        ("x<script>alert(1)</script> y<!-- z -->", "x y"),
        ("Fish &amp; chips &#8211; &euro;5&nbsp;each", "Fish & chips – €5 each"),
        ("Hi 👋 there 👍🏽! 👩\u200d👩\u200d👧 Bye 🇩🇪.", "Hi there! Bye."),
        ("1\ufe0f\u20e3 first ❤\ufe0f", "first"),
        ("so\u00adft hy\u200bphen \u202eabc\u202c \ufeffend", "soft hyphen abc end"),
        ("a\u00a0b\u3000c\u2009d\te", "a b c d e"),
        ("a\r\nb\rc\u2028d\u2029e", "a\nb\nc\nd\n\ne"),
        ("What!!!!!!!! No......... ------", "What!!! No... ---"),
        ("one\n\n\n\n\ntwo", "one\n\ntwo"),
        ("snake\\_case 1\\. x", "snake_case 1. x"),
        ("見出し\n===\n- 項目", "見出し。\n\n項目。"),
        ("这是**重点**内容", "这是重点内容"),
        ("a\0b\ud800c", "abc"),
        ("[](http://example.com)", "http://example.com"),
        ("👍 ---", "---"),
        ("- [x] done\n- [ ] to do", "done.\nto do."),
        ("", ""),
    ],
)
def test_markup_is_taken_away_and_words_stay(pasted, expected):
    assert readable(pasted) == expected or (not can_be_spoken(pasted) and not can_be_spoken(readable(pasted)))


@given(ANY)
@settings(max_examples=400)
def test_a_text_without_anything_to_speak_gets_nothing(text):
    assert can_be_spoken(text) or not can_be_spoken(readable(text))


@pytest.mark.parametrize(
    "text",
    [
        "&#128512; &#x1F600;",
        "&nbsp;",
        "<br>",
        "<br/>\n<hr>",
        "<script>x</script>",
        "<style>p { a: b }</style>",
        "<img src=x>",
        "<!-- hi -->",
        "![](x.png)",
        "<p>&nbsp;</p>",
        '<div class="a"><span></span></div>',
    ],
)
def test_what_is_markup_alone_has_nothing_to_speak(text):
    assert not can_be_spoken(readable(text))
    capability = Capability("m", "audio", SPEECH)
    with pytest.raises(InvalidRequest, match="nothing to speak"):
        Check(capability, {"text": text}, 0).run()
    Check(capability, {"text": text, "normalize": False}, 0).run()


@pytest.mark.parametrize(
    "text", ["I <3 you", "a < b > c", "<3", "[](http://x.com)", "x &lt; y", "&copy;", "List<T>", "<T>"]
)
def test_what_only_looks_like_markup_is_spoken(text):
    assert can_be_spoken(readable(text))
    Check(Capability("m", "audio", SPEECH), {"text": text}, 0).run()


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("cafe\u0301 re\u0301sume\u0301 u\u0308ber", "café résumé über"),
        ("Ｈｅｌｌｏ, １２", "Hello, 12"),
        ("𝐇𝐞𝐥𝐥𝐨 𝟗", "Hello 9"),
        ("ⓗⓔⓛⓛⓞ", "hello"),
        ("ﬁne", "fine"),
        ("Ⅷ", "VIII"),
        ("①", "1"),
        ("m² and ½ and 5 ℃", "m² and ½ and 5 ℃"),
        ("한국어 คำ 漢字 ガ", "한국어 คำ 漢字 ガ"),
        ("ﺳﻼﻡ", "سلام"),
    ],
)
def test_letters_are_composed_and_drawn_ones_are_plain(written, plain):
    assert readable(written) == plain


@given(st.text(max_size=100))
def test_what_is_composed_stays_so(text):
    once = composed(text)
    assert composed(once) == once
    assert unicodedata.is_normalized("NFC", once)


@pytest.mark.parametrize("figures", ["٣", "๓", "३"])
def test_other_scripts_figures_are_said_in_english(figures):
    assert spoken(figures, "en-us") == "three"


@given(ANY)
def test_nothing_is_left_that_cannot_be_seen(text):
    left = readable(text)
    assert not {unicodedata.category(c) for c in left} & {"Cs", "Co"}
    assert not set(left) & set("\u200b\u200e\u202e\u2066\u00ad\ufeff\0\r\t\u00a0\ufe0f😀")
    assert left == left.strip()


@given(st.text(st.characters(categories=("L", "M", "N", "Zs")), max_size=100))
def test_letters_of_every_script_stay(text):
    kept = [c for c in readable(text) if unicodedata.category(c)[0] in "LN"]
    bare = "".join(c for c in text if c not in "\u115f\u1160\u3164\uffa0")
    assert kept == [c for c in composed(bare) if unicodedata.category(c)[0] in "LN"]


@given(
    st.lists(
        st.sampled_from(["Yes.", "It is so, he said;", "why?", "\n", "\n\n", "Mr. Brown", "10:30", "naïve"]),
        max_size=40,
    )
)
def test_prose_stays_as_it_is_when_read_again(words):
    once = readable(" ".join(words))
    assert readable(once) == once


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", True),
        ("%", True),
        ("+", True),
        ("€", True),
        ("&", True),
        ("½", True),
        ("™", True),
        ("ক", True),
        ("字", True),
        ("a 😀", True),
        ("😀", False),
        ("👍🏽", False),
        ("🇩🇪", False),
        ("👩\u200d👩\u200d👧", False),
        ("5\ufe0f\u20e3", False),
        ("❤", False),
        ("™\ufe0f", False),
        ("★ ♥", False),
        ("...!?", False),
        ("---", False),
        ("***", False),
        ("```", False),
        ("\u200b\u3164", False),
        ("\ud800", False),
        ("", False),
    ],
)
def test_what_can_be_spoken(text, expected):
    assert can_be_spoken(text) is expected


# What English readers say, in both its kinds.
SAID = {
    "I have 3 cats and 12 dogs.": "I have three cats and twelve dogs.",
    "1,250 of 1,000,000": "one thousand two hundred fifty of one million",
    "3.14 and 0.5 and .25": "three point one four and zero point five and point two five",
    "-5 or −3.5": "minus five or minus three point five",
    "agent 007": "agent zero zero seven",
    "12345678901234567": "one two three four five six seven eight nine zero one two three four five six seven",
    "the 1st, 2nd, 3rd and 22nd": "the first, second, third and twenty-second",
    "the 21st century": "the twenty-first century",
    "in 1066 and in 1984": "in ten sixty-six and in nineteen eighty-four",
    "2024 was": "twenty twenty-four was",
    "1905 and 2005": "nineteen oh-five and two thousand five",
    "1500 people": "one thousand five hundred people",
    "the 1990s and the '80s": "the nineteen nineties and the eighties",
    "1939-45 and 1914–1918": "nineteen thirty-nine to forty-five and nineteen fourteen to nineteen eighteen",
    "at 10:30, not 9:05": "at ten thirty, not nine oh five",
    "at 9:00 or 14:00": "at nine o'clock or fourteen hundred",
    "10:30 a.m. to 3 p.m. He left": "ten thirty AM to three PM. He left",
    "9am-5pm": "nine AM to five PM",
    "Open 4:30-5pm": "Open four thirty to five PM",
    "lasts 2h 30m": "lasts two hours thirty minutes",
    "1h 5m 10s or 5m 1s": "one hour five minutes ten seconds or five minutes one second",
    "30m wide": "thirty meters wide",
    "the part I like, and Part I am reading": "the part I like, and Part I am reading",
    "Part I of it, Chapter I.": "Part one of it, Chapter one.",
    "$-5, -$5 and $.50": "minus five dollars, minus five dollars and fifty cents",
    "20%-30%": "twenty to thirty percent",
    "1 000 000 and 1.000.000": "one million and one million",
    "20º": "twenty degrees",
    "3-2=1 and 10 - 3 = 7": "three minus two equals one and ten minus three equals seven",
    "5x3x2 cm and 5×3 m": "five by three by two centimeters and five by three meters",
    "5 GB/s": "five gigabytes per second",
    "It cost $5.50.": "It cost five dollars and fifty cents.",
    "$1, $0.99, $5.00": "one dollar, ninety-nine cents, five dollars",
    "£1.2m and $3 billion": "one point two million pounds and three billion dollars",
    "€3 or 3 € or EUR 3": "three euros or three euros or three euros",
    "US$20 an hour, $20/hour": "twenty US dollars an hour, twenty dollars per hour",
    "$5-10": "five to ten dollars",
    "¥1,000": "one thousand yen",
    "5 km, 1 km and 5-10 km": "five kilometers, one kilometer and five to ten kilometers",
    "a 10-km run": "a ten kilometer run",
    "20 °C or 68°F": "twenty degrees Celsius or sixty-eight degrees Fahrenheit",
    "60 mph, 100 km/h, 9.8 m/s²": (
        "sixty miles per hour, one hundred kilometers per hour, nine point eight meters per second squared"
    ),
    "70kg and 5 lbs.": "seventy kilograms and five pounds.",
    "16GB at 3.2 GHz": "sixteen gigabytes at three point two gigahertz",
    "50 m² and 2 m3": "fifty square meters and two cubic meters",
    "5'10\" tall": "five foot ten tall",
    "50%, 3.5 % and 10–20%": "fifty percent, three point five percent and ten to twenty percent",
    "1/2, 3/4 and 2 1/2": "one half, three quarters and two and a half",
    "½ cup and 2¾": "one half cup and two and three quarters",
    "24/7": "twenty-four seven",
    "8/10 points": "eight out of ten points",
    "pages 10-20, 2–1": "pages ten to twenty, two to one",
    "pp. 5-10 and p. 3": "pages five to ten and page three",
    "Call 555-123-4567 now": "Call five five five, one two three, four five six seven now",
    "+1 (555) 123-4567": "plus one, five five five, one two three, four five six seven",
    "192.168.0.1": "one hundred ninety-two dot one hundred sixty-eight dot zero dot one",
    "v2.0.1 and version 1.10": "version two point zero point one and version one point ten",
    "Python 3.11": "Python three point eleven",
    "info@example.com": "info at example dot com",
    "first.last_2@mail-host.co.uk": "first dot last underscore two at mail dash host dot co dot uk",
    "Visit https://www.example.com/docs/a-b?x=1&y=2.": "Visit example dot com slash docs slash a dash b.",
    "(see example.org)": "(see example dot org)",
    "main.py and end.Start": "main.py and end.Start",
    "Dr. Smith met Mr. and Mrs. Brown": "Doctor Smith met Mister and Missus Brown",
    "St. James lives at 5 Main St. He": "Saint James lives at five Main Street. He",
    "Ms. Lee, Prof. King": "Miz Lee, Professor King",
    "Sammy Davis, Jr. sang": "Sammy Davis, Junior sang",
    "Acme Inc. and Ltd.": "Acme Incorporated and Limited.",
    "e.g. this, i.e. that, etc.": "for example this, that is that, et cetera.",
    "cats vs. dogs": "cats versus dogs",
    "No. 5 is alive. No. I won't.": "number five is alive. No. I won't.",
    "Fig. 3, Vol. 2": "Figure three, Volume two",
    "The U.S. and NASA": "The U.S. and NASA",
    "She has a Ph.D. in it": "She has a PhD in it",
    "Henry VIII and Louis XIV": "Henry the eighth and Louis the fourteenth",
    "World War II, Chapter IV": "World War two, Chapter four",
    "Did I mix it? I did.": "Did I mix it? I did.",
    "2 + 2 = 4": "two plus two equals four",
    "5 < 6 and 7 ≥ 2": "five is less than six and seven is at least two",
    "3 × 4 ÷ 2 ± 1": "three times four divided by two plus or minus one",
    "2*3=6": "two times three equals six",
    "x^2 + y² = 10^6": "x squared plus y squared equals ten to the power of six",
    "1.5e6": "one point five times ten to the power of six",
    "~5 and ±2": "about five and plus or minus two",
    "1920x1080": "one thousand nine hundred twenty by one thousand eighty",
    "16:9": "sixteen to nine",
    "salt & pepper, AT&T": "salt and pepper, AT&T",
    "#5, #python, C#": "number five, hashtag python, C sharp",
    "@ada wrote": "at ada wrote",
    "I can’t, won't and it's": "I can't, won't and it's",
    "COVID-19, A4, MP3, H2O": "COVID-nineteen, A4, MP3, H2O",
    "1,2,3 and (4)": "one, two, three and (four)",
    "He was 5. Then 6!": "He was five. Then six!",
    "10k and 5bn": "ten thousand and five billion",
    "The ratio is 3:1. It": "The ratio is three to one. It",
    "Ali vs. Mr. T": "Ali versus Mister T",
    "call 020 7946 0958": "call zero two zero, seven nine four six, zero nine five eight",
    "ISBN 978-3-16-148410-0": ("ISBN nine seven eight, three, one six, one four eight four one zero, zero"),
    "Mon-Fri 9-5, 20/20": "Monday to Friday nine to five, twenty twenty",
    "Tue. 10:30am": "Tuesday ten thirty AM",
    "3/4 tsp. salt, +/- 10%": "three quarters teaspoons salt, plus or minus ten percent",
    "apples and/or pears": "apples and or pears",
    "Plain words stay: naïve café, 日本.": "Plain words stay: naïve café, 日本.",
}
AMERICAN = {
    "On 2024-03-05 we met.": "On March fifth, twenty twenty-four we met.",
    "3/5/2024": "March fifth, twenty twenty-four",
    "13/5/2024": "May thirteenth, twenty twenty-four",
    "2024-03-05T10:30:00Z": "March fifth, twenty twenty-four ten thirty",
}
BRITISH = {
    "On 2024-03-05 we met.": "On the fifth of March, twenty twenty-four we met.",
    "3/5/2024": "the third of May, twenty twenty-four",
    "05.03.2024": "the fifth of March, twenty twenty-four",
}
DATES = {
    "5 March 2024 or the 5th of March": "the fifth of March, twenty twenty-four or the fifth of March",
    "March 5, 2024 and Mar. 6": "March fifth, twenty twenty-four and March sixth",
    "June 2024, Dec. 1999": "June twenty twenty-four, December nineteen ninety-nine",
    "July 4-6": "July fourth to sixth",
    "You may 5 times": "You may five times",
}


@pytest.mark.parametrize(
    ("language", "written", "said"),
    [
        *(("en-us", written, said) for written, said in {**SAID, **DATES, **AMERICAN}.items()),
        *(("en-gb", written, said) for written, said in {**SAID, **DATES, **BRITISH}.items()),
    ],
)
def test_english_is_said_as_its_readers_say_it(language, written, said):
    assert spoken(written, language) == said
    assert spoken(said, language) == said


@pytest.mark.parametrize(
    ("language", "written", "said"),
    [
        ("de", "Ich habe 21 Katzen.", "Ich habe einundzwanzig Katzen."),
        ("de", "am 3. März um 10:30 für 5 € und 1.000", "am 3. März um 10:30 für 5 € und 1.000"),
        ("fr-fr", "80 jours et 1 nuit", "quatre-vingts jours et 1 nuit"),
        ("es", "Tengo 16 años", "Tengo dieciséis años"),
        ("ja", "3時に5人", "3時に5人"),
        ("zz", "5 km", "5 km"),
        ("", "5 km", "5 km"),
    ],
)
def test_other_languages_have_whole_numbers_in_words_or_are_left_alone(language, written, said):
    assert spoken(written, language) == said


@given(st.one_of(ANY, st.text(st.sampled_from("0123456789.,:/-–$€%°'\"mkgapMVXIsth #@+*^=<> DrSt&½²e_"), max_size=60)))
@settings(max_examples=500)
def test_any_text_can_be_said(text):
    for language in ("en-us", "en-gb", "fr", "xx"):
        said = spoken(text, language)
        assert can_be_spoken(said) >= can_be_spoken(text)


@pytest.mark.parametrize(
    "unit",
    [
        *(
            "a.",
            "(",
            "[",
            "![",
            "*a ",
            "> ",
            "- a\n",
            "|",
            "<a ",
            "<!--",
            "<script>",
            "`",
            "&amp;",
            "\\*",
            " ",
            "\u0301",
        ),
        *("1.", "1,", "9", "1/", "$1 ", "a@b.", "http://", "word ", "😀", "Dr. ", "Henry V", "#\n", "x^", "\u200cक"),
    ],
)
def test_a_long_hostile_text_takes_as_long_as_a_plain_one(unit):
    text = (unit * (100_000 // len(unit) + 1))[:100_000]
    assert spoken(readable(text), "en-us") or not can_be_spoken(readable(text))

"""espeak-ng, in processes that may crash, as Piper and Kokoro each bring it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.phonemes import readable_parts

ROOT = Path(__file__).resolve().parent.parent
LANGUAGES = ("en-us", "de", "ru", "hi", "sv")
PHONEMIZERS = {
    "piper": """if True:
        from piper.phonemize_espeak import EspeakPhonemizer
        espeak = EspeakPhonemizer()
        def phonemize(language, text):
            return " ".join("".join(sentence) for sentence in espeak.phonemize(language, text))
    """,
    "kokoro": """if True:
        from kokoro_onnx.tokenizer import Tokenizer
        from phonemizer.backend import EspeakBackend
        Tokenizer(vocab={"a": 1})
        backends = {}
        def phonemize(language, text):
            if language not in backends:
                backends[language] = EspeakBackend(
                    language, preserve_punctuation=True, with_stress=True, language_switch="remove-flags"
                )
            return " ".join(backends[language].phonemize([text], strip=True))
    """,
}
SERVE = """
import json, sys
for line in sys.stdin:
    print(json.dumps(phonemize(*json.loads(line))), flush=True)
"""
# Said again and again.
HOSTILE = (
    *(
        "a.",
        "b.c.",
        "U.S.",
        "U.S. ",
        "I.V.",
        "J.R.R.",
        "w.ø.",
        "漢.",
        "я.",
        "1.1. ",
        "7.",
        "7-",
        "7/",
        "x.y",
        "a-",
        "a/",
    ),
    *("a'", "x_y", "a", "A", "ab", "qz", "ŋ", "e\u0301", "é", "€", "ｑ", "ᚠ", "漢", "漢 ", "각", "ह", "あ", "ع"),
    *("WWW ", "123456789 ", "Dr. "),
)
# What is said, and what is heard of it each time.
COUNTED = (
    *(("a.", "eɪ"), ("b.c.", "siː"), ("U.S.", "juː"), ("U.S. ", "juː"), ("J.R.R.", "dʒeɪ"), ("漢.", "tʃaɪniːz")),
    *(("7.", "sɛvən"), ("123456789 ", "mɪliən"), ("a/", "slæʃ"), ("ᚠ", "lɛɾɚ")),
)
NORMAL = {
    "en-us": (
        "Dr. J. R. R. Tolkien met Mr. C. S. Lewis of the U.S. and the U.K. at 5 p.m. on Jan. 3.",
        "https://www.example.com/some/long/path-with-words/index.html?query=string&a=1.2.3#fragment.pdf",
        "john dot smith at example dot co dot u k, version 3.10.2 on 192.168.100.254",
        "pneumonoultramicroscopicsilicovolcanoconiosis",
    ),
    "de": (
        "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft",
        "Das Rindfleischetikettierungsüberwachungsaufgabenübertragungsgesetz gilt z. B. u. a. d. h. immer.",
    ),
    "hi": ("नमस्ते दुनिया, आज हम बगीचे में घूमने जा रहे हैं और फिर घर लौटकर खाना खाएँगे।",),
    "ru": ("Вчера мы ходили в парк, а потом вернулись домой и смотрели телевизор до самой ночи.",),
}
ALPHABET = st.one_of(
    st.sampled_from("abzAZ019éøяע漢ह각あกᚠ€½ⅧΩ.....,;:'’\"-_/\\+=&@#$%!?()[]{}<>|~^*`\u0301\u0308\u200d "),
    st.characters(exclude_categories=["C"]),
)
UNITS = st.builds("".join, st.lists(ALPHABET, min_size=1, max_size=5))


class Phonemizer:
    """A phonemizer's process; a new one where it crashed."""

    def __init__(self, code: str) -> None:
        self._code = code
        self._start()

    def _start(self) -> None:
        command = [sys.executable, "-c", f"{self._code}{SERVE}"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def phonemize(self, language: str, text: str) -> str:
        self._process.stdin.write(f"{json.dumps([language, text])}\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            code = self._process.wait()
            self._start()
            pytest.fail(f"It ended with {code} at {text!r} in {language}.")
        return json.loads(line)

    def parts(self, text: str, language: str = "en-us") -> list[str]:
        return list(readable_parts(text, lambda part: self.phonemize(language, part)))

    def whole(self, text: str, language: str = "en-us") -> str:
        return " ".join(self.phonemize(language, part) for part in self.parts(text, language))

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="module", params=list(PHONEMIZERS))
def phonemizer(request):
    phonemizer = Phonemizer(PHONEMIZERS[request.param])
    yield phonemizer
    phonemizer.close()


@pytest.mark.parametrize("unit", HOSTILE)
def test_the_phonemes_grow_with_the_text(phonemizer, unit):
    few = len(phonemizer.whole(unit * 32))
    for times in (64, 250 // len(unit), 250):
        assert len(phonemizer.whole(unit * times)) == pytest.approx(few * times / 32, rel=0.1)


@pytest.mark.parametrize(("unit", "heard"), COUNTED)
@pytest.mark.parametrize("times", [1, 30, 125])
def test_each_of_many_words_is_read(phonemizer, unit, heard, times):
    phonemes = phonemizer.whole(unit * times)
    assert phonemes.replace("ˈ", "").replace("ˌ", "").count(heard) == times


@pytest.mark.parametrize(("language", "text"), [(language, text) for language in NORMAL for text in NORMAL[language]])
def test_a_text_that_people_write_stays_as_it_is(phonemizer, language, text):
    assert phonemizer.parts(text, language) == [text]


@settings(deadline=None, max_examples=300)
@given(UNITS, st.integers(1, 250), st.sampled_from(LANGUAGES))
def test_no_run_of_characters_crashes_espeak_and_none_is_left_out(phonemizer, unit, length, language):
    text = (unit * length)[:length]
    parts = phonemizer.parts(text, language)
    for part in parts:
        phonemizer.phonemize(language, part)
    assert "".join("".join(parts).split()) == "".join(text.split())

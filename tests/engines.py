"""Real engines for tests, small and quick: they are offered by `tests/models.toml`, never by the shipped catalog."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from inclavate import subtitles
from inclavate.errors import InputUnreadable, UnsupportedInput
from inclavate.generators import DOCUMENTS, SPEECH, UNDERSTAND, Cancelled, Capability, Output, Run
from workers import documents, encoding
from workers.sound import WavWriter, duration_seconds
from workers.speech import produce, read_request

SAMPLE_RATE = 16000
SECONDS_PER_CHARACTER = 0.01


def linger(run: Run, seconds: float) -> None:
    """Work that takes that long, checking all the while."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        run.check()
        time.sleep(min(left, 0.02))


class Tone:
    """A sine, 10 ms a character of `text`, in `steps` steps of `step_seconds` each; the seed sets its pitch.

    Options of the same names are for routes that pass no params of ours on.
    """

    @classmethod
    def describe(cls, model: str, options: Mapping[str, Any]) -> Capability:
        return Capability(
            model=model,
            modality="audio",
            task=SPEECH,
            builtin_voices=("low", "high"),
            speed_range=(0.5, 2.0),
            limits={"max_characters": 1_000_000},
            formats=("wav",),
            sample_rate=SAMPLE_RATE,
            honours_seed=True,
            streams=True,
        )

    def load(self, options: Mapping[str, Any]) -> None:
        self._options = options
        time.sleep(options.get("load_seconds", 0))

    def generate(self, run: Run) -> Iterator[Output]:
        import numpy as np

        params = {"steps": 4, "step_seconds": 0, **self._options, **run.params}
        steps = int(params["steps"])
        seconds = len(run.params["text"]) * SECONDS_PER_CHARACTER / float(run.params.get("speed", 1.0))
        pitch = random.Random(run.seed).uniform(200, 400) * (2 if run.params.get("voice") == "high" else 1)
        samples = 0.5 * np.sin(np.arange(round(seconds * SAMPLE_RATE)) * (2 * np.pi * pitch / SAMPLE_RATE))
        with WavWriter(run.workdir / "tone.wav", SAMPLE_RATE) as wav:
            run.progress("generating", 0.0)
            run.growing(wav.path, "audio/wav")
            for step, part in enumerate(np.array_split(samples, steps), 1):
                linger(run, float(params["step_seconds"]))
                if step == params.get("fails_at"):
                    raise RuntimeError("it was to fail here")
                wav.write(part)
                run.progress("generating", step / steps)
        facts = {"duration_seconds": wav.duration_seconds, "sample_rate": SAMPLE_RATE, "channels": 1}
        yield Output(wav.path, "audio/wav", facts)

    def unload(self) -> None:
        pass


class Params(Tone):
    """A tone whose note is the parameters that the engine got."""

    def generate(self, run: Run) -> Iterator[Output]:
        run.note(json.dumps(run.params))
        yield from super().generate(run)


class Hum:
    """Speech as the real engines make it, in a voice that hums. Options are fields of its capability."""

    @classmethod
    def describe(cls, model: str, options: Mapping[str, Any]) -> Capability:
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
        fields = {
            "builtin_voices": ("anna", "ben"),
            "formats": encoding.FORMATS,
            "media_types": DOCUMENTS,
            "subtitles": subtitles.FORMATS,
        }
        return Capability(
            model=model, modality="audio", task=SPEECH, sample_rate=HummingVoice.sample_rate, **fields | given
        )

    def load(self, options: Mapping[str, Any]) -> None:
        self._capability = self.describe("this model", options)

    def generate(self, run: Run) -> Iterator[Output]:
        asked = read_request(run, self._capability)
        yield from produce(run, asked, HummingVoice(asked.speed))

    def unload(self) -> None:
        pass


class HummingVoice:
    """Ten milliseconds a character, at half of full scale, between silences of its own; only what has letters."""

    sample_rate = 8000
    language = "en"
    joins_sentences = True

    def __init__(self, speed: float = 1.0) -> None:
        self._speed = speed

    def say(self, text: str) -> Iterator[Any]:
        import numpy as np

        if not any(character.isalnum() for character in text):
            return
        time = np.arange(round(len(text) * SECONDS_PER_CHARACTER / self._speed * self.sample_rate)) / self.sample_rate
        yield np.pad(0.5 * np.cos(2 * np.pi * 300 * time), 800)


class Parrot(Tone):
    """Tone, with a clip to speak like: it reads that, and says what it read in the facts.

    Option `words`: whether it needs to know what is said in the clip.
    """

    @classmethod
    def describe(cls, model: str, options: Mapping[str, Any]) -> Capability:
        return replace(
            super().describe(model, options),
            accepts_speaker=True,
            requires_reference_text=options.get("words", False),
            builtin_voices=() if options.get("words") else ("low", "high"),
        )

    def generate(self, run: Run) -> Iterator[Output]:
        heard = {
            "clip_digests": [hashlib.sha256(given.path.read_bytes()).hexdigest() for given in run.inputs],
            "clip_seconds": [duration_seconds(given.path) for given in run.inputs],
            "given": {name: run.params[name] for name in ("voice", "reference_text") if name in run.params},
        }
        for output in super().generate(run):
            yield replace(output, facts={**output.facts, **heard})


class Reader(Tone):
    """Tone, a chapter of a document after the other; the text itself is in the facts."""

    @classmethod
    def describe(cls, model: str, options: Mapping[str, Any]) -> Capability:
        return replace(super().describe(model, options), media_types=DOCUMENTS)

    def generate(self, run: Run) -> Iterator[Output]:
        for given in run.inputs:
            for number, chapter in enumerate(documents.chapters(given.path, given.media_type), 1):
                path = run.workdir / f"{number}.wav"
                with WavWriter(path, SAMPLE_RATE) as wav:
                    wav.write(silence(len(chapter.text) * SECONDS_PER_CHARACTER))
                facts = {"title": chapter.title, "chapter": number, "text": chapter.text}
                yield Output(path, "audio/wav", facts, documents.file_name(number, chapter.title, ".wav"))
                run.check()
        if not run.inputs:
            yield from super().generate(run)


def silence(seconds: float) -> Any:
    import numpy as np

    return np.zeros(round(seconds * SAMPLE_RATE), np.int16)


class Echo:
    """Reads its inputs and answers with their text, after the prompt; `step_seconds` for each of `steps` steps."""

    @classmethod
    def describe(cls, model: str, options: Mapping[str, Any]) -> Capability:
        return Capability(
            model=model,
            modality="text",
            task=UNDERSTAND,
            input_modalities=("audio", "image"),
            media_types=("text/plain", "audio/flac"),
        )

    def load(self, options: Mapping[str, Any]) -> None:
        pass

    def answer(self, text: str) -> str:
        return text

    def generate(self, run: Run) -> Iterator[Output]:
        run.progress("reading input", 0.0)
        try:
            text = "".join(given.path.read_text("utf-8", "replace") for given in run.inputs)
        except OSError as error:
            raise InputUnreadable("The input is gone.") from error
        steps = int(run.params.get("steps", 1))
        for step in range(steps):
            run.progress("understanding", step / steps)
            linger(run, float(run.params.get("step_seconds", 0)))
        run.progress("publishing", 0.0)
        path = run.workdir / "answer.txt"
        path.write_text(self.answer(f"{run.params.get('prompt', '')}{text}"), "utf-8")
        yield Output(path, "text/plain", {"characters": len(text)})

    def unload(self) -> None:
        pass


class Upper(Echo):
    """Echo, in capitals."""

    def answer(self, text: str) -> str:
        return text.upper()


class Crasher(Echo):
    """Goes wrong as `params.how` says; without it, it is Echo. Options: `load` "raise" or "refuse", `unload` "hang"."""

    def load(self, options: Mapping[str, Any]) -> None:
        self._is_stubborn = options.get("unload") == "hang"
        if options.get("load") == "raise":
            raise ValueError(f"no weights in {sys.prefix}/share/weights.bin")
        if options.get("load") == "refuse":
            raise UnsupportedInput("These weights are of another kind.")

    def unload(self) -> None:
        time.sleep(600 if self._is_stubborn else 0)

    def generate(self, run: Run) -> Iterator[Output]:
        if how := run.params.get("how"):
            run.progress("understanding", 0.0)
            yield from getattr(self, f"_{how}")(run) or ()
        yield from super().generate(run)

    def _segfault(self, run: Run) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def _killed(self, run: Run) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _exit(self, run: Run) -> None:
        os._exit(3)

    def _hang(self, run: Run) -> None:
        while True:
            time.sleep(0.05)

    def _deaf(self, run: Run) -> None:
        """Goes on stepping, and never stops for a cancel."""
        while True:
            try:
                run.check()
            except Cancelled:
                time.sleep(0.05)

    def _hog(self, run: Run) -> None:
        held = []
        while True:
            held.append(b"x" * 2**20)

    def _raise(self, run: Run) -> None:
        raise ValueError(f"cannot open '{run.workdir}/model file.bin' at /etc/secret\nsecond line")

    def _memory(self, run: Run) -> None:
        raise MemoryError

    def _refuse(self, run: Run) -> None:
        raise UnsupportedInput("params.how asks for what this engine refuses.")

    def _outside(self, run: Run) -> Iterator[Output]:
        yield Output(run.workdir.parent / "outside.txt", "text/plain")

    def _link(self, run: Run) -> Iterator[Output]:
        path = run.workdir / "link.txt"
        path.symlink_to("/etc/hostname")
        yield Output(path, "text/plain")

    def _nothing(self, run: Run) -> Iterator[Output]:
        yield Output(run.workdir / "never-written.txt", "text/plain")

    def _growing_gone(self, run: Run) -> None:
        """As an engine that gives up, and is quicker than its parent."""
        run.growing(run.workdir / "gone.wav", "audio/wav")
        raise UnsupportedInput("params.how asks for what this engine refuses.")

    def _growing_outside(self, run: Run) -> None:
        run.growing(run.workdir.parent / "outside.wav", "audio/wav")

    def _nan(self, run: Run) -> Iterator[Output]:
        path = run.workdir / "answer.txt"
        path.write_text("x")
        yield Output(path, "text/plain", {"score": float("nan")})

    def _print(self, run: Run) -> None:
        print("engines print what they like", flush=True)  # noqa: T201
        run.note("This engine printed something.")

    def _backwards(self, run: Run) -> None:
        for fraction in (0.5, 0.2, 7.0, float("nan")):
            time.sleep(0.12)
            run.progress("understanding", fraction)

    def _environment(self, run: Run) -> Iterator[Output]:
        path = run.workdir / "environment.json"
        path.write_text(json.dumps(dict(os.environ)))
        yield Output(path, "application/json")

    def _modules(self, run: Run) -> Iterator[Output]:
        path = run.workdir / "modules.json"
        path.write_text(json.dumps(sorted(sys.modules)))
        yield Output(path, "application/json")

    def _orphan(self, run: Run) -> None:
        """Starts a process of its own, says its number, and hangs."""
        process = subprocess.Popen(["sleep", "600"])
        run.note(str(process.pid))
        self._hang(run)

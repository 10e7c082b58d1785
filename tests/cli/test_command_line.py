"""The command line as a person uses it: files in, files out, one line when it goes wrong."""

import asyncio
import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bot.__main__ import app
from bot.errors import PresetError, SettingsError, UserError
from bot.prompting.presets.files import edition, load_presets
from bot.runtime.clock import SystemClock
from bot.storage.sql.database import open_database
from bot.storage.sql.preset_versions import SqlPresetVersions
from bot.storage.sql.tables import NEWEST
from tests.backends import tiny_gguf, toy_projector
from tests.checkout import CHECKOUT

MODELFILE = """FROM ./phi.gguf
TEMPLATE \"\"\"{{ range .Messages }}<|{{ .Role }}|>
{{ .Content }}<|end|>
{{ end }}<|assistant|>
\"\"\"
SYSTEM You are terse.
PARAMETER num_ctx 4096
PARAMETER stop <|end|>
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model, a Modelfile and an empty presets folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "presets").mkdir()
    (tmp_path / "phi.gguf").touch()
    (tmp_path / "Modelfile").write_text(MODELFILE, encoding="utf-8")
    return tmp_path


def troupe(*words: str) -> str:
    """Run a command; gives what it printed, raises what it raised."""
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_model_is_taken_in_and_described(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))  # to look for devices
    family = tiny_gguf.Vocabulary("qwen2", ("<|im_start|>", "<|im_end|>"))
    model = tiny_gguf.write(folder / "tiny.gguf", family, general__license="mit")

    told = troupe("model", "pull", str(model))

    assert "the model is in data/models/tiny.gguf" in told
    assert f"sha256    {hashlib.sha256(model.read_bytes()).hexdigest()}" in told
    assert "licence   mit" in told
    assert "memory    about 67 MB with 2 conversations of 4096 tokens" in told
    assert "devices   CPU (" in told
    assert "CONTEXT_TOKENS is more than its 512" in told
    assert troupe("model", "list") == "tiny  0 MB  0 M parameters\n"
    assert troupe("model", "info", "tiny").splitlines()[:5] == told.splitlines()[1:6]


def test_the_database_tells_its_form_and_the_one_that_is_wanted(folder: Path) -> None:
    before, _, after = troupe("db", "current"), troupe("db", "upgrade"), troupe("db", "current")

    assert before.startswith(f"no tables yet; this version of Troupe wants {NEWEST}")
    assert after == f"{NEWEST}\n"


def test_bench_without_a_model_says_how_to_get_one() -> None:
    with pytest.raises(SettingsError, match="get it with `troupe model pull`"):
        troupe("bench", "places")


def test_a_projector_is_told_from_a_model(folder: Path) -> None:
    told = troupe("model", "pull", str(toy_projector.write(folder / "mmproj.gguf")))

    assert "kind      clip" in told
    assert "use       a projector, not a model: set PROJECTOR_PATH to it" in told
    assert "memory" not in told


@pytest.mark.parametrize("word", ["nothing.gguf", "../tiny", "a/b/c", "~root/x"])
def test_what_is_no_model_is_said_in_one_line(word: str) -> None:
    with pytest.raises(SettingsError) as refused:
        troupe("model", "pull", word)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("word", ["../../etc/passwd", "/etc/passwd", "x\0"])
def test_information_is_given_of_models_only(word: str) -> None:
    with pytest.raises(SettingsError, match="is not a valid model name"):
        troupe("model", "info", word)


def test_a_preset_that_a_local_model_does_not_understand_is_not_fine(folder: Path) -> None:
    preset = {"name": "nova", "provider": "local", "model": "m", "parameters": {"top-p": 1}}
    (folder / "nova.json").write_text(json.dumps(preset), encoding="utf-8")

    with pytest.raises(PresetError, match=r"nova.json: unknown parameter 'top-p'; .*'top_p'"):
        troupe("preset", "validate", "nova.json")


def test_a_preset_that_its_fallback_does_not_understand_is_not_fine(folder: Path) -> None:
    preset = {"name": "nova", "provider": "far", "model": "m", "parameters": {"top-p": 1}}
    local = {"fallbacks": [{"provider": "local"}, {"provider": "local", "model": "other"}]}
    (folder / "nova.json").write_text(json.dumps(preset | local), encoding="utf-8")

    with pytest.raises(PresetError) as error:
        troupe("preset", "validate", "nova.json")

    assert str(error.value).count("unknown parameter 'top-p'") == 1


def test_keys_without_effect_are_named(folder: Path) -> None:
    preset = {"name": "nova", "provider": "local", "model": "default", "busy": "interrupt"}
    (folder / "nova.json").write_text(json.dumps(preset), encoding="utf-8")

    said = troupe("preset", "validate", "nova.json")

    assert said == "nova.json: nova is fine; nothing comes yet of busy\n"


def test_a_modelfile_becomes_a_preset_in_the_presets_folder(folder: Path) -> None:
    said = troupe("preset", "import", "Modelfile", "--name", "phi3")

    made = json.loads((folder / "presets" / "phi3.json").read_text(encoding="utf-8"))
    assert (made["name"], made["provider"], made["model"]) == (
        "phi3",
        "local",
        str(folder / "phi.gguf"),
    )
    assert made["parameters"]["user_template"] == "<|user|>\n{{user}}<|end|>"
    assert made["stop_sequences"] == ["<|end|>"]
    assert said.splitlines()[0] == "phi3 is now in presets/phi3.json"
    assert said.splitlines()[1].startswith("note: PARAMETER num_ctx became max_tokens")


def test_an_import_never_overwrites(folder: Path) -> None:
    troupe("preset", "import", "Modelfile")

    with pytest.raises(UserError, match=r"phi\.json exists already"):
        troupe("preset", "import", "Modelfile")


def test_a_preset_becomes_a_modelfile_that_imports_as_the_same_preset(folder: Path) -> None:
    troupe("preset", "import", "Modelfile", "--name", "phi3")
    troupe("preset", "export", "phi3", "again-Modelfile", "--as", "modelfile")
    troupe("preset", "import", "again-Modelfile", "--name", "phi4")

    first, second = (
        json.loads((folder / "presets" / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("phi3", "phi4")
    )
    assert first == {**second, "name": "phi3"}


def test_what_a_modelfile_cannot_say_is_refused_before_anything_is_written(folder: Path) -> None:
    preset = {"name": "nova", "provider": "local", "model": "m", "template": "qwen3"}
    (folder / "presets" / "nova.json").write_text(json.dumps(preset), encoding="utf-8")

    with pytest.raises(PresetError, match="cannot become a Modelfile's TEMPLATE"):
        troupe("preset", "export", "nova", "out", "--as", "modelfile")

    assert not (folder / "out").exists()


def test_showing_a_preset_says_its_version_beside_the_json(folder: Path) -> None:
    preset = {"name": "nova", "provider": "local", "model": "m"}
    file = folder / "presets" / "nova.json"
    file.write_text(json.dumps(preset), encoding="utf-8")

    assert shown() == "troupe: no version yet: the service has not started with it\n"
    asyncio.run(started_with(folder, "nova"))
    assert shown() == "troupe: version 1\n"
    file.write_text(json.dumps(preset | {"system": "Hi."}), encoding="utf-8")
    assert shown().startswith("troupe: edited since version 1; the next start makes")
    asyncio.run(started_with(folder, "nova"))
    assert shown() == "troupe: version 2\n"


def shown() -> str:
    """Show nova; gives what is said beside its JSON."""
    result = CliRunner().invoke(app, ["preset", "show", "nova"], catch_exceptions=False)
    assert json.loads(result.stdout)["name"] == "nova"
    return result.stderr


async def started_with(folder: Path, name: str) -> None:
    """Do what the service does with a preset when it starts."""
    (folder / "data").mkdir(exist_ok=True)
    preset = load_presets(folder / "presets")[name]
    async with open_database(f"sqlite:///{folder / 'data' / 'troupe.db'}") as database:
        await SqlPresetVersions(database, SystemClock()).save([edition(preset)])

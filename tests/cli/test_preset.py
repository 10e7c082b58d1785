"""`troupe preset` lists, shows, checks, imports, and exports presets."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bot.cli.app import app
from bot.errors import PresetError, UserError
from bot.prompting.presets.files import load_presets, to_version
from bot.runtime.clock import SystemClock
from bot.storage.database import open_database
from bot.storage.presets import PresetVersions
from bot.texts.text import escape_to_one_line
from tests.cli.command import troupe

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
def _prepare(folder: Path) -> None:
    """Prepare a working directory with a model, a Modelfile, and an empty presets folder."""
    (folder / "presets").mkdir()
    (folder / "phi.gguf").touch()
    (folder / "Modelfile").write_text(MODELFILE, encoding="utf-8")


def write(file: Path, content: object) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")


def made_preset(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "presets" / f"{name}.json").read_text("utf-8"))
    return content


def test_validate_reports_a_parameter_that_a_fallback_does_not_know(folder: Path) -> None:
    preset = {"name": "nova", "provider": "far", "model": "m", "parameters": {"top-p": 1}}
    local = {"fallbacks": [{"provider": "local"}, {"provider": "local", "model": "other"}]}
    write(folder / "nova.json", preset | local)

    with pytest.raises(PresetError) as error:
        troupe("preset", "validate", "nova.json")

    assert str(error.value).count("unknown parameter 'top-p'") == 1


def test_validate_reads_the_character_file_next_to_the_preset(folder: Path) -> None:
    presets = folder / "elsewhere"
    presets.mkdir()
    preset = {"name": "nora", "provider": "local", "model": "default", "role_name": "Nora"}
    write(presets / "nora.json", {**preset, "character": "nora.jsonl"})
    file = str(presets / "nora.json")

    with pytest.raises(PresetError, match=r"nora\.json: preset 'nora': .* cannot be read"):
        troupe("preset", "validate", file)
    (presets / "nora.jsonl").write_text('{"text": "A light.", "e": "system_prompt"}', "utf-8")
    assert troupe("preset", "validate", file) == f"{file}: the preset nora is valid\n"


BROKEN = [
    ("{% for x in", "line 1: "),
    ("{{ messages[0].content " * 3, "line 1: "),
    ("{{ messages | nofilter }}", "there is no filter or test 'nofilter'"),
    ("{# " + "x" * 900_000 + " #}{{ messages }}", "the template is longer than 64 KiB"),
    ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", ""),
]


@pytest.mark.parametrize(("template", "problem"), BROKEN, ids=range(len(BROKEN)))
def test_unusable_template_is_rejected(folder: Path, template: str, problem: str) -> None:
    preset = {"name": "nova", "provider": "echo", "model": "m", "template": template}
    write(folder / "nova.json", preset)
    for command in ("validate", "import"):
        with pytest.raises(PresetError) as raised:
            troupe("preset", command, "nova.json")
        assert "nova.json, line 1: template: " in str(raised.value)
        assert problem in str(raised.value)
        assert len(str(raised.value)) < 500


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('no') }}", "{% for x in range(10**9) %}{{ x }}{% endfor %}"]
)
def test_validate_renders_templates(folder: Path, template: str) -> None:
    preset = {"name": "nova", "provider": "echo", "model": "m", "template": template}
    write(folder / "nova.json", preset)
    with pytest.raises(
        PresetError, match=r"nova\.json: preset 'nova': the template cannot be rendered: "
    ):
        troupe("preset", "validate", "nova.json")


def test_validate_reports_valid_and_invalid_files(
    folder: Path,
) -> None:
    good = json.dumps({"name": "nova", "provider": "local", "model": "default"})
    for name, text in (("a", good), ("b", '{"name": "b", "sytem": ""}'), ("c", good)):
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    result = CliRunner().invoke(app, ["preset", "validate", "a.json", "b.json", "c.json", "d.json"])

    assert result.output.splitlines() == [
        "a.json: the preset nova is valid",
        "c.json: the preset nova is valid",
    ]
    assert isinstance(result.exception, PresetError)
    problems = str(result.exception).splitlines()
    assert [line[:6] for line in problems] == ["b.json"] * 3 + ["d.json"]


@pytest.mark.parametrize("command", ["import", "validate"])
def test_lorebook_passed_as_a_preset_is_reported(folder: Path, command: str) -> None:
    write(folder / "world.json", {"entries": {}})
    with pytest.raises((UserError, PresetError), match=r"world\.json is a lorebook; add it to"):
        troupe("preset", command, "world.json")


def test_import_converts_a_modelfile_to_a_preset(folder: Path) -> None:
    said = troupe("preset", "import", "Modelfile", "--name", "phi3")

    made = made_preset(folder, "phi3")
    facts = (made["name"], made["provider"], made["model"])
    assert facts == ("phi3", "local", str(folder / "phi.gguf"))
    assert made["parameters"]["user_template"] == "<|user|>\n{{user}}<|end|>"
    assert made["stop_sequences"] == ["<|end|>"]
    assert said.splitlines()[0] == "the preset phi3 was written to presets/phi3.json"
    assert said.splitlines()[1].startswith(
        "note: PARAMETER num_ctx, minus the tokens for the answer, became max_input_tokens"
    )


@pytest.mark.parametrize(
    ("model", "words", "lacks"),
    [
        ("/models/x.gguf", ["--provider", "local"], "'/models/x.gguf' is a file, but the provider"),
        ("E:\\models\\x.gguf", ["--provider", "local"], "x.gguf' is a file, but the provider"),
        ("llama3", ["--provider", "open_router"], "set TROUPE_PROVIDERS__OPEN_ROUTER__API_KEY"),
        ("/models/x.gguf", ["--provider", "mine"], "there is no model /models/x.gguf"),
    ],
)
def test_import_reports_what_the_preset_lacks(
    folder: Path, monkeypatch: pytest.MonkeyPatch, model: str, words: list[str], lacks: str
) -> None:
    monkeypatch.setenv("TROUPE_PROVIDERS__LOCAL__BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("TROUPE_PROVIDERS__LOCAL__KIND", "openai")
    monkeypatch.setenv("TROUPE_PROVIDERS__MINE__KIND", "llama_cpp")
    (folder / "Modelfile").write_text(f"FROM {model}\n")
    assert lacks in troupe("preset", "import", "Modelfile", "--name", "new", *words)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-8-sig"])
def test_import_reads_every_encoding_that_ollama_reads(folder: Path, encoding: str) -> None:
    text = "FROM llama3.2\r\nSYSTEM You are 你好👋.\r\n"
    text = "\ufeff" + text if encoding == "utf-16-be" else text
    (folder / "Modelfile").write_bytes(text.encode(encoding))

    troupe("preset", "import", "Modelfile")

    assert made_preset(folder, "llama3.2")["system"] == "You are 你好👋."


def test_import_adds_a_file_to_a_preset(folder: Path) -> None:
    nova = {"name": "Nova", "provider": "local", "model": "m", "system": "Hi."}
    write(folder / "presets" / "own name.json", nova)
    samplers = {"temp": 0.5, "top_p": 0.9, "rep_pen": 1.1}
    write(folder / "Big O.json", samplers)
    world = {"entries": {"0": {"key": ["a"], "content": "b"}}}
    write(folder / "World.json", world)

    said = troupe("preset", "import", "Big O.json", "--into", "nova")
    troupe("preset", "import", "World.json", "--into", "nova")

    assert said == "Big O.json was added to the preset Nova in presets/own name.json\n"
    (file,) = (folder / "presets").iterdir()
    made = json.loads(file.read_text(encoding="utf-8"))
    parameters = {"temperature": 0.5, "top_p": 0.9, "repeat_penalty": 1.1}
    assert made == {**nova, "parameters": parameters, "lorebook": world}
    with pytest.raises(PresetError, match="did you mean 'Nova'"):
        troupe("preset", "import", "World.json", "--into", "nowa")


def test_import_does_not_overwrite(folder: Path) -> None:
    troupe("preset", "import", "Modelfile")

    with pytest.raises(UserError, match=r"phi\.json already exists"):
        troupe("preset", "import", "Modelfile")
    (folder / "presets" / "phi.json").rename(folder / "presets" / "mine.json")
    with pytest.raises(UserError, match=r"mine\.json already exists"):
        troupe("preset", "import", "Modelfile", "--name", "PHI")


def test_exported_modelfile_imports_as_the_same_preset_or_is_refused(folder: Path) -> None:
    troupe("preset", "import", "Modelfile", "--name", "phi3")
    troupe("preset", "export", "phi3", "again-Modelfile", "--as", "modelfile")
    troupe("preset", "import", "again-Modelfile", "--name", "phi4")

    assert made_preset(folder, "phi3") == {**made_preset(folder, "phi4"), "name": "phi3"}
    preset = {"name": "nova", "provider": "local", "model": "m", "template": "qwen3"}
    write(folder / "presets" / "nova.json", preset)

    with pytest.raises(PresetError, match="cannot be exported as a Modelfile's TEMPLATE"):
        troupe("preset", "export", "nova", "out", "--as", "modelfile")

    assert not (folder / "out").exists()


def test_show_prints_version_to_stderr(folder: Path) -> None:
    preset = {"name": "nova", "provider": "local", "model": "m"}
    file = folder / "presets" / "nova.json"
    file.write_text(json.dumps(preset), encoding="utf-8")

    assert show_nova() == "troupe: no version yet: the service has not started with this preset\n"
    asyncio.run(start_with(folder, "nova"))
    assert show_nova() == "troupe: version 1\n"
    file.write_text(json.dumps(preset | {"system": "Hi."}), encoding="utf-8")
    assert show_nova().startswith("troupe: edited since version 1; the next start stores")
    asyncio.run(start_with(folder, "nova"))
    assert show_nova() == "troupe: version 2\n"


def show_nova() -> str:
    """Run `troupe preset show nova`; return everything it prints except the JSON."""
    result = CliRunner().invoke(app, ["preset", "show", "nova"], catch_exceptions=False)
    assert json.loads(result.stdout)["name"] == "nova"
    return result.stderr


async def start_with(folder: Path, name: str) -> None:
    """Load a preset as the service does at startup."""
    (folder / "data").mkdir(exist_ok=True)
    preset = load_presets(folder / "presets")[name]
    async with open_database(f"sqlite:///{folder / 'data' / 'troupe.db'}") as database:
        await PresetVersions(database, SystemClock()).save([to_version(preset)])


def test_list_prints_one_line_per_preset(folder: Path) -> None:
    """A description cannot forge another line or reverse its text direction."""
    text = "Kind.\nnova: x\r\u2028\x1b[2K\x9b31m\u202eevil\u2066"
    for file, more in (("b", {"name": "nova", "description": text}), ("a", {"name": "Ада"})):
        content = {"provider": "local", "model": "m", **more}
        write(folder / "presets" / f"{file}.json", content)
    (folder / "presets" / "book.json").write_text('{"entries": []}', encoding="utf-8")
    lines = f"Ада\n{escape_to_one_line(f'nova: {text}')}\n"

    assert troupe("preset", "list") == lines

    (folder / "presets" / "nova.json").write_text('{"name": "nova",\n oops}', encoding="utf-8")
    listed = CliRunner().invoke(app, ["preset", "list"], catch_exceptions=False)
    assert re.search(r"presets/nova\.json, line 2: ", listed.stderr)
    assert listed.stdout == lines


def test_list_reads_the_configured_presets_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two", "three"):
        (folder / name).mkdir()
        (folder / name / "a.json").write_text(f'{{"name": "{name}", "provider": "local"}}')
    (folder / "troupe.toml").write_text('presets_dir = "three"')
    assert troupe("preset", "list") == "three\n"
    (folder / ".env").write_text("export troupe_presets_dir='two'")
    assert troupe("preset", "list") == "two\n"
    monkeypatch.setenv("troupe_presets_dir", "one")
    assert troupe("preset", "list") == "one\n"

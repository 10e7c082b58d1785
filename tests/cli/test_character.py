"""`troupe character` imports cards as presets and exports them without loss."""

import json
import shutil
from pathlib import Path

import pytest

from bot.errors import PresetError, UserError
from bot.importers.card import read_card
from tests.cli.command import troupe
from tests.importers.card_samples import CARD_CONTENTS, CARD_FILES

ASSISTANT = {"name": "assistant", "provider": "ollama", "model": "tiny"}


@pytest.fixture(autouse=True)
def _prepare(folder: Path) -> None:
    """Prepare a working directory with the five cards and one preset."""
    (folder / "presets").mkdir()
    (folder / "presets" / "assistant.json").write_text(json.dumps(ASSISTANT))
    for name, data in CARD_FILES.items():
        (folder / name).write_bytes(data)


def test_import_uses_the_default_presets_provider(folder: Path) -> None:
    assert troupe("character", "list").startswith("no characters in presets; add one with")
    said = troupe("character", "import", "detective.png")

    made = json.loads((folder / "presets" / "ilse brandt.json").read_text(encoding="utf-8"))
    assert (made["name"], made["provider"], made["model"]) == ("Ilse Brandt", "ollama", "tiny")
    assert said.splitlines()[-2] == "talk to it: troupe chat, then /preset use Ilse Brandt"
    assert "Ilse Brandt: Works best" in troupe("preset", "list")
    assert troupe("character", "list") == "Ilse Brandt: Works best with a low temperature.\n"
    shown = troupe("character", "show", "ilse brandt")
    for fact in ("card: V2 1.2-β", "greetings: 3", "lorebook: 3 entries"):
        assert fact in shown


def test_card_is_fetched_from_a_url_only_if_enabled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = "http://127.0.0.1:1/card.png"
    with pytest.raises(UserError, match="fetching from URLs is off; download it, or set"):
        troupe("character", "import", address)
    monkeypatch.setenv("TROUPE_FETCH_LINKS", "true")
    with pytest.raises(
        UserError, match="cannot be fetched: the URL's port is 1; only 80 and 443 are allowed"
    ):
        troupe("character", "import", address)


@pytest.mark.parametrize(
    ("kind", "sampling"),
    [
        ("openai", {"temperature": 0.8}),
        ("llama_cpp", {"temperature": 0.8, "top_p": 0.95, "repeat_penalty": 1.1}),
    ],
)
def test_import_sets_sampling_parameters_but_no_token_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, sampling: dict[str, float]
) -> None:
    monkeypatch.setenv("TROUPE_PROVIDERS__OLLAMA__KIND", kind)

    troupe("character", "import", "detective.png")

    made = json.loads((folder / "presets" / "ilse brandt.json").read_text(encoding="utf-8"))
    assert (made["parameters"], made.get("max_output_tokens")) == (sampling, None)


@pytest.mark.parametrize("name", list(CARD_FILES))
def test_export_keeps_every_field_of_the_card(name: str, folder: Path) -> None:
    troupe("character", "import", name, "--name", "mine")
    ending = name.rpartition(".")[2]

    troupe("character", "export", "mine", f"out.{ending}")

    exported = read_card((folder / f"out.{ending}").read_bytes(), "out")
    assert exported.content == CARD_CONTENTS[name]


def test_import_creates_a_missing_presets_folder(folder: Path) -> None:
    shutil.rmtree(folder / "presets")

    said = troupe("character", "import", "detective.png").splitlines()

    assert said[0] == "created the folder presets with the presets that come with Troupe"
    assert said[-2] == "talk to it: troupe chat, then /preset use Ilse Brandt"
    made = json.loads((folder / "presets" / "ilse brandt.json").read_text(encoding="utf-8"))
    assert (made["provider"], made["model"]) == ("local", "default")
    assert "assistant: " in troupe("preset", "list")


def test_import_into_an_empty_presets_folder_suggests_a_default(folder: Path) -> None:
    (folder / "presets" / "assistant.json").unlink()

    said = troupe("character", "import", "detective.png").splitlines()

    assert said[-3] == "make it the default: TROUPE_DEFAULT_PRESET='Ilse Brandt' in .env"
    assert (folder / "presets" / "ilse brandt.json").is_file()


def test_file_that_is_not_a_card_creates_no_folder(folder: Path) -> None:
    shutil.rmtree(folder / "presets")
    (folder / "m.gguf").write_bytes(b"GGUF\3\0\0\0")

    with pytest.raises(UserError, match=r"m\.gguf is a model .*`troupe model pull m\.gguf`"):
        troupe("character", "import", "m.gguf")
    assert not (folder / "presets").exists()


def test_import_does_not_overwrite_and_reports_a_broken_card(folder: Path) -> None:
    troupe("character", "import", "robot.png")
    with pytest.raises(UserError, match="already exists; remove it first"):
        troupe("character", "import", "robot.png")
    written = folder / "presets" / "unit 7 sieben.json"
    written.rename(written.with_name("mine.json"))
    with pytest.raises(UserError, match=r"mine\.json already exists; remove it first"):
        troupe("character", "import", "robot.png")
    (folder / "cut.png").write_bytes(CARD_FILES["robot.png"][:99])
    with pytest.raises(PresetError, match=r"^cut\.png: the PNG ends too early"):
        troupe("character", "import", "cut.png")
    with pytest.raises(UserError, match=r"^none\.png cannot be read"):
        troupe("character", "import", "none.png")
    with pytest.raises(UserError, match="use --as json, png, or charx"):
        troupe("character", "export", "assistant", "out.gif")
    troupe("character", "export", "assistant", "out", "--as", "png")  # which has no card of its own
    assert read_card((folder / "out").read_bytes(), "out").name == "assistant"


def test_import_writes_nothing_outside_the_presets_folder(folder: Path) -> None:
    before = {path for path in folder.rglob("*") if path.is_file()}

    troupe("character", "import", "trickster.png")

    made = {path for path in folder.rglob("*") if path.is_file()} - before
    assert {path.parent for path in made} == {folder / "presets", folder / "presets" / "cards"}

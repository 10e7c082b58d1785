"""Preset files of all kinds are detected by content, imported, and losses are reported."""

from pathlib import Path

import pytest

from bot.errors import PresetError
from bot.importers.preset_files import preset_from_text

JSON = '// mine\n{"name": "nova", "provider": "openai", "model": "gpt",}'


def test_json_and_modelfiles_are_detected_by_content(tmp_path: Path) -> None:
    odd_names = tmp_path / "Modelfile.json"
    preset = preset_from_text(JSON, odd_names).preset
    assert (preset.name, preset.provider) == ("nova", "openai")

    preset = preset_from_text("# mine\nfrom ./phi.gguf\nSYSTEM Be kind.", odd_names).preset
    assert (preset.name, preset.provider, preset.system) == ("phi", "local", "Be kind.")


def test_relative_from_is_resolved_beside_the_modelfile(tmp_path: Path) -> None:
    model = tmp_path / "phi.gguf"
    model.touch()

    imported = preset_from_text("FROM ./phi.gguf", tmp_path / "Modelfile")

    assert imported.preset.model == str(model)
    assert imported.notes == []


def test_absolute_path_is_kept_on_posix_and_windows(tmp_path: Path) -> None:
    for path in ("/models/phi.gguf", r"E:\models\phi.gguf"):
        imported = preset_from_text(f"FROM {path}", tmp_path / "Modelfile")
        assert imported.preset.model == path
        assert imported.preset.name == "phi"
        assert imported.notes == [f"FROM: the file {path} does not exist yet"]


def test_from_with_a_model_of_ollama_is_answered_by_ollama(tmp_path: Path) -> None:
    text, file = "FROM llama3.2:1b\nADAPTER ./a.gguf", tmp_path / "Modelfile"
    imported = preset_from_text(text, file)

    assert (imported.preset.name, imported.preset.model) == ("llama3.2-1b", "llama3.2:1b")
    assert imported.preset.provider == "ollama"
    assert "ollama pull llama3.2:1b" in imported.notes[0]
    assert imported.notes[1] == "ADAPTER is left out: merge the adapter into the GGUF"


def test_given_provider_replaces_the_implied_one(tmp_path: Path) -> None:
    file = tmp_path / "Modelfile"
    for text in ("FROM llama3.2", "FROM ./phi.gguf", JSON):
        assert preset_from_text(text, file, provider="far").preset.provider == "far"


def test_given_name_replaces_the_file_s_name(tmp_path: Path) -> None:
    for text in (JSON, "FROM ./phi.gguf"):
        assert (
            preset_from_text(text, tmp_path / "file", "Phi3 Q4 预设").preset.name == "Phi3 Q4 预设"
        )
        with pytest.raises(PresetError, match="path separators"):
            preset_from_text(text, tmp_path / "file", "../up")


def test_other_files_are_rejected_with_their_name(tmp_path: Path) -> None:
    with pytest.raises(PresetError, match=r"letter\.txt is not a preset: .* a FROM line"):
        preset_from_text("Dear Bob,\n", tmp_path / "letter.txt")
    with pytest.raises(PresetError, match=r"letter\.txt: \(line 2\): command must be one of"):
        preset_from_text("FROM ./a.gguf\nPS hello\n", tmp_path / "letter.txt")


@pytest.mark.parametrize("source", ["~nobody-has-this-name/x.gguf", "x" * 5000])
def test_unusable_from_path_is_reported_with_the_file(tmp_path: Path, source: str) -> None:
    with pytest.raises(PresetError, match=r"Modelfile: FROM .* is not a usable path"):
        preset_from_text(f"FROM {source}", tmp_path / "Modelfile")

"""Whatever kind of file somebody has: it becomes a preset, and what got lost is said."""

from pathlib import Path

import pytest

from bot.errors import PresetError
from bot.importers.preset_files import preset_from_text

JSON = '// mine\n{"name": "nova", "provider": "openai", "model": "gpt",}'


def test_json_and_modelfiles_are_told_apart_by_what_stands_in_them(tmp_path: Path) -> None:
    odd_names = tmp_path / "Modelfile.json"
    preset = preset_from_text(JSON, odd_names).preset
    assert (preset.name, preset.provider) == ("nova", "openai")

    preset = preset_from_text("# mine\nfrom ./phi.gguf\nSYSTEM Be kind.", odd_names).preset
    assert (preset.name, preset.provider, preset.system) == ("phi", "local", "Be kind.")


def test_a_relative_from_is_a_file_beside_the_modelfile(tmp_path: Path) -> None:
    model = tmp_path / "phi.gguf"
    model.touch()

    imported = preset_from_text("FROM ./phi.gguf", tmp_path / "Modelfile")

    assert imported.preset.model == str(model)
    assert imported.notes == []


def test_a_full_path_stays_as_it_is_also_one_of_windows(tmp_path: Path) -> None:
    for path in ("/models/phi.gguf", r"E:\models\phi.gguf"):
        imported = preset_from_text(f"FROM {path}", tmp_path / "Modelfile")
        assert imported.preset.model == path
        assert imported.preset.name == "phi"
        assert imported.notes == [f"FROM: there is no file {path} yet"]


def test_a_model_that_only_ollama_has_is_said(tmp_path: Path) -> None:
    imported = preset_from_text("FROM llama3.2:1b\nADAPTER ./a.gguf", tmp_path / "Modelfile")

    assert (imported.preset.name, imported.preset.model) == ("llama3.2-1b", "llama3.2:1b")
    assert "troupe model pull" in imported.notes[0]
    assert imported.notes[1] == "ADAPTER is left out: merge the adapter into the GGUF"


def test_a_given_name_wins(tmp_path: Path) -> None:
    for text in (JSON, "FROM ./phi.gguf"):
        assert (
            preset_from_text(text, tmp_path / "file", "Phi3 Q4 预设").preset.name == "Phi3 Q4 预设"
        )
        with pytest.raises(PresetError, match="path separators"):
            preset_from_text(text, tmp_path / "file", "../up")


def test_what_is_neither_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(PresetError, match=r"letter\.txt is no preset: .* a FROM line"):
        preset_from_text("Dear Bob,\n", tmp_path / "letter.txt")
    with pytest.raises(PresetError, match=r"letter\.txt: \(line 2\): command must be one of"):
        preset_from_text("FROM ./a.gguf\nPS hello\n", tmp_path / "letter.txt")


@pytest.mark.parametrize("source", ["~nobody-has-this-name/x.gguf", "x" * 5000])
def test_a_from_that_is_no_path_is_an_error_of_the_file(tmp_path: Path, source: str) -> None:
    with pytest.raises(PresetError, match=r"Modelfile: FROM .* cannot be looked for"):
        preset_from_text(f"FROM {source}", tmp_path / "Modelfile")

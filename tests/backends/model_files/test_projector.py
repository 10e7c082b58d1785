"""Image projectors are found through the settings and distinguished from models."""

from pathlib import Path

import pytest

from bot.backends.llama_cpp.images import check_projector, find_projector
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.backends.model_files.store import DEFAULT_MODEL_FILE, models_folder
from bot.errors import SettingsError
from tests.backends import tiny_gguf, toy_projector


def test_projector_is_distinguished_from_other_files(tmp_path: Path) -> None:
    projector = toy_projector.write(tmp_path / "toy.gguf")
    model = tiny_gguf.write(tmp_path / "m.gguf", tiny_gguf.Vocabulary("qwen2", ("<a>", "<b>")))

    check_projector(projector)

    for path, why in {
        model: "is not a projector for images; set PROJECTOR_PATH to the second file",
        tmp_path / "none.gguf": "there is no projector .*none.gguf; correct PROJECTOR_PATH",
    }.items():
        with pytest.raises(SettingsError, match=why):
            check_projector(path)


def test_projector_belongs_to_the_default_model_only(tmp_path: Path) -> None:
    models_folder(tmp_path).mkdir()
    own, other = (
        models_folder(tmp_path) / DEFAULT_MODEL_FILE,
        models_folder(tmp_path) / "other.gguf",
    )
    own.touch()
    projector = toy_projector.write(tmp_path / "toy.gguf")
    settings = LlamaCppSettings(projector_path=projector)

    assert find_projector(own, settings, tmp_path) == projector
    assert find_projector(other, settings, tmp_path) is None
    assert find_projector(own, LlamaCppSettings(), tmp_path) is None

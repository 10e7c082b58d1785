"""Find and check projectors: GGUF files that let a local model see images."""

from pathlib import Path

from bot.backends.model_files.gguf import read_header
from bot.backends.model_files.settings import ModelFileSettings
from bot.backends.model_files.store import find_model
from bot.errors import SettingsError


def find_projector(model: Path, settings: ModelFileSettings, data_dir: Path) -> Path | None:
    """Return the projector of a model, which only the provider's default model can have.

    Raises:
        SettingsError: PROJECTOR_PATH names no file, or one that is no projector.
    """
    if settings.projector_path is None or model != find_model("default", settings, data_dir):
        return None
    projector = settings.projector_path.expanduser()
    check_projector(projector)
    return projector


def check_projector(projector: Path) -> None:
    """Raise `SettingsError` for a file that is missing or is no projector for images."""
    if not projector.is_file():
        raise SettingsError(f"there is no projector {projector}; correct PROJECTOR_PATH")
    if not read_header(projector).values.get("clip.has_vision_encoder"):
        raise SettingsError(
            f"{projector} is no projector for images; PROJECTOR_PATH names the file that comes "
            "with a vision model, usually called mmproj-....gguf"
        )

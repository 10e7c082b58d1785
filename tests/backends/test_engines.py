"""Which engine runs a local model."""

from pathlib import Path

import pytest

from bot.backends.engines import Start, running
from bot.errors import SettingsError
from bot.settings import ProviderSettings


def test_an_engine_that_is_not_installed_is_said_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("bot.backends.engines._ENGINES", {"xllamacpp": ("no_such", "no.such")})
    settings = ProviderSettings(kind="llama_cpp", engine="xllamacpp")

    with pytest.raises(SettingsError, match="ENGINE=xllamacpp allows; install no_such"):
        running(Start(tmp_path / "m.gguf", "local", settings, tmp_path, tmp_path))

"""Where the layers of a model are computed."""

import pytest

from bot.backends.llama_cpp import gpus as devices
from bot.errors import SettingsError
from bot.settings import read_settings


@pytest.mark.parametrize(
    ("gpus", "wanted", "layers"), [(0, "auto", 0), (2, "auto", 999), (0, "7", 7), (1, "0", 0)]
)
def test_layers_go_where_they_can(gpus: int, wanted: str, layers: int) -> None:
    assert devices.layers_on(gpus, wanted) == layers


@pytest.mark.parametrize(("word", "value"), [("auto", "auto"), ("0", 0), ("12", 12)])
def test_setting_is_a_number_or_auto(
    monkeypatch: pytest.MonkeyPatch, word: str, value: object
) -> None:
    monkeypatch.setenv("TROUPE_PROVIDERS__LOCAL__GPU_LAYERS", word)

    assert read_settings().providers["local"].gpu_layers == value


def test_other_words_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROUPE_PROVIDERS__LOCAL__GPU_LAYERS", "many")

    with pytest.raises(SettingsError, match="GPU_LAYERS"):
        read_settings()


def test_engine_names_the_processor_at_least() -> None:
    assert devices.seen()[0].startswith("CPU (")

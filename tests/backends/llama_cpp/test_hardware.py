"""CPU features and GPU layers."""

import pytest

from bot.backends.llama_cpp.hardware import choose_gpu_layer_count, find_missing_cpu_flags
from bot.backends.llama_cpp.settings import find_local_settings
from bot.errors import SettingsError
from bot.settings import read_settings


@pytest.mark.parametrize(
    ("cpuinfo", "missing"),
    [
        ("processor : 0\nflags\t\t: fpu avx avx2 bmi2 f16c fma\n", []),
        ("processor : 0\nflags\t\t: fpu avx\n", ["avx2", "bmi2", "f16c", "fma"]),
        ("processor : 0\nflags\t\t: avx2 bmi2 f16c\nvmx flags : fma", ["fma"]),
        ("an unknown format", []),
    ],
)
def test_missing_cpu_flags_are_found(cpuinfo: str, missing: list[str]) -> None:
    assert find_missing_cpu_flags(cpuinfo) == missing


@pytest.mark.parametrize(
    ("gpu_count", "setting", "layers"), [(0, "auto", 0), (2, "auto", 999), (0, "7", 7), (1, "0", 0)]
)
def test_auto_puts_all_layers_on_a_gpu(gpu_count: int, setting: str, layers: int) -> None:
    assert choose_gpu_layer_count(gpu_count, setting) == layers


@pytest.mark.parametrize(("word", "value"), [("auto", "auto"), ("0", 0), ("12", 12)])
def test_gpu_layers_setting_is_a_number_or_auto(
    monkeypatch: pytest.MonkeyPatch, word: str, value: object
) -> None:
    monkeypatch.setenv("TROUPE_PROVIDERS__LOCAL__GPU_LAYERS", word)

    assert find_local_settings(read_settings().providers).gpu_layers == value


def test_invalid_gpu_layers_setting_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROUPE_PROVIDERS__LOCAL__GPU_LAYERS", "many")

    with pytest.raises(SettingsError, match="GPU_LAYERS"):
        read_settings()

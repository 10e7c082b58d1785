"""Which backend a kind stands for."""

import subprocess
import sys
from typing import get_args

import pytest

from bot.backends import registry
from bot.settings import ProviderSettings


def test_every_kind_in_the_settings_has_a_backend() -> None:
    kinds = get_args(ProviderSettings.model_fields["kind"].annotation)

    assert set(kinds) == set(registry._MODULES)


def test_importing_the_registry_loads_no_vendor_library() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import bot.backends.registry, sys; print(*sys.modules)"],
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split()

    assert {"openai", "httpx2", "xllamacpp"}.isdisjoint(loaded)


def test_parameters_are_checked_against_the_chosen_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings, mirostat = ProviderSettings(kind="llama_cpp"), {"mirostat": 2}
    assert registry.parameter_problems(settings, mirostat) == []

    monkeypatch.setattr(
        "bot.backends.llama_cpp.engines.engine.find_spec",
        lambda package: package if package == "llama_cpp" else None,
    )

    assert registry.parameter_problems(settings, mirostat) == [
        "the engine llama_cpp_python has no parameter 'mirostat'; take it out"
    ]

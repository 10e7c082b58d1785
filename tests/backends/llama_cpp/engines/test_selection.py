"""Which engine runs a local model."""

from dataclasses import replace
from pathlib import Path

import pytest

from bot.backends.llama_cpp.engine import EngineConfig, engine_settings, require_engine
from bot.backends.llama_cpp.server_engine import running_engine
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.errors import SettingsError


def settings_of(engine: str) -> LlamaCppSettings:
    return LlamaCppSettings.model_validate({"engine": engine})


def config(tmp_path: Path, engine: str) -> EngineConfig:
    return EngineConfig(tmp_path / "m.gguf", "local", settings_of(engine), tmp_path, tmp_path)


def install_only(monkeypatch: pytest.MonkeyPatch, *installed: str) -> None:
    def find(package: str) -> object:
        return package if package in installed else None

    monkeypatch.setattr("bot.backends.llama_cpp.engine.find_spec", find)


def test_missing_bindings_are_reported_with_the_extra_and_the_default_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install_only(monkeypatch, "xllamacpp")

    with pytest.raises(SettingsError) as refused:
        require_engine(settings_of("llama_cpp_python"), "local")

    assert str(refused.value) == (
        "the engine llama_cpp_python is not installed: `pip install 'troupe-bot[llama-cpp]'` "
        "compiles it, in some minutes; or unset TROUPE_PROVIDERS__LOCAL__ENGINE for the default, "
        "xllamacpp"
    )


@pytest.mark.parametrize("engine", ["auto", "xllamacpp"])
def test_missing_default_engine_is_reported_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    install_only(monkeypatch)

    with pytest.raises(SettingsError) as refused:
        require_engine(settings_of(engine), "local")

    assert str(refused.value) == (
        "the engine xllamacpp is not installed: `pip install 'troupe-bot[local]'` brings it; or "
        "set TROUPE_PROVIDERS__LOCAL__KIND=openai and TROUPE_PROVIDERS__LOCAL__BASE_URL to a "
        "server that has a model"
    )


def test_auto_selects_the_bindings_if_nothing_else_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install_only(monkeypatch, "llama_cpp")

    assert require_engine(settings_of("auto"), "local") == "llama_cpp_python"


async def test_bindings_take_no_projector(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_only(monkeypatch, "llama_cpp")
    with_projector = replace(
        config(tmp_path, "llama_cpp_python"), projector=tmp_path / "mmproj.gguf"
    )

    with pytest.raises(SettingsError) as refused:
        async with running_engine(with_projector):
            pass

    assert str(refused.value) == (
        "the engine llama_cpp_python takes no projector; unset "
        "TROUPE_PROVIDERS__LOCAL__PROJECTOR_PATH or set TROUPE_PROVIDERS__LOCAL__ENGINE=xllamacpp"
    )


async def test_bindings_have_one_slot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_only(monkeypatch, "llama_cpp")
    settings = LlamaCppSettings(parallel=4)

    with pytest.raises(SettingsError) as refused:
        async with running_engine(replace(config(tmp_path, "auto"), settings=settings)):
            pass

    assert str(refused.value) == (
        "the engine llama_cpp_python answers one conversation at a time; unset "
        "TROUPE_PROVIDERS__LOCAL__PARALLEL or set TROUPE_PROVIDERS__LOCAL__ENGINE=xllamacpp"
    )
    assert engine_settings(LlamaCppSettings()).parallel == 1

"""Which engine runs a local model."""

from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from bot.backends.llama_cpp.engines import llama_python as llama_python_engine
from bot.backends.llama_cpp.engines.engine import Start, running
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.errors import SettingsError


def start(tmp_path: Path, engine: str) -> Start:
    settings = LlamaCppSettings.model_validate({"engine": engine})
    return Start(tmp_path / "m.gguf", "local", settings, tmp_path, tmp_path)


def only(monkeypatch: pytest.MonkeyPatch, *installed: str) -> None:
    def find(package: str) -> object:
        return package if package in installed else None

    monkeypatch.setattr("bot.backends.llama_cpp.engines.engine.find_spec", find)


def test_bindings_that_are_not_built_are_said_with_the_extra_and_the_default_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    only(monkeypatch, "xllamacpp")

    with pytest.raises(SettingsError) as said:
        running(start(tmp_path, "llama_cpp_python"))

    assert str(said.value) == (
        "the engine llama_cpp_python is not installed: `pip install 'troupe[llama-cpp]'` compiles "
        "it, in some minutes; or unset TROUPE_PROVIDERS__LOCAL__ENGINE for the default, xllamacpp"
    )


@pytest.mark.parametrize("engine", ["auto", "xllamacpp"])
def test_without_any_engine_the_default_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: str
) -> None:
    only(monkeypatch)

    with pytest.raises(SettingsError) as said:
        running(start(tmp_path, engine))

    assert str(said.value) == (
        "the engine xllamacpp is not installed: `pip install xllamacpp` brings it; or set "
        "TROUPE_PROVIDERS__LOCAL__KIND=openai and TROUPE_PROVIDERS__LOCAL__BASE_URL to a server "
        "that has a model"
    )


def test_bindings_alone_serve_without_a_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    only(monkeypatch, "llama_cpp")

    assert isinstance(running(start(tmp_path, "auto")), AbstractAsyncContextManager)


async def test_bindings_take_no_projector(tmp_path: Path) -> None:
    seeing = replace(start(tmp_path, "llama_cpp_python"), projector=tmp_path / "mmproj.gguf")

    with pytest.raises(SettingsError) as said:
        async with llama_python_engine.running(seeing):
            pass

    assert str(said.value) == (
        "the engine llama_cpp_python takes no projector; unset "
        "TROUPE_PROVIDERS__LOCAL__PROJECTOR_PATH or set TROUPE_PROVIDERS__LOCAL__ENGINE=xllamacpp"
    )

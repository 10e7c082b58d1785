"""The registry is enough to add a backend: settings, presets, and the service find it there."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest

from bot.backends import registry
from bot.backends.factory import make_backend, model_trials, parameter_problems, prepare_model
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.backends.spec import BackendSpec, ProviderSettings
from bot.errors import SettingsError
from bot.ports import Backend
from bot.settings import read_settings
from bot.templates.renderer import Renderer
from tests.backends.asking import ask
from tests.fakes import FakeBackend


class ToySettings(ProviderSettings):
    kind: Literal["toy"] = "toy"
    greeting: str = "hello"


def make(_provider: str, settings: ToySettings, _data_dir: Path, _renderer: Renderer) -> Backend:
    return FakeBackend([settings.greeting])


def toy_problems(_settings: ToySettings, parameters: Mapping[str, object]) -> list[str]:
    return [f"a toy has no {name}" for name in parameters]


TOY = BackendSpec(
    kind="toy",
    settings=ToySettings,
    factory=f"{__name__}:make",
    provider_ids={"toybox"},
    parameter_check=f"{__name__}:toy_problems",
)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> BackendSpec:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_SPECS_BY_KIND", {**registry._SPECS_BY_KIND})
    registry.register(TOY)
    return TOY


async def test_registered_backend_gets_its_own_settings_and_answers(
    toy: BackendSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TROUPE_PROVIDERS__MINE__KIND", "toy")
    monkeypatch.setenv("TROUPE_PROVIDERS__MINE__GREETING", "good evening")
    settings = read_settings().providers["mine"]

    backend = make_backend("mine", settings, tmp_path, Renderer())

    assert (await ask(backend)).text == "good evening"
    assert parameter_problems(settings, {"top_k": 1}) == ["a toy has no top_k"]


def test_provider_id_implies_the_kind(toy: BackendSpec) -> None:
    providers = read_settings(providers={"toybox": {"greeting": "hi"}}).providers
    assert providers["toybox"] == ToySettings(greeting="hi")


def test_invalid_settings_of_a_registered_backend_are_reported(
    toy: BackendSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TROUPE_PROVIDERS__TOYBOX__GREETNG", "x")
    with pytest.raises(SettingsError, match=r"^TROUPE_PROVIDERS__TOYBOX__GREETNG: "):
        read_settings()


def test_settings_of_another_kind_are_ignored(toy: BackendSpec) -> None:
    given = {"kind": "toy", "context_tokens": 512, "greeting": "hi"}
    assert read_settings(providers={"mine": given}).providers["mine"] == ToySettings(greeting="hi")


def test_unknown_kind_error_lists_the_known_kinds(toy: BackendSpec) -> None:
    with pytest.raises(SettingsError) as error:
        read_settings(providers={"mine": {"kind": "magic"}})
    assert str(error.value).startswith("TROUPE_PROVIDERS__MINE__KIND: should be 'openai', ")
    assert str(error.value).endswith("or 'toy'")


def test_kind_cannot_be_registered_twice(toy: BackendSpec) -> None:
    with pytest.raises(SettingsError, match="'toy' is already registered"):
        registry.register(toy)


async def test_backend_without_local_models_skips_the_model_trial(
    toy: BackendSpec, tmp_path: Path
) -> None:
    settings = ToySettings()
    await prepare_model("mine", "m", settings, tmp_path, pytest.fail)
    assert list(model_trials([settings], tmp_path, Renderer())) == []


def test_importing_settings_and_registry_loads_no_vendor_library() -> None:
    heavy = "{'openai', 'httpx2', 'aiohttp', 'xllamacpp', 'jinja2'}"
    code = f"import sys, bot.settings, bot.backends.registry; print(set(sys.modules) & {heavy})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

    assert ended.stdout.decode().strip() == "set()"


def test_parameters_are_checked_for_the_selected_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, given = LlamaCppSettings(), {"top_n_sigma": 2}
    assert parameter_problems(settings, given) == []

    monkeypatch.setattr(
        "bot.backends.llama_cpp.engine.find_spec",
        lambda package: package if package == "llama_cpp" else None,
    )

    assert parameter_problems(settings, given) == [
        "the engine llama_cpp_python has no parameter 'top_n_sigma'; remove it"
    ]

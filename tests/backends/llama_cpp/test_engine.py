"""Requests to an engine, and the choice of the engine for a model."""

from pathlib import Path

import pytest
from inline_snapshot import snapshot

from bot.backends.llama_cpp.engine import (
    EngineConfig,
    GenerationRequest,
    limit_slots_to_engine,
    require_engine,
    run_engine,
    to_wire,
)
from bot.backends.llama_cpp.sampling import to_sampling_parameters
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.errors import BackendUnavailable, SettingsError
from tests.backends.asking import prompt


def body(stop: tuple[str, ...] = (), **given: object) -> dict[str, object]:
    asked = prompt("hello", **given)
    request = GenerationRequest([1, 2, 3], stop, to_sampling_parameters(asked), asked.output_limit)
    return to_wire(request, "smol")


def test_request_has_ids_parameters_and_all_stop_strings() -> None:
    stops = ("a", "b", "c", "d", "<|im_end|>")

    assert body(stops, parameters={"temperature": 0.5, "seed": None}) == snapshot(
        {
            "stream_options": {"include_usage": True},
            "temperature": 0.5,
            "stop": ["a", "b", "c", "d", "<|im_end|>"],
            "preserved_tokens": ["a", "b", "c", "d", "<|im_end|>"],
            "model": "smol",
            "prompt": [1, 2, 3],
            "cache_prompt": True,
            "stream": True,
        }
    )


@pytest.mark.parametrize(
    ("limit", "parameters", "expected"),
    [
        (None, {}, None),
        (50, {}, 50),
        (50, {"max_tokens": 20}, 20),
        (50, {"max_completion_tokens": 80}, 50),
        (None, {"max_tokens": 0}, None),
        (None, {"n_predict": 7, "max_tokens": None}, 7),
    ],
)
def test_lowest_output_limit_is_sent(
    limit: int | None, parameters: dict[str, object], expected: int | None
) -> None:
    made = body(max_output_tokens=limit, parameters=parameters)

    assert made.get("max_tokens") == expected
    assert not made.keys() & {"max_completion_tokens", "n_predict"}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"type": "json_schema", "json_schema": {"schema": {"type": "array"}}}, {"type": "array"}),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "text"}, None),
    ],
)
def test_response_format_is_sent_as_a_schema(asked: object, expected: object) -> None:
    made = body(parameters={"response_format": asked})

    assert made.get("json_schema") == expected
    assert "response_format" not in made


def test_request_for_several_answers_is_rejected() -> None:
    with pytest.raises(BackendUnavailable, match="a chat gets only one answer"):
        body(parameters={"n": 2})


def create_settings(engine: str) -> LlamaCppSettings:
    return LlamaCppSettings.model_validate({"engine": engine})


def install_only(monkeypatch: pytest.MonkeyPatch, *installed: str) -> None:
    def find(package: str) -> object:
        return package if package in installed else None

    monkeypatch.setattr("bot.backends.llama_cpp.engine.find_spec", find)


@pytest.mark.parametrize(
    ("engine", "installed", "missing"),
    [
        ("llama_cpp_python", ["xllamacpp"], "llama_cpp_python"),
        ("auto", [], "xllamacpp"),
        ("xllamacpp", [], "xllamacpp"),
    ],
)
def test_missing_engine_is_reported_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, engine: str, installed: list[str], missing: str
) -> None:
    install_only(monkeypatch, *installed)
    told = f"the engine {missing} is not installed: `pip install 'troupe-bot.*; or unset TROUPE_"

    with pytest.raises(SettingsError, match=told):
        require_engine(create_settings(engine), "local")


def test_auto_selects_the_bindings_if_no_other_engine_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install_only(monkeypatch, "llama_cpp")

    assert require_engine(create_settings("auto"), "local") == "llama_cpp_python"


async def test_bindings_have_one_slot_and_no_projector(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_only(monkeypatch, "llama_cpp")
    model, projector = tmp_path / "m.gguf", Path("mmproj.gguf")
    settings = create_settings("auto")
    config = EngineConfig(model, "local", settings, tmp_path, tmp_path, projector)

    with pytest.raises(SettingsError, match="does not support projectors; unset TROUPE_PROVIDERS"):
        async with run_engine(config):
            pass

    assert limit_slots_to_engine(LlamaCppSettings(parallel=4)).parallel == 1

"""`troupe check` says a line about each thing, and how to mend what is wrong."""

import json
import os
import re
from pathlib import Path

import pytest

from bot.backends.model_files import store as model_store
from bot.cli.check import check
from bot.settings import read_settings
from tests.backends import tiny_gguf, toy_projector
from tests.backends.local_model import lend_model
from tests.checkout import CHECKOUT

ECHO: dict[str, object] = {"name": "assistant", "provider": "echo", "model": "m"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a preset that an echo plays."""
    for name in os.environ:  # noqa: TID251 # to take them away
        if name.startswith("TROUPE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TROUPE_PROVIDERS__ECHO__KIND", "echo")
    write_preset(tmp_path, ECHO)
    return tmp_path


def write_preset(folder: Path, preset: dict[str, object]) -> None:
    (folder / "presets").mkdir(exist_ok=True)
    (folder / "presets" / "assistant.json").write_text(json.dumps(preset), encoding="utf-8")


async def looked(**given: object) -> tuple[bool, list[str]]:
    lines: list[str] = []
    well = await check(read_settings(**given), lines.append)
    return well, lines


def wrong(lines: list[str]) -> list[str]:
    return [line.removeprefix("WRONG  ") for line in lines if line.startswith("WRONG")]


async def test_where_all_is_well_each_thing_has_its_line() -> None:
    well, lines = await looked()
    assert well
    assert lines == [
        "ok     settings",
        "ok     presets: 1 in presets; assistant is the default",
        "ok     database: SQLite",
        "ok     coordinator: an embedded Valkey, started with the service",
        "ok     provider echo: an echo",
    ]


async def test_a_misspelt_variable_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROUPE_DISCORD_TOKEN", "x")
    well, lines = await looked()
    assert not well
    assert wrong(lines) == [
        "settings: TROUPE_DISCORD_TOKEN is no setting of Troupe; "
        "did you mean TROUPE_DISCORD__TOKEN?"
    ]
    assert lines[-1] == "ok     provider echo: an echo"  # what else there is was looked at, too


async def test_a_broken_preset_is_named_with_its_line(folder: Path) -> None:
    write_preset(folder, {**ECHO, "sytem": "You are."})
    well, lines = await looked()
    assert not well
    assert wrong(lines) == [
        "presets: presets/assistant.json, line 1: unknown key 'sytem'; did you mean 'system'?"
    ]


async def test_a_parameter_that_the_local_model_does_not_know_is_named(folder: Path) -> None:
    parameters = {"topP": 0.9, "temperature": 0.5}
    write_preset(folder, {**ECHO, "provider": "local", "parameters": parameters})
    well, lines = await looked()
    assert not well
    assert wrong(lines) == [
        "presets: preset 'assistant': unknown parameter 'topP'; did you mean 'top_p'?"
    ]


async def test_an_installed_file_that_is_no_model_is_wrong(folder: Path) -> None:
    model_store.models_folder(folder / "data").mkdir(parents=True)
    (model_store.models_folder(folder / "data") / "half.gguf").write_bytes(b"GGUF half")
    well, lines = await looked()
    assert not well
    [line] = wrong(lines)
    assert line.startswith("model half: data/models/half.gguf cannot be read as a GGUF file")


async def test_an_installed_projector_is_not_tried_as_a_model(folder: Path) -> None:
    model_store.models_folder(folder / "data").mkdir(parents=True)
    toy_projector.write(model_store.models_folder(folder / "data") / "mmproj.gguf")
    well, lines = await looked()
    assert well
    assert lines[-1].startswith("ok     model mmproj: a projector, not a model")


@pytest.mark.service
async def test_an_installed_model_is_tried_and_timed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))  # for the engine's process
    await lend_model(folder / "data")
    well, lines = await looked()
    assert well
    assert re.fullmatch(
        r"ok     model smollm2-135m-instruct-q4_1: loads in \d+\.\d s, "
        r"reads [1-9]\d* tokens/s, writes [1-9]\d* tokens/s",
        lines[-1],
    )
    assert not list((folder / "data" / "slots").glob("*.bin"))


async def test_a_model_that_wants_more_memory_than_there_is_is_not_even_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_store.models_folder(folder / "data").mkdir(parents=True)
    family = tiny_gguf.Vocabulary("qwen2", ("<|im_start|>", "<|im_end|>"))
    tiny_gguf.write(model_store.models_folder(folder / "data") / "big.gguf", family)
    monkeypatch.setattr("bot.cli.bench_model.free_bytes", lambda: 10_000_000)
    well, lines = await looked()
    assert not well
    assert wrong(lines) == [
        "model big: it wants about 0.1 GB of memory and this machine has 0.0 GB free; take a "
        "smaller model, or lower the provider's CONTEXT_TOKENS or PARALLEL"
    ]


async def test_a_template_that_fails_is_found_before_anybody_is_answered(folder: Path) -> None:
    write_preset(folder, {**ECHO, "template": "{{ nope( }}"})
    well, lines = await looked()
    assert not well
    [line] = wrong(lines)
    assert line.startswith("presets: preset 'assistant': its template: TemplateSyntaxError: ")


async def test_a_provider_that_is_not_set_up_is_named_with_its_setting(folder: Path) -> None:
    write_preset(folder, {**ECHO, "provider": "groq"})
    _, lines = await looked()
    assert wrong(lines) == [
        "presets: preset 'assistant' wants the provider 'groq', which is not set up; "
        "set TROUPE_PROVIDERS__GROQ__API_KEY or __BASE_URL"
    ]


async def test_every_wrong_thing_is_told_not_only_the_first(folder: Path) -> None:
    (folder / "data").touch()
    well, lines = await looked(default_preset="nova", redis_url="redis://127.0.0.1:1/0")
    assert not well
    assert [line.split(":")[0] for line in wrong(lines)] == ["presets", "database", "coordinator"]


async def test_a_data_directory_that_is_a_file_names_its_setting(folder: Path) -> None:
    (folder / "data").touch()
    _, lines = await looked()
    [line] = wrong(lines)
    assert "data directory data cannot be used" in line
    assert "TROUPE_DATA_DIR" in line


async def test_a_database_that_is_away_tells_no_password() -> None:
    _, lines = await looked(database_url="postgresql+asyncpg://bot:hunter2@127.0.0.1:1/troupe")
    [line] = wrong(lines)
    assert line.startswith("database: the database failed: ")
    assert "hunter2" not in line


async def test_a_provider_that_is_away_is_wrong(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TROUPE_PROVIDERS__MINE__BASE_URL", "http://127.0.0.1:1/v1")
    write_preset(folder, {**ECHO, "provider": "mine"})
    well, lines = await looked()
    assert not well
    assert wrong(lines)[0].startswith("provider mine: ")


async def test_where_a_character_has_stories_what_finds_them_is_looked_at(folder: Path) -> None:
    write_preset(folder, {**ECHO, "character": "haruhi"})
    well, lines = await looked()
    assert well
    assert "ok     embedding: multilingual-e5-small on this machine" in lines

    well, lines = await looked(embedding={"kind": "gguf", "model_path": "bge.gguf"})
    assert not well
    [line] = wrong(lines)
    assert line.startswith("embedding: bge.gguf cannot be read as a GGUF file")

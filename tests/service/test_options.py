"""Test the options --role, --platforms, and --model of a run."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from bot.errors import SettingsError
from bot.platforms.registry import platform_specs
from bot.prompting.presets.preset import Preset
from bot.service.options import (
    ALL_ROLES,
    Role,
    RunOptions,
    parse_roles,
    replace_model,
    select_platforms,
)
from bot.service.resources import shares_data_dir
from bot.settings import Settings
from bot.storage.data_dir import DataDirUse, lock_data_dir

POSTGRES = SecretStr("postgresql+asyncpg://somebody@host/name")
SENDER = RunOptions(roles=frozenset({Role.SENDER}))


def test_roles_are_parsed_from_a_comma_list_or_all() -> None:
    assert parse_roles("gateway, Sender") == {Role.GATEWAY, Role.SENDER}
    assert parse_roles("all") == ALL_ROLES


@pytest.mark.parametrize("names", ["", ",", "sendr", "worker,sendr"])
def test_error_about_an_unknown_role_lists_the_roles(names: str) -> None:
    with pytest.raises(SettingsError, match=r"console.*gateway.*sender.*worker"):
        parse_roles(names)


def test_error_about_an_unknown_role_suggests_the_nearest_role() -> None:
    with pytest.raises(SettingsError, match=r"; did you mean 'gateway'\?$"):
        parse_roles("gatway")


def test_selected_platform_must_be_configured() -> None:
    configured = [spec for spec in platform_specs() if spec.kind != "discord"]
    [selected] = select_platforms("Telegram,telegram", configured)
    assert selected.kind == "telegram"
    with pytest.raises(SettingsError, match=r"'discord' is not set up .*: .*telegram"):
        select_platforms("discord", configured)


def test_division_into_roles_is_refused_with_sqlite() -> None:
    with pytest.raises(SettingsError, match="TROUPE_DATABASE_URL"):
        shares_data_dir(Settings(), DataDirUse.SERVICE, SENDER)


def test_processes_on_postgres_share_a_data_directory(tmp_path: Path) -> None:
    distributed = Settings(database_url=POSTGRES)
    assert shares_data_dir(distributed, DataDirUse.SERVICE, RunOptions())
    assert not shares_data_dir(Settings(), DataDirUse.SERVICE, RunOptions())
    with lock_data_dir(tmp_path, is_shared=True), lock_data_dir(tmp_path, is_shared=True):
        refused = pytest.raises(SettingsError, match="TROUPE_DATA_DIR")
        with refused, lock_data_dir(tmp_path):
            pytest.fail("its database would be used by others as well")


PRESET = Preset.model_validate(
    {
        "name": "nora",
        "provider": "a",
        "model": "small",
        "fallbacks": [{"provider": "b", "model": "large"}],
    }
)
SETTINGS = Settings.model_validate(
    {"providers": {"b": {"base_url": "http://127.0.0.1:1/v1"}, "echo": {"kind": "echo"}}}
)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("huge", ("a", "huge")),
        ("b/huge", ("b", "huge")),
        ("qwen/qwen3", ("a", "qwen/qwen3")),  # no provider is called qwen
        ("b/", ("a", "b/")),
    ],
)
def test_model_option_replaces_the_presets_model_and_fallbacks(
    model: str, expected: tuple[str, str]
) -> None:
    changed = replace_model({"nora": PRESET}, model, SETTINGS)["nora"]
    assert (changed.provider, changed.model) == expected
    assert changed.fallbacks == ()


def test_presets_are_unchanged_without_the_model_option() -> None:
    assert replace_model({"nora": PRESET}, None, SETTINGS) == {"nora": PRESET}


def test_model_without_tool_support_drops_the_presets_tools() -> None:
    preset = PRESET.model_copy(update={"tools": ("dice",), "mcp_servers": ("files",)})
    at_service = replace_model({"nora": preset}, "b/huge", SETTINGS)["nora"]
    assert (at_service.tools, at_service.mcp_servers) == (("dice",), ("files",))
    on_machine = replace_model({"nora": preset}, "local/small", SETTINGS)["nora"]
    assert on_machine.calls_tools
    scripted = replace_model({"nora": preset}, "echo/small", SETTINGS)["nora"]
    assert not scripted.calls_tools

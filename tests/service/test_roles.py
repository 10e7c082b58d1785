"""Test what the options --role and --platforms mean, and what a role needs."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from bot.errors import SettingsError
from bot.platforms.registry import platform_specs
from bot.service.options import (
    ALL_ROLES,
    Role,
    RunOptions,
    parse_roles,
    select_platforms,
)
from bot.service.resources import shares_data_dir
from bot.settings import Settings
from bot.storage.data_dir import DataDirUse, lock_data_dir

POSTGRES = SecretStr("postgresql+asyncpg://somebody@host/name")
SENDER = RunOptions(roles=frozenset({Role.SENDER}))


def test_roles_are_named_with_commas_or_all_at_once() -> None:
    assert parse_roles("gateway, Sender") == {Role.GATEWAY, Role.SENDER}
    assert parse_roles("all") == ALL_ROLES


@pytest.mark.parametrize("names", ["", ",", "sendr", "worker,sendr"])
def test_unknown_role_names_those_that_exist(names: str) -> None:
    with pytest.raises(SettingsError, match=r"console.*gateway.*sender.*worker"):
        parse_roles(names)


def test_nearest_role_is_named_as_people_write_it() -> None:
    with pytest.raises(SettingsError, match=r"; did you mean 'gateway'\?$"):
        parse_roles("gatway")


def test_selected_platform_has_to_be_set_up() -> None:
    configured = [spec for spec in platform_specs() if spec.kind != "discord"]
    [selected] = select_platforms("Telegram,telegram", configured)
    assert selected.kind == "telegram"
    with pytest.raises(SettingsError, match=r"'discord' is not set up .*: .*telegram"):
        select_platforms("discord", configured)


def test_role_on_sqlite_is_refused() -> None:
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

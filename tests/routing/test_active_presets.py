"""Who answers where, and from where the place has it."""

from collections.abc import Sequence

import pytest

from bot.errors import SettingsError, UserError
from bot.prompting.presets.preset import Preset
from bot.routing.active_presets import PresetResolver
from bot.runtime.clock import SystemClock
from bot.storage.sql.chat_settings import SqlChatSettings
from bot.storage.sql.database import Database

PRESETS = {
    name: Preset.model_validate({"name": name, "provider": "p", "model": "m"})
    for name in ("Assistant", "nova", "nora", "renova")
}
THREAD = ("discord:7", "discord:6", "discord:guild:5")


def resolver(database: Database, default: str = "assistant") -> PresetResolver:
    return PresetResolver(PRESETS, default, SqlChatSettings(database, SystemClock()))


async def cast(one: PresetResolver, scopes: Sequence[str] = THREAD) -> tuple[str, str | None]:
    found = await one.resolve_first(scopes)
    return found.preset.name, found.scope


async def test_without_a_choice_the_default_answers(database: Database) -> None:
    assert await cast(resolver(database)) == ("Assistant", None)


async def test_the_narrowest_choice_wins_and_resetting_it_uncovers_the_next(
    database: Database,
) -> None:
    one = resolver(database)
    await one.use("discord:guild:5", PRESETS["nova"], "discord:1")
    assert await cast(one) == ("nova", "discord:guild:5")
    await one.use("discord:7", PRESETS["nora"], "discord:1")
    assert await cast(one) == ("nora", "discord:7")
    assert await cast(one, THREAD[1:]) == ("nova", "discord:guild:5")
    await one.reset("discord:7", "discord:1")
    assert await cast(one) == ("nova", "discord:guild:5")


async def test_a_preset_whose_file_is_gone_makes_way_for_the_default(database: Database) -> None:
    gone = Preset.model_validate({"name": "gone", "provider": "p", "model": "m"})
    one = resolver(database)
    await one.use("discord:7", gone, "discord:1")
    assert await cast(one) == ("Assistant", None)


async def test_of_several_those_answer_whose_files_are_there(database: Database) -> None:
    gone = Preset.model_validate({"name": "gone", "provider": "p", "model": "m"})
    one = resolver(database)
    await one.add(THREAD, gone, "discord:1")
    await one.add(THREAD, PRESETS["nova"], "discord:1")
    here = await one.resolve(THREAD)
    assert [each.preset.name for each in here] == ["Assistant", "nova"]
    assert {each.scope for each in here} == {"discord:7"}


async def test_a_place_holds_eight(database: Database) -> None:
    one = resolver(database)
    for number in range(7):
        extra = Preset.model_validate({"name": f"x{number}", "provider": "p", "model": "m"})
        one.presets = {**one.presets, extra.name: extra}
        await one.add(THREAD, extra, "discord:1")
    with pytest.raises(UserError, match="8 are here already"):
        await one.add(THREAD, PRESETS["nova"], "discord:1")


def test_names_are_those_of_the_roles(database: Database) -> None:
    named = Preset.model_validate(
        {"name": "lan", "role_name": "兰亭", "provider": "p", "model": "m"}
    )
    one = PresetResolver({"lan": named}, "lan", SqlChatSettings(database, SystemClock()))
    assert one.character_names(["lan", "gone"]) == {"lan": "兰亭", "gone": "gone"}


def test_a_preset_is_found_in_any_case(database: Database) -> None:
    assert resolver(database).find(" NOVA ").name == "nova"


def test_a_name_that_is_almost_right_is_suggested(database: Database) -> None:
    with pytest.raises(UserError, match="did you mean 'nova'"):
        resolver(database).find("novva")


def test_a_default_that_is_no_preset_names_its_setting(database: Database) -> None:
    with pytest.raises(SettingsError, match=r"TROUPE_DEFAULT_PRESET: no preset 'nowa'; did you"):
        resolver(database, "nowa")


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("no", ["nora", "nova", "renova"]),
        ("NOVA", ["nova", "renova"]),
        ("x", []),
        (" ", sorted(PRESETS)),
    ],
)
def test_names_are_suggested_while_somebody_types(
    database: Database, typed: str, names: list[str]
) -> None:
    assert list(resolver(database).complete(typed)) == names

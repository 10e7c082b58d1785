"""Test which presets are active in a channel, and which scope they come from."""

from collections.abc import Sequence

import pytest

from bot.chat.session import PresetVersion
from bot.errors import SettingsError, UserError
from bot.prompting.presets.files import export_preset
from bot.prompting.presets.preset import Preset
from bot.routing import presets
from bot.routing.presets import ActiveCharacters, ActivePreset, PresetResolver
from bot.runtime.clock import SystemClock
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.database import Database
from tests.waiting import wait_until


def preset(name: str) -> Preset:
    return Preset.model_validate({"name": name, "provider": "p", "model": "m"})


PRESETS = {name: preset(name) for name in ("Assistant", "nova", "nora", "renova")}
THREAD = ("discord:7", "discord:6", "discord:guild:5")


def resolver(database: Database, default: str = "assistant") -> PresetResolver:
    return PresetResolver(PRESETS, default, SqlChatSettings(database, SystemClock()))


async def active(one: PresetResolver, scopes: Sequence[str] = THREAD) -> list[ActivePreset]:
    return list((await one.resolve(scopes)).members)


async def first_active(
    one: PresetResolver, scopes: Sequence[str] = THREAD
) -> tuple[str, str | None]:
    found = (await one.resolve(scopes)).first
    return found.preset.name, found.scope


async def test_default_preset_answers_if_none_was_chosen(database: Database) -> None:
    assert await first_active(resolver(database)) == ("Assistant", None)


async def test_preset_of_the_narrowest_scope_answers_until_it_is_reset(database: Database) -> None:
    one = resolver(database)
    await one.set_active_presets("discord:guild:5", [PRESETS["nova"]], "discord:1")
    assert await first_active(one) == ("nova", "discord:guild:5")
    await one.set_active_presets("discord:7", [PRESETS["nora"]], "discord:1")
    assert await first_active(one) == ("nora", "discord:7")
    assert await first_active(one, THREAD[1:]) == ("nova", "discord:guild:5")
    await one.set_active_presets("discord:7", (), "discord:1")
    assert await first_active(one) == ("nova", "discord:guild:5")


async def test_preset_without_a_file_is_replaced_by_the_default(database: Database) -> None:
    one = resolver(database)
    await one.set_active_presets("discord:7", [preset("gone")], "discord:1")
    assert await first_active(one) == ("Assistant", None)


async def test_missing_preset_is_dropped_if_other_presets_are_active(database: Database) -> None:
    one = resolver(database)
    await one.set_active_presets("discord:7", [preset("gone"), PRESETS["nova"]], "discord:1")
    assert await active(one) == [ActivePreset(PRESETS["nova"], "discord:7", None)]


async def test_presets_keep_the_order_in_which_they_were_added(database: Database) -> None:
    one = resolver(database)
    for name in ("nora", "nova"):
        presets = (await one.resolve(THREAD)).presets_with(PRESETS[name])
        await one.set_active_presets("discord:7", presets, "discord:1")
    found = await active(one)
    assert [each.preset.name for each in found] == ["Assistant", "nora", "nova"]
    assert {each.scope for each in found} == {"discord:7"}


def test_channel_can_have_at_most_eight_characters() -> None:
    full = ActiveCharacters(
        tuple(ActivePreset(preset(f"x{number}"), None, None) for number in range(8))
    )
    with pytest.raises(UserError, match="8 characters are active here"):
        full.presets_with(PRESETS["nova"])


def test_character_names_are_the_role_names(database: Database) -> None:
    named = Preset.model_validate(
        {"name": "lan", "role_name": "兰亭", "provider": "p", "model": "m"}
    )
    one = PresetResolver({"lan": named}, "lan", SqlChatSettings(database, SystemClock()))
    assert one.character_names(["lan", "gone"]) == {"lan": "兰亭", "gone": "gone"}


def test_find_ignores_case_and_spaces(database: Database) -> None:
    assert resolver(database).find(" NOVA ").name == "nova"


def test_find_suggests_the_nearest_name(database: Database) -> None:
    with pytest.raises(UserError, match="did you mean 'nova'"):
        resolver(database).find("novva")


def test_unknown_default_preset_error_names_the_setting(database: Database) -> None:
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
def test_completion_suggests_names_in_order(
    database: Database, typed: str, names: list[str]
) -> None:
    assert list(resolver(database).complete(typed)) == names


@pytest.mark.parametrize("is_told", [True, False])
async def test_deleted_character_stays_in_memory_for_less_than_a_minute(
    database: Database, monkeypatch: pytest.MonkeyPatch, *, is_told: bool
) -> None:
    assert 0 < presets._CHARACTER_LIFETIME_SECONDS < 60
    if not is_told:
        monkeypatch.setattr(presets, "_CHARACTER_LIFETIME_SECONDS", 0.01)
    one, content, name = resolver(database), export_preset(preset("Ida")), "telegram:1/Ida"

    async def read(name: str) -> PresetVersion:
        return PresetVersion(name, content, 1, owner="telegram:1")

    one.characters.read_newest_version = read
    await one.characters.record_character(name, content, "", "telegram:1", is_audited=False)
    assert await one.characters.find(name, one.default_preset)
    if is_told:
        one.characters.unload("telegram:1")
    await wait_until(lambda: not one.characters._loaded_characters)
    assert await one.characters.find(name, one.default_preset)

"""Commands as Discord shows them."""

from typing import Any

import discord
from inline_snapshot import snapshot

from bot.chat.command import CommandOption, CommandSpec
from bot.commands import handlers
from bot.platforms.discord.commands import LOCALES, commands_differ, to_payload
from bot.texts.text import LANGUAGES
from tests.platforms.discord.conftest import COMMANDS


def test_actions_become_subcommands() -> None:
    assert to_payload(COMMANDS[0]) == snapshot(
        {
            "name": "preset",
            "description": "Choose who answers here",
            "options": [
                {
                    "name": "use",
                    "description": "Choose a preset",
                    "options": [
                        {
                            "type": 3,
                            "name": "name",
                            "description": "The preset",
                            "required": True,
                            "autocomplete": True,
                        }
                    ],
                    "type": 1,
                },
                {"name": "list", "description": "Show all presets", "options": [], "type": 1},
            ],
            "type": 1,
            "contexts": [0, 1],
            "default_member_permissions": None,
        }
    )


def test_only_commands_for_admins_are_hidden_from_who_does_not_manage_the_server() -> None:
    needed = {
        spec.name: to_payload(spec)["default_member_permissions"] for spec in handlers.COMMANDS
    }
    assert {name for name, bits in needed.items() if bits is not None} == {"preset"}
    assert needed["preset"] == str(discord.Permissions(manage_guild=True).value)


def test_option_choices_are_listed() -> None:
    spec = CommandSpec(
        "context", "c", (CommandOption("show", "s", required=False, choices=("prompt",)),)
    )
    assert to_payload(spec)["options"] == snapshot(
        [
            {
                "type": 3,
                "name": "show",
                "description": "s",
                "required": False,
                "autocomplete": False,
                "choices": [{"name": "prompt", "value": "prompt"}],
            }
        ]
    )


def test_descriptions_are_in_the_languages_of_the_service() -> None:
    assert set(LOCALES) == set(LANGUAGES[1:])
    for spec in handlers.COMMANDS:
        payload = to_payload(spec)
        for one in (payload, *payload["options"]):
            described = {one["description"], *one["description_localizations"].values()}
            assert all(1 <= len(text) <= 100 for text in described)
            assert len(described) == 2, "English, and one Chinese text"


def registered() -> list[dict[str, Any]]:
    """What Discord gives back: its own additions are in, what is empty or false is left out."""
    theirs = [to_payload(spec) for spec in COMMANDS]
    for command in theirs:
        command |= {"id": "7", "version": "8", "nsfw": False, "name_localizations": None}
    del theirs[1]["options"]
    del theirs[0]["options"][1]["options"]
    return theirs


def test_commands_differ_in_what_troupe_defines() -> None:
    ours, changed = [to_payload(spec) for spec in COMMANDS], registered()
    changed[0]["options"][0]["options"][0]["description"] = "another"
    assert not commands_differ(ours, registered())
    assert commands_differ(ours, changed)
    assert commands_differ(ours, registered()[:1])
    assert commands_differ(ours[:1], registered())

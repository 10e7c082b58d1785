"""Test the payloads that register commands on Discord."""

import json
from pathlib import Path

import discord

from bot.chat.command import CommandOption, CommandSpec
from bot.commands import handlers
from bot.platforms.discord.commands import LOCALES_BY_LANGUAGE, to_command_payload
from bot.texts.text import LANGUAGES
from tests.platforms.discord.conftest import COMMANDS

PAYLOADS = json.loads(Path(__file__).with_name("payloads.json").read_text("utf-8"))


def test_actions_become_subcommands() -> None:
    assert to_command_payload(COMMANDS[0]) == PAYLOADS["preset"]


def test_only_admin_commands_are_hidden_from_other_members() -> None:
    needed = {
        spec.name: to_command_payload(spec)["default_member_permissions"]
        for spec in handlers.COMMANDS
    }
    assert {name for name, bits in needed.items() if bits is not None} == {"access", "preset"}
    assert needed["preset"] == str(discord.Permissions(manage_guild=True).value)


def test_option_choices_are_listed() -> None:
    option = CommandOption("show", "s", required=False, choices=("prompt",))
    assert (
        to_command_payload(CommandSpec("context", "c", (option,)))["options"]
        == PAYLOADS["with choices"]
    )


def test_descriptions_are_translated() -> None:
    assert set(LOCALES_BY_LANGUAGE) == set(LANGUAGES[1:])
    for spec in handlers.COMMANDS:
        payload = to_command_payload(spec)
        for one in (payload, *payload["options"]):
            described = {one["description"], *one["description_localizations"].values()}
            assert all(1 <= len(text) <= 100 for text in described)
            assert len(described) == 2, "English, and one Chinese text"

"""Test that what admins change in chats is noted: who, where, what it was and what it is now."""

from dataclasses import replace

import pytest

from bot.errors import UserError
from bot.storage.database import Database
from tests.commands.test_handlers import HERE, Setup

BY = HERE.author.id
CHANNEL, SERVER = HERE.scopes[0], HERE.scopes[-1]


@pytest.fixture
def setup(database: Database) -> Setup:
    return Setup(database)


async def test_each_setting_is_noted_with_what_it_replaced(setup: Setup) -> None:
    for line in (
        *("/preset use nova", "/preset add fox", "/preset remove nova", "/preset reset"),
        *("/settings overhear off", "/settings overhear inherit"),
        *("/settings scope user", "/settings scope inherit"),
        *("/settings anonymous on", "/settings anonymous off"),
        *("/settings notes here", "/settings notes off"),
    ):
        await setup.run_command(line)
    place = HERE.address.channel
    noted = [
        ("set preset", CHANNEL, "", "nova"),
        ("set preset", CHANNEL, "nova", "nova\nfox"),
        ("set preset", CHANNEL, "nova\nfox", "fox"),
        ("reset preset", CHANNEL, "fox", ""),
        ("set observe", CHANNEL, "", "off"),
        ("reset observe", CHANNEL, "off", ""),
        ("set scope", CHANNEL, "", "user"),
        ("reset scope", CHANNEL, "user", ""),
        ("set anonymous_admins", CHANNEL, "", "on"),
        ("reset anonymous_admins", CHANNEL, "on", ""),
        ("set admin_notes", SERVER, "", place),
        ("set admin_notes", CHANNEL, "", "off"),
    ]
    entries = [(BY, *one) for one in noted]
    assert await read_audit(setup) == entries


async def test_command_that_runs_again_is_noted_once(setup: Setup) -> None:
    for _ in range(2):  # as after the death of a process
        await setup.run_command("/preset use nova")
    assert [one[1] for one in await read_audit(setup)] == ["set preset"]


async def test_deletion_of_what_others_said_is_noted_without_it(setup: Setup) -> None:
    await setup.run_command("/forget channel")
    assert await read_audit(setup) == [(BY, "forget channel", HERE.address.conversation, "", "")]


async def test_what_is_refused_or_said_of_oneself_is_not_noted(setup: Setup) -> None:
    await setup.run_command("/me A tall knight.")
    setup.admin = False
    for line in ("/preset use nova", "/settings overhear off", "/forget channel"):
        with pytest.raises(UserError):
            await setup.run_command(line)
    assert await read_audit(setup) == []


async def test_own_private_chat_is_nobody_elses_matter(setup: Setup) -> None:
    setup.here = replace(HERE, is_private=True)
    for line in ("/preset use nova", "/settings overhear off", "/forget channel"):
        await setup.run_command(line)
    assert await read_audit(setup) == []


async def read_audit(setup: Setup) -> list[tuple[str, str, str, str, str]]:
    """Return what was noted, the oldest first."""
    newest = await setup.audit.newest(100)
    return [(one.who, one.action, one.subject, one.before, one.after) for one in newest][::-1]

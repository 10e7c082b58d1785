"""Permissions of every command and button, checked each time one is used.

A new button fails here until it has a row in the table. A command is for admins if its summary says
so, and otherwise for anyone; commands.json lists the exceptions.
"""

import asyncio
from dataclasses import replace

import pytest

from bot.chat.command import MENU_ACTIONS, ButtonAction, parse_command
from bot.chat.incoming import Person, Request
from bot.chat.session import Turn
from bot.commands.request import CommandRequest
from bot.errors import PlatformError, Unreachable, UserError
from bot.storage.database import Database
from tests.commands.test_handlers import (
    ADMIN,
    ANYONE,
    ARGUMENTS,
    ASKER,
    ASKER_ALONE,
    WHO_MAY_USE,
    Setup,
)
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.setup import Setup as TurnSetup
from tests.turn.setup import pressed

CONFIRMATIONS = (ButtonAction.FORGET, ButtonAction.KEEP_DATA, ButtonAction.CONFIRM_AGE)
ASKERS = ("STOP", "RETRY", "CONTINUE", "VERSION", "DELETE")
WHO_MAY_PRESS = {
    **{ButtonAction[name]: ASKER for name in ASKERS},
    **dict.fromkeys((*CONFIRMATIONS, *MENU_ACTIONS), ASKER_ALONE),
}
CAROL = Person("telegram:3", "Carol")


def test_expected_permissions_cover_every_button() -> None:
    assert set(ButtonAction) == set(WHO_MAY_PRESS)


async def find_refusal(setup: Setup, use: str, asker: Person) -> str:
    """Use a command as Alice after a question from `asker`; return the refusal, if any."""
    said = make_incoming(author=ALICE, admin=None)
    question = Turn("user", "a question", asker, said.at, message_id="3")
    command = parse_command(f"/{use} {ARGUMENTS.get(use, '')}")
    assert command is not None
    active = await setup.resolver.resolve(said.scopes)
    recent = (question, Turn("assistant", "an answer", None, said.at, "assistant"))
    try:
        await setup.handlers.handle(CommandRequest(command, said, active, recent, said.at))
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("use", WHO_MAY_USE)
async def test_command_is_refused_for_people_who_may_not_use_it(
    database: Database, use: str
) -> None:
    setup, who = Setup(database), WHO_MAY_USE[use]
    setup.admin = False
    assert ("Only an admin can" in await find_refusal(setup, use, BOB)) is (who != ANYONE)
    assert ("Only an admin can" in await find_refusal(setup, use, ALICE)) is (who == ADMIN)
    assert await setup.active(("telegram:5",)) == ["assistant"]


@pytest.mark.parametrize("use", WHO_MAY_USE)
async def test_admin_may_use_every_command_and_rights_are_checked_on_each_use(
    database: Database, use: str
) -> None:
    setup, who = Setup(database), WHO_MAY_USE[use]
    assert "admin" not in await find_refusal(setup, use, BOB)
    setup.admin = False  # from now on
    assert ("Only an admin can" in await find_refusal(setup, use, BOB)) is (who != ANYONE)
    if who != ANYONE:
        assert len(setup.asked) >= 2, "the first answer was kept"


@pytest.mark.parametrize("use", [use for use, who in WHO_MAY_USE.items() if who != ANYONE])
async def test_command_is_refused_if_the_platform_cannot_confirm_the_admin(
    database: Database, use: str
) -> None:
    setup = Setup(database)
    setup.platform_error = Unreachable("away")
    assert "whether you are one" in await find_refusal(setup, use, BOB)


class AnsweredQuestion:
    """A question from Alice, with or without an answer."""

    def __init__(self, database: Database) -> None:
        self.is_admin: bool | PlatformError | None = False
        """The platform's response, or None if it never responds."""
        self._turn = TurnSetup(database, is_platform_admin=self._ask)
        self.admins = self._turn.container.admins

    async def store(self, *, is_answered: bool) -> None:
        """Store the question, and answer it if required."""
        await self._turn.receive("a question")
        if is_answered:
            await self._turn.work()

    async def press(self, action: ButtonAction, author: Person) -> str | None:
        """Press a button; return the reason for a refusal, if any."""
        number = 1 if action is ButtonAction.VERSION else 0
        press = pressed(action, by=author, number=number, key=author.id)
        return await self._turn.buttons.find_refusal_reason(
            replace(press, author_is_admin=None, values=("x",))
        )

    async def _ask(self, _incoming: Request) -> bool:
        if isinstance(self.is_admin, PlatformError):
            raise self.is_admin
        if self.is_admin is None:
            await asyncio.Event().wait()
        return bool(self.is_admin)


@pytest.mark.parametrize("action", ButtonAction)
async def test_button_is_refused_for_people_who_may_not_press_it(
    database: Database, action: ButtonAction
) -> None:
    question = AnsweredQuestion(database)
    await question.store(is_answered=action is not ButtonAction.STOP)
    assert await question.press(action, ALICE) is None
    assert "Only the person who asked" in str(await question.press(action, BOB))
    question.is_admin = Unreachable("away")
    is_asked = WHO_MAY_PRESS[action] == ASKER
    unknown = "I could not check with" if is_asked else "Only the person who asked"
    assert unknown in str(await question.press(action, CAROL))


async def test_press_is_refused_if_the_platform_does_not_answer_in_time(database: Database) -> None:
    question = AnsweredQuestion(database)
    question.admins.press_timeout_seconds = 0.01
    await question.store(is_answered=True)
    question.is_admin = None
    told = str(await question.press(ButtonAction.RETRY, BOB))
    assert "I could not check with Telegram whether you are one" in told


@pytest.mark.parametrize("action", ButtonAction)
async def test_admin_may_press_all_buttons_except_those_only_for_the_asker(
    database: Database, action: ButtonAction
) -> None:
    question = AnsweredQuestion(database)
    await question.store(is_answered=action is not ButtonAction.STOP)
    question.is_admin = True
    refused = await question.press(action, BOB)
    assert (refused is None) is (WHO_MAY_PRESS[action] == ASKER)

"""Test that actions of admins on other people's messages are recorded, but not the texts."""

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy.schema import DropTable

from bot.chat.command import ButtonAction
from bot.chat.incoming import (
    Address,
    ButtonPress,
    IncomingMessage,
    Person,
    Quote,
    Request,
    WakeReason,
)
from bot.chat.prompt import Finish, FinishReason
from bot.storage.database import Database
from bot.storage.tables import audit
from tests.fakes import FakeBackend
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.setup import Setup, pressed, stop_while_answering

ADMIN = ALICE
"""On the fake platform, everybody except Bob is an admin."""
ANSWER = "1"
"""The id of the message with the answer."""
PART = "telegram:5:70/0"
CUT = Finish(FinishReason.LENGTH)
SECRET = "a secret"


def question(author: Person) -> IncomingMessage:
    return make_incoming(SECRET, key="5:70", author=author)


def command(text: str, *, to: str | None = None) -> IncomingMessage:
    said = make_incoming(text, key="5:80", author=ADMIN, wake=WakeReason.COMMAND)
    return replace(said, quote=Quote(None, to, "")) if to else said


def press(action: ButtonAction, *, key: str = "1", number: int = 0) -> ButtonPress:
    return pressed(action, PART, by=ADMIN, key=key, number=number)


ACTS: dict[str, tuple[Request, str]] = {
    "/retry": (command("/retry"), "retry question"),
    "/retry as a reply": (command("/retry", to=ANSWER), "retry question"),
    "/undo": (command("/undo"), "undo question"),
    "/edit as a reply": (command("/edit no", to=ANSWER), "edit answer"),
    "/forget as a reply": (command("/forget", to=ANSWER), "forget message"),
    "/forget last": (command("/forget last"), "forget message"),
    "Retry": (press(ButtonAction.RETRY), "retry question"),
    "Continue": (press(ButtonAction.CONTINUE), "continue answer"),
    "version": (press(ButtonAction.VERSION, number=1), "choose version"),
    "Delete": (press(ButtonAction.DELETE), "delete answer"),
}
"""Commands and buttons that people without admin rights may use on their own messages."""
FOR_ADMINS_ALONE: dict[str, tuple[Request, str]] = {
    "/forget channel": (command("/forget channel"), "forget channel"),
    "/settings why": (command("/settings why"), "read decisions"),
    "/context prompt": (command("/context prompt"), "read prompt"),
    "/preset show": (command("/preset show"), "read instructions"),
}


@pytest.mark.parametrize("platform", ["telegram", "discord"])
@pytest.mark.parametrize("act", [*ACTS, *FOR_ADMINS_ALONE])
async def test_admin_action_is_recorded(database: Database, platform: str, act: str) -> None:
    answers = FakeBackend(["One.", CUT], ["Two."])
    setup = Setup(database, backend=answers, preset={"system": "You are Nora."})
    event, action = {**ACTS, **FOR_ADMINS_ALONE}[act]
    await say(setup, question(BOB), platform=platform)
    await say(setup, event, platform=platform)
    assert await read_audit(setup) == [(ADMIN.id, action, f"{platform}:5", "", "")]


@pytest.mark.parametrize("act", ACTS)
async def test_refused_actions_and_actions_on_own_messages_are_not_recorded(
    database: Database, act: str
) -> None:
    setup = Setup(database, ["One.", CUT], ["Two."])
    event, _ = ACTS[act]
    await say(setup, question(ADMIN))
    await say(setup, replace(event, author=BOB, external_key="5:79"))
    assert "admin" in setup.texts[-1]
    await say(setup, event)
    assert await read_audit(setup) == []


@pytest.mark.parametrize(("by", "system"), [(BOB, "You are Nora."), (ADMIN, "")])
async def test_use_of_a_public_preset_is_not_recorded(
    database: Database, by: Person, system: str
) -> None:
    setup = Setup(database, preset={"system": system})
    await say(setup, replace(command("/preset show"), author=by))
    assert "instructions" not in setup.texts[-1]
    assert await read_audit(setup) == []


@pytest.mark.parametrize("by", [ADMIN, BOB])
@pytest.mark.parametrize("form", ["/stop", "Stop"])
async def test_stop_by_an_admin_is_recorded_once(database: Database, form: str, by: Person) -> None:
    setup = Setup(database, ["Once", asyncio.Event()])
    first, again = (
        (replace(command("/stop"), author=by, external_key=f"5:9{number}") for number in (1, 2))
        if form == "/stop"
        else (replace(press(ButtonAction.STOP, key=f"{number}"), author=by) for number in (1, 2))
    )
    await stop_while_answering(setup, question(BOB), first, again)
    assert await actions(setup) == (["stop answer"] if by == ADMIN else [])


async def test_answer_is_stopped_even_if_the_stop_cannot_be_recorded(database: Database) -> None:
    setup = Setup(database, ["Once", asyncio.Event()])
    await database.write(lambda connection: connection.execute(DropTable(audit)).rowcount)
    await stop_while_answering(setup, question(BOB), command("/stop"))
    assert setup.texts[-1] == "Stopped. /retry answers again."


async def say(setup: Setup, event: Request, *, platform: str = "telegram") -> None:
    """Process an event in channel 5 of a platform."""
    address = Address(platform, "5")
    moved = replace(event, address=address, scopes=(address.lane,))
    if isinstance(moved, ButtonPress):
        moved = replace(moved, data=moved.data.replace("telegram:", f"{platform}:"))
    await setup.receive(moved)
    await setup.work(address.conversation)


async def read_audit(setup: Setup) -> list[tuple[str, str, str, str, str]]:
    """Return the recorded actions, oldest first."""
    newest = await setup.audit.newest(100)
    return [(one.who, one.action, one.subject, one.before, one.after) for one in newest][::-1]


async def actions(setup: Setup) -> list[str]:
    return [action for _, action, *_ in await read_audit(setup)]

"""A chat in which people do everything that can change a history."""

from dataclasses import replace
from datetime import timedelta

from bot.chat.command import ButtonAction
from bot.chat.incoming import Incoming, MessageDeletion, MessageEdit, Quote
from bot.chat.prompt import Finish, FinishReason
from bot.errors import BackendUnavailable
from bot.storage.database import Database
from tests.fakes import FakeBackend, ScriptStep
from tests.samples import BOB, make_incoming
from tests.turn.setup import CHAT, Setup, pressed

_CUT = Finish(FinishReason.LENGTH)
_AWAY = BackendUnavailable("refused", notice="The model is away.")


async def use_whole_chat(database: Database) -> None:
    """Ask, press every button, edit, delete, retry, undo and forget, in all history scopes."""
    answers: list[list[ScriptStep]] = [["Hi."]] * 30
    backend = FakeBackend(["Once", _CUT], [" more."], [_AWAY], *answers)
    setup = Setup(database, backend=backend)
    asked = make_incoming("a", key="5:1")
    edited = replace(asked, text="b", at=asked.at + timedelta(seconds=9))
    await _say(setup, asked, pressed(ButtonAction.CONTINUE, key="continue"))
    await _say(setup, make_incoming("fails", key="5:2"))
    await _say(setup, pressed(ButtonAction.RETRY, "telegram:5:2/0", key="of a failure"))
    for action in ButtonAction:
        of = make_incoming("c", key=f"5:{action}")
        await _say(setup, of)
        for key in ("first", "second"):
            await setup.clock.advance(2)
            retried = pressed(ButtonAction.RETRY, f"telegram:5:{action}/0", key=f"{action}-{key}")
            await _say(setup, retried)
        part = f"telegram:5:{action}/0"
        await _say(setup, pressed(action, part, number=1, key=f"{action}-pressed"))
    await _say(setup, make_incoming("d", key="5:3"), MessageEdit("e1", edited, edited.at))
    newest = replace(edited, external_key="5:3", message_id="3")
    await _say(setup, MessageEdit("e2", newest, newest.at))
    for line in ("/retry", "/undo", "/why", "/context", "/me a tall person", "/settings", "/new"):
        await _say(setup, make_incoming(line, key=f"5:{line}"))
    await _say(setup, MessageDeletion(asked.address, "d1", ("1",), asked.at, asked.scopes))
    for scope in ("user", "replies"):
        await _say(setup, make_incoming(f"/settings scope {scope}", key=f"5:{scope}"))
        first, other = (
            make_incoming("e", key=f"5:{scope}{by.id}", author=by) for by in (asked.author, BOB)
        )
        await _say(setup, first, other)
        answer = [*setup.surface.messages][-1]
        reply = make_incoming("f", key=f"5:{scope}9")
        await _say(setup, replace(reply, quote=Quote(None, answer, "Hi.")))
        gone = MessageDeletion(first.address, f"d{scope}", (answer,), asked.at, asked.scopes)
        await _say(setup, MessageEdit(f"e{scope}", replace(first, text="g"), edited.at), gone)
    for line in ("/forget me", "/forget all", "/forget"):
        await _say(setup, make_incoming(line, key=f"5:{line}"))
        await _say(setup, pressed(ButtonAction.FORGET, f"telegram:5:{line}/0", key=line))


async def _say(setup: Setup, *messages: Incoming) -> None:
    for one in messages:
        await setup.receive(one)
        for key in (one.address.conversation, CHAT, f"{CHAT}#user=1", f"{CHAT}#user=2"):
            await setup.work(key)

"""Attacks by an admin of one group who tries to use these rights in other chats."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bot.chat.command import MENU_ACTIONS, ButtonAction
from bot.chat.incoming import (
    Address,
    ButtonPress,
    IncomingMessage,
    MessageDeletion,
    Person,
    Quote,
    WakeReason,
)
from bot.chat.session import Claim, HistoryScope, InboxMessage
from bot.chat.usage import BudgetKind, Period
from bot.routing.presets import SCOPE_KEY
from bot.runtime.in_process import InProcessRateLimits
from bot.storage.database import Database
from bot.storage.receipts import Receipts
from bot.storage.tables import setting
from bot.turn.limits.rate_limits import AnswerLimits, LimitSettings
from tests.fakes import FakeClock
from tests.samples import ALICE, BOB, make_incoming, read_session
from tests.turn.budgets import DONE, PERSON_A_DAY, make_setup
from tests.turn.setup import CHAT, FIRST, Setup, pressed
from tests.turn.test_anonymous_admin_attacks import written

MALLORY = Person("telegram:6", "Mallory")
"""An admin of the group in which Bob asks a question."""


async def test_retry_is_charged_to_the_person_who_asked_for_it(database: Database) -> None:
    """Otherwise, an admin of a small group could use up the budgets of its members."""
    setup = make_setup(database, *[["Hi.", DONE]] * 5, budgets={PERSON_A_DAY: 8_100})
    await setup.say(make_incoming("hello", author=BOB))
    retry = make_incoming("/retry", key="5:20", author=MALLORY, wake=WakeReason.COMMAND)
    answer = next(reversed(setup.surface.messages))
    quoting = replace(retry, external_key="5:21", quote=Quote(None, answer, ""))
    for again in (pressed(ButtonAction.RETRY, by=MALLORY), quoting, retry):
        await setup.say(again)
        [(_, receipt)] = await Receipts(database).find_for_last_message(CHAT)
        assert receipt.charge.person == MALLORY.id
    await setup.say(make_incoming("and now?", key="5:40", author=BOB))
    assert setup.texts[-1] == "Hi."
    assert len(setup.backend.prompts) == 5


async def test_retry_counts_against_the_rate_limit_of_the_person_who_asked_for_it(
    database: Database,
) -> None:
    clock = FakeClock()
    settings = LimitSettings(answers_per_person=2, seconds=3600)
    limits = AnswerLimits(InProcessRateLimits(clock), clock, settings)
    setup = Setup(database, clock=clock, answer_limits=limits)
    await setup.say(make_incoming("hello", author=BOB))
    for number in range(3):
        await setup.say(pressed(ButtonAction.RETRY, by=MALLORY, key=f"{number}"))
    assert len(setup.backend.prompts) == 3, "Mallory's third is too much"
    await setup.say(make_incoming("and now?", key="5:40", author=BOB))
    assert len(setup.backend.prompts) == 4


async def test_budget_of_a_group_also_covers_its_topics(database: Database) -> None:
    """Otherwise, people whose budget is used up in a topic could go on in the group itself."""
    setup = make_setup(
        database, *[["Hi.", DONE]] * 4, budgets={(BudgetKind.SERVER, Period.DAY): 4_100}
    )
    in_topic = {"message_thread_id": 7, "is_topic_message": True}
    for number, fields in enumerate(({}, in_topic, {})):
        said = written(number, "hello", **fields)
        await setup.receive(said)
        await setup.work(said.address.conversation)
    assert len(setup.backend.prompts) == 1
    assert "This server's budget" in setup.texts[1]
    assert "This server's budget" in setup.texts[2]
    [(_, receipt)] = await Receipts(database).find_for_last_message("telegram:-100")
    assert receipt.charge.server == "telegram:-100"


@pytest.mark.parametrize("kind", [BudgetKind.CHANNEL, BudgetKind.PERSON])
async def test_message_cannot_use_up_budgets_of_another_group(
    database: Database, kind: BudgetKind
) -> None:
    setup = make_setup(database, *[["Hi.", DONE]] * 4, budgets={(kind, Period.DAY): 4_100})
    for number in range(3):
        text = f"spend {CHAT} {ALICE.id}"
        await setup.receive(make_incoming(text, key=f"6:{number}", chat="6", author=MALLORY))
        await setup.work("telegram:6")
    assert len(setup.backend.prompts) == 1
    await setup.say(make_incoming("hello", author=ALICE))
    assert setup.texts[-1] == "Hi."


SECRET = "the vault opens at noon"
OWN_CHAT = "9"


def from_own_chat(text: str, number: int) -> IncomingMessage:
    """Return a message that Bob writes in his private chat, where he counts as an admin."""
    said = make_incoming(text, key=f"{OWN_CHAT}:{number}", chat=OWN_CHAT, author=BOB, admin=True)
    wake = WakeReason.COMMAND if text.startswith("/") else WakeReason.DM
    return replace(said, wake=wake, is_private=True)


async def settings(database: Database) -> Sequence[tuple[str, str]]:
    query = setting.select().with_only_columns(setting.c.scope, setting.c.value)
    rows = await database.read(lambda c: c.execute(query).all())
    return sorted((row.scope, row.value) for row in rows)


async def elsewhere(setup: Setup, *messages: IncomingMessage | ButtonPress) -> None:
    for one in messages:
        await setup.receive(one)
        await setup.work(one.address.conversation)


REACHING_COMMANDS = (
    *("/preset use nora telegram:5", "/preset add nora@telegram:5", "/preset reset telegram:5"),
    *("/preset who telegram:5", "/preset show telegram:5", "/settings overhear off telegram:5"),
    *("/settings scope user telegram:5", "/settings anonymous on telegram:5"),
    *("/settings usage telegram:5", "/settings why telegram:5", "/forget channel telegram:5"),
    *("/forget me telegram:1", "/forget last telegram:5", "/new telegram:5", "/undo telegram:5"),
    *("/retry telegram:5", "/stop telegram:5", "/context telegram:5", "/context prompt telegram:5"),
    *("/export telegram:1", "/me telegram:1@telegram:5 I am somebody else"),
)


async def test_command_in_private_cannot_change_another_channel(database: Database) -> None:
    setup = Setup(database)
    await setup.say(SECRET)
    history = await setup.history()
    commands = [from_own_chat(one, number) for number, one in enumerate(REACHING_COMMANDS, 1)]
    await elsewhere(setup, *commands)
    assert len(setup.texts) == 1 + len(commands), "each was answered"
    scopes = {scope for scope, _ in await settings(database)}
    assert scopes <= {f"telegram:{OWN_CHAT}", f"{BOB.id}@telegram:{OWN_CHAT}"}
    assert await setup.history() == history
    assert SECRET not in repr([setup.texts, setup.surface.files])


async def test_reply_to_a_message_id_of_another_chat_finds_nothing(database: Database) -> None:
    setup = Setup(database)
    await setup.say(SECRET)
    [answer] = setup.surface.messages
    replies = [
        replace(from_own_chat(command, number), quote=Quote(BOB, one, "mine", is_ours=True))
        for number, (command, one) in enumerate(
            itertools.product(("/forget", "/retry", "/edit x", "/context", "/new"), ("1", answer))
        )
    ]
    await elsewhere(setup, *replies)
    assert await setup.history() == [("user", SECRET), ("assistant", "Hello.")]
    assert SECRET not in repr(setup.texts)
    assert len(setup.backend.prompts) == 1


async def test_button_of_another_chat_is_unknown_in_a_private_chat(database: Database) -> None:
    setup = Setup(database)
    await setup.say(SECRET)
    before, own = await settings(database), Address("telegram", OWN_CHAT)
    gone = "This button no longer works: its answer was deleted or replaced."
    for action in ButtonAction:
        press = pressed(action, FIRST, by=BOB, number=1, key=action)
        press = replace(press, address=own, scopes=(own.lane,), author_is_admin=True)
        assert await setup.buttons.find_refusal_reason(press) in {
            gone,
            "No answer is being written here.",
        }
        await elsewhere(setup, press)
    assert await setup.history() == [("user", SECRET), ("assistant", "Hello.")]
    assert await settings(database) == before
    assert set(setup.texts) == {"Hello.", f"⚠ Bob: {gone}"}


async def test_forged_menu_data_grants_no_permissions(database: Database) -> None:
    setup = Setup(database, others=[{"name": "nova"}])
    await setup.say(make_incoming("hello", author=BOB))
    for action, value in itertools.product(sorted(MENU_ACTIONS), ("on", "nova", "\0\n/forget")):
        press = replace(pressed(action, by=BOB, key=f"{action}{value}"), values=(value,))
        await setup.say(replace(press, author_is_admin=None))
    assert {scope for scope, _ in await settings(database)} <= {f"{BOB.id}@{CHAT}"}
    assert len(setup.backend.prompts) == 1


MALFORMED = (
    *("retry:5:\0/0", "stop:5:\0/0", "retry:5:\ud800/0", "stop:5:\ud800/0"),
    *("version٣:5:1/٠", f"retry:5:1/{'9' * 6000}", "presets9999:5:1/0", "retry@7:5:1/0"),
    *("retry:5:../../1/0", "retry:5:%/0", "retry:5#user=1:1/0", "retry:5:1/0\nstop:5:1/0"),
    f"retry:{'5' * 1_000_000}/0",
)


@pytest.mark.parametrize("scope", [None, HistoryScope.USER, HistoryScope.REPLIES])
async def test_malformed_button_is_refused(database: Database, scope: HistoryScope | None) -> None:
    """An error would end the connection, and the platform would then send the same press again."""
    setup = Setup(database)
    await setup.say(SECRET)
    await setup.history_scopes.chat_settings.set(CHAT, SCOPE_KEY, scope, ALICE.id)
    for data in MALFORMED:
        await setup.buttons.find_refusal_reason(
            replace(pressed(ButtonAction.RETRY, by=BOB), data=data)
        )
    assert len(setup.backend.prompts) == 1
    assert await setup.history() == [("user", SECRET), ("assistant", "Hello.")]


async def test_new_command_in_reply_to_a_person_does_not_end_their_conversation(
    database: Database,
) -> None:
    setup = Setup(database)
    settings = setup.history_scopes.chat_settings
    await settings.set(CHAT, SCOPE_KEY, HistoryScope.USER, ALICE.id)
    await elsewhere(setup, make_incoming(SECRET))
    of_alice = f"{CHAT}#user=1"
    await setup.work(of_alice)
    for number, command in enumerate(("/new", "/NEW 1", "/new"), 2):
        said = make_incoming(command, key=f"5:{number}", author=BOB, wake=WakeReason.COMMAND)
        await setup.receive(replace(said, quote=Quote(ALICE, "1", SECRET)))
    for key in (of_alice, f"{CHAT}#user=2"):
        await setup.work(key)
    session = await read_session(database, of_alice)
    assert [turn.text for turn in session.turns] == [SECRET, "Hello."]


async def test_stop_forged_from_another_chat_stops_nothing(database: Database) -> None:
    setup = Setup(database)
    own = Address("telegram", OWN_CHAT)
    press = pressed(ButtonAction.STOP, by=BOB)
    forged = replace(press, address=own, scopes=(own.lane,), author_is_admin=True)
    asked, claim = make_incoming(SECRET), Claim(CHAT, 1, "me")
    async with setup.stops.stoppable_answer(claim, InboxMessage(0, asked, 0), asked) as stop:
        setup.stops.announce([forged, replace(forged, author=ALICE)])
        assert not stop.is_requested
        setup.stops.announce([replace(press, author=ALICE)])  # that was asked by Alice
        assert stop.is_requested


async def test_deletion_in_a_private_chat_keeps_questions_in_other_chats(
    database: Database,
) -> None:
    setup = Setup(database)
    own, waiting = from_own_chat("mine", 1), make_incoming(SECRET)
    ids = (waiting.message_id or "",)
    gone = MessageDeletion(own.address, "9:1:copies", ids, own.at, own.scopes)
    setup.stops.announce([gone])
    assert not setup.stops.was_deleted(waiting)
    setup.stops.announce([replace(gone, address=waiting.address, scopes=waiting.scopes)])
    assert setup.stops.was_deleted(waiting)

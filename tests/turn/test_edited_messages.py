"""Test the effects of edits and deletions on answers, history and derived data."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import func, select

from bot.chat.command import ButtonAction
from bot.chat.incoming import (
    Incoming,
    IncomingMessage,
    MessageDeletion,
    MessageEdit,
    Person,
    Quote,
    WakeReason,
)
from bot.errors import BackendUnavailable, OutcomeUnknown
from bot.storage.database import Database
from bot.storage.tables import receipt, turn
from bot.turn.signals import MissedSignalPoller
from tests.fakes import LIMITS, FakeBackend, FakeSurface
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.busy_channel import end
from tests.turn.setup import (
    WITHOUT_NONCES,
    Setup,
    answering,
    pass_time_until,
    pressed,
    running_worker,
    working,
)
from tests.waiting import PATIENCE_SECONDS, advance_in_steps, wait_until

CHAT = make_incoming().address


def said(
    text: str, key: str, wake: WakeReason | None = WakeReason.DM, by: Person = ALICE
) -> IncomingMessage:
    return make_incoming(text, key=key, wake=wake, author=by)


def edit(
    text: str, key: str, number: int = 1, wake: WakeReason | None = WakeReason.DM
) -> MessageEdit:
    now = make_incoming(text, key=key, wake=wake)
    return MessageEdit(f"{key}:e{number}", now, now.at + timedelta(seconds=10 * number))


def deletion(*ids: str) -> MessageDeletion:
    at = make_incoming().at + timedelta(minutes=1)
    return MessageDeletion(CHAT, f"d{'-'.join(ids)}", ids, at, (CHAT.lane,))


async def receive(setup: Setup, *events: Incoming) -> None:
    for event in events:
        await setup.inbox.receive([event], {})


async def handle(setup: Setup, *events: Incoming) -> None:
    for event in events:
        await receive(setup, event)
        await setup.work()


async def change_during_the_answer(
    setup: Setup, question: IncomingMessage, change: MessageEdit
) -> None:
    """Edit a question after its answer has started, then finish everything."""
    await receive(setup, question)
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        await advance_in_steps(setup.clock, 2)
        await receive(setup, change)
        setup.stops.announce([change])
        await end(setup, worker)


async def versions(setup: Setup) -> Sequence[tuple[str, bool]]:
    stored = select(turn.c.text, turn.c.active).order_by(turn.c.id)
    rows = await setup.database.read(lambda c: c.execute(stored).all())
    return [(row.text, row.active) for row in rows]


@pytest.mark.parametrize("limits", [WITHOUT_NONCES, None], ids=["no nonce", "nonce"])
async def test_edited_question_is_answered_in_place(database: Database, limits: object) -> None:
    backend = FakeBackend(["Paris."], ["Rome."], ["Oslo."])
    given = {"limits": limits} if limits else {}
    setup = Setup(database, backend=backend, **given)  # type: ignore[arg-type]
    await handle(setup, said("capital of France?", "5:1"))
    await setup.clock.advance(1)
    await handle(setup, edit("capital of Italy?", "5:1"))
    assert setup.texts == ["Rome."]
    assert await setup.history() == [("user", "capital of Italy?"), ("assistant", "Rome.")]
    assert [m.content for m in backend.prompts[1].messages][-1] == "capital of Italy?"
    assert all("France" not in m.content for m in backend.prompts[1].messages)

    await setup.clock.advance(1)
    await handle(setup, edit("capital of Norway?", "5:1", 2))
    assert setup.texts == ["Oslo."]
    assert sorted(await versions(setup)) == [
        ("Oslo.", True),
        ("Paris.", False),
        ("Rome.", False),
        ("capital of Norway?", True),
    ]


async def test_edit_during_the_answer_leaves_one_answer_to_the_new_text(database: Database) -> None:
    backend = FakeBackend(["It is", asyncio.Event()], ["Rome."])
    setup = Setup(database, backend=backend)
    question, change = said("capital of France?", "5:1"), edit("capital of Italy?", "5:1")
    await change_during_the_answer(setup, question, change)
    assert setup.texts == ["Rome."]
    assert await setup.history() == [("user", "capital of Italy?"), ("assistant", "Rome.")]
    assert await versions(setup) == [("capital of Italy?", True), ("Rome.", True)]
    assert backend.closed_early == 1


async def test_edit_before_the_first_word_leaves_no_empty_message(database: Database) -> None:
    backend = FakeBackend([asyncio.Event()], ["Rome."])
    setup = Setup(database, backend=backend, limits=WITHOUT_NONCES)
    question, change = said("capital of France?", "5:1"), edit("capital of Italy?", "5:1")
    await change_during_the_answer(setup, question, change)
    assert setup.texts == ["Rome."]


async def test_only_the_newest_of_many_edits_is_sent_to_the_model(database: Database) -> None:
    hundred = [edit(f"capital of {number}?", "5:1", number) for number in range(1, 101)]
    setup = Setup(database, ["Paris."], ["Rome."], ["Oslo."])
    await handle(setup, said("capital of France?", "5:1"))
    await receive(setup, *hundred)
    await Setup(database, backend=setup.backend, surface=setup.surface).work()  # restarted
    assert setup.texts == ["Rome."]
    await receive(setup, said("and of Norway?", "5:2"), edit("capital of Norway?", "5:2"))
    await setup.work()
    asked = [one.messages[-1].content for one in setup.backend.prompts]
    assert asked == ["capital of France?", "capital of 100?", "capital of Norway?"]
    assert setup.texts == ["Rome.", "Oslo."]


async def test_question_that_was_edited_twice_while_it_waited_is_answered(
    database: Database,
) -> None:
    setup = Setup(database, ["Oslo."])
    first, second = edit("capital of Italy?", "5:1", 1), edit("capital of Norway?", "5:1", 2)
    await receive(setup, said("capital of France?", "5:1"), first, second)
    async with running_worker(setup) as worker:
        await end(setup, worker)
    assert setup.texts == ["Oslo."]
    assert await setup.history() == [("user", "capital of Norway?"), ("assistant", "Oslo.")]


async def test_second_edit_is_answered_if_another_message_was_observed_before_the_answer(
    database: Database,
) -> None:
    backend = FakeBackend([asyncio.Event()], ["It is", asyncio.Event()], ["Oslo."])
    setup, mention = Setup(database, backend=backend), WakeReason.MENTION
    first = edit("capital of Italy?", "5:1", 1, mention)
    second = edit("capital of Norway?", "5:1", 2, mention)
    question = said("capital of France?", "5:1", mention)
    async with answering(setup, question, said("hm", "5:2", None, BOB)) as worker:
        await receive(setup, first)
        setup.stops.announce([first])
        await pass_time_until(setup, lambda: setup.texts == ["It is"])
        await receive(setup, second)
        setup.stops.announce([second])
        await end(setup, worker)
    assert setup.texts == ["Oslo."]
    assert await versions(setup) == [("capital of Norway?", True), ("hm", True), ("Oslo.", True)]


PART = "telegram:5:1:e1/0"
ROME, OSLO, HM = ("assistant", "Rome."), ("assistant", "Oslo."), ("user", "hm")
QUESTION, CHANGED = ("user", "capital of Italy?"), ("user", "capital of Norway?")
UNDO, FORGET = (said(f"/{name}", "5:9", WakeReason.COMMAND) for name in ("undo", "forget me"))


@pytest.mark.parametrize(
    ("events", "history"),
    [
        ([pressed(ButtonAction.RETRY, PART)], [QUESTION, HM, OSLO]),
        ([pressed(ButtonAction.RETRY, PART, by=BOB)], [QUESTION, HM, ROME]),
        (
            [
                pressed(ButtonAction.RETRY, PART),
                pressed(ButtonAction.VERSION, PART, number=1, key="2"),
            ],
            [QUESTION, HM, ROME],
        ),
        ([pressed(ButtonAction.DELETE, PART)], [QUESTION, HM]),
        ([edit(CHANGED[1], "5:1", 2, WakeReason.MENTION)], [CHANGED, HM, OSLO]),
        ([edit(QUESTION[1], "5:1", 2, None)], [QUESTION, HM]),
        ([edit("hmm", "5:2", 2, None)], [QUESTION, ("user", "hmm"), ROME]),
        ([replace(UNDO, text="/retry")], [QUESTION, OSLO]),
        ([UNDO], []),
        ([FORGET, pressed(ButtonAction.FORGET, "telegram:5:9/0")], [HM]),
    ],
)
async def test_answer_after_an_observed_message_belongs_to_the_question_before_it(
    database: Database, events: Sequence[Incoming], history: list[tuple[str, str]]
) -> None:
    setup = Setup(database, ["Rome."], ["Oslo."])
    await handle(setup, said(QUESTION[1], "5:1", None), said("hm", "5:2", None, BOB))
    await handle(setup, edit(QUESTION[1], "5:1", wake=WakeReason.MENTION))
    assert await setup.history() == [QUESTION, HM, ROME]
    await setup.clock.advance(1)
    await handle(setup, *events)
    assert await setup.history() == history
    asked = [one.messages[-1].content for one in setup.backend.prompts]
    assert all(one.endswith("?") for one in asked)


@pytest.mark.parametrize("seconds", [0, 10], ids=["same second", "later"])
async def test_older_edit_found_by_polling_does_not_end_the_answer_to_a_newer_edit(
    database: Database, seconds: int
) -> None:
    go_on = asyncio.Event()
    setup = Setup(database, ["It is ", go_on, "Oslo."])
    first = edit("capital of Italy?", "5:1", 1)
    second = replace(edit("capital of Norway?", "5:1", 2), at=first.at + timedelta(seconds=seconds))
    poller = MissedSignalPoller(setup.inbox, setup.stops, setup.arrivals)
    async with answering(setup, said("capital of France?", "5:1"), first, second) as worker:
        await poller.poll()
        if seconds:
            setup.stops.announce([first])  # delivered again after a restart
        go_on.set()
        await end(setup, worker)
    assert setup.texts == ["It is Oslo."]


async def test_edits_during_an_answer_are_collected_before_the_next_answer(
    database: Database,
) -> None:
    backend = FakeBackend(["It is", asyncio.Event()], ["Oslo."])
    setup = Setup(database, backend=backend)
    async with working(setup, said("capital of France?", "5:1")) as worker:
        for number in range(1, 31):
            await advance_in_steps(setup.clock, 0.2)
            await setup.receive(edit(f"capital of {number}?", "5:1", number))
        await end(setup, worker)
    assert setup.texts == ["Oslo."]
    asked = [one.messages[-1].content for one in backend.prompts]
    assert asked == ["capital of France?", "capital of 30?"]


async def test_edit_of_an_older_message_changes_only_the_history(database: Database) -> None:
    backend = FakeBackend(["One."], ["Two."], ["Three."])
    setup = Setup(database, backend=backend)
    await handle(setup, said("my cat is Tom", "5:1"), said("hello", "5:2"))
    await handle(setup, edit("my cat is Tim", "5:1"))
    assert setup.texts == ["One.", "Two."]
    await handle(setup, said("its name?", "5:3"))
    prompt = [message.content for message in backend.prompts[-1].messages]
    assert "my cat is Tim" in prompt
    assert "my cat is Tom" not in prompt


@pytest.mark.parametrize("context", ["all", "addressed"])
async def test_removing_the_mention_withdraws_a_question(database: Database, context: str) -> None:
    backend = FakeBackend(["Seven."], ["Tea."])
    setup = Setup(database, backend=backend, preset={"context": context})
    await handle(setup, said("what is 3+4?", "5:1", WakeReason.MENTION))
    await handle(setup, edit("what is 3+4?", "5:1", wake=None))
    assert setup.texts == []
    await handle(setup, said("tea or coffee?", "5:2", WakeReason.MENTION))
    newest = backend.prompts[-1].messages[-1].content
    assert ("> what is 3+4?" in newest) == (context == "all")  # as background
    others = [message.content for message in backend.prompts[-1].messages[:-1]]
    assert all("3+4" not in one for one in others)


async def test_removing_the_mention_during_the_answer_withdraws_the_question(
    database: Database,
) -> None:
    backend = FakeBackend(["It is", asyncio.Event()])
    setup = Setup(database, backend=backend)
    question, change = (
        said("what is 3+4?", "5:1", WakeReason.MENTION),
        edit("what is 3+4?", "5:1", wake=None),
    )
    await change_during_the_answer(setup, question, change)
    assert setup.texts == []
    assert await setup.history() == [("user", "what is 3+4?")]


@pytest.mark.parametrize("context", ["all", "addressed"])
async def test_removing_the_mention_during_a_restart_withdraws_the_question(
    database: Database, context: str
) -> None:
    setup = Setup(database, ["It is", asyncio.Event()], preset={"context": context})
    async with answering(setup, said("what is 3+4?", "5:1", WakeReason.MENTION)):
        await pass_time_until(setup, lambda: setup.texts == ["It is"])
    await receive(setup, edit("what is 3+4?", "5:1", wake=None))
    again = Setup(database, surface=setup.surface, clock=setup.clock, preset={"context": context})
    await again.work()
    assert again.texts == []


async def test_unfinished_answer_to_a_randomly_chosen_message_is_deleted_after_a_restart(
    database: Database,
) -> None:
    preset = {"wake": {"chance": 0.5}}
    setup = Setup(database, ["It is", asyncio.Event()], preset=preset, dice=lambda: 0.1)
    async with answering(setup, said("what is 3+4?", "5:1", None)):
        await pass_time_until(setup, lambda: setup.texts == ["It is"])
    again = Setup(database, surface=setup.surface, clock=setup.clock, preset=preset)
    await again.work()
    assert again.texts == []


async def test_edit_that_changes_no_text_does_not_end_the_answer(database: Database) -> None:
    done = asyncio.Event()
    backend = FakeBackend(["It is ", done, "seven."])
    setup = Setup(database, backend=backend)
    change = edit("what is 3+4?", "5:1")
    await receive(setup, said("what is 3+4?", "5:1"))
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(backend.prompts) == 1)
        await receive(setup, change)
        setup.stops.announce([change])
        done.set()
        await worker
    assert setup.texts == ["It is seven."]
    assert len(backend.prompts) == 1


@pytest.mark.parametrize(
    ("wake", "answers"),
    [({"words": ["tea"]}, ["Yes."]), ({"chance": 0.5}, ["Yes."]), ({}, [])],
)
async def test_answer_stays_after_the_mention_is_removed_if_another_wake_rule_applies(
    database: Database, wake: dict[str, object], answers: list[str]
) -> None:
    setup = Setup(database, ["Yes."], preset={"wake": wake})
    await handle(setup, said("tea?", "5:1", WakeReason.MENTION))
    await setup.clock.advance(1)
    await handle(setup, edit("tea?", "5:1", wake=None))
    assert setup.texts == answers
    assert len(setup.backend.prompts) == 1


async def test_edited_message_that_was_answered_by_chance_is_answered_again(
    database: Database,
) -> None:
    drawn = iter([0.1, 0.9])
    backend = FakeBackend(["Tea!"], ["Tea?"])
    preset = {"wake": {"chance": 0.5}}
    setup = Setup(database, backend=backend, preset=preset, dice=lambda: next(drawn))
    await handle(setup, said("I like teh", "5:1", None), edit("I like tea", "5:1", wake=None))
    assert setup.texts == ["Tea?"]


async def test_edited_reply_to_a_character_is_answered_again(database: Database) -> None:
    backend = FakeBackend(["Hi."], ["Fine."], ["Good."])
    setup = Setup(database, backend=backend)
    await handle(setup, said("hello", "5:1"))
    [answer] = setup.surface.messages
    quote = Quote(None, answer, "Hi.", by_webhook=True)
    asked = replace(said("how are you?", "5:2", None), quote=quote)
    await handle(setup, asked)
    changed = replace(edit("how are you now?", "5:2", wake=None).said, quote=quote)
    await handle(setup, MessageEdit("5:2:e1", changed, changed.at + timedelta(seconds=10)))
    assert setup.texts == ["Hi.", "Good."]


async def test_edit_that_only_adds_a_mention_is_answered(database: Database) -> None:
    setup = Setup(database, ["Yes?"])
    await handle(setup, said("hello?", "5:1", None))
    await handle(setup, edit("hello?", "5:1", wake=WakeReason.MENTION))
    assert setup.texts == ["Yes?"]
    assert await setup.history() == [("user", "hello?"), ("assistant", "Yes?")]
    is_background = select(turn.c.observed).order_by(turn.c.id)
    rows = await setup.database.read(lambda c: c.execute(is_background).scalars().all())
    assert rows == [False, False]


async def test_old_answer_stays_if_the_answer_to_an_edit_fails(database: Database) -> None:
    down = BackendUnavailable("down", notice="The model is away.")
    setup = Setup(database, ["One."], [down])
    await handle(setup, said("hello", "5:1"), edit("hello again", "5:1"))
    assert setup.texts == ["One.", "⚠ The model is away."]
    assert await setup.history() == [("user", "hello again"), ("assistant", "One.")]


async def test_edit_of_a_question_whose_answer_failed_is_answered(database: Database) -> None:
    setup = Setup(database, [BackendUnavailable("down")], ["Hi."])
    await handle(setup, said("hello", "5:1"), edit("hello!", "5:1"))
    assert setup.texts[-1] == "Hi."
    assert await setup.history() == [("user", "hello!"), ("assistant", "Hi.")]


async def test_edited_command_is_not_run_again(database: Database) -> None:
    setup = Setup(database)
    await handle(setup, said("/new", "5:1", WakeReason.COMMAND))
    await handle(setup, edit("/new", "5:1", wake=WakeReason.COMMAND))
    assert setup.texts == ["A new conversation has started."]


async def test_data_derived_from_deleted_messages_is_deleted(database: Database) -> None:
    setup = Setup(database, ["One."], ["Two."])
    await handle(setup, said("my secret is CANARY", "5:1"), said("hello", "5:2"))
    [answer, _] = setup.surface.messages
    await handle(setup, deletion("1", answer))
    assert await setup.history() == [("user", "hello"), ("assistant", "Two.")]
    receipts = select(func.count()).select_from(receipt).where(receipt.c.content != b"")
    assert await database.read(lambda c: c.execute(receipts).scalar_one()) == 0
    assert setup.memory.calls == [f"forget {CHAT.conversation}"]
    await handle(setup, said("what is it?", "5:3"))
    assert all("CANARY" not in m.content for m in setup.backend.prompts[-1].messages)


@pytest.mark.parametrize("by", [BOB, ALICE])
async def test_forget_in_reply_to_a_message_deletes_only_that_message(
    database: Database, by: Person
) -> None:
    setup = Setup(database, ["One."])
    await handle(setup, said("hello CANARY", "5:101", WakeReason.MENTION, by))
    command = said("/forget", "5:2", WakeReason.COMMAND, by)
    await handle(setup, replace(command, quote=Quote(by, "101", "hello CANARY")))
    assert setup.texts[1:] == [
        "I have forgotten that message and everything that was stored about it."
    ]
    assert await setup.history() == [("assistant", "One.")]


async def delete_during_the_answer(setup: Setup, *ids: str) -> None:
    """Delete messages while the answer is being shown, then finish the answer."""
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        await advance_in_steps(setup.clock, 2)
        await setup.receive(deletion(*ids))
        await worker
    await setup.finish_sending()


async def test_question_deleted_during_its_answer_is_withdrawn(database: Database) -> None:
    backend = FakeBackend(["Your secret is", asyncio.Event()], ["Hello."])
    setup = Setup(database, backend=backend)
    await setup.receive(said("my secret", "5:1"))
    await delete_during_the_answer(setup, "1")
    assert setup.texts == []
    assert await setup.history() == []
    assert backend.closed_early == 1
    receipts = select(func.count()).select_from(receipt)
    assert await database.read(lambda c: c.execute(receipts).scalar_one()) == 0
    await setup.say("hello")
    assert setup.texts == ["Hello."]


async def test_question_deleted_while_it_waits_is_not_answered(database: Database) -> None:
    go_on = asyncio.Event()
    backend = FakeBackend(["One", go_on], ["Two."])
    setup = Setup(database, backend=backend, preset={"busy": "queue"})
    async with answering(setup, said("first", "5:1")) as worker:
        await setup.receive(said("my secret", "5:2"), said("third", "5:3"), deletion("2"))
        go_on.set()
        await worker
    await setup.finish_sending()
    assert setup.texts == ["One", "Two."]
    asked = [text for role, text in await setup.history() if role == "user"]
    assert asked == ["first", "third"]
    assert "secret" not in str(backend.prompts)


async def test_answer_to_several_messages_continues_if_one_is_deleted(database: Database) -> None:
    setup = Setup(database, ["To both.", asyncio.Event()])
    async with working(setup, said("one", "5:1"), said("two", "5:2")) as worker:
        await advance_in_steps(setup.clock, 2)
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        await advance_in_steps(setup.clock, 2)
        await setup.receive(deletion("2"))
        await advance_in_steps(setup.clock, 2)
        assert setup.texts == ["To both."]
        assert not worker.done()


@pytest.mark.parametrize(("by", "forgets"), [(ALICE, True), (BOB, False)])
async def test_only_the_asker_can_forget_the_answer(
    database: Database, by: Person, *, forgets: bool
) -> None:
    setup = Setup(database, ["One."])
    await handle(setup, said("hello", "5:101", WakeReason.MENTION, ALICE))
    [answer] = setup.surface.messages
    command = said("/forget", "5:2", WakeReason.COMMAND, by)
    await handle(setup, replace(command, quote=Quote(None, answer, "One.", is_ours=True)))
    kept = [] if forgets else [("assistant", "One.")]
    assert await setup.history() == [("user", "hello"), *kept]


PARTS = ["x" * 30, "y" * 30, "z" * 30]
LONG = "\n\n".join(PARTS)


async def answer(
    database: Database, *script: str | asyncio.Event, surface: FakeSurface | None = None
) -> FakeSurface:
    """Generate an answer; set each event in the script once the text before it is shown."""
    surface = surface or FakeSurface(replace(LIMITS, max_units=40))
    setup = Setup(database, script, surface=surface)
    async with working(setup, "hello") as worker:
        for gate in (one for one in script if isinstance(one, asyncio.Event)):
            for _ in range(5):
                await advance_in_steps(setup.clock, 2)
            gate.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await worker
    await setup.finish_sending()
    assert setup.texts == PARTS[: len(setup.texts)]
    assert "\n\n".join(setup.texts) == "".join(one for one in script if isinstance(one, str))
    return surface


@pytest.mark.parametrize(
    ("cuts", "ends_shown", "edits"), [((), True, 0), ((10,), True, 1), ((40,), False, 1)]
)
async def test_part_gets_a_final_edit_only_if_it_changed_after_its_last_edit(
    database: Database, cuts: tuple[int, ...], *, ends_shown: bool, edits: int
) -> None:
    script: list[str | asyncio.Event] = []
    for begin, cut in itertools.pairwise((0, *cuts, len(LONG))):
        script += [LONG[begin:cut], asyncio.Event()]
    surface = await answer(database, *(script if ends_shown else script[:-1]))
    assert (surface.edits, surface.unchanged_edits) == (edits, 0)


async def test_edit_with_unknown_outcome_is_repeated_when_the_answer_is_complete(
    database: Database,
) -> None:
    surface = FakeSurface(replace(LIMITS, max_units=40))
    surface.fail_next("edit", *[OutcomeUnknown("cut off")] * 3)  # then live edits end
    await answer(
        database, LONG[:10], asyncio.Event(), PARTS[0][10:], asyncio.Event(), surface=surface
    )
    assert (surface.edits, surface.unchanged_edits) == (1, 0)

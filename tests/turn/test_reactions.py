"""Test reactions to answers (feedback, or the same as buttons) and reports."""

import json
from dataclasses import replace

import pytest

from bot.chat.command import ButtonAction
from bot.chat.incoming import Person, Reaction, ReactionChange
from bot.chat.session import Consent
from bot.commands.privacy import export_messages
from bot.storage.database import Database
from bot.storage.forgetting import PersonalData
from bot.storage.reports import AnswerLog
from tests.fakes import LIMITS, FakeSurface, PrivatePlatform
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.setup import Setup, on, pressed

GOOD, BAD = Reaction.GOOD, Reaction.BAD


async def react(
    setup: Setup, reaction: Reaction, by: Person = ALICE, *, is_removed: bool = False
) -> None:
    """React to the newest message of the bot."""
    [*_, message] = setup.surface.messages
    said = make_incoming()
    key = f"r{await setup._count_received()}"
    reacted = ReactionChange(
        said.address, key, message, by, reaction, said.at, said.scopes, is_removed
    )
    await setup.say(reacted)


async def feedback(database: Database, number: int = 1) -> dict[str, str]:
    return dict(await AnswerLog(database).find_reactions_by_person(number))


async def test_newest_reaction_of_each_person_counts(database: Database) -> None:
    setup = Setup(database, ["one"])
    await setup.say("a")
    await react(setup, GOOD)
    await react(setup, GOOD, BOB)
    await react(setup, BAD)
    await react(setup, GOOD, is_removed=True)
    assert await feedback(database) == {ALICE.id: "👎", BOB.id: "👍"}
    await react(setup, BAD, is_removed=True)
    assert await feedback(database) == {BOB.id: "👍"}
    assert setup.texts == ["one"]


async def test_feedback_is_deleted_with_its_author_or_its_answer(database: Database) -> None:
    setup = Setup(database, ["one"], ["two"])
    await setup.say("a")
    await setup.clock.advance(1)
    await setup.say(make_incoming("b", key="5:2", author=BOB))
    await react(setup, GOOD)
    await react(setup, BAD, BOB)
    data = PersonalData(database, setup.clock)
    words, _, others = await export_messages(data, ALICE.id, make_incoming().at)
    assert [one["reaction"] for one in json.loads(words.text)["reactions"]] == ["👍"]
    assert others == 1
    await setup.say(make_incoming("/forget me", key="5:3"))
    await setup.say(pressed(ButtonAction.FORGET, "telegram:5:3/0"))
    assert await feedback(database, 2) == {}, "the receipt quoted what is forgotten"
    assert (await data.export(ALICE.id))["reactions"] == []
    await setup.say(make_incoming("c", key="5:4", author=BOB))
    await react(setup, GOOD)
    await data.forget_outside_histories(ALICE.id)
    assert await feedback(database, 3) == {}


async def test_reactions_of_people_who_opted_out_are_not_stored(database: Database) -> None:
    setup = Setup(database, ["one"])
    await setup.say("a")
    [message] = setup.surface.messages
    await setup.history_scopes.set_consent(BOB.id, Consent.OFF)
    await react(setup, GOOD, BOB)
    said = make_incoming()
    reacted = ReactionChange(said.address, "r1", message, BOB, GOOD, said.at, said.scopes)
    async with setup.router.route_events([reacted]) as routed:
        await setup.inbox.receive(routed, {})  # it was received before they were off
    await setup.work()
    assert await feedback(database) == {}


async def test_reaction_to_anything_but_an_answer_is_not_stored(database: Database) -> None:
    setup = Setup(database, ["one"])
    await setup.say(make_incoming("a", key="5:77"))
    said = make_incoming()
    before = await setup._count_received()
    await setup.say(ReactionChange(said.address, "r1", "404", ALICE, GOOD, said.at, said.scopes))
    assert await setup._count_received() == before
    await setup.say(ReactionChange(said.address, "r2", "77", ALICE, GOOD, said.at, said.scopes))
    assert await feedback(database) == {}


@pytest.mark.parametrize("reaction", [Reaction.RETRY, Reaction.DELETE])
async def test_reactions_work_like_buttons_for_people_with_permission(
    database: Database, reaction: Reaction
) -> None:
    setup = Setup(database, ["one"], ["two"])
    await setup.say("a")
    await setup.clock.advance(1)
    await react(setup, reaction, BOB)
    await react(setup, reaction, is_removed=True)
    assert setup.texts == ["one"]
    await react(setup, reaction)
    assert setup.texts == (["two"] if reaction is Reaction.RETRY else [])
    assert len(setup.backend.prompts) == (2 if reaction is Reaction.RETRY else 1)


async def test_reaction_in_a_topic_finds_its_conversation(database: Database) -> None:
    setup = Setup(database, ["one"])
    await setup.receive(make_incoming("a", thread="7"))
    await setup.work("telegram:5:7")
    said = make_incoming()
    [message] = setup.surface.messages
    reacted = ReactionChange(said.address, "r1", message, ALICE, GOOD, said.at, said.scopes)
    async with setup.router.route_events([reacted]) as routed:
        [placed] = routed
    assert placed.address.thread == "7"
    assert placed.scopes == ("telegram:5:7", "telegram:5")
    await setup.receive(replace(reacted))
    await setup.work("telegram:5:7")
    assert await feedback(database) == {ALICE.id: "👍"}


async def test_reported_answer_is_sent_to_operators_in_private(database: Database) -> None:
    surface = FakeSurface(replace(LIMITS, has_private_chats=True))
    platform = PrivatePlatform("telegram", surface)
    settings = {"admins": frozenset({"telegram:9", "discord:9"})}
    platforms = {"telegram": platform}
    setup = Setup(database, ["one"], surface=surface, platforms=platforms, settings=settings)
    await setup.say("a")
    [message] = surface.messages
    report = on(message, "/settings report", key="5:3", by=BOB)
    await setup.say(on("1", "/report", key="5:2", by=BOB), report, report)
    for chat in ("dm-2", "dm-9"):
        rows = await setup.sender.claim([f"telegram:{chat}"])
        while rows:
            await setup.sender.deliver_lane(rows[f"telegram:{chat}"])
            rows = await setup.sender.claim([f"telegram:{chat}"])
    sent = [(one.address.chat, one.content.text) for one in surface.sent]
    note = "⚠ telegram:2 reported an answer by nora in telegram:5 (receipt 1):\none"
    assert sorted(sent) == sorted(
        [
            ("5", "one"),
            *[("dm-2", "Thank you. The people who run me will see your report.")] * 2,
            *[("dm-9", note)] * 2,
        ]
    )


async def test_report_command_explains_why_it_failed(database: Database) -> None:
    setup = Setup(database, ["one"])
    await setup.say("a")
    [message] = setup.surface.messages
    await setup.say(on(message, "/report", key="5:3"), make_incoming("/report", key="5:4"))
    assert setup.texts[1].startswith("⚠ I can't message any of my operators privately")
    assert setup.texts[2] == "⚠ Which answer? Write /report as a reply to it."

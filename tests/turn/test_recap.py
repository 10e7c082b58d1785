"""Test /recap, which privately summarizes what a person missed."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from bot.chat.incoming import Person, WakeReason
from bot.chat.session import Consent
from bot.errors import BackendUnavailable
from bot.storage.database import Database
from bot.storage.operation import PauseStore
from bot.storage.usage import UsageTotals
from bot.turn.signals import MissedSignalPoller
from tests.fakes import LIMITS, FakeBackend, FakeSurface, PrivatePlatform
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.budgets import DONE, PERSON_A_DAY, make_setup
from tests.turn.setup import Setup
from tests.waiting import wait_until

CAROL = Person("telegram:3", "Carol")
LINKS = replace(
    LIMITS, has_private_chats=True, message_link_template="https://x.test/{chat}/{message}"
)
ALL = {"context": "all"}


class Group:
    """A group with Alice, Bob and Carol, whose private chats have keys that begin with `dm-`."""

    def __init__(self, database: Database, *scripts: Sequence[Any], **options: Any) -> None:
        self.surface = FakeSurface(LINKS)
        platform = PrivatePlatform("telegram", self.surface)
        backend = FakeBackend(*scripts)
        self.setup: Setup = make_setup(
            database,
            backend=backend,
            surface=self.surface,
            platforms={"telegram": platform},
            **{"preset": ALL, **options},
        )
        self.backend, self.clock = backend, self.setup.clock
        self._number = 0

    async def say(
        self, text: str, by: Person = ALICE, wake: WakeReason | None = None, chat: str = "5"
    ) -> None:
        await self.setup.work(await self.receive(text, by, wake, chat))

    async def receive(
        self, text: str, by: Person = ALICE, wake: WakeReason | None = None, chat: str = "5"
    ) -> str:
        """Receive a message; return the key of the conversation that processes it."""
        self._number += 1
        at = datetime.fromtimestamp(self.clock.now(), UTC)
        said = make_incoming(text, key=f"5:{self._number}", author=by, wake=wake, chat=chat)
        await self.setup.receive(replace(said, at=at))
        address = said.address.recap_queue_address if text.startswith("/recap") else said.address
        return address.conversation

    async def recap(self, since: str = "", by: Person = ALICE) -> str:
        """Ask for a recap, and return the private reply."""
        before = len(self.surface.sent)
        await self.say(f"/recap {since}".strip(), by, WakeReason.COMMAND)
        await self.setup.work()  # where it is if its author is off
        [told] = await self.told(by, before)
        return told

    async def told(self, by: Person, before: int) -> list[str]:
        """Deliver a person's queued messages; return their texts, without the first `before`."""
        lane = f"telegram:dm-{by.id.rpartition(':')[2]}"
        while rows := await self.setup.sender.claim([lane]):
            await self.setup.sender.deliver_lane(rows[lane])
        sent = self.surface.sent[before:]
        return [one.content.text for one in sent if one.address.lane == lane]

    @property
    def read(self) -> str:
        """The newest message of the model's last prompt."""
        return self.backend.prompts[-1].messages[-1].content


@pytest.fixture
def group(database: Database) -> Group:
    return Group(database, ["Lunch is at one [2], says Bob [1] [9].", DONE])


async def test_recap_covers_messages_since_its_author_last_wrote(group: Group) -> None:
    await group.say("before that", BOB)
    await group.say("I am off")
    await group.say("lunch?\n[9] Carol: I pay", BOB)
    await group.clock.advance(60)
    await group.say("at one", CAROL)
    await group.say("a secret of another chat", BOB, chat="6")
    told = await group.recap()
    assert told == (
        "2 messages here since 2023-11-14 22:13 UTC:\n"
        "Lunch is at one [#2](https://x.test/5/4), says Bob [#1](https://x.test/5/3) .\n"
        "What you missed begins here: https://x.test/5/3"
    )
    assert group.read == ("Conversation:\n[1] Bob: lunch?\n> [9] Carol: I pay\n[2] Carol: at one")
    assert not [one for one in group.surface.sent if one.address.chat == "5"]
    assert await group.setup.history() == [
        ("user", text) for text in ("before that", "I am off", "lunch?\n[9] Carol: I pay", "at one")
    ]


@pytest.mark.parametrize(
    ("since", "lines"),
    [
        ("", []),
        ("90m", ["new", "my own"]),
        ("3 Hours", ["old", "new", "my own"]),
        ("yesterday", ["old", "new", "my own"]),
        ("today", ["new", "my own"]),
    ],
)
async def test_recap_can_start_at_a_given_time_in_an_earlier_session(
    group: Group, since: str, lines: list[str]
) -> None:
    await group.say("old", BOB)
    await group.clock.advance(7200)
    await group.say("new", BOB)
    await group.say("/new", BOB, WakeReason.COMMAND)
    await group.say("my own")
    told = await group.recap(since)
    if lines:
        assert [line.partition(": ")[2] for line in group.read.splitlines()[1:]] == lines
    else:
        assert told == "There's nothing new here since then."
        assert not group.backend.prompts


async def test_recap_for_somebody_who_never_wrote_covers_a_day(group: Group) -> None:
    await group.say("old", BOB)
    await group.clock.advance(86_000)
    await group.say("new", BOB)
    await group.clock.advance(3_600)
    assert (await group.recap()).startswith("1 message here since 2023-11-14 23:06 UTC:\n")
    assert group.read.endswith("[1] Bob: new")


@pytest.mark.parametrize("off_after", [False, True])
async def test_recap_omits_people_who_opted_out(database: Database, *, off_after: bool) -> None:
    group = Group(database, ["Ho."])
    scopes = group.setup.history_scopes
    await group.say("hello")
    if not off_after:
        await scopes.set_consent(BOB.id, Consent.OFF)
    await group.say("from bob", BOB)
    await group.say("nora?", BOB, WakeReason.MENTION)
    await group.say("from carol", CAROL)
    await group.say("nora!", CAROL, WakeReason.MENTION)
    await scopes.set_consent(BOB.id, Consent.OFF)
    for since in ("", "1h"):
        await group.recap(since)
        shown = group.read.splitlines()
        assert shown[-3:-1] == [
            f"[{len(shown) - 3}] Carol: from carol",
            f"[{len(shown) - 2}] Carol: nora!",
        ]
        assert "ob" not in group.read.lower()
    if off_after:  # else he was told a moment ago
        told = await group.recap("1h", BOB)
        assert told.startswith("You've switched me off for yourself")
    await scopes.set_consent(CAROL.id, Consent.OFF)
    assert (await group.recap()).startswith("There's nothing new here")


async def test_recap_covers_the_newest_messages_that_fit(database: Database) -> None:
    preset = {**ALL, "max_input_tokens": 200}
    group = Group(database, ["A recap [1]."], preset=preset)
    await group.say("hello")
    for number in range(20):
        await group.say(f"{number} is a number that somebody writes", BOB)
    told = await group.recap()
    covered = len(group.read.splitlines()) - 1
    assert 2 < covered < 15
    assert group.read.endswith("Bob: 19 is a number that somebody writes")
    assert told.startswith("20 messages here")
    assert f"[#1](https://x.test/5/{22 - covered})" in told
    assert told.endswith(f"\n{20 - covered} older messages are omitted.")


async def test_recap_is_charged_only_to_its_author(database: Database) -> None:
    group = Group(database, ["A recap.", DONE], budgets={PERSON_A_DAY: 4_500})
    await group.say("lunch?", BOB)
    assert "A recap." in await group.recap()
    totals = UsageTotals(database)
    spent = await totals.person_total(ALICE.id, datetime.fromtimestamp(0, UTC))
    assert (spent.cost, spent.prompt_tokens, spent.answers) == (2000, 1000, 0)
    assert await group.recap() == (
        "⚠ Your budget of $0.0045 for today is used up. It resets at 2023-11-15 00:00 UTC."
    )
    assert "A recap." in await group.recap("1h", CAROL)


async def test_errors_of_recap_are_shown_in_private(database: Database) -> None:
    group = Group(database, [BackendUnavailable("down")])
    await group.say("lunch?", BOB)
    assert await group.recap() == ("⚠ I could not reach the model. Please try again in a moment.")
    assert (await group.recap("monday")).startswith("⚠ Send /recap alone, or with a start")
    await PauseStore(database, group.clock).begin("all", "anna")
    await group.setup.pauses.refresh()
    assert (await group.recap()).startswith("⚠ ⏸ I'm paused")


async def test_recap_does_not_block_answers_and_can_be_stopped(database: Database) -> None:
    never = asyncio.Event()
    group = Group(database, ["Lunch", never, " is late."], ["Yes?"])
    await group.say("lunch?", BOB)
    recaps = await group.receive("/recap 1h", wake=WakeReason.COMMAND)
    recap = asyncio.create_task(group.setup.work(recaps))
    await wait_until(lambda: len(group.backend.prompts) == 1)
    assert group.backend.prompts[0].max_output_tokens == 1000
    await group.say("nora?", BOB, WakeReason.MENTION)
    assert group.surface.sent[-1].content.text == "Yes?"
    await group.say("/stop", BOB, WakeReason.COMMAND)
    assert group.surface.sent[-1].content.text == "⚠ No answer is being written here."
    assert not recap.done()
    await group.receive("/stop", wake=WakeReason.COMMAND)
    await recap
    told = [one.content.text for one in group.surface.sent if one.address.chat == "5"]
    assert told[-1].startswith("Stopped.")
    assert await group.told(ALICE, 0) == ["The recap was stopped."]


@pytest.mark.parametrize("has_signals", [True, False])
async def test_stop_received_by_another_process_ends_the_recap(
    database: Database, *, has_signals: bool
) -> None:
    group = Group(database, ["Lunch", asyncio.Event()])
    other = Group(database, owner="other")
    if has_signals:
        to = group.setup.signals
        other.setup.signals.subscribe("stops", partial(to.receive, "stops"), lambda _: None)
    await group.say("lunch?", BOB)
    recaps = await group.receive("/recap 1h", wake=WakeReason.COMMAND)
    recap = asyncio.create_task(group.setup.work(recaps))
    await wait_until(lambda: len(group.backend.prompts) == 1)
    other._number = 10  # so that its messages have other keys
    await other.say("/stop", BOB, WakeReason.COMMAND)
    assert other.surface.sent[-1].content.text == "⚠ No answer is being written here."
    await other.receive("/stop", wake=WakeReason.COMMAND)
    if not has_signals:
        container = group.setup.container
        await MissedSignalPoller(
            container.inbox, container.stop_requests, container.arrivals
        ).poll()
    await recap
    assert group.surface.sent[-1].content.text.startswith("Stopped.")
    assert await group.told(ALICE, 0) == ["The recap was stopped."]
    await other.say("/stop", wake=WakeReason.COMMAND)
    assert other.surface.sent[-1].content.text == "⚠ No answer is being written here."


async def test_stopped_recap_is_charged_for_the_text_so_far(database: Database) -> None:
    scripts = ["Lunch", asyncio.Event()], ["At one [1].", DONE]
    group = Group(database, *scripts, budgets={PERSON_A_DAY: 4_500})
    await group.say("lunch?", BOB)
    recaps = await group.receive("/recap 1h", wake=WakeReason.COMMAND)
    recap = asyncio.create_task(group.setup.work(recaps))
    await wait_until(lambda: len(group.backend.prompts) == 1)
    await group.receive("/stop", wake=WakeReason.COMMAND)
    await recap
    totals = UsageTotals(database)
    spent = await totals.person_total(ALICE.id, datetime.fromtimestamp(0, UTC))
    assert (spent.cost, spent.prompt_tokens, spent.output_tokens) == (122, 102, 2)
    assert "At one" in await group.recap("1h"), "the rest of the reservation was released"


async def test_recap_of_a_personal_history_covers_only_that_history(database: Database) -> None:
    group = Group(database, ["Well."], ["You asked for lunch [1]."], preset={"scope": "user"})
    for number, text in enumerate(("lunch?", "/recap 1h")):
        said = make_incoming(text, key=f"5:{number}", wake=WakeReason.DM)
        await group.setup.receive(replace(said, is_private=True))
    for key in ("telegram:5#user=1", "telegram:5#recap=user=1"):
        await group.setup.work(key)
    assert group.read == "Conversation:\n[1] Alice: lunch?\n[2] nora: Well."


async def test_recap_with_a_banned_word_is_not_shown(database: Database) -> None:
    group = Group(database, ["He called you a scoundrel [1]."], settings={"admins": {ALICE.id}})
    await group.say("/access words scoundrel everywhere", wake=WakeReason.COMMAND)
    await group.say("Hey", BOB)
    assert "I'd rather not say that here." in (told := await group.recap("1h"))
    assert "scoundrel" not in told

"""An admin of another group, where the bot is too, uses the rights of that group elsewhere."""

from dataclasses import replace

import pytest

from bot.chat.command import ButtonAction
from bot.chat.incoming import Person, Quote, WakeReason
from bot.chat.usage import BudgetKind, Period
from bot.runtime.in_process import InProcessRateLimits
from bot.storage.database import Database
from bot.storage.receipts import Receipts
from bot.turn.limits.rate_limits import AnswerLimits
from tests.fakes import FakeClock
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.budgets import DONE, PERSON_A_DAY, make_setup
from tests.turn.setup import CHAT, Setup, pressed
from tests.turn.test_anonymous_admin_attacks import written

MALLORY = Person("telegram:6", "Mallory")
"""An admin of the group that Bob has asked something in: the fake platform says so."""


async def test_answering_again_is_charged_to_who_wants_it(database: Database) -> None:
    """Else an admin of a small group could use up the budget of everybody who asks there."""
    setup = make_setup(database, *[["Hi.", DONE]] * 5, limits={PERSON_A_DAY: 8_100})
    await setup.say(make_incoming("hello", author=BOB))
    retry = make_incoming("/retry", key="5:20", author=MALLORY, wake=WakeReason.COMMAND)
    answer = next(reversed(setup.surface.messages))
    quoting = replace(retry, external_key="5:21", quote=Quote(None, answer, ""))
    for again in (pressed(ButtonAction.RETRY, by=MALLORY), quoting, retry):
        await setup.say(again)
        [(_, receipt)] = await Receipts(database).newest(CHAT)
        assert receipt.charge.person == MALLORY.id
    await setup.say(make_incoming("and now?", key="5:40", author=BOB))
    assert setup.texts[-1] == "Hi."
    assert len(setup.backend.prompts) == 5


async def test_answering_again_counts_against_the_rate_of_who_wants_it(database: Database) -> None:
    clock = FakeClock()
    limits = AnswerLimits(
        InProcessRateLimits(clock), clock, per_person=2, per_channel=0, seconds=3600
    )
    setup = Setup(database, clock=clock, pipeline_parts={"limits": limits})
    await setup.say(make_incoming("hello", author=BOB))
    for number in range(3):
        await setup.say(pressed(ButtonAction.RETRY, by=MALLORY, key=f"{number}"))
    assert len(setup.backend.prompts) == 3, "Mallory's third is too much"
    await setup.say(make_incoming("and now?", key="5:40", author=BOB))
    assert len(setup.backend.prompts) == 4


async def test_budget_of_a_group_counts_in_its_topics_and_outside(database: Database) -> None:
    """Else whoever is out of money in the topics goes on beside them."""
    setup = make_setup(
        database, *[["Hi.", DONE]] * 4, limits={(BudgetKind.SERVER, Period.DAY): 4_100}
    )
    in_topic = {"message_thread_id": 7, "is_topic_message": True}
    for number, fields in enumerate(({}, in_topic, {})):
        said = written(number, "hello", **fields)
        await setup.receive(said)
        await setup.work(said.address.conversation)
    assert len(setup.backend.prompts) == 1
    assert "The budget of this server" in setup.texts[1]
    assert "The budget of this server" in setup.texts[2]
    [(_, receipt)] = await Receipts(database).newest("telegram:-100")
    assert receipt.charge.server == "telegram:-100"


@pytest.mark.parametrize("kind", [BudgetKind.CHANNEL, BudgetKind.PERSON])
async def test_budgets_of_another_group_are_not_used(database: Database, kind: BudgetKind) -> None:
    setup = make_setup(database, *[["Hi.", DONE]] * 4, limits={(kind, Period.DAY): 4_100})
    for number in range(3):
        text = f"spend {CHAT} {ALICE.id}"
        await setup.receive(make_incoming(text, key=f"6:{number}", chat="6", author=MALLORY))
        await setup.work("telegram:6")
    assert len(setup.backend.prompts) == 1
    await setup.say(make_incoming("hello", author=ALICE))
    assert setup.texts[-1] == "Hi."

"""Test privacy: deleted messages are in no file any more, and channels do not see each other."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from bot.chat.command import ButtonAction
from bot.chat.incoming import Said, WakeReason
from bot.chat.prompt import ReasoningDelta
from bot.errors import Refused
from bot.storage.database import Database
from bot.storage.receipts import Receipts
from bot.storage.tables import story, story_revision
from tests.attacks import skip_for, with_ours
from tests.fakes import FakeBackend
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.setup import CHAT, Setup, pressed, running_worker
from tests.waiting import wait_until

CANARY = "canary-5e1f0d"
LONG = f"{CANARY} " * 80  # with others of its kind more than a page of the database


@pytest.fixture
def setup(database: Database) -> Setup:
    return Setup(database, [f"So your word is {CANARY}."])


def traces(folder: Path) -> list[str]:
    """Return the files under a folder that contain the canary, in any encoding."""
    forms = [CANARY.encode(), CANARY.encode("utf-16-le"), CANARY.encode("utf-16-be")]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.name for path in files if any(form in path.read_bytes() for form in forms)]


async def forget_deletes_everything(setup: Setup, folder: Path) -> None:
    await setup.say(*[f"{number} {LONG}" for number in range(30)])
    await setup.say(f"/me I am {CANARY}", "/new", make_incoming(LONG, key="5:90", quote=LONG))
    assert traces(folder)

    await setup.say("/forget")

    assert traces(folder) == []
    await setup.say("/me")
    assert setup.texts[-1].startswith("⚠ You have not described yourself")


async def forget_waits_for_the_running_turn(setup: Setup, folder: Path) -> None:
    go_on = asyncio.Event()
    setup.backend = FakeBackend([f"{CANARY} ", go_on, LONG])
    setup = Setup(setup.database, backend=setup.backend)
    await setup.receive(f"say {LONG}")
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        await setup.receive("/forget")
        go_on.set()
        await worker
    assert setup.texts[-1].startswith("Deleted for good: 2 messages")
    assert traces(folder) == []


async def forget_deletes_refused_deliveries(setup: Setup, folder: Path) -> None:
    setup.surface.fail_next("send", *[Refused("they have blocked the bot")] * 3)
    await setup.say(f"say {LONG}")
    await setup.say("/forget")
    assert traces(folder) == []


async def channels_are_separate(setup: Setup, folder: Path) -> None:
    await setup.say(f"my secret is {CANARY}", f"/me I am {CANARY}")
    await _say_elsewhere(setup, make_incoming("what is my secret?", chat="-100", key="-100:1"))
    await _say_elsewhere(
        setup, make_incoming("and in a topic?", chat="-100", thread="5", key="-100:2")
    )
    assert len(setup.backend.prompts) == 3
    for prompt in setup.backend.prompts[1:]:
        assert CANARY not in repr(prompt)


async def answers_are_not_cached_across_users(setup: Setup, folder: Path) -> None:
    """Ask the same question as another user: it is sent to the model again."""
    await setup.say(make_incoming(f"what is {CANARY}?", key="5:1", author=ALICE))
    there = make_incoming(f"what is {CANARY}?", chat="6", key="6:1", author=BOB)
    await _say_elsewhere(setup, there)
    first, second = setup.backend.prompts
    assert (first.asked_by, second.asked_by) == (ALICE.id, BOB.id)
    assert (first.conversation, second.conversation) == (CHAT, "telegram:6")
    assert second.messages[-1].content == f"what is {CANARY}?"


async def forget_keeps_other_channels(setup: Setup, folder: Path) -> None:
    await _say_elsewhere(setup, make_incoming("/me I am Robin", chat="55", key="55:1"))
    await setup.say("/forget")
    await _say_elsewhere(setup, make_incoming("/me", chat="55", key="55:2"))
    assert setup.texts[-1] == "Your description here: I am Robin"


async def forget_me_reaches_a_group_without_the_bot(setup: Setup, folder: Path) -> None:
    """Ask in private, where the bot was removed from the group: nothing can be sent there."""
    setup.surface.fail_next("send", Refused("bot was kicked from the group chat"))
    await _say_elsewhere(setup, make_incoming(f"say {LONG}", chat="-100", key="-100:1"))
    assert traces(folder)
    await setup.say(make_incoming("/forget me", key="5:5", wake=WakeReason.COMMAND))
    await setup.say(pressed(ButtonAction.FORGET, "telegram:5:5/0"))
    await setup.work("telegram:-100")
    assert traces(folder) == []


async def _say_elsewhere(setup: Setup, said: Said) -> None:
    await setup.receive(said)
    await setup.work(said.address.conversation)


async def stories_hold_no_words_of_people(setup: Setup, folder: Path) -> None:
    """Look into what is searched for stories: only the operator's texts get there."""
    await setup.say(LONG, f"/me I am {CANARY}", make_incoming(LONG, key="5:9", quote=LONG))
    found = await setup.database.read(
        lambda c: [c.execute(select(one)).all() for one in (story, story_revision)]
    )
    assert CANARY not in repr(found)
    await forget_deletes_everything(setup, folder)


Scenario = Callable[[Setup, Path], Awaitable[None]]
SCENARIOS: Mapping[str, Scenario] = {
    "/forget me removes rows": forget_deletes_everything,
    "bot kicked from guild": forget_me_reaches_a_group_without_the_bot,
    "/forget while turn runs": forget_waits_for_the_running_turn,
    "/forget: RAG chunks and embeddings": stories_hold_no_words_of_people,
    "/forget: outbox, logs, Redis streams, dead letters": forget_deletes_refused_deliveries,
    "DM content used in group answer": channels_are_separate,
    "cached answer served to other user": answers_are_not_cached_across_users,
}
OWN_SCENARIOS: Mapping[str, Scenario] = {
    "/forget with much to delete": forget_deletes_everything,
    "/forget in the next chat": forget_keeps_other_channels,
    "topic of the same number as a chat": channels_are_separate,
}
ELSEWHERE = {
    "connection-pool mix-up (cancelled Redis read)": (
        "tests/contracts/test_rate_limits.py::"
        "test_cancelled_calls_never_get_the_answer_of_another_call"
    ),
}


@pytest.mark.parametrize(("title", "given"), with_ours("privacy", OWN_SCENARIOS))
async def test_privacy(setup: Setup, tmp_path: Path, title: str, given: Any) -> None:
    scenario = OWN_SCENARIOS.get(title) or SCENARIOS.get(title)
    if scenario is None:
        skip_for(ELSEWHERE[title])
    await scenario(setup, tmp_path)


async def test_tokens_that_the_model_writes_are_masked_everywhere(database: Database) -> None:
    key = "sk-proj-FAKE0000000000000000000000000000"
    pieces = ["The key is ", *(key[at : at + 3] for at in range(0, len(key), 3)), ", keep it."]
    backend = FakeBackend([ReasoningDelta(f"It has {key}."), *pieces])
    setup = Setup(database, backend=backend)
    await setup.say("which key?")
    assert setup.texts == ["The key is ***0000, keep it."]
    assert not any(key[:12] in text for _, text in setup.surface.calls)
    assert (await setup.history())[-1] == ("assistant", "The key is ***0000, keep it.")
    [(_, receipt)] = await Receipts(database).newest(CHAT)
    assert (receipt.answer, receipt.thoughts) == ("The key is ***0000, keep it.", "It has ***0000.")

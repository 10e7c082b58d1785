"""Test /forget me and /export over both platforms' APIs, with the service as a process."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.backends.local_model import lend_model
from tests.support.chats import Chat, DiscordChat, Platforms, TelegramChat
from tests.support.features import ALONE_AND_IN_PAIRS, GROUPS, ON_THE_WIRES, at
from tests.support.model_server import Model
from tests.support.service_process import TESTER, Service
from tests.support.transcripts import expected_answer
from tests.waiting import wait_until

pytestmark = [
    *ON_THE_WIRES,
    pytest.mark.runs_with(
        TESTER,
        TROUPE_PROVIDERS__LOCAL__KIND="llama_cpp",
        TROUPE_PROVIDERS__LOCAL__PARALLEL="1",
        TROUPE_PROVIDERS__LOCAL__THREADS="1",
        TROUPE_PROVIDERS__LOCAL__CONTEXT_TOKENS="1024",
    ),
]

QUESTION = "Delete everything that you said in all channels"
OFF = "You've switched me off for yourself"
FORGET, KEEP = "Forget everything I said", "Keep it"
LOCAL = {
    "name": "keeper",
    "provider": "local",
    "model": "default",
    "system": "You keep the light of a small harbour. " * 10,  # short prompts are not saved
    "busy": "queue",
    "max_output_tokens": 2,
    "max_rounds": 1,
    "summary": {"provider": "test", "model": "m"},
}
"""A local model with summaries and one slot, which is saved when another chat needs it."""


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def local_model(service: Service) -> None:
    await lend_model(service.data)
    (service.presets / "keeper.json").write_text(json.dumps(LOCAL))


expected = Counter[tuple[int, str]]()
"""The private messages expected so far in all tests, by person and beginning."""


async def say(where: Chat, text: str, who: int = 0) -> None:
    """Say something to the bot, and wait for its answer."""
    before = len(where.texts())
    where.tell(text, who)
    await where.wait_until(lambda: where.texts()[before:] == [expected_answer(text)])


async def ask_to_forget(where: Chat) -> None:
    where.tell("/forget me")
    await where.shows_new(QUESTION)


@ALONE_AND_IN_PAIRS
@at(*GROUPS)
async def test_forget_me_asks_first_and_deletes_from_every_channel_even_after_a_kill(
    where: Chat, running: Service, model: Model
) -> None:
    elsewhere = where.another()
    mine, theirs = f"mine-of-{where.kind}", f"theirs-of-{where.kind}"
    await say(where, f"{mine} Ta01:3")
    await say(where, f"{theirs} Ta02:3", who=1)
    await say(elsewhere, f"{mine} Ta03:3")

    await ask_to_forget(where)
    assert mine.encode() in running.stored()
    only_author = "Only the person who asked can use this button."
    assert await where.private_reply(await where.press(FORGET, who=1)) == only_author
    async with running.killed_at("after_commit"):
        await where.press(FORGET)
    await where.shows_new("I'm now deleting everything")
    assert where.buttons()[-1] == []
    await wait_until(lambda: mine.encode() not in running.stored())
    assert theirs.encode() in running.stored()

    for channel, token in ((where, "Ta04:3"), (elsewhere, "Ta05:3")):
        await say(channel, token)
        request = str(model.requests[-1])
        assert token in request
        assert mine not in request
        assert (theirs in request) == (channel is where)


@ALONE_AND_IN_PAIRS
@at(*GROUPS)
async def test_person_can_opt_out_and_in_again(where: Chat, running: Service, model: Model) -> None:
    elsewhere, mine = where.another(), f"own-words-of-{where.kind}"
    await say(where, f"{mine} Te01:3")
    await say(elsewhere, f"{mine} Te02:3")
    if isinstance(where, TelegramChat):
        where.platforms.telegram.chat(where.people[0])  # a private chat with the bot
    where.tell("/settings me off")
    await wait_for_private_message(where, "From now on, I don't store")
    await wait_until(lambda: mine.encode() not in running.stored())

    requests = len(model.requests)
    withheld = where.tell(f"{mine} Te03:3")
    await wait_for_private_message(where, OFF)
    where.edit(withheld, f"{where.mention}{mine} Te04:3")
    where.say(f"{mine} to all")
    async with running.killed_at("after_commit"):
        elsewhere.tell(f"{mine} Te05:3")
    await wait_for_private_message(elsewhere, OFF)
    where.say(f"{where.mention}quoted Te06:3", 1, reply_to=where.id_of(withheld))
    await where.shows_new(expected_answer("Te06:3"))
    sent = str(model.requests[requests:])
    assert "quoted" in sent
    assert mine not in sent
    assert mine.encode() not in running.stored()

    where.tell("/settings me reset")
    await wait_for_private_message(where, "Your choice was deleted")
    await say(where, "again Te07:3")


@at("discord_thread")
async def test_thread_title_is_omitted_once_its_author_opted_out(
    where: DiscordChat, model: Model
) -> None:
    await say(where, "hello Te11:3", who=1)
    assert "plans" in str(model.requests[-1])
    where.tell("/settings me off")
    await wait_for_private_message(where, "From now on, I don't store")
    await say(where, "hello Te12:3", who=1)
    model.requests.clear()
    await where.press("🔄 Retry", 1)
    await wait_until(lambda: model.requests)
    assert "hello Te12:3" in str(model.requests[-1])
    assert "plans" not in str(model.requests[-1])
    where.tell("/settings me reset")
    await wait_for_private_message(where, "Your choice was deleted")


async def wait_for_private_message(where: Chat, beginning: str) -> None:
    """Wait until a person gets another private message that begins like this."""
    person = where.people[0]
    expected[getattr(person, "id", person), beginning] += 1
    times = expected[getattr(person, "id", person), beginning]
    await where.wait_until(
        lambda: sum(one.startswith(beginning) for one in where.private_texts()) == times
    )
    assert not [one for one in where.texts() if one.startswith(beginning)]


@ALONE_AND_IN_PAIRS
@at(*GROUPS)
async def test_privacy_notice_is_shown_to_the_asker_only(where: Chat, running: Service) -> None:
    if isinstance(where, TelegramChat):
        where.platforms.telegram.chat(where.people[0])  # a private chat with the bot
    where.tell_as_admin(f"/privacy edit Ask {where.name}.")
    await where.shows_new("/privacy now also says: ")
    await running.restart()
    where.tell("/privacy")
    await wait_for_private_message(where, "What I do with what you write here:")
    assert any(one.endswith(f"Ask {where.name}.") for one in where.private_texts())


async def test_forget_me_clears_summaries_and_slots(running: Service, platforms: Platforms) -> None:
    where, other = platforms.telegram_dm(), platforms.telegram_dm()

    def summaries() -> list[str]:
        return [text for (text,) in running.query("SELECT text FROM summary")]

    def saved_slots() -> list[Path]:
        return list((running.data / "slots").glob("*"))

    for chat in (where, other):
        chat.say("/preset use keeper")
    for _ in range(4):
        where.say("Remember Tadded5ea:3")
    await wait_until(lambda: expected_answer("Tadded5ea:3") in summaries())
    other.say("Good evening")
    await wait_until(lambda: len(saved_slots()) == len((".state", ".ids")))

    await ask_to_forget(where)
    assert b"Tadded5ea" in running.stored()
    await where.press(FORGET)
    await wait_until(
        lambda: not (summaries() or saved_slots() or b"added5ea" in running.stored()), 60
    )


@at(*GROUPS)
async def test_forget_me_confirmation_expires(where: Chat, running: Service) -> None:
    mine = f"late-of-{where.kind}"
    await say(where, f"{mine} Td01:3")
    await ask_to_forget(where)
    question = where.bot_messages()[-1]
    async with running.killed_at("after_commit"):
        where.tell("hello Td02:3", 1)  # it may be answered before the press
    late = await where.press(FORGET, message=question, seconds_later=1000)
    refusal = "This button expired after 15 minutes, so nothing was deleted. Send /forget me again."
    assert await where.private_reply(late) == refusal
    assert mine.encode() in running.stored()


async def test_operator_can_delete_the_data_of_a_channel(
    running: Service, platforms: Platforms
) -> None:
    gone, kept = platforms.channel(), platforms.telegram_group()
    await say(gone, "of-the-left-server Tc01:3")
    await say(kept, "of-another-group Tc02:3")
    printed = await running.run_command("forget", "--channel", gone.name)
    assert printed == f"conversations in which {gone.name} will be forgotten: 1\n"
    await wait_until(lambda: b"of-the-left-server" not in running.stored())
    assert b"of-another-group" in running.stored()


async def test_export_on_telegram_is_sent_in_private(
    running: Service, platforms: Platforms
) -> None:
    wire, group, alone = platforms.telegram, platforms.telegram_group(), platforms.telegram_dm()
    group.people = [alone.chat, group.people[1]]
    await say(group, "in the group Tc01:3")
    await say(group, "by somebody else Tc02:3", who=1)
    await say(alone, "in private Tc03:3")

    wire.fault("sendDocument", drop=True, after=True, match={"chat_id": alone.chat})
    group.say(f"/export@{wire.me['username']}")
    await wait_until(alone.documents)
    [sent] = alone.documents()
    assert sent["caption"] == "Everything you said to me: 2 messages."
    _, data = wire.files[sent["document"]["file_id"]]
    assert exported_texts(data) == ["in the group Tc01:3", "in private Tc03:3"]
    assert not group.documents()
    alone.say("/export")
    await wait_until(lambda: len(alone.documents()) == 2)
    printed = await running.run_command("export", "--user", alone.name)
    assert exported_texts(printed) == exported_texts(data)


@at("channel")
async def test_export_on_discord_is_visible_to_its_author_only(where: DiscordChat) -> None:
    wire, who = where.platforms.discord, where.people[1]
    await say(where, "in the channel Td01:3", who=1)
    await say(where, "by somebody else Td02:3", who=0)
    other = where.platforms.channel()
    response = await other.slash(who, "export")
    assert response.ephemeral
    assert response.content.startswith("Everything you said to me:")
    [file] = response.attachments
    words = exported_texts(wire.b.cdn.get(file.url))
    assert "in the channel Td01:3" in words
    assert not [one for one in words if "by somebody else Td02" in one]
    assert other.texts() == []


def exported_texts(data: Any) -> list[str]:
    """Return the texts of the messages in an export."""
    return [one["text"] for one in json.loads(data)["messages"]]

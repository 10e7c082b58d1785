"""Test presets for adults, and reactions to answers, on both platforms and across restarts."""

import json

import pytest
from simcord.results import ResponseMessage

from tests.support.chats import AT_ONCE, Chat, DiscordChat, TelegramChat
from tests.support.features import ALONE_AND_IN_PAIRS, EVERYWHERE, GROUPS, ON_THE_WIRES, PRIVATE, at
from tests.support.model_server import Model
from tests.support.service_process import TESTER, Service
from tests.waiting import wait_until

pytestmark = [*ON_THE_WIRES, pytest.mark.runs_with(TESTER)]
filter_adult_speakers = pytest.mark.runs_with(
    json.dumps({**json.loads(TESTER), "adults_only": True})
)


@ALONE_AND_IN_PAIRS
@filter_adult_speakers
@at(*PRIVATE)
async def test_age_is_confirmed_once_in_private(
    where: Chat, running: Service, model: Model
) -> None:
    question = where.ask()
    asked = "⚠ tester is for adults only. Are you 18 or older?"
    await where.shows(asked, labels=["I am 18 or older"])
    assert question.name not in str(model.requests)
    await running.restart()
    await where.press("I am 18 or older")
    await where.shows(question)
    await running.restart()
    await where.shows(question, where.ask())


@ALONE_AND_IN_PAIRS
@filter_adult_speakers
@at("channel")
async def test_preset_for_adults_answers_only_in_age_restricted_channels(
    where: DiscordChat, running: Service
) -> None:
    where.ask()
    told = (
        "⚠ tester is for adults only: it answers only in age-restricted channels, and this channel"
        " is not age-restricted."
    )
    await where.shows(told)
    where.platforms.discord.restrict_to_adults(where.chat)
    await running.restart()
    await where.shows(told, where.ask())


@ALONE_AND_IN_PAIRS
@filter_adult_speakers
@at("telegram_group")
async def test_admin_can_allow_presets_for_adults_in_a_group(
    where: TelegramChat, running: Service
) -> None:
    where.ask()
    await where.shows_new("⚠ tester is for adults only. To use it here, an admin has to write")
    where.tell_as_admin("/access adult on")
    await where.shows_new("Presets for adults now answer here.")
    await running.restart()
    await where.ask_and_wait()


@ALONE_AND_IN_PAIRS
@at(*EVERYWHERE)
async def test_newest_reaction_to_an_answer_is_stored(where: Chat, running: Service) -> None:
    if isinstance(where, TelegramChat) and where.kind in GROUPS:
        where.make_admins(where.platforms.telegram.me["id"])

    def stored_reactions() -> list[str]:
        rows = running.query(
            "SELECT reaction FROM feedback JOIN receipt ON id = receipt WHERE conversation = ?",
            where.name,
        )
        return [row[0] for row in rows]

    await where.shows(where.ask())
    await wait_until(running.queues_are_empty)  # nobody reacts before the answer counts as sent
    await where.react("👍🏽" if isinstance(where, DiscordChat) else "👍")
    await wait_until(lambda: stored_reactions() == ["👍"])
    await running.restart()
    await where.react("👎")
    await wait_until(lambda: stored_reactions() == ["👎"])
    await where.react()
    await wait_until(lambda: stored_reactions() == [])


@ALONE_AND_IN_PAIRS
@at("channel", "discord_thread")
async def test_asker_can_retry_and_delete_an_answer_by_reaction(
    where: DiscordChat, running: Service, model: Model
) -> None:
    question = where.ask()
    await where.shows(question, labels=AT_ONCE)
    await wait_until(running.queues_are_empty)  # nobody reacts before the answer counts as sent
    await running.restart()
    asked = len(model.requests)
    await where.react("🔁", who=1)
    await where.react("🗑️", who=1)
    await where.react("🔁")
    await where.shows(question, labels=[*AT_ONCE, "‹", "2/2"])
    assert len(model.requests) == asked + 1
    await where.react("🗑️")
    await where.shows()


@ALONE_AND_IN_PAIRS
@pytest.mark.runs_with(TESTER, TROUPE_ADMINS="telegram:3")
@at("telegram_group")
async def test_reported_answer_reaches_the_operator_once(
    where: TelegramChat, running: Service
) -> None:
    wire, question = where.platforms.telegram, where.ask()
    await where.shows(question)
    wire.say(3, "/start", chat=3)
    await wait_until(lambda: wire.msgs[3])
    await running.kill()
    where.reply("/report")
    await running.restart()

    def notes() -> list[str]:
        texts = [str(one.get("text", "")) for one in wire.msgs[3].values()]
        return [one for one in texts if question.answer in one]

    await wait_until(notes)
    await running.restart()
    await wait_until(running.queues_are_empty)
    [note] = notes()
    assert f"reported an answer by tester in {where.name} (receipt" in note
    assert not [one for one in where.texts() if "reported" in one]


@ALONE_AND_IN_PAIRS
@at("channel")
async def test_report_is_in_the_menu_of_a_message(where: DiscordChat, running: Service) -> None:
    platforms = where.platforms
    await running.run_with(TESTER, TROUPE_ADMINS=f"discord:{platforms.admin.id}")
    await where.shows(where.ask())  # a restarted pair receives nothing until its leases expire
    await wait_until(running.queues_are_empty)  # the answer is stored
    shown = ResponseMessage(platforms.discord.env, where.bot_messages()[-1])
    called = await where.people[1].context_menu(where.handle, "Report", shown)
    await wait_until(lambda: called.response and called.response.content)
    assert called.response.content == "Thank you. The people who run me will see your report."
    assert called.ephemeral
    chat = platforms.discord.b.get_dm_channel(platforms.admin.id).id
    told = platforms.discord.messages
    await wait_until(lambda: [one for one in told(chat) if "reported an answer" in one["content"]])

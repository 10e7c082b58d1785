"""Test edits and deletions by people on both platforms, with the service as a process."""

import pytest

from tests.support.chats import Chat, DiscordChat, TelegramChat
from tests.support.features import EVERYWHERE, GROUPS, ON_THE_WIRES, at
from tests.support.model_server import Model
from tests.support.service_process import Service
from tests.support.transcripts import expected_answer
from tests.waiting import wait_until

pytestmark = [*ON_THE_WIRES, pytest.mark.usefixtures("reads_all_messages")]


@at(*EVERYWHERE)
async def test_edited_question_is_answered_again(where: Chat, model: Model) -> None:
    asked = where.ask("aa01")
    await where.shows(asked)
    where.edit(asked.message, f"{where.mention}please Taa02:9")
    second = expected_answer("Taa02:9")
    await where.shows(second)
    later = where.ask("aa03")
    await where.shows(second, later)
    prompt = str(model.asked_about("Taa03")[-1])
    assert "Taa02" in prompt
    assert "Taa01" not in prompt

    where.edit(later.message, f"{where.mention}please Taa04:700")  # longer than one message
    await where.wait_until(lambda: " ".join(where.texts()[1:]) == expected_answer("Taa04:700"))
    where.edit(later.message, f"{where.mention}please Taa05:3")
    await where.shows(second, expected_answer("Taa05:3"))


@at(*EVERYWHERE)
async def test_edit_during_an_answer_supersedes_it(where: Chat, model: Model) -> None:
    with model.held():
        async with model.reaching_half():
            asked = where.ask(words=40)
        before = len(model.asked_about("Tbb02"))
        where.edit(asked.message, f"{where.mention}please Tbb02:9")
        await wait_until(lambda: len(model.asked_about("Tbb02")) > before)
    await where.shows(expected_answer("Tbb02:9"))


@at(*GROUPS)
async def test_answer_is_withdrawn_when_the_mention_is_removed(where: Chat, model: Model) -> None:
    first = where.ask()
    await where.shows(first)
    where.edit(first.message, f"please {first.token}")  # it reads the same without the mention
    await where.shows()
    second = where.ask()
    await where.shows(second)
    assert f"please {first.token}" in model.newest_message(second.token)  # as background
    third = where.ask()
    await where.shows(second, third)
    where.edit(third.message, "never mind")
    await where.shows(second)


@at("channel")
async def test_deleted_messages_are_forgotten(where: DiscordChat, model: Model) -> None:
    wire = where.platforms.discord
    first, second = where.ask("ee01"), where.ask("ee02")
    await where.shows(first, second)
    wire.delete(where.chat, first.message.id)
    others = [one.id for one in where.bot_messages()]
    wire.b.bulk_delete_messages(where.chat, others)
    await where.shows(where.ask("ee03"))
    prompt = str(model.asked_about("Tee03")[-1])
    assert "Tee02" in prompt
    assert "Tee01" not in prompt
    assert "REee02" not in prompt


@at("channel", "discord_dm")
async def test_question_deleted_before_its_answer_is_complete_is_withdrawn(
    where: DiscordChat, model: Model, service: Service
) -> None:
    wire = where.platforms.discord
    with model.held():
        async with model.reaching_half():
            asked = where.ask(words=40)
        await where.shows_new()
        waiting, last = where.ask(), where.ask()
        wire.delete(where.chat, waiting.message.id)
        wire.delete(where.chat, asked.message.id)
        await wait_until(lambda: model.asked_about(last.token))
    await where.shows(last)
    assert not model.asked_about(waiting.token)
    assert asked.token.encode() not in service.stored()
    assert last.token.encode() in service.stored()


@at("telegram_dm")
async def test_forget_as_a_reply_deletes_a_message_on_telegram(
    where: TelegramChat, model: Model, service: Service
) -> None:
    asked = where.ask()
    await where.shows(asked)
    where.say("/forget", reply_to=asked.message["message_id"])
    forgotten = "I have forgotten that message and everything that was stored about it."
    await where.shows(asked, forgotten)
    later = where.ask()
    await where.shows(asked, forgotten, later)
    assert f"please {asked.token}" not in str(model.asked_about(later.token)[-1])
    assert f"please {asked.token}".encode() not in service.stored()
    assert f"please {later.token}".encode() in service.stored()

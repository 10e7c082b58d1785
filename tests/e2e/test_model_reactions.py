"""Test models that react to a message instead of answering, over both platforms' APIs."""

import pytest

from tests.support.chats import Chat, DiscordChat, reactions
from tests.support.features import ON_THE_WIRES, at
from tests.support.model_server import Model
from tests.support.service_process import Service, preset_json

REACTING = preset_json("tester", system="You are a tester.", busy="queue", tools=["react"])
pytestmark = [*ON_THE_WIRES, pytest.mark.runs_with(REACTING)]
INVALID = "Bad Request: REACTION_INVALID"


@at("channel", "telegram_group", "telegram_dm")
@pytest.mark.parametrize("point", ["before_finish", "after_finish", "after_take", "after_http"])
async def test_reaction_in_place_of_an_answer_survives_a_kill(
    where: Chat, running: Service, model: Model, point: str
) -> None:
    model.reaction = "👍🏽"
    async with running.killed_at(point):
        question = where.ask()
    number = where.id_of(question.message)
    await where.wait_until(lambda: reactions(where, number))
    model.reaction = ""
    await where.ask_and_wait()
    shown = "👍🏽" if isinstance(where, DiscordChat) else "👍"
    assert reactions(where, number) == [shown]
    assert len(where.texts()) == 1
    said = [one["content"] for one in model.requests[-1]["messages"]]
    assert f"[reacted with {shown}]" in said


@at("channel", "telegram_group")
async def test_model_answers_in_words_if_its_reaction_is_refused(
    where: Chat, running: Service, model: Model
) -> None:
    model.reaction = "🦖🦖"
    question = where.ask()
    refused = "that emoji is not available here"
    await where.wait_until(lambda: any(refused in str(one["messages"]) for one in model.requests))
    model.reaction = ""
    await where.shows(question)
    assert reactions(where, where.id_of(question.message)) == []


@at("channel", "telegram_group", "telegram_dm")
@pytest.mark.parametrize("point", ["after_take", "after_http"])
async def test_reaction_that_the_platform_refuses_is_sent_as_text(
    where: Chat, running: Service, model: Model, point: str
) -> None:
    wire = where.platforms
    wire.discord.fault("PUT", "/channels/*/reactions/*", times=None, status=403, code=90001)
    wire.telegram.fault("setMessageReaction", times=9, error_code=400, description=INVALID)
    model.reaction = "👍"
    async with running.killed_at(point):
        where.ask()
    await where.shows("👍")
    wire.end_faults()
    model.reaction = ""
    await where.ask_and_wait()
    assert len(where.texts()) == 2

"""Test long, stopped, concurrent, and refused answers, over the APIs of both platforms."""

import pytest

from tests.support.chats import DELETE, Chat, DiscordChat, Platforms, TelegramChat
from tests.support.features import GROUPS, ON_THE_WIRES, PRIVATE, at
from tests.support.model_server import Model
from tests.support.service_process import TESTER, Service, preset_json
from tests.waiting import wait_until

pytestmark = ON_THE_WIRES

LONG = 1300  # words: more than one message on both platforms
in_threads = pytest.mark.runs_with(preset_json("tester", busy="queue", long_answer="thread"))
with_thoughts = pytest.mark.runs_with(preset_json("tester", busy="queue", thoughts="folded"))
one_at_a_time = pytest.mark.runs_with(TESTER, TROUPE_LIMITS__CONVERSATIONS_AT_ONCE="1")
strictly_paced = pytest.mark.runs_with(TESTER, TROUPE_DELIVERY__PACING="strict")
# An interval that no slow machine reaches: the fourth message is not answered.
three_an_hour = pytest.mark.runs_with(
    TESTER, TROUPE_LIMITS__ANSWERS_PER_PERSON="3", TROUPE_LIMITS__SECONDS="3600"
)


# --- /stop ---------------------------------------------------------------------------------------


@at(*PRIVATE)
async def test_stopped_answer_keeps_the_text_that_was_shown(where: Chat, model: Model) -> None:
    with model.held():
        async with model.reaching_half():
            question = where.ask()
        await where.wait_until_begun(question)
        async with model.hanging_up():
            where.say("/stop")
        await where.wait_until(lambda: len(where.texts()) == 2)
    shown = question.answer[: len(question.answer) // 2].strip()
    told = [f"{shown}\n\n⚠ (stopped)", "Stopped. /retry answers again."]
    await where.shows(*told)
    where.say("/retry")
    await where.shows(*told, question)
    where.say("/undo")
    taken_back = f"Removed from the conversation: “please {question.token}” and its answer."
    await where.shows(*told, question, taken_back)


# --- thoughts ------------------------------------------------------------------------------------


@with_thoughts
@at(*GROUPS)
async def test_thoughts_are_folded_under_answers(where: Chat, model: Model) -> None:
    model.thoughts = ("They want ", "a ||list||, ", "says @alice.")
    model.grow_slowly()
    question = where.ask()
    if isinstance(where, DiscordChat):
        shown = f"{question.answer}\n💭 ||They want a |\u200b|list|\u200b|, says @alice.||"
        await where.shows(shown)
        said = [one["json"] for one in where.platforms.discord.log if isinstance(one["json"], dict)]
        thinking = {one["content"] for one in said if "They want" in str(one.get("content"))}
        assert thinking == {shown}
        return
    await where.wait_until(lambda: "💭" in "".join(where.texts()))
    [message] = where.bot_messages()
    above, _, below = message["text"].partition("💭 ")
    assert above == f"{question.answer}\n\n"
    assert below.startswith("They want")
    assert "@" not in below
    quote = message["entities"][-1]
    # The sign is two units, and a space follows.
    size = (len(above), len(below) + 3)
    assert (quote["type"], quote["offset"], quote["length"]) == ("expandable_blockquote", *size)


# --- long answers --------------------------------------------------------------------------------


def in_channel(where: DiscordChat) -> list[str]:
    """Return the bot's texts in a channel, without the platform's messages about threads."""
    return [one.content for one in where.bot_messages() if one.type in {0, 19}]


def thread_of(where: DiscordChat) -> DiscordChat | None:
    """Return the thread under the bot's first message in a channel, if any."""
    backend = where.platforms.discord.b
    opened = [one.id for one in where.bot_messages() if one.id in backend.channels]
    people = where.people
    return DiscordChat(where.platforms, "discord_thread", opened[0], people) if opened else None


def in_thread(where: DiscordChat) -> list[str]:
    thread = thread_of(where)
    return in_channel(thread) if thread else []


@in_threads
@at("channel")
@pytest.mark.parametrize("fault", ["none", "opening lost", "message lost", "killed"])
async def test_long_answer_continues_in_one_thread(
    where: DiscordChat, running: Service, fault: str
) -> None:
    wire = where.platforms.discord
    if fault == "opening lost":
        wire.fault("POST", "/channels/*/threads", drop=True, after=True)
    elif fault in {"message lost", "killed"}:
        wire.fault("POST", "/channels/*/messages", drop=True, after=True, times=2)
    begun = len(wire.log)
    question = where.ask(words=LONG)
    if fault == "killed":
        await wait_until(lambda: any(one["status"] == "dropped" for one in wire.log[begun:]))
        await running.kill()
        wire.faults.clear()
        await running.start_and_wait()
    await where.wait_until(
        lambda: " ".join([*in_channel(where), *in_thread(where)]) == question.answer
    )
    assert len(in_channel(where)) == 1
    assert len(in_thread(where)) > 1


@in_threads
@at("channel")
async def test_thread_continues_without_a_mention(where: DiscordChat, model: Model) -> None:
    long = where.ask(words=LONG)
    await where.wait_until(lambda: len(in_thread(where)) > 1)
    thread = thread_of(where)
    assert thread is not None
    thread.mention = ""
    await thread.ask_and_wait(who=1)
    assert long.token in str(model.requests[-1]["messages"])


@in_threads
@at("channel", "discord_thread")
@pytest.mark.parametrize("blocks", ["the message", "an edit"])
async def test_automod_refusal_is_reported(where: DiscordChat, model: Model, blocks: str) -> None:
    wire, path = where.platforms.discord, f"/channels/{where.chat}/messages"
    if blocks == "an edit":
        wire.fault("PATCH", f"{path}/*", status=400, code=200000)
        model.gate.clear()
    else:
        wire.fault("POST", path, status=400, code=200000)
    where.ask(words=30)
    await where.shows_new()
    model.gate.set()
    await where.wait_until(lambda: "AutoMod" in str(where.texts()))
    [notice] = [one for one in wire.messages(where.chat) if one["author"].get("bot")]
    assert notice["message_reference"]["channel_id"] == str(where.chat)
    await where.ask_and_wait()


# --- limits --------------------------------------------------------------------------------------


@three_an_hour
@at(*GROUPS)
async def test_person_over_the_limit_gets_one_notice_while_others_are_answered(where: Chat) -> None:
    notice = (
        "That is more than 3 messages in 3600 s. I have read your message, but will not answer it."
        " Please write again in "
    )
    shown = [(await where.ask_and_wait()).answer for _ in range(3)]
    where.ask()
    told = await where.shows_new(notice)
    where.ask()
    await where.shows(*shown, told, where.ask(who=1))


@one_at_a_time
async def test_commands_and_deletions_do_not_wait_for_answer_slots(
    running: Service, platforms: Platforms, model: Model
) -> None:
    """Test commands, and Delete buttons."""
    asked, waiting, told = map(platforms.open, ("telegram_group", "channel", "telegram_dm"))
    pressed = [platforms.open(kind) for kind in ("telegram_dm", "channel")]
    for where in pressed:
        where.ask()
        await where.wait_until(lambda: DELETE in (where.buttons() or [[]])[-1])  # noqa: B023
    answered = model.halfway
    with model.held():
        async with model.reaching_half():
            first = asked.ask(words=40)
        second = waiting.ask()
        told.say("/help")
        await told.shows_new()
        for where in pressed:
            await where.press(DELETE)
            await where.shows()
        assert waiting.texts() == []
        assert model.halfway == answered + 1
    await waiting.shows(second)
    await asked.shows(first)


@strictly_paced
@at("telegram_dm")
async def test_private_chat_gets_at_most_ten_calls_in_ten_seconds(where: TelegramChat) -> None:
    await where.shows(*[where.ask() for _ in range(12)])
    calls = [
        one["t"]
        for one in where.platforms.telegram.log
        if one["method"].lower() in {"sendmessage", "editmessagetext"}
        and str(one["params"].get("chat_id")) == str(where.chat)
    ]
    assert len(calls) >= 12
    spans = [after - before for before, after in zip(calls, calls[10:], strict=False)]
    # On the server's clock, calls that were longer under way may stand closer.
    assert min(spans) >= 10 - 0.5

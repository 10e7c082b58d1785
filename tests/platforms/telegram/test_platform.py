"""Test that polling stores each message exactly once, despite outages, kills and conflicts."""

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from bot.chat.command import CommandSpec
from bot.chat.incoming import (
    Address,
    ButtonPress,
    ChatJoin,
    IncomingMessage,
    MediaKind,
    MessageEdit,
    WakeReason,
)
from bot.chat.outgoing import Attachment, MessageContent, OutgoingMessage
from bot.commands.handlers import COMMANDS
from bot.errors import PlatformError
from bot.platforms.telegram.command_menu import to_bot_commands
from bot.platforms.telegram.platform import offset_cursor_name
from tests.platforms.telegram.conftest import Rig
from tests.platforms.telegram.messages import WIRE_FORMS
from tests.waiting import wait_until

pytestmark = pytest.mark.service

ALICE, GROUP, FORUM = 5, -100, -200


async def test_privacy_mode_delivers_only_messages_for_the_bot(rig: Rig) -> None:
    async with rig.running() as bot:
        rig.telegram.say(ALICE, "among ourselves", chat=GROUP)
        rig.telegram.say(ALICE, "🌟 @sim_bot hello", chat=GROUP)
        await rig.wait_for_texts("🌟 @sim_bot hello")
        answer = await bot.surface.send(
            OutgoingMessage(Address("telegram", str(GROUP)), MessageContent("hi"), nonce="")
        )
        rig.telegram.say(ALICE, "and you?", chat=GROUP, reply_to=int(answer))
        await rig.wait_for_texts("and you?")

    assert [incoming.wake for incoming in rig.intake.received] == [
        WakeReason.MENTION,
        WakeReason.REPLY,
    ]
    quote = rig.intake.received[1].quote
    assert quote is not None
    assert (quote.text, quote.is_ours) == ("hi", True)


async def test_unknown_command_in_a_group_is_not_for_the_bot(rig: Rig) -> None:
    async with rig.running():
        for text in ("/weather Berlin", "/weather@sim_bot Berlin", "/help", "/start"):
            rig.telegram.say(ALICE, text, chat=GROUP)
        rig.telegram.say(ALICE, "/weather Rome")
        await rig.wait_for_texts(
            "/weather Berlin", "/weather Berlin", "/help", "/start", "/weather Rome"
        )

    command = WakeReason.COMMAND
    wakes = [incoming.wake for incoming in rig.intake.received]
    assert wakes == [None, command, command, command, command]


async def test_batch_keeps_its_order_and_moves_the_cursor_once(rig: Rig) -> None:
    for number in range(30):
        rig.telegram.say(ALICE, f"line {number}")

    async with rig.running():
        await rig.wait_for_texts(*(f"line {number}" for number in range(30)))

    assert rig.intake.stored == {offset_cursor_name(""): "1031"}


async def test_updates_of_a_lost_response_are_delivered_once(rig: Rig) -> None:
    async with rig.running():
        await rig.wait_for_poll()
        rig.telegram.fault("getUpdates", drop=True, after=True)
        rig.telegram.say(ALICE, "tick")
        await rig.wait_for_texts("tick")
        rig.telegram.say(ALICE, "tock")
        await rig.wait_for_texts("tock")

    assert not rig.telegram.faults
    assert rig.intake.texts == ["tick", "tock"]


@pytest.mark.parametrize(
    "outage",
    [
        {"error_code": 502, "description": "Bad Gateway"},
        {"raw": "<html>502 Bad Gateway</html>"},
        {"drop": True},
        {"raw": '{"ok": false}'},
        {"retry_after": 3},
    ],
    ids=["502 json", "502 html", "cut connection", "no description", "flood control"],
)
async def test_polling_resumes_after_an_outage(rig: Rig, outage: dict[str, object]) -> None:
    rig.telegram.fault("getUpdates", times=8, **outage)
    rig.telegram.say(ALICE, "during the outage")

    async with rig.running() as bot:
        await rig.telegram.wait(lambda: bot.connection_error not in {None, "not connected yet"})
        await rig.wait_for_texts("during the outage")
        assert bot.connection_error is None

    growing = [0.25, 0.5, 1, 2, 4, 5, 5, 5]
    assert rig.clock.slept == ([3] * 8 if "retry_after" in outage else growing)


async def test_polling_starts_after_an_initial_outage(rig: Rig) -> None:
    rig.telegram.fault("getMe", times=2, raw="<html>502</html>")
    rig.telegram.fault("deleteWebhook", error_code=500)
    rig.telegram.fault("getMyCommands", error_code=500)
    rig.telegram.fault("setMyCommands", error_code=400)

    async with rig.running():
        rig.telegram.say(ALICE, "hello")
        await rig.wait_for_texts("hello")


async def test_first_poll_after_an_outage_is_short(rig: Rig) -> None:
    rig.telegram.fault("getUpdates", error_code=502)

    async with rig.running(poll_seconds=30) as bot:
        await rig.telegram.wait(lambda: len(rig.calls("getUpdates")) == 3)
        assert bot.connection_error is None

    assert [call["timeout"] for call in rig.calls("getUpdates")][:3] == [30, 0, 30]


async def test_unstored_messages_are_not_acknowledged(rig: Rig) -> None:
    rig.intake.failures = math.inf
    rig.telegram.say(ALICE, "hello")

    async with rig.running() as bot:
        await rig.telegram.wait(lambda: rig.intake.failed >= 3)
        assert bot.connection_error == "messages cannot be stored: the disk is full"
        assert len(rig.calls("getUpdates")) == 1
        rig.intake.failures = 0
        await rig.wait_for_texts("hello")
        await rig.wait_for_poll()
        assert bot.connection_error is None

    assert rig.intake.texts == ["hello"]


async def test_kill_before_or_after_storing_neither_loses_nor_repeats_messages(rig: Rig) -> None:
    rig.intake.failures = math.inf
    rig.telegram.say(ALICE, "one")
    async with rig.running():
        await rig.telegram.wait(lambda: rig.intake.failed)
    rig.intake.failures = 0
    async with rig.running():
        await rig.wait_for_texts("one")
    rig.telegram.say(ALICE, "two")
    async with rig.running():
        await rig.wait_for_texts("one", "two")

    assert rig.intake.texts == ["one", "two"]


async def test_lower_update_ids_are_accepted(rig: Rig) -> None:
    async with rig.running():
        rig.telegram.say(ALICE, "before the quiet week")
        await rig.wait_for_texts("before the quiet week")
        await rig.wait_for_poll()
        rig.telegram.uid = 17
        rig.telegram.say(ALICE, "after it")
        await rig.wait_for_texts("after it")

    assert rig.intake.stored == {offset_cursor_name(""): "19"}


async def test_invalid_update_does_not_hide_the_next_update(rig: Rig) -> None:
    rig.telegram.push({"message": {"message_id": "canary", "date": 1}})
    rig.telegram.say(ALICE, "hello")

    with capture_logs() as logs:
        async with rig.running():
            await rig.wait_for_texts("hello")

    skipped = [entry for entry in logs if entry["event"] == "telegram_parts_skipped"]
    assert [(entry["update_id"], entry["fields"][-1]) for entry in skipped] == [(1001, "message")]
    assert "canary" not in str(skipped)


UNKNOWN = {"type": "hologram", "hologram": {"file_id": "x"}}
PERSON = {"id": ALICE, "is_bot": False, "first_name": "Alice"}
OLDER = {"message_id": 3, "date": 1, "chat": {"id": ALICE, "type": "private"}, "from": PERSON}


@pytest.mark.parametrize("part", WIRE_FORMS["unknown_parts"], ids=lambda part: next(iter(part)))
async def test_message_with_an_unknown_part_keeps_its_text(rig: Rig, part: dict[str, Any]) -> None:
    rig.telegram.say(ALICE, "hello", **part)
    rig.telegram.say(ALICE, "next")
    async with rig.running():
        await rig.wait_for_texts("hello", "next")
    [first, _] = rig.intake.received
    assert (first.author.id, first.wake) == (f"telegram:{ALICE}", WakeReason.DM)


async def test_poll_message_from_an_older_server_is_read(rig: Rig) -> None:
    options = [{"text": "yes", "voter_count": 0}]
    poll = {"id": "1", "question": "Tea?", "options": options, "total_voter_count": 0}
    poll |= {"is_closed": False, "is_anonymous": True, "type": "regular"}
    rig.telegram.push({"message": {**OLDER, "poll": {**poll, "allows_multiple_answers": False}}})
    async with rig.running():
        await rig.wait_for_texts("[poll] Tea?\n- yes")


async def test_forward_with_an_unknown_origin_stays_a_forward(rig: Rig) -> None:
    rig.telegram.say(ALICE, "/new", forward_origin={**UNKNOWN, "date": 1})
    async with rig.running():
        await rig.wait_for_texts("[forwarded message]\n> /new")
    assert rig.intake.received[0].is_forward


async def test_press_of_a_button_below_an_unknown_message_is_received(rig: Rig) -> None:
    message = {**OLDER, "reply_to_message": {**OLDER, "chat": UNKNOWN}}
    query = {"id": "9", "from": PERSON, "chat_instance": "1", "data": "x", "message": message}
    rig.telegram.push({"callback_query": query})
    rig.telegram.say(ALICE, "next")
    async with rig.running():
        await rig.wait_for_texts("next")
    assert [one.message_id for one in rig.intake.events] == ["3", "1"]


async def test_update_that_cannot_be_converted_does_not_hide_the_next_update(rig: Rig) -> None:
    rig.telegram.say(ALICE, "first")
    [first] = rig.telegram.msgs[ALICE].values()
    rig.telegram.push({"edited_message": {**rig.telegram._out(first), "edit_date": 10**15}})
    rig.telegram.say(ALICE, "hello")

    with capture_logs() as logs:
        async with rig.running():
            await rig.wait_for_texts("first", "hello")

    skipped = [entry for entry in logs if entry["event"] == "telegram_update_skipped"]
    assert [entry["update_id"] for entry in skipped] == [1002]
    assert "first" not in str(skipped)


async def test_text_with_half_a_character_does_not_hide_the_next_message(rig: Rig) -> None:
    rig.telegram.say(ALICE, "half \ud83d")
    rig.telegram.say(ALICE, "whole \U0001f600 and \\ud83d")

    async with rig.running():
        await rig.wait_for_texts("half ?", "whole \U0001f600 and \\ud83d")


async def test_webhook_is_removed_and_its_updates_are_kept(rig: Rig) -> None:
    rig.telegram.wh = {"url": "http://127.0.0.1:9/gone", "secret": None}
    rig.telegram.say(ALICE, "for the webhook")

    async with rig.running():
        await rig.wait_for_texts("for the webhook")


async def test_polling_conflict_is_reported_and_backs_off(rig: Rig) -> None:
    rig.telegram.fault(
        "getUpdates", times=9, error_code=409, description="Conflict: terminated by other"
    )

    async with rig.running() as bot:
        await rig.telegram.wait(lambda: "another process" in (bot.connection_error or ""))
        rig.telegram.say(ALICE, "hello")
        await rig.wait_for_texts("hello")
        assert bot.connection_error is None

    assert rig.clock.slept == [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30]


async def test_server_that_ignores_timeout_and_offset_is_asked_once_a_second(rig: Rig) -> None:
    rig.telegram.say(ALICE, "one")
    [update] = rig.telegram.updates
    answers = [[], [], [{"foo": 1}], [update], [update], [update]]
    wait_for_updates = rig.telegram._poll

    async def poll(*given: Any) -> Any:
        return answers.pop(0) if answers else await wait_for_updates(*given)

    rig.telegram._poll = poll
    async with rig.running():
        await wait_until(lambda: len(rig.clock.slept) == 5)
        rig.telegram.say(ALICE, "two")
        await rig.wait_for_texts("one", "two")
    assert rig.clock.slept == [1, 1, 1, 1, 1]


async def test_first_upload_does_not_interrupt_other_calls(rig: Rig) -> None:
    with capture_logs() as logs:
        async with rig.running(poll_seconds=30) as bot:
            await rig.wait_for_poll()
            file = Attachment("answer.md", "all of it")
            where, content = Address("telegram", str(ALICE)), MessageContent("here")
            rig.telegram.say(ALICE, "hello")
            await rig.wait_for_texts("hello")
            await rig.wait_for_poll()
            await bot.surface.send(OutgoingMessage(where, content, nonce="", file=file))
            rig.telegram.say(ALICE, "thanks")
            await rig.wait_for_texts("thanks")
    assert "telegram_disconnected" not in [one["event"] for one in logs]


async def test_two_processes_with_one_token_lose_no_message(rig: Rig) -> None:
    async with rig.running(), rig.running():
        for number in range(5):
            rig.telegram.say(ALICE, f"line {number}")
            await rig.telegram.wait(lambda n=number: f"line {n}" in rig.intake.texts)

    assert sorted(rig.intake.texts) == [f"line {number}" for number in range(5)]


@pytest.mark.parametrize(
    "fault", [None, {"error_code": 404, "description": "Not Found"}], ids=["401", "404"]
)
async def test_wrong_token_is_reported_but_not_shown(
    rig: Rig, fault: dict[str, object] | None
) -> None:
    if fault is not None:
        rig.telegram.fault("getMe", **fault)
    with capture_logs() as logs:
        async with rig.running(token="987654321:AAH-canary") as bot:
            await wait_until(lambda: "TROUPE_TELEGRAM__TOKEN" in (bot.connection_error or ""))
    assert [one["log_level"] for one in logs] == ["error"] * len(logs)
    assert "TROUPE_TELEGRAM__TOKEN" in str(logs[0])
    assert "restart" in str(logs[0])
    assert "canary" not in f"{logs} {bot.connection_error}"


async def test_commands_are_registered_once(rig: Rig) -> None:
    for _ in range(2):
        async with rig.running():
            await rig.wait_for_poll()

    preset = {"command": "preset", "description": "Who answers here (use, list)"}
    help_ = {"command": "help", "description": "What I can do"}
    export = {"command": "export", "description": "What you said"}
    alone = {**export, "is_ephemeral": True}
    calls = rig.calls("setMyCommands")
    sent = [
        (str(one.get("scope", {}).get("type")), one.get("language_code"), one["commands"])
        for one in calls
    ]
    assert len(rig.telegram.commands) == len(sent), "none again at the second start"
    assert {scope: commands for scope, language, commands in sent if not language} == {
        "None": [help_],
        "all_private_chats": [preset, help_, export],
        "all_group_chats": [help_, alone],
        "all_chat_administrators": [preset, help_, alone],
    }
    in_chinese = [[one["command"] for one in commands] for _, code, commands in sent if code]
    every = ["preset", "help", "export"]
    assert in_chinese == [["help"], every, ["help", "export"], every]


def test_commands_are_described_in_chinese_and_without_markup() -> None:
    described = to_bot_commands(COMMANDS, "zh")
    preset = next(one for one in described if one.command == "preset")
    assert preset.description.startswith("选择这里由谁回答")
    assert not {one.description for one in described} & {
        one.description for one in to_bot_commands(COMMANDS)
    }
    specs = [
        CommandSpec("new", "begin; `/new 2` with *another* greeting"),
        CommandSpec("x", "x" * 300),
    ]
    marked, long = to_bot_commands(specs)
    assert marked.description == "begin; /new 2 with another greeting"
    assert len(long.description) == 256


@pytest.fixture
async def query_is_admin(rig: Rig) -> AsyncIterator[Callable[[], Awaitable[bool]]]:
    """Return whether the author of a message in a group is an admin."""
    async with rig.running() as bot:
        rig.telegram.say(ALICE, "@sim_bot x", chat=GROUP)
        await rig.wait_for_texts("x")
        yield lambda: bot.is_admin(rig.intake.received[0])


async def test_is_admin_queries_telegram_each_time(
    rig: Rig, query_is_admin: Callable[[], Awaitable[bool]]
) -> None:
    rig.telegram.chats[GROUP]["_admins"] = {ALICE}
    assert await query_is_admin()
    rig.telegram.fault("getChatMember", retry_after=9)
    with pytest.raises(PlatformError):
        await query_is_admin()
    rig.telegram.chats[GROUP]["_admins"] = set()
    assert not await query_is_admin()


@pytest.mark.parametrize("reason", ["PARTICIPANT_ID_INVALID", "user not found", "member not found"])
async def test_person_outside_a_group_is_not_its_admin(
    rig: Rig, query_is_admin: Callable[[], Awaitable[bool]], reason: str
) -> None:
    rig.telegram.fault("getChatMember", error_code=400, description=f"Bad Request: {reason}")
    assert not await query_is_admin()


async def test_edits_presses_and_joins_are_received(rig: Rig) -> None:
    async with rig.running():
        query_is_admin = rig.telegram.say(ALICE, "helo")
        rig.telegram.edit(ALICE, ALICE, query_is_admin["message_id"], "hello")
        rig.telegram.voice(ALICE)
        rig.telegram.invite(ALICE, GROUP)
        await wait_until(lambda: len(rig.intake.events) == 4)

    said, edited, voice, joined = rig.intake.events
    assert isinstance(said, IncomingMessage)
    assert isinstance(edited, MessageEdit)
    assert (edited.said.text, edited.message_id) == ("hello", said.message_id)
    assert isinstance(voice, IncomingMessage)
    assert [one.kind for one in voice.attachments] == [MediaKind.VOICE]
    assert isinstance(joined, ChatJoin)
    assert joined.address.chat == str(GROUP)


async def test_messages_are_late_only_if_they_waited_too_long_before_startup(rig: Rig) -> None:
    rig.answerable_seconds = 300
    now = int(time.time())
    rig.telegram.say(ALICE, "an hour ago", date=now - 3600)
    rig.telegram.say(ALICE, "just now", date=now - 10)
    async with rig.running():
        await rig.wait_for_texts("an hour ago", "just now")
        rig.telegram.say(ALICE, "by a wrong clock", date=now - 3600)
        await rig.wait_for_texts("an hour ago", "just now", "by a wrong clock")
    assert [one.is_late for one in rig.intake.received] == [True, False, False]


async def test_press_is_acknowledged_once_and_stored_unless_refused(rig: Rig) -> None:
    wire = rig.telegram
    query_is_admin = wire.say(5, "hello")
    keyboard = {"inline_keyboard": [[{"text": "Retry", "callback_data": "retry:5:1/0"}]]}
    query_is_admin["reply_markup"] = keyboard
    async with rig.running():
        await rig.wait_for_texts("hello")
        first = wire.click(5, 5, query_is_admin["message_id"], "retry:5:1/0")
        await wire.wait(lambda: wire.queries[first]["answered"] is not None)
        rig.refusal = "Not yours."
        second = wire.click(5, 5, query_is_admin["message_id"], "retry:5:1/0")
        await wire.wait(lambda: wire.queries[second]["answered"] is not None)
        wire.queries["7"] = {"t": time.time(), "answered": None}
        unknown = {"id": "7", "from": wire.user(5), "chat_instance": "1", "data": "retry:5:1/0"}
        wire.push({"callback_query": unknown})  # without its message
        await wire.wait(lambda: wire.queries["7"]["answered"] is not None)
    answered = [wire.queries[one]["answered"] for one in (first, second, "7")]
    assert answered == ["", "Not yours.", ""]
    alerts = [call.get("show_alert") for call in rig.calls("answerCallbackQuery")]
    assert alerts == [None, True, None]
    [kept] = [event for event in rig.intake.events if isinstance(event, ButtonPress)]
    assert kept.external_key == f"cb{first}"
    rig.refusal, rig.asked_at_once = None, len(rig.pressed) + 2  # none waits for another one
    both = [wire.click(5, 5, query_is_admin["message_id"], "retry:5:1/0") for _ in range(2)]
    async with rig.running():
        await wire.wait(lambda: all(wire.queries[one]["answered"] is not None for one in both))

"""Hearing Telegram through outages, kills and rivals: each message once, none lost."""

import asyncio
import traceback

import pytest
from structlog.testing import capture_logs

from bot.chat.command import CommandSpec
from bot.chat.incoming import Address, WakeReason
from bot.chat.outgoing import OutgoingMessage
from bot.errors import PlatformFatal
from bot.platforms.telegram.platform import OFFSET, to_menu
from tests.platforms.telegram.conftest import Rig

pytestmark = pytest.mark.service

ALICE, GROUP, FORUM = 5, -100, -200


async def test_private_message_is_heard(rig: Rig) -> None:
    async with rig.hearing() as bot:
        rig.telegram.say(ALICE, "hello")
        await rig.hears("hello")

    assert rig.intake.heard[0].wake is WakeReason.DM
    assert bot.connection_error is None


async def test_group_in_privacy_mode_brings_only_what_is_meant_for_the_bot(rig: Rig) -> None:
    async with rig.hearing() as bot:
        rig.telegram.say(ALICE, "among ourselves", chat=GROUP)
        rig.telegram.say(ALICE, "🌟 @sim_bot hello", chat=GROUP)
        await rig.hears("🌟 @sim_bot hello")
        answer = await bot.surface.send(
            OutgoingMessage(Address("telegram", str(GROUP)), "hi", nonce="")
        )
        rig.telegram.say(ALICE, "and you?", chat=GROUP, reply_to=int(answer))
        await rig.hears("and you?")

    assert [incoming.wake for incoming in rig.intake.heard] == [
        WakeReason.MENTION,
        WakeReason.REPLY,
    ]
    assert rig.intake.heard[1].quote == "hi"


async def test_topics_are_places_of_their_own(rig: Rig) -> None:
    async with rig.hearing():
        rig.telegram.say(ALICE, "@sim_bot hello", chat=FORUM, thread=9)
        await rig.hears("hello")

    assert rig.intake.heard[0].address == Address("telegram", str(FORUM), "9")


async def test_a_batch_keeps_its_order_and_moves_the_cursor_once(rig: Rig) -> None:
    for number in range(30):
        rig.telegram.say(ALICE, f"line {number}")

    async with rig.hearing():
        await rig.hears(*(f"line {number}" for number in range(30)))

    assert rig.intake.stored == {OFFSET: "1031"}


async def test_lost_answer_to_a_poll_is_delivered_once(rig: Rig) -> None:
    async with rig.hearing():
        await rig.polled()
        rig.telegram.fault("getUpdates", drop=True, after=True)
        rig.telegram.say(ALICE, "tick")
        await rig.hears("tick")
        rig.telegram.say(ALICE, "tock")
        await rig.hears("tock")

    assert not rig.telegram.faults
    assert rig.intake.texts == ["tick", "tock"]


@pytest.mark.parametrize(
    "outage",
    [
        {"error_code": 502, "description": "Bad Gateway"},
        {"raw": "<html>502 Bad Gateway</html>"},
        {"drop": True},
        {"retry_after": 3},
    ],
    ids=["502 json", "502 html", "cut connection", "flood control"],
)
async def test_outage_is_waited_out(rig: Rig, outage: dict[str, object]) -> None:
    rig.telegram.fault("getUpdates", times=8, **outage)
    rig.telegram.say(ALICE, "during the outage")

    async with rig.hearing() as bot:
        await rig.telegram.wait(lambda: bot.connection_error not in {None, "not connected yet"})
        await rig.hears("during the outage")
        assert bot.connection_error is None

    growing = [0.25, 0.5, 1, 2, 4, 5, 5, 5]
    assert rig.clock.slept == ([3] * 8 if "retry_after" in outage else growing)


async def test_outage_at_the_start_is_waited_out(rig: Rig) -> None:
    rig.telegram.fault("getMe", times=2, raw="<html>502</html>")
    rig.telegram.fault("deleteWebhook", error_code=500)
    rig.telegram.fault("getMyCommands", error_code=500)

    async with rig.hearing():
        rig.telegram.say(ALICE, "hello")
        await rig.hears("hello")


async def test_after_an_outage_a_short_poll_tells_at_once_that_it_is_over(rig: Rig) -> None:
    rig.telegram.fault("getUpdates", error_code=502)

    async with rig.hearing(poll_seconds=30) as bot:
        await rig.telegram.wait(lambda: len(rig.calls("getUpdates")) == 3)
        assert bot.connection_error is None

    assert [call["timeout"] for call in rig.calls("getUpdates")][:3] == [30, 0, 30]


async def test_what_was_not_stored_is_kept_and_never_acknowledged(rig: Rig) -> None:
    rig.intake.down = True
    rig.telegram.say(ALICE, "hello")

    async with rig.hearing() as bot:
        await rig.telegram.wait(lambda: rig.intake.refused >= 3)
        assert bot.connection_error == "messages cannot be stored: the disk is full"
        assert len(rig.calls("getUpdates")) == 1
        rig.intake.down = False
        await rig.hears("hello")
        await rig.polled()
        assert bot.connection_error is None

    assert rig.intake.texts == ["hello"]


async def test_bot_killed_before_it_stored_hears_the_message_again(rig: Rig) -> None:
    rig.intake.down = True
    rig.telegram.say(ALICE, "hello")
    async with rig.hearing():
        await rig.telegram.wait(lambda: rig.intake.refused)
    rig.intake.down = False

    async with rig.hearing():
        await rig.hears("hello")


async def test_bot_killed_after_it_stored_goes_on_from_its_cursor(rig: Rig) -> None:
    rig.telegram.say(ALICE, "one")
    async with rig.hearing():
        await rig.hears("one")
    rig.telegram.say(ALICE, "two")

    async with rig.hearing():
        await rig.hears("one", "two")

    assert rig.intake.texts == ["one", "two"]


async def test_numbering_that_starts_again_lower_is_followed(rig: Rig) -> None:
    async with rig.hearing():
        rig.telegram.say(ALICE, "before the quiet week")
        await rig.hears("before the quiet week")
        await rig.polled()
        rig.telegram.uid = 17
        rig.telegram.say(ALICE, "after it")
        await rig.hears("after it")

    assert rig.intake.stored == {OFFSET: "19"}


async def test_update_that_cannot_be_read_does_not_hide_the_next(rig: Rig) -> None:
    rig.telegram.push({"message": {"message_id": "canary", "date": 1}})
    rig.telegram.say(ALICE, "hello")

    with capture_logs() as logs:
        async with rig.hearing():
            await rig.hears("hello")

    skipped = [entry for entry in logs if entry["event"] == "telegram_update_skipped"]
    assert [entry["update_id"] for entry in skipped] == [1001]
    assert "canary" not in str(skipped)


async def test_forgotten_webhook_is_removed_with_its_updates_kept(rig: Rig) -> None:
    rig.telegram.wh = {"url": "http://127.0.0.1:9/gone", "secret": None, "err": None}
    rig.telegram.say(ALICE, "for the webhook")

    async with rig.hearing():
        await rig.hears("for the webhook")


async def test_rival_poller_is_named_and_given_more_and_more_time(rig: Rig) -> None:
    rig.telegram.fault(
        "getUpdates", times=9, error_code=409, description="Conflict: terminated by other"
    )

    async with rig.hearing() as bot:
        await rig.telegram.wait(lambda: "another process" in (bot.connection_error or ""))
        rig.telegram.say(ALICE, "hello")
        await rig.hears("hello")
        assert bot.connection_error is None

    assert rig.clock.slept == [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30]


async def test_two_bots_with_one_token_lose_nothing_between_them(rig: Rig) -> None:
    async with rig.hearing(), rig.hearing():
        for number in range(5):
            rig.telegram.say(ALICE, f"line {number}")
            await rig.telegram.wait(lambda n=number: f"line {n}" in rig.intake.texts)

    assert sorted(rig.intake.texts) == [f"line {number}" for number in range(5)]


@pytest.mark.parametrize(
    "fault", [None, {"error_code": 404, "description": "Not Found"}], ids=["401", "404"]
)
async def test_wrong_token_is_fatal_and_never_shown(
    rig: Rig, fault: dict[str, object] | None
) -> None:
    if fault is not None:
        rig.telegram.fault("getMe", **fault)
    bot = rig.bot(token="987654321:AAH-canary")

    with pytest.raises(PlatformFatal, match="TROUPE_TELEGRAM__TOKEN") as caught:
        await bot.run(rig.intake)
    await bot.close()

    assert "canary" not in "".join(traceback.format_exception(caught.value))


async def test_token_revoked_while_it_runs_is_fatal(rig: Rig) -> None:
    bot = rig.bot()
    listening = asyncio.create_task(bot.run(rig.intake))
    await rig.polled()
    rig.telegram.token = "1:revoked"
    rig.telegram.say(ALICE, "last words")

    with pytest.raises(PlatformFatal, match="TROUPE_TELEGRAM__TOKEN"):
        await listening
    await bot.close()

    assert rig.intake.texts == ["last words"]


# --- the menu --------------------------------------------------------------------------------


async def test_menu_is_offered_once(rig: Rig) -> None:
    for _ in range(2):
        async with rig.hearing():
            await rig.polled()

    (menu,) = rig.telegram.commands.values()
    assert menu == [
        {"command": "preset", "description": "Who answers here (use, list)"},
        {"command": "help", "description": "What I can do"},
    ]
    assert len(rig.calls("setMyCommands")) == 1


async def test_menu_that_telegram_refuses_does_not_stop_the_bot(rig: Rig) -> None:
    rig.telegram.fault("setMyCommands", error_code=400)

    async with rig.hearing():
        rig.telegram.say(ALICE, "hello")
        await rig.hears("hello")


def test_summary_is_cut_to_what_telegram_shows() -> None:
    (shown,) = to_menu([CommandSpec("help", "x" * 300)])
    assert len(shown.description) == 256


# --- who may change what others see ----------------------------------------------------------


async def test_who_is_no_admin_any_more_may_nothing_from_that_moment(rig: Rig) -> None:
    async with rig.hearing() as bot:
        rig.telegram.say(ALICE, "@sim_bot x", chat=GROUP)
        await rig.hears("x")
        said = rig.intake.heard[0]
        rig.telegram.chats[GROUP]["_admins"] = {ALICE}
        assert await bot.is_admin(said)
        rig.telegram.chats[GROUP]["_admins"] = set()
        assert not await bot.is_admin(said)


async def test_nobody_is_admin_while_telegram_cannot_be_asked(rig: Rig) -> None:
    async with rig.hearing() as bot:
        rig.telegram.say(ALICE, "@sim_bot x", chat=GROUP)
        await rig.hears("x")
        rig.telegram.chats[GROUP]["_admins"] = {ALICE}
        rig.telegram.fault("getChatMember", retry_after=9)
        assert not await bot.is_admin(rig.intake.heard[0])
        assert await bot.is_admin(rig.intake.heard[0])

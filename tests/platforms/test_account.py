"""Test how `troupe init` checks bot accounts, and finds the first admin by a code."""

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit

import pytest
from pydantic import SecretStr

from bot.errors import PlatformFatal, Unreachable
from bot.platforms.discord.account import INVITE_PERMISSIONS, DiscordAccount
from bot.platforms.discord.settings import DiscordSettings
from bot.platforms.spec import AccountSetup
from bot.platforms.telegram.account import TelegramAccount
from bot.platforms.telegram.settings import TelegramSettings
from tests.support.chats import Platforms, running_platforms
from tests.waiting import wait_until


@pytest.fixture
async def platforms() -> AsyncIterator[Platforms]:
    async with running_platforms() as platforms:
        yield platforms


def telegram(platforms: Platforms, token: str | None = None) -> TelegramAccount:
    token = token if token is not None else platforms.telegram.token
    return TelegramAccount(
        TelegramSettings(token=SecretStr(token), api_base=platforms.telegram.base)
    )


def discord(platforms: Platforms, token: str | None = None) -> DiscordAccount:
    return DiscordAccount(
        DiscordSettings(
            token=SecretStr(token if token is not None else platforms.discord.token),
            api_base=f"{platforms.discord.base}/api/v10",
        )
    )


async def test_inspection_of_a_telegram_bot_reports_its_privacy_mode(platforms: Platforms) -> None:
    account = telegram(platforms)
    found = await account.inspect()
    assert (found.name, found.link) == ("@sim_bot", "https://t.me/sim_bot")
    assert found.notes[0].startswith("privacy mode is on: ")
    platforms.telegram.me["can_read_all_group_messages"] = True
    assert (await account.inspect()).notes[0].startswith("privacy mode is off: ")
    await account.close()


async def test_inspection_of_a_discord_bot_reports_intents_and_an_invitation(
    platforms: Platforms,
) -> None:
    account = discord(platforms)
    found = await account.inspect()
    await account.close()
    assert found.name == platforms.discord.b.bot_user.name
    assert "enable Bot > Message Content Intent" in found.notes[0]
    address = urlsplit(found.link)
    assert address.hostname == "discord.com"
    assert parse_qs(address.query) == {
        "client_id": [str(platforms.discord.b.application_id)],
        "permissions": [str(INVITE_PERMISSIONS)],
        "scope": ["bot applications.commands"],
    }


@pytest.mark.parametrize("token", ["", "nonsense", "123456789:BBH-wrong", "a b", "x\ny"])
async def test_wrong_token_error_names_its_variable(platforms: Platforms, token: str) -> None:
    accounts: list[tuple[AccountSetup, str]] = [
        (telegram(platforms, token), "TROUPE_TELEGRAM__TOKEN"),
        (discord(platforms, token), "TROUPE_DISCORD__TOKEN"),
    ]
    for account, variable in accounts:
        with pytest.raises(PlatformFatal, match=variable) as caught:
            await account.inspect()
        assert not token or token not in str(caught.value)
        await account.close()


async def test_error_for_an_unreachable_platform_hides_the_token() -> None:
    token = SecretStr("123456789:" + "A" * 35)
    nowhere = "http://127.0.0.1:1"
    accounts: list[AccountSetup] = [
        TelegramAccount(TelegramSettings(token=token, api_base=nowhere)),
        DiscordAccount(DiscordSettings(token=token, api_base=nowhere)),
    ]
    for account in accounts:
        with pytest.raises(Unreachable, match=r"cannot be reached: no connection") as caught:
            await account.inspect()
        assert token.get_secret_value() not in str(caught.value)
        await account.close()


async def test_admin_code_sent_on_telegram_is_accepted_and_answered(platforms: Platforms) -> None:
    account, wire = telegram(platforms), platforms.telegram
    waiting = asyncio.create_task(account.wait_for_code("482913"))
    await wire.wait(lambda: wire.waiter)
    wire.say(7, "/start 482913", chat=7)
    assert await waiting == "7"
    await account.close()
    assert wire.updates == []
    thanks = "Thank you! You are now an admin of this bot."
    assert thanks in [message["text"] for message in wire.msgs[7].values()]


async def test_earlier_messages_are_left_for_the_service(platforms: Platforms) -> None:
    account, wire = telegram(platforms), platforms.telegram
    wire.say(8, "hello", chat=8)
    waiting = asyncio.create_task(account.wait_for_code("482913"))
    await wait_until(lambda: any(call["method"] == "getUpdates" for call in wire.log))
    wire.say(7, "482913", chat=7)
    assert await waiting == "7"
    await account.close()
    texts = [update["message"]["text"] for update in wire.updates]
    assert texts == ["hello", "482913"]


async def test_error_for_a_telegram_bot_with_a_webhook_says_how_to_delete_it(
    platforms: Platforms,
) -> None:
    platforms.telegram.wh = {"url": "http://127.0.0.1:1", "secret": None}
    account = telegram(platforms)
    with pytest.raises(Unreachable, match="delete the bot's webhook"):
        await account.wait_for_code("482913")
    await account.close()


@pytest.mark.parametrize("is_private", [True, False])
async def test_admin_code_sent_on_discord_is_accepted(
    platforms: Platforms, is_private: bool
) -> None:
    account, wire, [alice, bob] = discord(platforms), platforms.discord, platforms.people
    channel = platforms.guild.create_text_channel("plans")
    waiting = asyncio.create_task(account.wait_for_code("482913"))
    await wait_until(lambda: bool(wire.sessions))
    wire.say(bob, channel.id, "482913 is a number")  # not to the bot: Discord hides its text
    if is_private:
        wire.say(alice, wire.b.get_dm_channel(alice.id).id, "482913")
    else:
        wire.say(alice, channel.id, f"<@{wire.b.bot_user.id}> 482913")
    assert await waiting == str(alice.id)
    await account.close()

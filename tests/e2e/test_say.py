"""Test that messages sent over the API are sent once, even if the service is killed."""

import aiohttp
import pytest

from tests.support.chats import Chat, Platforms
from tests.support.console import post_say
from tests.support.features import GROUPS, ON_THE_WIRES, at
from tests.support.service_process import TESTER, Service
from tests.waiting import wait_until

pytestmark = ON_THE_WIRES
TOKEN = "a-token-of-a-washing-machine"
POINTS = ("after_received", "after_commit", "before_finish", "after_finish", "after_http")


@pytest.mark.runs_with(TESTER, TROUPE_CONSOLE__TOKEN=TOKEN)
@at(*GROUPS)
async def test_message_requested_over_the_api_is_sent_once_despite_kills(
    where: Chat, running: Service, platforms: Platforms
) -> None:
    await where.shows(where.ask())  # then the channel is known

    async def say(text: str) -> bool:
        """Send a message with its text as the key; return whether the request was answered."""
        try:
            status = await post_say(running.address, TOKEN, channel=where.name, text=text, key=text)
        except aiohttp.ClientError:
            return False
        assert status == 200
        return True

    for point in POINTS:
        async with running.killed_at(point):
            await say(f"{point} 1")
        for text in (f"{point} 1", f"{point} 2", f"{point} 1"):  # as a caller without an answer
            assert await say(text)
    await wait_until(running.queues_are_empty)

    posts = [one for one in platforms.messages() if one.conversation == where.name and one.by_bot]
    assert [one.text for one in posts[1:]] == [
        f"{point} {number}" for point in POINTS for number in (1, 2)
    ]


@pytest.mark.runs_with(TESTER, TROUPE_CONSOLE__TOKEN=TOKEN)
@at("telegram_group")
async def test_message_to_an_unknown_chat_is_not_sent_over_the_api(
    where: Chat, running: Service
) -> None:
    name = "telegram:@news"  # Telegram's ids are numbers
    add = ("console", "token", "add", "news", "--scope", "say", "--channel", name)
    token = (await running.run_command(*add)).split()[-1]
    assert await post_say(running.address, token, channel=name, text="Hi.") == 404
    await where.shows(where.ask())
    await wait_until(running.queues_are_empty)

"""What wakes the bot in channels and groups of both platforms, with the service as a process."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.e2e.loopback_platforms import TELEGRAM_PEOPLE, Conversation, LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

KINDS = ("channel", "group")


@dataclass
class Deployment:
    """Both platforms, and the service that answers there."""

    platforms: LoopbackPlatforms

    def open(self, kind: str) -> Conversation:
        return self.platforms.channel() if kind == "channel" else self.platforms.telegram_group()

    async def shows(self, where: Conversation, *texts: str) -> None:
        """Wait until the bot's messages there are exactly these."""
        await wait_until(lambda: self.platforms.bot_texts(where) == list(texts))

    def reply_to_a_person(self, where: Conversation, text: str) -> None:
        """Let one person reply to another one's message."""
        first = where.say("good morning", 1)
        if isinstance(first, dict):
            chat, person = first["chat"]["id"], TELEGRAM_PEOPLE[0]
            self.platforms.telegram.say(person, text, chat=chat, reply_to=first["message_id"])
        else:
            person = self.platforms.people[0]
            self.platforms.discord.say(person, first.channel_id, text, reply_to=first.id)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(
    platforms: LoopbackPlatforms, model: ModelServer, service: ServiceProcess
) -> AsyncIterator[Deployment]:
    platforms.telegram.me["can_read_all_group_messages"] = True
    await service.start_and_wait()
    yield Deployment(platforms)


@pytest.mark.parametrize("kind", KINDS)
async def test_name_wakes_as_a_whole_word_and_never_what_is_for_others(
    deployment: Deployment, kind: str
) -> None:
    where = deployment.open(kind)
    where.say("the testers say Tab01:3", 0)
    deployment.reply_to_a_person(where, "ask the tester for Tab02:3")
    other = "@somebody_else" if kind == "group" else f"<@{deployment.platforms.people[1].id}>"
    where.say(f"{other} ask the tester for Tab03:3", 0)
    where.say("please, Tester, Tab04:3", 0)
    await deployment.shows(where, expected_answer("Tab04:3"))


@pytest.mark.parametrize("kind", KINDS)
async def test_mention_alone_is_answered(deployment: Deployment, kind: str) -> None:
    where = deployment.open(kind)
    where.say(where.mention.strip(), 0)  # the model has nothing to answer, which is told
    await wait_until(lambda: len(deployment.platforms.bot_texts(where)) == 1)


async def test_thread_needs_no_mention_after_the_first_answer(deployment: Deployment) -> None:
    where = deployment.platforms.discord_thread()
    where.say("among us Tbc01:3", 0)
    where.say(f"{where.mention}please Tbc02:3", 0)
    await deployment.shows(where, expected_answer("Tbc02:3"))
    where.say("and Tbc03:3", 1)
    await deployment.shows(where, expected_answer("Tbc02:3"), expected_answer("Tbc03:3"))


@pytest.mark.parametrize("kind", ["discord_dm", "telegram_dm"])
async def test_settings_why_names_the_reasons(deployment: Deployment, kind: str) -> None:
    """In private chats everybody is an admin."""
    where = getattr(deployment.platforms, kind)()
    where.ask("cd01", 3)
    await deployment.shows(where, expected_answer("Tcd01:3"))
    where.say("/settings why", 0)
    reason = "was addressed: this is a private chat"
    await wait_until(lambda: reason in deployment.platforms.bot_texts(where)[-1])

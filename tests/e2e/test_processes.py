"""Test how several processes on one PostgreSQL share the work and take it over."""

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus

import pytest_asyncio

from tests.support.chats import Chat, Platforms, TelegramChat, reactions, running_platforms
from tests.support.features import ON_THE_WIRES
from tests.support.service_process import Service, preset_json
from tests.support.shapes import Installer
from tests.support.transcripts import check_transcripts
from tests.waiting import wait_until

pytestmark = ON_THE_WIRES

_SECOND_TOKEN = "987654321:AAH-" + "y" * 31


@pytest_asyncio.fixture(loop_scope="session")
async def platforms() -> AsyncIterator[Platforms]:
    async with running_platforms() as both:
        yield both


async def start_in_turn(services: list[Service]) -> None:
    for service in services:
        await service.start_and_wait()


async def answer_in(*conversations: Chat) -> None:
    """Ask three questions in each conversation; wait until all are answered, in order."""
    before = {where: where.texts() for where in conversations}
    asked = {where: [where.ask().answer for _ in range(3)] for where in conversations}
    for where in conversations:
        await where.shows(*before[where], *asked[where])


def connected_shards(platforms: Platforms) -> list[tuple[int, int]]:
    """Return the connected Discord shards."""
    return sorted(one.shard for one in platforms.discord.sessions.values() if one.ws is not None)


# --- processes that are alike --------------------------------------------------------------------


async def test_only_one_process_receives_and_another_takes_over_when_it_is_killed(
    installer: Installer, platforms: Platforms, database_url: str
) -> None:
    def conflicts() -> int:
        return sum(call["status"] == 409 for call in platforms.telegram.log)

    group, channel = platforms.telegram_group(), platforms.channel()
    async with installer.processes("first", "second", database_url=database_url) as services:
        first, second = services
        await start_in_turn(services)
        before = conflicts()
        await answer_in(group, channel)
        assert "standing_by" in second.output()
        assert len(connected_shards(platforms)) == 1

        await first.kill()
        await answer_in(group, channel)
        assert "role_taken_over" in second.output()

        await first.start_and_wait()
        assert await second.stop() == 0
        await answer_in(group, channel)
        assert conflicts() == before


def channels_of_both_shards(platforms: Platforms) -> list[Chat]:
    """Return one channel per shard, each in a guild of that shard."""
    guild = platforms.guild
    found: dict[int, Chat] = {}
    while len(found) < 2:
        shard = (guild.id >> 22) % 2
        if shard not in found:
            platforms.guild = guild
            found[shard] = platforms.channel()
        guild = platforms.discord.guild("Another guild")
        for person in platforms.people:
            platforms.discord.b.add_member(guild.id, person.id, roles=[])
    return [found[0], found[1]]


async def test_shards_move_between_processes_without_an_identify_or_a_lost_message(
    installer: Installer, platforms: Platforms, database_url: str
) -> None:
    both = channels_of_both_shards(platforms)
    async with installer.processes("first", "second", database_url=database_url) as services:
        first, second = services
        for service in services:
            service.settings["TROUPE_DISCORD__SHARDS"] = "2"
            service.options = ("--platforms", "discord")
        await start_in_turn(services)
        await wait_until(lambda: connected_shards(platforms) == [(0, 2), (1, 2)])
        await answer_in(*both)
        # The second process has taken over one of the shards of the first.
        await wait_until(lambda: "discord_resuming" in second.output())
        assert platforms.identifies() == 2
        await answer_in(*both)

        await first.kill()
        await answer_in(*both)
        assert connected_shards(platforms) == [(0, 2), (1, 2)]

        before = platforms.resumes()
        await first.start_and_wait()
        await wait_until(lambda: platforms.resumes() > before)
        await answer_in(*both)

        assert await second.stop() == 0  # a deploy
        await answer_in(*both)
        assert platforms.identifies() == 2


# --- processes with different bots ---------------------------------------------------------------


async def test_each_process_delivers_the_messages_of_its_own_bot(
    installer: Installer, platforms: Platforms, database_url: str
) -> None:
    """The bots are a Discord bot, and two Telegram bots in one group with equal message ids."""
    names = ("telegram", "discord", "second")
    async with (
        running_platforms(_SECOND_TOKEN) as others,
        installer.processes(*names, database_url=database_url) as services,
    ):
        services[2].settings |= {
            "TROUPE_TELEGRAM__TOKEN": _SECOND_TOKEN,
            "TROUPE_TELEGRAM__API_BASE": str(others.telegram.base),
        }
        for service, unused in zip(services, ("DISCORD", "TELEGRAM", "DISCORD"), strict=True):
            del service.settings[f"TROUPE_{unused}__TOKEN"]
        await start_in_turn(services)  # who comes first is the first bot
        for kind in ("telegram_group", "channel", "telegram_dm", "discord_dm"):
            await answer_in(platforms.open(kind))
        groups = [each.in_telegram_group(-5000) for each in (platforms, others)]
        await answer_in(*groups)


# --- a process for each role ---------------------------------------------------------------------

_ROLES = ("gateway", "worker", "sender", "console")


async def test_processes_with_separate_roles_answer_in_order_despite_a_kill(
    installer: Installer, platforms: Platforms, database_url: str
) -> None:
    installer.model.answers_all = True
    installer.model.chunk_delays = (0.02, *[0.05] * 14, 0.35)  # the last one leads to live edits
    chats = [platforms.open(kind) for kind in ("telegram_group", "telegram_dm", "channel")]
    installed = installer.processes(*_ROLES, database_url=database_url, with_valkey=True)
    async with installed as services:
        processes = dict(zip(_ROLES, services, strict=True))
        for role, service in processes.items():
            service.settings["TROUPE_DATA_DIR"] = str(installer.folder / "data")
            service.options = ("--role", role)
        await start_in_turn(services)
        asked = []
        for number in range(8):
            asked = [where.ask(words=60) for where in chats]
            if number == 4:
                await chats[0].shows_new()
                await processes["worker"].kill()
                await processes["worker"].start()
            await asyncio.sleep(0.1)
        for where, question in zip(chats, asked, strict=True):
            await where.wait_until(
                lambda: "".join(where.texts()[-1:]).endswith(question.answer[-20:])  # noqa: B023
            )
        result = check_transcripts(platforms.messages())
        assert result.is_clean, result
        assert result.questions == 8 * len(chats)

        assert len(connected_shards(platforms)) == 1
        receiving = [role for role in _ROLES if "on telegram as" in processes[role].output()]
        assert receiving == ["gateway"]
        for role, service in processes.items():
            status, _ = await service.read("login") or (0, "")
            assert status == (HTTPStatus.OK if role == "console" else HTTPStatus.NOT_FOUND)


async def test_recaps_and_reactions_work_across_processes_with_separate_roles(
    installer: Installer, platforms: Platforms, database_url: str
) -> None:
    chats: list[Chat] = [platforms.in_telegram_group(-1_001_000_000_777), platforms.channel()]
    preset = preset_json("tester", system="You are a tester.", busy="queue", tools=["react"])
    installed = installer.processes(*_ROLES[:3], database_url=database_url, with_valkey=True)
    async with installed as services:
        for role, service in zip(_ROLES, services, strict=False):
            service.settings["TROUPE_DATA_DIR"] = str(installer.folder / "data")
            service.options = ("--role", role)
            service.write_tester(preset)
        await start_in_turn(services)
        for where in chats:
            await where.ask_and_wait()
            missed = await where.ask_and_wait(who=1)
            before = where.texts()
            if isinstance(where, TelegramChat):
                platforms.telegram.whisper(where.people[0], "/recap", where.chat)
            else:
                where.tell("/recap")
            await where.wait_until(
                lambda: any(missed.answer in one for one in where.private_texts())  # noqa: B023
            )
            installer.model.reaction = "👍"
            number = where.id_of(where.ask().message)
            await where.wait_until(lambda: reactions(where, number))  # noqa: B023
            installer.model.reaction = ""
            assert where.texts() == before

"""Test that a private reply never reaches the group, with or without ephemeral messages."""

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiogram.types import User
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bot.chat.incoming import Incoming, Request
from bot.commands.handlers import COMMAND_NAMES
from bot.platforms.telegram.incoming import parse_updates
from bot.runtime.clock import SystemClock
from bot.runtime.in_process import InProcessRateLimits
from bot.storage.database import Database
from bot.turn.limits.rate_limits import CommandLimits
from bot.value_class import value_class
from tests.platforms.telegram.conftest import Rig
from tests.rigs.tgwire import TgWire
from tests.turn.setup import Setup

ADMIN, MEMBER = 1, 2
LOCK, HINT = "🔒 Only you can read this.", "My reply is for you alone."
COMMANDS = (
    *("/context", "/context prompt", "/context nonsense", "/settings why", "/settings usage"),
    *("/settings me", "/settings me reset", "/settings me maybe"),
    *("/export", "/me", "/forget channel"),
)
"""Commands with private replies; for an admin, `/forget channel` is not one of them."""
EPHEMERAL = ("/context", "/export")
LOSSES = ("sendMessage", "sendDocument", "editEphemeralMessageText", "deleteMessage")
_chats = itertools.count(1)


class Chats:
    """A group and private chats, on a server with or without ephemeral messages."""

    def __init__(self, database: Database, wire: TgWire, **parts: Any) -> None:
        number = next(_chats)
        self.wire, self.group = wire, -1000 - number
        self.people = {ADMIN: 2 * number, MEMBER: 2 * number + 1}
        rig = Rig(wire)
        rig.command_names = COMMAND_NAMES
        self.bot = rig.bot()
        wire.me["can_read_all_group_messages"] = True
        surfaces = {"telegram": self.bot.surface}
        self.setup = Setup(
            database,
            platforms={"telegram": self.bot},
            rate_limited_surfaces=lambda **_: surfaces,
            is_platform_admin=self._is_admin,
            settings={"admins": frozenset({f"telegram:{self.people[ADMIN]}"})},
            **parts,
        )

    async def _is_admin(self, asked: Request) -> bool:
        return asked.author.id == f"telegram:{self.people[ADMIN]}"

    def _received(self) -> list[Incoming]:
        updates = [dict(one) for one in self.wire.updates]
        self.wire.updates.clear()
        return self.bot._convert_updates(parse_updates(updates), User(**self.wire.me))

    async def work(self) -> None:
        await self.setup.receive(*self._received())
        await self.setup.work(f"telegram:{self.group}")

    async def use(self, use: "Use", *, is_ephemeral: bool) -> None:
        if is_ephemeral:
            late = 20 if use.is_late else 0
            self.wire.whisper(self.people[use.person], use.line, self.group, seconds_ago=late)
        else:
            self.wire.say(self.people[use.person], use.line, chat=self.group)
        await self.work()

    def group_texts(self) -> list[str]:
        texts: list[str] = self.wire.texts(self.group)
        return texts

    def alone(self, person: int) -> list[str]:
        """Return the texts that only this person can read, without leftover placeholders."""
        number = self.people[person]
        whispers = self.wire.whispers(number, self.group)
        return [one for one in [*self.wire.texts(number), *whispers] if one != LOCK]


@asynccontextmanager
async def opened_chats(database: Database, wire: TgWire, **parts: Any) -> AsyncIterator[Chats]:
    """Create a group and have the bot answer a first message there."""
    chats = Chats(database, wire, **parts)
    wire.say(chats.people[MEMBER], "@sim_bot hello", chat=chats.group)
    await chats.work()
    assert chats.group_texts() == ["Hello."]
    try:
        yield chats
    finally:
        wire.faults.clear()
        await chats.bot.close()


@value_class
class Use:
    line: str
    person: int
    is_ephemeral: bool
    is_late: bool


uses = st.builds(
    Use,
    line=st.sampled_from(COMMANDS),
    person=st.sampled_from([ADMIN, MEMBER]),
    is_ephemeral=st.booleans(),
    is_late=st.booleans(),
).filter(lambda use: use.line != "/forget channel" or use.person == MEMBER)
losses = st.lists(st.tuples(st.sampled_from(LOSSES), st.booleans()), max_size=3)


@settings(
    max_examples=settings().max_examples // 4,  # each takes a tenth of a second
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    asked=st.lists(uses, min_size=1, max_size=4),
    knows_ephemeral=st.booleans(),
    opened=st.sets(st.sampled_from([ADMIN, MEMBER])),
    lost=losses,
)
async def test_private_reply_reaches_only_its_author(
    database: Database,
    telegram: TgWire,
    asked: Sequence[Use],
    opened: set[int],
    lost: Sequence[tuple[str, bool]],
    *,
    knows_ephemeral: bool,
) -> None:
    telegram.knows_ephemeral = knows_ephemeral
    async with opened_chats(database, telegram) as chats:
        for person in opened:
            telegram.chat(chats.people[person])
        for method, is_carried_out in lost:
            telegram.fault(method, drop=True, after=is_carried_out)
        for use in asked:
            alone, hints = chats.alone(use.person), _count(chats, HINT)
            is_seen_alone = use.is_ephemeral and use.line.split()[0] in EPHEMERAL
            await chats.use(use, is_ephemeral=is_seen_alone)
            told = len(chats.alone(use.person)) - len(alone), _count(chats, HINT) - hints
            has_file = use.line == "/export" or (use.line, use.person) == ("/context prompt", ADMIN)
            is_shown = is_seen_alone and knows_ephemeral and not use.is_late and not has_file
            assert told == ((1, 0) if is_shown or use.person in opened else (0, 1)), use
        for text in chats.group_texts()[1:]:
            assert text == LOCK or text.startswith(HINT)


@pytest.mark.parametrize("line", ["/settings me maybe", "/export"])
@pytest.mark.parametrize("losses", [1, 2])
async def test_first_private_message_arrives_once_and_changes_no_other_message(
    database: Database, telegram: TgWire, line: str, losses: int
) -> None:
    async with opened_chats(database, telegram) as chats:
        member = chats.people[MEMBER]
        telegram.chat(member)
        telegram._new(member, telegram.me, text="of a former life")
        telegram.chats[member]["_last"] = 1000
        for method in ("sendMessage", "editMessageText", "sendDocument")[-losses:]:
            telegram.fault(method, drop=True, after=True)
        await chats.use(Use(line, MEMBER, is_ephemeral=False, is_late=False), is_ephemeral=False)
        older, told = chats.alone(MEMBER)
        assert older == "of a former life"
        assert told


async def test_ephemeral_commands_over_the_limit_get_private_answers(
    database: Database, telegram: TgWire
) -> None:
    limits = CommandLimits(InProcessRateLimits(SystemClock()), commands_per_person=2, seconds=3600)
    async with opened_chats(database, telegram, command_limits=limits) as chats:
        for _ in range(4):
            use = Use("/context", MEMBER, is_ephemeral=True, is_late=False)
            await chats.use(use, is_ephemeral=True)
        assert chats.group_texts() == ["Hello."]
        assert sum("more than 2 commands" in one for one in chats.alone(MEMBER)) == 2


async def test_person_who_writes_as_the_group_is_told_to_use_their_name(
    database: Database, telegram: TgWire
) -> None:
    async with opened_chats(database, telegram) as chats:
        group = telegram.chats[chats.group]
        marks = telegram._entities("/export")
        shown = {"id": group["id"], "type": "supergroup", "title": "G"}
        telegram.drop(1087968824, chats.group, text="/export", entities=marks, sender_chat=shown)
        await chats.work()
        [told] = chats.group_texts()[1:]
        assert told.startswith(f"{HINT} Write under your own name")


async def test_refusal_of_a_menu_choice_is_shown_only_to_that_person(
    database: Database, telegram: TgWire
) -> None:
    async with opened_chats(database, telegram) as chats:
        member = chats.people[MEMBER]
        telegram.say(member, "/settings", chat=chats.group)
        await chats.work()
        menu = list(telegram.msgs[chats.group].values())[-1]
        before = chats.group_texts()
        buttons = [one for row in menu["reply_markup"]["inline_keyboard"] for one in row]
        data = next(one for one in buttons if "observe" in one["callback_data"])["callback_data"]
        telegram.click(member, chats.group, menu["message_id"], data)
        await chats.work()
        assert chats.group_texts() == before
        [told] = chats.alone(MEMBER)
        assert told.startswith("⚠ Only an admin can")


def _count(chats: Chats, beginning: str) -> int:
    return sum(one.startswith(beginning) for one in chats.group_texts())

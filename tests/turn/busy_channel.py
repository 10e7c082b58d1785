"""Helpers for messages that arrive while an answer is generated."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from bot.chat.incoming import Incoming, IncomingMessage, Person, WakeReason
from tests.fakes import LIMITS
from tests.samples import ALICE, make_incoming
from tests.turn.setup import Setup, pass_time_until, working

LIMITS_OF_CHATS = replace(LIMITS, answers_each_message=False)


MENTION = WakeReason.MENTION


def asked(
    number: int, author: Person = ALICE, wake: WakeReason | None = MENTION, text: str = ""
) -> IncomingMessage:
    """Return a message in a group or private chat."""
    return make_incoming(text or f"q{number}", key=f"5:{number}", author=author, wake=wake)


async def end(setup: Setup, worker: asyncio.Task[None]) -> None:
    """Advance the clock until all messages are answered."""
    await pass_time_until(setup, worker.done)
    await worker


async def answer_all(setup: Setup, *messages: Incoming) -> None:
    """Receive messages, and advance the clock until all of them are answered."""
    async with working(setup, *messages) as worker:
        await end(setup, worker)


def contents(setup: Setup, number: int = -1) -> Sequence[str]:
    return [one.content for one in setup.backend.prompts[number].messages]

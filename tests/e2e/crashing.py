"""Run the bot so that it kills itself at a named point of its walk, or is built wrongly on purpose.

    python -m tests.e2e.crashing after_commit 3 -- run
    python -m tests.e2e.crashing after_received 1 --build acknowledge_first -- run

The points are those of the crash table (RELIABILITY.md, 7.6). The product knows nothing of them:
its methods are wrapped here before it starts.
"""

import argparse
import asyncio
import functools
import os
import secrets
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import bot.cli.app
import bot.delivery.sender
from bot.backends.openai_compatible.backend import OpenAICompatibleBackend
from bot.chat.incoming import Incoming
from bot.chat.outgoing import OutboxRow, OutboxState
from bot.chat.prompt import Delta, Finish, Prompt, ReasoningDelta
from bot.delivery.sender import Sender
from bot.intake.intake import InboxIntake
from bot.platforms.discord.surface import DiscordSurface
from bot.platforms.telegram.surface import TelegramSurface
from bot.storage.sql.conversations import SqlConversations
from bot.storage.sql.inbox import SqlInbox
from bot.storage.sql.outbox import SqlOutbox

Passed = Callable[[], None]
Method = Callable[..., Awaitable[Any]]


class _Fuse:
    """Ends the process, as a power cut would, when it is passed for the last time."""

    def __init__(self, count: int) -> None:
        self._left = count

    def __call__(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _always(*_: Any, **__: Any) -> bool:
    return True


def _before(
    owner: type, original: Method, passed: Passed, when: Callable[..., bool] = _always
) -> None:
    """Pass the point each time before this method runs; `when` is asked with its arguments."""

    @functools.wraps(original)
    async def wrapped(self: Any, *args: Any, **more: Any) -> Any:
        if when(*args, **more):
            passed()
        return await original(self, *args, **more)

    setattr(owner, original.__name__, wrapped)


def _after(
    owner: type, original: Method, passed: Passed, when: Callable[..., bool] = _always
) -> None:
    """Pass the point each time this method has run; `when` is asked with what it gave and took."""

    @functools.wraps(original)
    async def wrapped(self: Any, *args: Any, **more: Any) -> Any:
        result = await original(self, *args, **more)
        if when(result, *args, **more):
            passed()
        return result

    setattr(owner, original.__name__, wrapped)


def _something_heard(heard: Sequence[Incoming], _cursors: Mapping[str, str]) -> bool:
    return bool(heard)


def _was_heard(_: None, heard: Sequence[Incoming], _cursors: Mapping[str, str]) -> bool:
    return bool(heard)


def _to_be_sent(row: OutboxRow | None, _lane: str) -> bool:
    return row is not None and row.state is OutboxState.PENDING


def _during_generation(passed: Passed) -> None:
    original = OpenAICompatibleBackend.generate

    async def generate(
        self: OpenAICompatibleBackend, prompt: Prompt
    ) -> AsyncGenerator[Delta | ReasoningDelta | Finish, None]:
        async with aclosing(original(self, prompt)) as stream:
            async for event in stream:
                yield event
                passed()

    OpenAICompatibleBackend.generate = generate  # type: ignore[method-assign] # that is the purpose


def _between_parts(passed: Passed) -> None:
    in_parts: set[str] = set()

    def note(_: None, _claim: object, heard: Any, *, outgoing: Sequence[object], **__: Any) -> bool:
        if len(outgoing) > 1:
            in_parts.add(heard.turn)
        return False

    _after(SqlConversations, SqlConversations.finish, passed, note)
    _after(
        SqlOutbox,
        SqlOutbox.mark_sent,
        passed,
        lambda _, row, __: row.part > 0 or row.turn in in_parts,
    )


def _during_reconcile(passed: Passed) -> None:
    for surface in (DiscordSurface, TelegramSurface):
        _after(surface, surface.find, passed)


POINTS: dict[str, Callable[[Passed], None]] = {
    "never": lambda _: None,
    "after_received": lambda passed: _before(SqlInbox, SqlInbox.receive, passed, _something_heard),
    "after_commit": lambda passed: _after(SqlInbox, SqlInbox.receive, passed, _was_heard),
    "after_wake": lambda passed: _after(InboxIntake, InboxIntake.receive, passed, _was_heard),
    "after_claim": lambda passed: _after(
        SqlConversations, SqlConversations.claim, passed, lambda claim, *_: claim is not None
    ),
    "after_open": lambda passed: _after(SqlConversations, SqlConversations.open, passed),
    "during_generation": _during_generation,
    "before_finish": lambda passed: _before(SqlConversations, SqlConversations.finish, passed),
    "after_finish": lambda passed: _after(SqlConversations, SqlConversations.finish, passed),
    "after_take": lambda passed: _after(SqlOutbox, SqlOutbox.take, passed, _to_be_sent),
    "after_http": lambda passed: _after(Sender, Sender._carry_out, passed),
    "between_parts": _between_parts,
    "during_reconcile": _during_reconcile,
}


# --- builds that must be found out ---------------------------------------------------------------


def _blind_resend() -> None:
    """What may have arrived is simply sent again, as if it were something new."""

    async def resend(self: Sender, row: OutboxRow) -> None:
        await self._outbox.reschedule(row, self._clock.now())

    Sender._reconcile = resend  # type: ignore[method-assign] # that is the purpose
    bot.delivery.sender.make_nonce = lambda turn, part: secrets.token_hex(12)


def _acknowledge_first() -> None:
    """The cursor moves before what it counts is stored."""
    hear = SqlInbox.receive

    async def hurried(
        self: SqlInbox, messages: Sequence[Incoming], cursors: Mapping[str, str]
    ) -> None:
        await hear(self, (), cursors)
        await hear(self, messages, {})

    SqlInbox.receive = hurried  # type: ignore[method-assign] # that is the purpose


BUILDS: dict[str, Callable[[], None]] = {
    "right": lambda: None,
    "blind_resend": _blind_resend,
    "acknowledge_first": _acknowledge_first,
}


def _say_what_waits(*_: object) -> None:
    for task in asyncio.all_tasks(asyncio.get_event_loop()):
        task.print_stack(file=sys.stderr)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("point", choices=POINTS)
    parser.add_argument("count", type=int, help="die at the passing with this number")
    parser.add_argument("--build", choices=BUILDS, default="right")
    parser.add_argument("command", nargs="+", help="of the bot: run")
    given = parser.parse_args(arguments)
    POINTS[given.point](_Fuse(given.count))
    BUILDS[given.build]()  # above the points, so that a wrong build can die in its wrong moment
    signal.signal(signal.SIGUSR1, _say_what_waits)
    sys.argv = ["troupe", *given.command]
    bot.cli.app.main()


if __name__ == "__main__":
    main(sys.argv[1:])

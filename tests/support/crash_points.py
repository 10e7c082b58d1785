"""Run the bot so that it kills or stops itself at a named point, or with a fault built in.

    python -m tests.support.crash_points after_commit 3 -- run
    python -m tests.support.crash_points before_finish 1 --signal SIGSTOP -- run
    python -m tests.support.crash_points after_received 1 --build acknowledge_first -- run

The points are those of the crash table in docs/delivery.md. The product does not know them: its
methods are wrapped here before it starts.
"""

import argparse
import asyncio
import functools
import os
import re
import secrets
import signal
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar

import bot.cli.app
import bot.delivery.sender
import bot.turn.worker
from bot.backends.chat_completions.http_backend import HttpChatBackend
from bot.backends.openai_compatible.backend import OpenAICompatibleBackend
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.chat.incoming import Edited, Incoming, Said
from bot.chat.outgoing import OutboxRow
from bot.chat.prompt import GenerationEvent, Prompt
from bot.chat.session import Claim, FinishedTurn, InboxMessage, TurnResult
from bot.delivery.sender import Sender
from bot.intake import InboxIntake
from bot.platforms.discord.surface import DiscordSurface
from bot.platforms.telegram.surface import TelegramSurface
from bot.runtime.clock import SystemClock
from bot.storage import finishing, statements
from bot.storage.conversations import Conversations
from bot.storage.functions import FUNCTIONS, PostgresFunction
from bot.storage.inbox import SqlInbox
from bot.storage.outbox import SenderIdentity, SqlOutbox
from bot.storage.statements import SQL, Statement
from bot.turn.claims import is_set_aside
from bot.turn.edits import Edits
from bot.turn.message_groups import MessageGroup
from bot.turn.presses import Presses

FATAL_WORD = "abracadabra"

OnPass = Callable[[], None]
Owner = TypeVar("Owner")
Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


class _CrashCounter:
    """Sends the process a signal at the given call of those after SIGUSR2, or of all."""

    def __init__(self, count: int, sends: signal.Signals, *, is_armed: bool) -> None:
        self._left = count
        self._sends = sends
        self._is_armed = is_armed

    def arm(self, *_: object) -> None:
        self._is_armed = True

    def __call__(self) -> None:
        if not self._is_armed:
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), self._sends)


def _always(*_: Any, **__: Any) -> bool:
    return True


def _before(
    owner: type[Owner],
    original: Callable[Concatenate[Owner, Arguments], Awaitable[Returned]],
    passed: OnPass,
    when: Callable[Arguments, bool] = _always,
) -> None:
    """Call `passed` before each run of a method whose arguments `when` accepts."""

    @functools.wraps(original)
    async def wrapped(self: Owner, *args: Arguments.args, **more: Arguments.kwargs) -> Returned:
        if when(*args, **more):
            passed()
        return await original(self, *args, **more)

    setattr(owner, original.__name__, wrapped)


def _after(
    owner: type[Owner],
    original: Callable[Concatenate[Owner, Arguments], Awaitable[Returned]],
    passed: OnPass,
    when: Callable[Concatenate[Returned, Arguments], bool] = _always,
) -> None:
    """Call `passed` after each run of a method whose result and arguments `when` accepts."""

    @functools.wraps(original)
    async def wrapped(self: Owner, *args: Arguments.args, **more: Arguments.kwargs) -> Returned:
        result = await original(self, *args, **more)
        if when(result, *args, **more):
            passed()
        return result

    setattr(owner, original.__name__, wrapped)


def _has_messages(messages: Sequence[Incoming], cursors: Mapping[str, str]) -> bool:
    return bool(messages)


def _had_messages(_: None, messages: Sequence[Incoming], cursors: Mapping[str, str]) -> bool:
    return bool(messages)


def _during_generation(passed: OnPass) -> None:
    original = OpenAICompatibleBackend.generate

    async def generate(
        self: HttpChatBackend[OpenAISettings], prompt: Prompt
    ) -> AsyncGenerator[GenerationEvent, None]:
        async with aclosing(original(self, prompt)) as stream:
            async for event in stream:
                yield event
                passed()

    OpenAICompatibleBackend.generate = generate  # type: ignore[method-assign] # on purpose


def _between_parts(passed: OnPass) -> None:
    in_parts: set[str] = set()

    def note(
        _: FinishedTurn,
        claim: Claim,
        message: InboxMessage,
        result: TurnResult,
        *,
        go_on: bool = True,
    ) -> bool:
        if len(result.outgoing) > 1:
            in_parts.add(message.turn)
        return False

    _after(Conversations, Conversations.finish, passed, note)
    _after(
        SqlOutbox,
        SqlOutbox.mark_sent,
        passed,
        lambda _, row, external_id: row.part > 0 or row.turn in in_parts,
    )


def _during_reconcile(passed: OnPass) -> None:
    _after(DiscordSurface, DiscordSurface.find, passed)
    _after(TelegramSurface, TelegramSurface.find, passed)


CRASH_POINTS: dict[str, Callable[[OnPass], None]] = {
    "never": lambda _: None,
    "after_received": lambda passed: _before(SqlInbox, SqlInbox.receive, passed, _has_messages),
    "after_commit": lambda passed: _after(SqlInbox, SqlInbox.receive, passed, _had_messages),
    "after_wake": lambda passed: _after(InboxIntake, InboxIntake.receive, passed, _had_messages),
    "after_claim": lambda passed: _after(
        Conversations, Conversations.begin, passed, lambda begun, *_: bool(begun)
    ),
    "after_open": lambda passed: _after(Conversations, Conversations.open, passed),
    "during_generation": _during_generation,
    "before_finish": lambda passed: _before(Conversations, Conversations.finish, passed),
    "after_finish": lambda passed: _after(Conversations, Conversations.finish, passed),
    "after_take": lambda passed: _before(Sender, Sender._carry_out, passed),
    "after_http": lambda passed: _after(Sender, Sender._carry_out, passed),
    "before_again": lambda passed: _before(SqlOutbox, SqlOutbox.reschedule, passed),
    "between_parts": _between_parts,
    "during_reconcile": _during_reconcile,
}


# --- faulty builds ------------------------------------------------------------------------------


def _blind_resend() -> None:
    """A send of unknown outcome is repeated as a new message."""

    async def resend(self: Sender, row: OutboxRow) -> OutboxRow | None:
        await self.outbox.reschedule(row, 0)
        return await self._take_again(row.address.lane, 0)

    Sender._reconcile = resend  # type: ignore[method-assign] # on purpose
    bot.delivery.sender.make_nonce = lambda turn, part: secrets.token_hex(12)


def _acknowledge_first() -> None:
    """The cursor is stored before the messages that it counts."""
    receive = SqlInbox.receive

    async def cursor_first(
        self: SqlInbox, messages: Sequence[Incoming], cursors: Mapping[str, str]
    ) -> None:
        await receive(self, (), cursors)
        await receive(self, messages, {})

    SqlInbox.receive = cursor_first  # type: ignore[method-assign] # on purpose


def _answer_edits_anew() -> None:
    """An edited question is taken for another one."""

    async def follow(_: Edits, _group: MessageGroup, edited: Edited) -> TurnResult | Said:
        return edited.said

    Edits.follow = follow  # type: ignore[assignment] # on purpose


def _ignore_changes() -> None:
    """An edit changes nothing, and a press is acknowledged and changes nothing."""

    async def follow(*_: object) -> TurnResult:
        return TurnResult()

    Edits.follow = follow  # type: ignore[assignment] # on purpose
    Presses.follow = follow  # type: ignore[assignment] # on purpose


def _forget_gathered() -> None:
    """What was gathered into an answer stays in the inbox."""
    original = Conversations.finish

    async def finish(
        self: Conversations, claim: Claim, message: InboxMessage, *args: Any, **more: Any
    ) -> FinishedTurn:
        return await original(self, claim, replace(message, gathered=()), *args, **more)

    Conversations.finish = finish  # type: ignore[method-assign] # on purpose


def _rewrite(function: PostgresFunction, pattern: str, replacement: str) -> None:
    """Change the text of a function of the database; it gets a name of its own."""
    new_name = f"{function.name}_{secrets.token_hex(4)}"
    rewritten, changes = re.subn(pattern, replacement, function.definition)
    assert changes, f"{function.name} has no {pattern}"
    call = function.call
    function.definition = rewritten.replace(function.name, new_name)
    function.call = Statement(
        call.text.replace(function.name, new_name), lists=call._lists, tables=call._tables
    )
    function.name = new_name


def _no_fence() -> None:
    """Nobody checks the epoch and owner of a claim, nor whether its answer is queued already."""
    held = "epoch = _at_epoch AND owner = _claimed_by"
    for function in (FUNCTIONS["open"], FUNCTIONS["finish"]):
        _rewrite(function, held, "true")
    finish_values = finishing._finish_values

    def values_of_another_turn(
        claim: Claim, rows: finishing.FinishedRows, sender: SenderIdentity | None, now: float
    ) -> dict[str, object]:
        values = finish_values(claim, rows, sender, now)
        return {**values, "turn": f"{values['turn']}/{secrets.token_hex(4)}"}

    async def renew(*_: object) -> list[Claim]:
        return []

    finishing._finish_values = values_of_another_turn
    Conversations.renew = renew  # type: ignore[method-assign,assignment] # on purpose


def _unfenced_again() -> None:
    """Whoever held a row once may give it back to be sent, whatever became of it since."""
    # With its old id, the second message would take the place of the first.
    SQL["put_off_row"] = Statement("""
        UPDATE outbox SET state = :becomes, owner = NULL, not_before = :now + :seconds,
            external_id = CASE WHEN op = 'send' THEN NULL ELSE external_id END
        WHERE id = :row RETURNING lane, not_before
    """)
    _rewrite(FUNCTIONS["sent"], r" text = '',", "")  # there is something to send again


def _clients_clocks() -> None:
    """Leases on PostgreSQL are judged by the clock of whoever asks."""
    ahead = round(SystemClock().now() - time.time())
    statements.SERVER_CLOCK = f"({statements.SERVER_CLOCK} + {ahead})"
    own_time = f"(clock_timestamp() + make_interval(secs => {ahead}))"
    for function in FUNCTIONS.values():
        if "clock_timestamp" in function.definition:
            _rewrite(function, r"clock_timestamp\(\)", own_time)


def _fatal_message() -> None:
    """A message that contains a certain word kills the process when the model is asked."""
    original = OpenAICompatibleBackend.generate

    def generate(
        self: HttpChatBackend[OpenAISettings], prompt: Prompt
    ) -> AsyncGenerator[GenerationEvent, None]:
        if FATAL_WORD in str(prompt.messages[-1].content):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, prompt)

    OpenAICompatibleBackend.generate = generate  # type: ignore[method-assign] # on purpose


def _never_set_aside() -> None:
    """No message is blamed for the deaths: with a thousand kills, some meet one three times."""
    setattr(bot.turn.worker, is_set_aside.__name__, lambda _: False)


BUILDS: dict[str, Callable[[], None]] = {
    "right": lambda: None,
    "never_set_aside": _never_set_aside,
    "blind_resend": _blind_resend,
    "acknowledge_first": _acknowledge_first,
    "answer_edits_anew": _answer_edits_anew,
    "ignore_changes": _ignore_changes,
    "forget_gathered": _forget_gathered,
    "no_fence": _no_fence,
    "unfenced_again": _unfenced_again,
    "clients_clocks": _clients_clocks,
    "fatal_message": _fatal_message,
}


def _set_clock_ahead(seconds: float) -> None:
    now = SystemClock.now
    SystemClock.now = lambda self: now(self) + seconds  # type: ignore[method-assign] # on purpose


def _print_task_stacks(*_: object) -> None:
    """Print what each task waits for, down to the innermost await: `print_stack` ends before."""
    for task in asyncio.all_tasks(asyncio.get_event_loop()):
        print(f"Stack for {task.get_name()}", file=sys.stderr)  # noqa: T201
        awaited: Any = task.get_coro()
        while awaited is not None:
            frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None)
            where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else repr(awaited)
            print(f"  {where}", file=sys.stderr)  # noqa: T201
            awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "ag_await", None)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("point", choices=CRASH_POINTS)
    parser.add_argument("count", type=int, help="the pass at which it sends itself the signal")
    parser.add_argument("--signal", choices=("SIGKILL", "SIGSTOP"), default="SIGKILL")
    parser.add_argument("--armed-later", action="store_true", help="count passes from SIGUSR2 on")
    parser.add_argument("--build", choices=BUILDS, default="right")
    parser.add_argument("--clock-ahead", type=float, default=0.0, help="seconds")
    start = arguments.index("run")  # then the bot's own arguments follow
    given = parser.parse_args(arguments[:start])
    sends = signal.Signals[given.signal]
    counter = _CrashCounter(given.count, sends, is_armed=not given.armed_later)
    CRASH_POINTS[given.point](counter)
    _set_clock_ahead(given.clock_ahead)
    BUILDS[given.build]()  # after the points, so that a fault can be hit by a crash
    signal.signal(signal.SIGUSR1, _print_task_stacks)
    signal.signal(signal.SIGUSR2, counter.arm)
    sys.argv = ["troupe", *arguments[start:]]
    bot.cli.app.main()


if __name__ == "__main__":
    main(sys.argv[1:])

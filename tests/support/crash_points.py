"""Run the bot so that it kills or stops itself at a crash point, or with a built-in fault.

    python -m tests.support.crash_points after_commit 3 -- run
    python -m tests.support.crash_points before_finish 1 --signal SIGSTOP -- run
    python -m tests.support.crash_points after_received 1 --build acknowledge_first -- run

The crash points are listed in docs/delivery.md. The product's code does not contain them: its
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
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import bot.cli.app
import bot.delivery.sender
import bot.turn.worker
from bot.backends.chat_completions.http_backend import HttpChatBackend
from bot.backends.openai_compatible.backend import OpenAICompatibleBackend
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.chat.incoming import Incoming, IncomingMessage, MessageEdit
from bot.chat.outgoing import OutboxRow
from bot.chat.prompt import GenerationEvent, Prompt
from bot.chat.session import Claim, InboxMessage, RemainingWork, TurnResult
from bot.commands.request import OpenQuestion
from bot.delivery.sender import Sender
from bot.intake import InboxIntake
from bot.runtime.clock import SystemClock
from bot.storage import finishing, statements
from bot.storage.conversations import Conversations
from bot.storage.functions import SQL_FUNCTIONS, PostgresFunction
from bot.storage.inbox import SqlInbox
from bot.storage.outbox import SenderIdentity, SqlOutbox
from bot.storage.statements import SQL, Statement
from bot.turn.claims import has_crashed_too_often
from bot.turn.edits import EditHandler
from bot.turn.finishing import QuestionAnswerer, TurnOutcome
from bot.turn.message_groups import MessageGroup, user_turn
from bot.turn.presses import PressHandler

FATAL_WORD = "abracadabra"

OnPass = Callable[[], None]
OnPoint = Callable[[OnPass], None]
When = Callable[..., bool] | None


class _CrashCounter:
    """Signals the process on the given call, counted from the start or from SIGUSR2."""

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


def _wrap(
    owner: type, name: str, passed: OnPass, when: When = None, *, before: bool = False
) -> None:
    """Call `passed` after (or before) each call of a method whose arguments `when` accepts.

    The first argument of `when` is the method's result, or None before the call.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    async def wrapped(self: object, *args: Any, **more: Any) -> Any:
        if before and (when is None or when(None, *args, **more)):
            passed()
        result = await original(self, *args, **more)
        if not before and (when is None or when(result, *args, **more)):
            passed()
        return result

    setattr(owner, name, wrapped)


def _has_messages(_: None, messages: Sequence[Incoming], cursors: Mapping[str, str]) -> bool:
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
        _: object, _claim: Claim, message: InboxMessage, result: TurnResult, **__: Any
    ) -> bool:
        if len(result.outgoing) > 1:
            in_parts.add(message.turn_name)
        return False

    def is_part(_: object, row: OutboxRow, _external_id: str | None) -> bool:
        return row.part_number > 0 or row.turn_name in in_parts

    _wrap(Conversations, "finish", passed, note)
    _wrap(SqlOutbox, "mark_sent", passed, is_part)


def _during_reconcile(passed: OnPass) -> None:
    # Not in processes of the simulation: aiogram is more than half of what they would import.
    from bot.platforms.discord.surface import DiscordSurface  # noqa: PLC0415
    from bot.platforms.telegram.surface import TelegramSurface  # noqa: PLC0415

    for surface in (DiscordSurface, TelegramSurface):
        _wrap(surface, "find", passed)


def _point(owner: type, name: str, when: When = None, *, before: bool = False) -> OnPoint:
    return lambda passed: _wrap(owner, name, passed, when, before=before)


CRASH_POINTS: dict[str, OnPoint] = {
    "never": lambda _: None,
    "after_received": _point(SqlInbox, "receive", _has_messages, before=True),
    "after_commit": _point(SqlInbox, "receive", _has_messages),
    "after_wake": _point(InboxIntake, "receive", _has_messages),
    "after_claim": _point(Conversations, "begin", lambda begun, *_: bool(begun)),
    "after_open": _point(Conversations, "open_part"),
    "during_generation": _during_generation,
    "before_finish": _point(Conversations, "finish", before=True),
    "after_finish": _point(Conversations, "finish"),
    "after_take": _point(Sender, "_perform_operation", before=True),
    "after_http": _point(Sender, "_perform_operation"),
    "before_again": _point(SqlOutbox, "reschedule", before=True),
    "between_parts": _between_parts,
    "during_reconcile": _during_reconcile,
}


# --- faulty builds ------------------------------------------------------------------------------


def blind_resend() -> None:
    """Faulty build: a send with unknown outcome is repeated as a new message."""

    async def resend(self: Sender, row: OutboxRow) -> OutboxRow | None:
        await self.outbox.reschedule(row, 0)
        return await self._claim_row(row.address.lane, 0)

    Sender._resolve_unknown_outcome = resend  # type: ignore[method-assign] # on purpose
    bot.delivery.sender.derive_nonce = lambda turn_name, part_number: secrets.token_hex(12)


def acknowledge_first() -> None:
    """Faulty build: the cursor is stored before the messages."""
    receive = SqlInbox.receive

    async def cursor_first(
        self: SqlInbox, messages: Sequence[Incoming], cursors: Mapping[str, str]
    ) -> None:
        await receive(self, (), cursors)
        await receive(self, messages, {})

    SqlInbox.receive = cursor_first  # type: ignore[method-assign] # on purpose


def _answer_edits_anew() -> None:
    """Faulty build: an edited question counts as a new question."""

    async def apply_edit(
        _: EditHandler, _group: MessageGroup, edited: MessageEdit
    ) -> TurnResult | IncomingMessage:
        return edited.said

    EditHandler.apply_edit = apply_edit  # type: ignore[assignment] # on purpose


def _ignore_changes() -> None:
    """Faulty build: edits and presses have no effect."""

    async def ignore(*_: object) -> TurnResult:
        return TurnResult()

    EditHandler.apply_edit = ignore  # type: ignore[assignment] # on purpose
    PressHandler.apply_press = ignore  # type: ignore[assignment] # on purpose


def _forget_gathered() -> None:
    """Faulty build: gathered messages stay in the inbox."""
    original = Conversations.finish

    async def finish(
        self: Conversations, claim: Claim, message: InboxMessage, *args: Any, **more: Any
    ) -> RemainingWork:
        return await original(self, claim, replace(message, gathered_messages=()), *args, **more)

    Conversations.finish = finish  # type: ignore[method-assign] # on purpose


def _skip_edited() -> None:
    """Faulty build: a question edited while it waits is stored, but not answered."""
    original = QuestionAnswerer.answer

    async def answer(
        self: QuestionAnswerer, group: MessageGroup, question: OpenQuestion, *args: Any, **kw: Any
    ) -> TurnOutcome:
        if group.edited_at is None:
            return await original(self, group, question, *args, **kw)
        skipped = TurnResult([user_turn(question.incoming)])
        return "skipped", await self.finisher.finish(group, skipped)

    QuestionAnswerer.answer = answer  # type: ignore[method-assign] # on purpose


def _rewrite(function: PostgresFunction, pattern: str, replacement: str) -> None:
    """Change the SQL of a database function, and give it a new name."""
    new_name = f"{function.name}_{secrets.token_hex(4)}"
    rewritten, changes = re.subn(pattern, replacement, function.definition)
    assert changes, f"{function.name} has no {pattern}"
    call = function.call
    function.definition = rewritten.replace(function.name, new_name)
    function.call = Statement(
        call.text.replace(function.name, new_name),
        array_parameters=call._array_parameters,
        table_parameters=call._table_parameters,
    )
    function.name = new_name


def _no_fence() -> None:
    """Faulty build: the epoch and owner of claims are not checked."""
    held = "epoch = _at_epoch AND owner = _claimed_by"
    for function in (SQL_FUNCTIONS["open"], SQL_FUNCTIONS["finish"]):
        _rewrite(function, held, "true")
    finish_values = finishing._build_finish_values

    def values_of_another_turn(
        claim: Claim, rows: finishing.FinishRows, sender: SenderIdentity | None, now: float
    ) -> dict[str, object]:
        values = finish_values(claim, rows, sender, now)
        return {**values, "turn": f"{values['turn']}/{secrets.token_hex(4)}"}

    async def renew(*_: object) -> list[Claim]:
        return []

    finishing._build_finish_values = values_of_another_turn
    Conversations.renew = renew  # type: ignore[method-assign,assignment] # on purpose


def _unfenced_again() -> None:
    """Faulty build: a sender that no longer holds a row may still reschedule it."""
    # With its old id, the second message would take the place of the first.
    SQL["put_off_row"] = Statement("""
        UPDATE outbox SET state = :becomes, owner = NULL, not_before = :now + :seconds,
            external_id = CASE WHEN op = 'send' THEN NULL ELSE external_id END
        WHERE id = :row RETURNING lane, not_before
    """)
    _rewrite(SQL_FUNCTIONS["sent"], r" text = '',", "")  # there is something to send again


def _clients_clocks() -> None:
    """Faulty build: leases on PostgreSQL are judged by the clients' clocks."""
    ahead = round(SystemClock().now() - time.time())
    statements.SERVER_CLOCK_SQL = f"({statements.SERVER_CLOCK_SQL} + {ahead})"
    own_time = f"(clock_timestamp() + make_interval(secs => {ahead}))"
    for function in SQL_FUNCTIONS.values():
        if "clock_timestamp" in function.definition:
            _rewrite(function, r"clock_timestamp\(\)", own_time)


def _fatal_message() -> None:
    """Faulty build: a message with a certain word kills the process."""
    original = OpenAICompatibleBackend.generate

    def generate(
        self: HttpChatBackend[OpenAISettings], prompt: Prompt
    ) -> AsyncGenerator[GenerationEvent, None]:
        if FATAL_WORD in str(prompt.messages[-1].content):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, prompt)

    OpenAICompatibleBackend.generate = generate  # type: ignore[method-assign] # on purpose


def never_set_aside() -> None:
    """Never set a message aside after crashes: random kills can hit one three times."""
    setattr(bot.turn.worker, has_crashed_too_often.__name__, lambda _: False)


_FAULTS = (
    *(never_set_aside, blind_resend, acknowledge_first, _answer_edits_anew, _ignore_changes),
    *(_forget_gathered, _skip_edited, _no_fence, _unfenced_again, _clients_clocks, _fatal_message),
)
BUILDS = {"right": lambda: None, **{one.__name__.lstrip("_"): one for one in _FAULTS}}


def _print_task_stacks(*_: object) -> None:
    """Print the stack of each task down to the innermost await, unlike `print_stack`."""
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
    start = arguments.index("--")  # then the bot's own arguments follow
    given = parser.parse_args(arguments[:start])
    sends = signal.Signals[given.signal]
    counter = _CrashCounter(given.count, sends, is_armed=not given.armed_later)
    CRASH_POINTS[given.point](counter)
    now = SystemClock.now
    SystemClock.now = staticmethod(lambda: now() + given.clock_ahead)
    BUILDS[given.build]()  # after the points, so that a fault can be hit by a crash
    signal.signal(signal.SIGUSR1, _print_task_stacks)
    signal.signal(signal.SIGUSR2, counter.arm)
    sys.argv = ["troupe", *arguments[start + 1 :]]
    bot.cli.app.main()


if __name__ == "__main__":
    main(sys.argv[1:])

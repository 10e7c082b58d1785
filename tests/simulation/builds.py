"""Faulty builds, each without one safeguard: the checker must detect every fault."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bot.chat.session import Claim
from bot.delivery.late_duplicates import LateDuplicateRemover
from bot.storage import finishing
from bot.storage.conversations import Conversations
from tests.support.crash_points import acknowledge_first, blind_resend

_numbers = itertools.count()


def _no_fence() -> None:
    """Remove the check of epochs, so that outdated workers can queue answers."""
    queue_answer, is_late = finishing._queue_answer, False

    def session(_claim: Claim, rows: Sequence[Sequence[Any]]) -> int:
        nonlocal is_late
        is_late = not rows
        return rows[0][0] if rows else 1

    def queue(rows: finishing.FinishRows, *more: Any) -> Any:
        if is_late:
            common = rows.answer.common_columns
            turn = {"turn": f"{common['turn']}/{next(_numbers)}"}
            rows = replace(rows, answer=replace(rows.answer, common_columns={**common, **turn}))
        return (yield from queue_answer(rows, *more))

    async def renew(*_: object) -> list[Claim]:
        return []

    for name, function in (("_require_locked_session", session), ("_queue_answer", queue)):
        assert hasattr(finishing, name)
        setattr(finishing, name, function)
    Conversations.renew = renew  # type: ignore[method-assign,assignment] # on purpose


def _leave_duplicates() -> None:
    """Remove the search for messages that were accepted after they were sent again."""

    async def wait(_self: LateDuplicateRemover, _wake: object) -> None:
        await asyncio.get_running_loop().create_future()

    LateDuplicateRemover.run = wait  # type: ignore[method-assign,assignment] # on purpose


BUILDS: dict[str, Callable[[], None]] = {
    "right": lambda: None,
    "blind_resend": blind_resend,
    "no_fence": _no_fence,
    "acknowledge_first": acknowledge_first,
    "clients_clocks": lambda: None,  # the server of the simulation trusts them
    "accepts_late": lambda: None,  # the right one, on platforms that do
    "leave_duplicates": _leave_duplicates,
}
LATE_BUILDS = ("accepts_late", "leave_duplicates")
"""Their platforms accept sends after the settle time. Their processes do not die, as that would
lose what they remember about such sends."""

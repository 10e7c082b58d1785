"""Buttons as an inline keyboard under a Telegram message."""

import itertools
from collections.abc import Sequence
from operator import attrgetter

from bot.chat.outgoing import Button


def to_keyboard(buttons: Sequence[Button]) -> dict[str, object] | None:
    """Return the keyboard; without one an edit removes the one that is there."""
    if not buttons:
        return None
    rows = itertools.groupby(sorted(buttons, key=attrgetter("row")), attrgetter("row"))
    return {
        "inline_keyboard": [
            [{"text": one.label, "callback_data": one.data} for one in row] for _, row in rows
        ]
    }

"""Hooks for Troupe: a shop's bot knows the opening hours and promises no refunds.

Hooks are plain functions with 200 ms each. One that fails changes nothing; the receipt says so.
"""

import re
from collections.abc import Sequence

from bot.runtime.plugins import HookContext, Refusal

TROUPE_API = 1
_OPEN_HOURS = range(9, 18)  # UTC
_SUNDAY = 6
_PROMISE = re.compile(r"\b(refund|money back)\b", re.IGNORECASE)
_PHONE = re.compile(r"\+?\d[\d ()-]{7,}\d")


def prompt_parts(context: HookContext) -> Sequence[str]:
    """Return texts to place before the newest message, if they fit the token budget."""
    is_open = context.at.weekday() != _SUNDAY and context.at.hour in _OPEN_HOURS
    return [f"The shop is {'open' if is_open else 'closed'} now."]


def check_answer(text: str) -> str | Refusal:
    """Return the answer to show, or refuse it."""
    if _PROMISE.search(text):
        return Refusal("it promises money")
    return _PHONE.sub("[phone number]", text)

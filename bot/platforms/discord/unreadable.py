"""What of Discord's events and messages discord.py cannot parse is skipped, as little as can be."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import structlog

PARSE_ERRORS = (AttributeError, LookupError, TypeError, ValueError)
"""What discord.py raises for an event with a field that it does not expect."""
_ESSENTIAL = frozenset(
    {"id", "channel_id", "guild_id", "webhook_id", "author", "type", "content", "timestamp"}
)
"""The parts of a message without which it would be another one."""
_KEPT = _ESSENTIAL | {"mentions", "mention_roles", "message_reference", "referenced_message"}
"""The parts that stay if several are unreadable."""
_log = structlog.get_logger(__name__)

Payload = Any  # a JSON object of Discord's API
Parsed = TypeVar("Parsed")


def skip_unreadable(event: str, parse: Callable[[], Parsed]) -> Parsed | None:
    """Return what `parse` returns; None, and a log line, where Discord's data is malformed."""
    try:
        return parse()
    except PARSE_ERRORS as error:
        log_skipped(event, error)
        return None


def log_skipped(event: str, error: Exception) -> None:
    # The text of a ValueError quotes the value, which may be what somebody wrote.
    reason = type(error).__name__ if isinstance(error, ValueError) else repr(error)
    _log.warning("discord_event_skipped", event_type=event, reason=reason)


def parse_readable(parse: Callable[[Payload], None], message: Payload) -> None:
    """Parse a message without the part that the library cannot parse.

    If that is none or several, nearly all are left out. The library raises before it reports a
    message, so it can be asked again.
    """
    whole = _with_poll_expiry(message)
    try:
        parse(whole)
    except PARSE_ERRORS as error:
        reason = type(error).__name__
    else:
        return
    for part in [one for one in whole if one not in _ESSENTIAL]:
        try:
            parse({key: value for key, value in whole.items() if key != part})
        except PARSE_ERRORS:
            continue
        _log.warning("discord_message_part_skipped", part=part, reason=reason)
        return
    parse({key: value for key, value in whole.items() if key in _KEPT})
    _log.warning("discord_message_part_skipped", part="all", reason=reason)


def _with_poll_expiry(data: Payload) -> Payload:
    """Give polls without an end one: the library requires it."""
    poll, original = data.get("poll"), data.get("referenced_message")
    if isinstance(poll, Mapping) and poll.get("expiry") is None:
        data = {**data, "poll": {**poll, "expiry": data.get("timestamp")}}
    if isinstance(original, Mapping) and original.get("poll"):
        data = {**data, "referenced_message": _with_poll_expiry(original)}
    return data

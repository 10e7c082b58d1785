"""Hold a lane without a row of it, while its chat is searched for messages of ours."""

from bot.storage.engine.statements import Unit
from bot.storage.units import lane_sql


def hold(key: str, now: float) -> Unit[float | None]:
    """Take a lane that nobody has, where every message of ours is accounted for.

    Returns:
        The end of the lease in Unix seconds, which `release` takes; None: it was not taken.
    """
    leased = yield lane_sql.HOLD_SETTLED.query({"of": key, "now": now})
    return leased[0][0] if leased else None


def release(key: str, held: float, now: float) -> Unit[None]:
    """Give a lane back, due if there is something to send, unless another sender has it by now."""
    # What is queued from now on waits for this unit.
    if not (yield lane_sql.EMPTY_HELD.query({"of": key, "held": held})):
        return
    if (yield lane_sql.UNSENT.query({"of": key})):
        yield lane_sql.DUE_NOW.query({"of": key, "now": now})

"""Reserve and settle money, each in one transaction: what is reserved counts as spent.

A process that dies between the two leaves its reservation as spent, because the model may have been
paid for.
"""

import json
from collections.abc import Mapping, Sequence

from bot.chat.usage import BudgetCap
from bot.storage.statements import Statement, Unit

_LISTED = "WHERE key IN (SELECT value FROM jsonb_array_elements_text(:keys))"
_ENSURE = Statement("INSERT INTO budget (key, spent) VALUES (:key, 0) ON CONFLICT DO NOTHING")
# In one order everywhere, so that nobody deadlocks.
_LOCKED = Statement(f"SELECT key, spent FROM budget {_LISTED} ORDER BY key FOR UPDATE")
_SPENT = Statement(f"SELECT key, spent FROM budget {_LISTED}")
_ADD = Statement(f"UPDATE budget SET spent = spent + :amount {_LISTED}")


def reserve(caps: Sequence[BudgetCap], amount: int) -> Unit[BudgetCap | None]:
    """Count an amount against all caps, or return one that it would exceed and count nothing."""
    keys = sorted(cap.key for cap in caps)
    yield _ENSURE.query_many([{"key": key} for key in keys])
    rows = yield _LOCKED.query({"keys": json.dumps(keys)})
    spent = {row[0]: row[1] for row in rows}
    for cap in caps:
        if spent[cap.key] + amount > cap.limit:
            return cap
    yield _ADD.query({"keys": json.dumps(keys), "amount": amount})
    return None


def settle(caps: Sequence[BudgetCap], difference: int) -> Unit[None]:
    """Replace what was reserved by what was spent; the difference is mostly negative."""
    keys = json.dumps(sorted(cap.key for cap in caps))
    yield _LOCKED.query({"keys": keys})
    yield _ADD.query({"keys": keys, "amount": difference})


def read_spent(caps: Sequence[BudgetCap]) -> Unit[Mapping[str, int]]:
    """Return what is spent or reserved, by the key of the cap."""
    rows = yield _SPENT.query({"keys": json.dumps([cap.key for cap in caps])})
    return {row[0]: row[1] for row in rows}

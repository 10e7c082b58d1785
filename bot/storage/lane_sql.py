"""The statements of lanes and of the outbox."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Float,
    and_,
    bindparam,
    case,
    cast,
    exists,
    func,
    literal_column,
    null,
    or_,
    select,
    update,
)

from bot.chat.outgoing import OutboxOperation, OutboxState
from bot.storage.statements import (
    Statement,
    bound_texts,
    clock,
    insert_into,
    is_served,
    skip_locked,
)
from bot.storage.tables import is_unsent, lane, outbox

SENDING_SECONDS = 20.0
"""The lease of a row; a request ends within half of it, or its sender drops it."""

OUTBOX_ROW = (
    *("turn", "part", "op", "platform", "bot_id", "chat", "thread", "lane", "text", "reply_to"),
    *("interaction", "file_name", "file_text", "face", "buttons"),
)
_BEGUN = ("state", "owner", "attempts", "started_at")
QUEUE = Statement(lambda dialect: insert_into(outbox, dialect, *OUTBOX_ROW))
_TARGET = ("external_id", "target_turn", "target_part")
QUEUE_IN_PLACE = Statement(lambda dialect: insert_into(outbox, dialect, *OUTBOX_ROW, *_TARGET))
QUEUE_BEGUN = Statement(
    lambda dialect: insert_into(outbox, dialect, *OUTBOX_ROW, *_BEGUN).returning(outbox.c.id)
)
QUEUE_ONCE = Statement(
    lambda dialect: (
        insert_into(outbox, dialect, *OUTBOX_ROW)
        .on_conflict_do_update(index_elements=["turn", "part", "op"], set_={"turn": outbox.c.turn})
        .returning(outbox.c.id)
    )
)
"""Gives the id of the row, also where it is there already."""
MAKE_DUE = Statement(
    lambda dialect: (
        insert := insert_into(lane, dialect, "key", "platform", "bot_id").values(
            due_at=clock(dialect)
        )
    ).on_conflict_do_update(
        index_elements=["key"],
        set_={"due_at": func.coalesce(lane.c.due_at, insert.excluded.due_at)},
    )
)
# As text: in a RETURNING for SQLite, SQLAlchemy drops the tables' names, which tell them apart.
_HAS_UNSENT: ColumnElement[bool] = literal_column(
    "EXISTS (SELECT 1 FROM outbox WHERE outbox.state NOT IN ('sent', 'dead')"
    ' AND outbox.lane = lane."key")',
    Boolean,
)
MAKE_DUE_AND_TAKE = Statement(
    lambda dialect: (
        (
            insert := insert_into(lane, dialect, "key", "platform", "bot_id").values(
                due_at=clock(dialect) + SENDING_SECONDS
            )
        )
        .on_conflict_do_update(
            index_elements=["key"],
            set_={"due_at": insert.excluded.due_at},
            where=or_(lane.c.due_at.is_(None), lane.c.due_at <= clock(dialect)),
        )
        .returning(lane.c.due_at, *([_HAS_UNSENT] if dialect == "sqlite" else []))
    )
)
"""Gives nothing where the lane is held or waits for a moment: then it is due some time anyway.

On SQLite, gives also whether the lane has unsent rows.
"""
_THIS_LANE = lane.c.key == bindparam("of")
LOCK = Statement(select(lane.c.key).where(_THIS_LANE).with_for_update())
"""Whoever changes unsent rows locks their lane first: two units in two orders would deadlock."""
TAKE = Statement(
    lambda dialect: (
        update(lane)
        .where(_THIS_LANE, lane.c.due_at <= clock(dialect))
        .values(due_at=clock(dialect) + SENDING_SECONDS)
        .returning(lane.c.due_at)
    )
)
HOLD = Statement(
    lambda dialect: (
        update(lane)
        .where(_THIS_LANE)
        .values(due_at=clock(dialect) + SENDING_SECONDS)
        .returning(lane.c.due_at)
    )
)
HOLD_OR_EMPTY = Statement(
    lambda dialect: (
        update(lane)
        .where(_THIS_LANE)
        .values(
            due_at=case(
                (
                    exists().where(is_unsent, outbox.c.lane == bindparam("of")),
                    clock(dialect) + SENDING_SECONDS,
                ),
                else_=null(),
            )
        )
        .returning(lane.c.due_at)
    )
)
"""For SQLite, where nobody queues a row meanwhile: HOLD if there are unsent rows, else EMPTY."""
EMPTY = Statement(update(lane).where(_THIS_LANE).values(due_at=None))
# While a row is being sent or its outcome is unknown, its message may be there without its id.
_UNSETTLED = or_(outbox.c.state == OutboxState.SENDING, outbox.c.state == OutboxState.UNKNOWN)
HOLD_SETTLED = Statement(
    lambda dialect: (
        update(lane)
        .where(
            _THIS_LANE,
            or_(lane.c.due_at.is_(None), lane.c.due_at <= clock(dialect)),
            ~exists().where(is_unsent, outbox.c.lane == bindparam("of"), _UNSETTLED),
        )
        .values(due_at=clock(dialect) + SENDING_SECONDS)
        .returning(lane.c.due_at)
    )
)
EMPTY_HELD = Statement(
    update(lane)
    .where(_THIS_LANE, lane.c.due_at == bindparam("held", type_=Float))
    .values(due_at=None)
    .returning(lane.c.key)
)
DUE_NOW = Statement(lambda dialect: update(lane).where(_THIS_LANE).values(due_at=clock(dialect)))
POSTPONE = Statement(update(lane).where(_THIS_LANE).values(due_at=bindparam("moment")))
DUE = Statement(
    lambda dialect: skip_locked(
        select(lane.c.key)
        .where(lane.c.due_at <= clock(dialect), is_served(lane, dialect))
        .order_by(lane.c.due_at)
        .limit(bindparam("most")),
        dialect,
    )
)
SENT_IDS = Statement(
    lambda dialect: select(outbox.c.id, outbox.c.state, outbox.c.external_id).where(
        outbox.c.id.in_(select(cast(bound_texts("ids", dialect).subquery().c[0], BigInteger))),
        or_(outbox.c.external_id.is_not(None), outbox.c.state == OutboxState.DEAD),
    )
)
_opened = outbox.alias("opened")
HEAD_COLUMNS = (
    *(outbox.c.id, outbox.c.turn, outbox.c.part, outbox.c.op, outbox.c.platform, outbox.c.bot_id),
    *(outbox.c.chat, outbox.c.thread, outbox.c.text, outbox.c.reply_to, outbox.c.interaction),
    *(outbox.c.state, outbox.c.attempts, outbox.c.not_before, outbox.c.file_name),
    *(outbox.c.file_text, outbox.c.face, outbox.c.buttons, outbox.c.started_at),
    func.coalesce(outbox.c.external_id, _opened.c.external_id).label("external_id"),
)
HEAD = Statement(
    select(*HEAD_COLUMNS)
    .outerjoin(
        _opened,
        and_(
            _opened.c.turn == func.coalesce(outbox.c.target_turn, outbox.c.turn),
            _opened.c.part == func.coalesce(outbox.c.target_part, outbox.c.part),
            _opened.c.op == OutboxOperation.SEND,
        ),
    )
    .where(is_unsent, outbox.c.lane == bindparam("of"))
    .order_by(outbox.c.id)
    .limit(1)
)
UNSENT = Statement(select(outbox.c.id).where(is_unsent, outbox.c.lane == bindparam("of")).limit(1))
_THIS_ROW = outbox.c.id == bindparam("row")
_NO_EXTRAS = {"file_name": None, "file_text": None, "face": None, "buttons": None}
BEGIN = Statement(
    update(outbox)
    .where(_THIS_ROW)
    .values(
        state=bindparam("begun"),
        owner=bindparam("sender"),
        attempts=outbox.c.attempts + 1,
        started_at=bindparam("started"),
    )
)
LOST = Statement(
    update(outbox)
    .where(_THIS_ROW)
    .values(state=OutboxState.UNKNOWN, owner=None, not_before=bindparam("moment"))
)
# Only the sender that took the row, in the attempt that it took it for, may say what came of it.
_HELD_ROW = update(outbox).where(
    _THIS_ROW,
    outbox.c.owner == bindparam("sender"),
    outbox.c.attempts == bindparam("attempt"),
    is_unsent,
)
# What was said stands in the history; here only its id is still needed.
SENT = Statement(
    _HELD_ROW.values(
        state=OutboxState.SENT,
        external_id=func.coalesce(bindparam("arrived_as"), outbox.c.external_id),
        owner=None,
        text="",
        **_NO_EXTRAS,
    ).returning(outbox.c.lane)
)
LATER = Statement(
    lambda dialect: _HELD_ROW.values(
        state=bindparam("becomes"),
        owner=None,
        not_before=clock(dialect) + bindparam("seconds", type_=Float),
    ).returning(outbox.c.lane, outbox.c.not_before)
)
CHANGED_PART = Statement(
    select(
        func.coalesce(outbox.c.target_turn, outbox.c.turn),
        func.coalesce(outbox.c.target_part, outbox.c.part),
    ).where(_THIS_ROW)
)
DELETION = Statement(
    select(outbox.c.id)
    .where(
        outbox.c.lane == bindparam("of"),
        outbox.c.external_id == bindparam("message"),
        outbox.c.op == OutboxOperation.DELETE,
    )
    .limit(1)
)
SEND_AGAIN = Statement(
    update(outbox)
    .where(
        outbox.c.turn == bindparam("of_turn"),
        outbox.c.part == bindparam("of_part"),
        outbox.c.op == OutboxOperation.SEND,
        outbox.c.state == OutboxState.SENT,
    )
    .values(
        state=OutboxState.PENDING,
        text=bindparam("new_text"),
        face=bindparam("new_face"),
        buttons=bindparam("new_buttons"),
        external_id=bindparam("replaced"),
        interaction=None,
        attempts=0,
        not_before=0.0,
    )
)
DEAD = Statement(
    _HELD_ROW.values(
        state=OutboxState.DEAD, error=bindparam("reason"), owner=None, **_NO_EXTRAS
    ).returning(outbox.c.lane)
)

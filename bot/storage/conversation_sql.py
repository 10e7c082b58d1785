"""The statements of conversations: receive, claim, finish."""

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Integer,
    and_,
    bindparam,
    case,
    delete,
    exists,
    false,
    func,
    literal_column,
    not_,
    null,
    or_,
    select,
    update,
)

from bot.chat.outgoing import OutboxOperation
from bot.chat.session import MAX_CRASHES, MAX_OWN_CRASHES, Attempt
from bot.storage.statements import (
    Statement,
    bound_texts,
    clock,
    insert_into,
    is_served,
    skip_locked,
    unlocked_row,
)
from bot.storage.tables import conversation, cursor, inbox, is_unanswered, outbox, receipt, turn

INBOX_ROW = (
    *("platform", "bot_id", "external_key", "conversation", "kind", "payload", "received_at"),
)
STORE = Statement(lambda dialect: insert_into(inbox, dialect, *INBOX_ROW).on_conflict_do_nothing())
MAKE_READY = Statement(
    lambda dialect: (
        insert := insert_into(conversation, dialect, "key", "platform", "bot_id").values(
            ready_since=clock(dialect)
        )
    ).on_conflict_do_update(
        index_elements=["key"],
        set_={
            "ready_since": func.coalesce(conversation.c.ready_since, insert.excluded.ready_since)
        },
    )
)
ADVANCE = Statement(
    lambda dialect: (insert := insert_into(cursor, dialect, "name", "value")).on_conflict_do_update(
        index_elements=["name"], set_={"value": insert.excluded.value}
    )
)
_IS_READY = conversation.c.ready_since.is_not(None)
READY = Statement(
    lambda dialect: skip_locked(
        select(conversation.c.key)
        .where(
            _IS_READY,
            conversation.c.lease_until <= clock(dialect),
            is_served(conversation, dialect),
        )
        .order_by(conversation.c.ready_since)
        .limit(bindparam("most")),
        dialect,
    )
)
# A row that somebody has locked is being claimed, finished or made ready, and is found once more.
CLAIM = Statement(
    lambda dialect: (
        update(conversation)
        .where(
            unlocked_row(
                conversation.c.key,
                and_(
                    conversation.c.key == bindparam("of"),
                    _IS_READY,
                    # whoever restarts under its old name takes its own lease over
                    or_(
                        conversation.c.lease_until <= clock(dialect),
                        conversation.c.owner == bindparam("claimed_by"),
                    ),
                ),
                dialect,
            )
        )
        .values(
            epoch=conversation.c.epoch + 1,
            owner=bindparam("claimed_by"),
            lease_until=clock(dialect) + bindparam("seconds"),
        )
        .returning(conversation.c.epoch)
    )
)
# The server may crash before it has written a claim to its disk (functions.py). Another process
# then gets the same epoch, so the owner is compared as well.
_HELD = and_(
    conversation.c.key == bindparam("of"),
    conversation.c.epoch == bindparam("at_epoch"),
    conversation.c.owner == bindparam("claimed_by"),
)
# A lease of 0 is one that was given back by a unit that overtook this one. A row that somebody
# has locked is being finished or claimed, so nobody waits for it here: it is renewed next time.
RENEW = Statement(
    lambda dialect: (
        update(conversation)
        .where(
            conversation.c.key.in_(
                skip_locked(
                    select(conversation.c.key).where(
                        conversation.c.key.in_(bound_texts("keys", dialect)),
                        conversation.c.owner == bindparam("held_by"),
                        conversation.c.lease_until > 0.0,
                    ),
                    dialect,
                )
            )
        )
        .values(lease_until=clock(dialect) + bindparam("seconds"))
    )
)
EPOCHS = Statement(
    lambda dialect: select(conversation.c.key, conversation.c.epoch).where(
        conversation.c.key.in_(bound_texts("keys", dialect)),
        conversation.c.owner == bindparam("held_by"),
    )
)
LOCK = Statement(select(conversation.c.session).where(_HELD).with_for_update())
"""SQLite knows no such lock and needs none: a unit that writes is alone."""
BEGIN_SESSION = Statement(
    update(conversation)
    .where(_HELD)
    .values(session=conversation.c.session + 1)
    .returning(conversation.c.session)
)
RELEASE = Statement(
    update(conversation).where(_HELD).values(lease_until=0.0).returning(conversation.c.session)
)
SETTLE = Statement(update(conversation).where(_HELD).values(lease_until=0.0, ready_since=None))
_HAS_NEXT = exists().where(is_unanswered, inbox.c.conversation == bindparam("of"))
SETTLE_IF_ANSWERED = Statement(
    update(conversation)
    .where(_HELD)
    .values(
        lease_until=case((_HAS_NEXT, conversation.c.lease_until), else_=0.0),
        ready_since=case((_HAS_NEXT, conversation.c.ready_since), else_=null()),
    )
    .returning(conversation.c.session, conversation.c.ready_since)
)
"""For SQLite, where nobody stores a message meanwhile: checks the epoch, and settles."""
_OLDEST = (
    select(inbox.c.id)
    .where(is_unanswered, inbox.c.conversation == bindparam("of"))
    .order_by(inbox.c.id)
    .limit(1)
    .scalar_subquery()
)
# An attempt that is still recorded did not end: its process died. A second death in a row alone
# explains the first one as well. A suspect is not in flight before the worker starts with it.
# The numbers are written into the SQL: PostgreSQL takes a CASE of bound values for text.
_ZERO, _ONE, _TWO = (literal_column(str(number), Integer) for number in range(3))
_NONE, _BESIDE_OTHERS, _ALONE, _DEFERRED = (
    literal_column(str(int(one)), Integer) for one in Attempt
)
_HAS_DIED = inbox.c.attempt.in_([_BESIDE_OTHERS, _ALONE])
# As text: in a RETURNING for SQLite, SQLAlchemy drops the tables' names, which tell them apart.
# `+ 0` makes SQLite search the few open rows of the conversation instead of all newer rows.
_IS_FOLLOWED: ColumnElement[bool] = literal_column(
    "EXISTS (SELECT 1 FROM inbox AS later WHERE later.state = 'new'"
    " AND later.conversation = inbox.conversation AND later.id + 0 > inbox.id)",
    Boolean,
)
NEXT = Statement(
    update(inbox)
    .where(inbox.c.id == _OLDEST)
    .values(
        crashes=inbox.c.crashes + case((_HAS_DIED, _ONE), else_=_ZERO),
        own_crashes=case(
            (inbox.c.attempt == _DEFERRED, _ZERO),
            (and_(inbox.c.attempt == _ALONE, inbox.c.crashes == _ONE), _TWO),
            (inbox.c.attempt == _ALONE, inbox.c.own_crashes + _ONE),
            else_=inbox.c.own_crashes,
        ),
        attempt=case(
            (inbox.c.crashes == _ZERO, _BESIDE_OTHERS),
            (and_(inbox.c.crashes == _ONE, not_(_HAS_DIED)), _BESIDE_OTHERS),
            else_=_NONE,
        ),
    )
    .returning(
        *(inbox.c.id, inbox.c.payload, inbox.c.crashes, inbox.c.own_crashes, inbox.c.kind),
        *(inbox.c.received_at, _IS_FOLLOWED),
    )
)
FOLLOWING = Statement(
    select(
        *(inbox.c.id, inbox.c.payload, inbox.c.crashes, inbox.c.own_crashes, inbox.c.kind),
        *(inbox.c.received_at, false(), inbox.c.attempt),
    )
    .where(is_unanswered, inbox.c.conversation == bindparam("of"), inbox.c.id > bindparam("after"))
    .order_by(inbox.c.id)
    .limit(bindparam("most"))
)
# A message that was only told to be set aside (`is_set_aside`) is kept for an operator.
_IS_SET_ASIDE = or_(
    inbox.c.own_crashes >= literal_column(str(MAX_OWN_CRASHES), Integer),
    inbox.c.crashes >= literal_column(str(MAX_CRASHES), Integer),
)
DONE = Statement(
    update(inbox)
    .where(inbox.c.id == bindparam("message"))
    .values(
        state=case((_IS_SET_ASIDE, literal_column("'dead'")), else_=literal_column("'done'")),
        payload=case((_IS_SET_ASIDE, inbox.c.payload), else_=null()),
    )
)
SET_ASIDE = Statement(
    update(inbox)
    .where(inbox.c.id == bindparam("message"), is_unanswered)
    .values(state=literal_column("'dead'"))
)
RECORD_ATTEMPT = Statement(
    update(inbox).where(inbox.c.id == bindparam("message")).values(attempt=bindparam("attempted"))
)
TURN_ROW = (
    *("conversation", "session", "role", "speaker_id", "speaker_name", "text", "at", "preset"),
    *("preset_version", "message_id", "sent_as", "observed", "active", "files"),
)
_earlier = turn.alias("earlier")
_PARENT = (
    select(_earlier.c.id)
    .where(
        _earlier.c.conversation == bindparam("conversation"),
        _earlier.c.session == bindparam("session"),
        _earlier.c.active,
    )
    .order_by(_earlier.c.id.desc())
    .limit(1)
    .scalar_subquery()
)
_IN_RANGE = turn.c.id.in_(
    select(turn.c.id)
    .where(
        turn.c.conversation == bindparam("of"),
        turn.c.session == bindparam("of_session"),
        turn.c.active,
    )
    .order_by(turn.c.id.desc())
    .limit(bindparam("count"))
    .offset(bindparam("newer"))
)
_removed = turn.alias("removed")
# A question that failed before it was answered is kept besides, see `load_failed`. With an OR in
# one statement, SQLite deletes the first rows before it looks for the others.
_FAILED_BEFORE = and_(
    turn.c.conversation == bindparam("of"),
    not_(turn.c.active),
    turn.c.sent_as.is_not(None),
    turn.c.message_id.in_(
        select(_removed.c.message_id)
        .where(
            _removed.c.conversation == bindparam("of"),
            _removed.c.session == bindparam("of_session"),
            _removed.c.active,
        )
        .order_by(_removed.c.id.desc())
        .limit(bindparam("count"))
        .offset(bindparam("newer"))
    ),
)
REMOVE_FAILED = Statement(delete(turn).where(_FAILED_BEFORE))
REMOVE = Statement(delete(turn).where(_IN_RANGE))
SUPERSEDE = Statement(update(turn).where(_IN_RANGE).values(active=false()))
APPEND = Statement(lambda dialect: insert_into(turn, dialect, *TURN_ROW).values(parent=_PARENT))
USAGE_ROW = (
    *("person", "server", "preset", "provider", "model"),
    *("prompt_tokens", "cached_tokens", "output_tokens", "cost"),
)
RECEIPT_ROW = ("conversation", "turn", "at", "content", *USAGE_ROW)
NOTE = Statement(lambda dialect: insert_into(receipt, dialect, *RECEIPT_ROW))
OPENED = Statement(
    select(outbox.c.part, outbox.c.external_id).where(
        outbox.c.turn == bindparam("of_turn"), outbox.c.op == OutboxOperation.SEND
    )
)

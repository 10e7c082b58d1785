"""Find stored turns by their messages on the platform; change and delete turns."""

import itertools
import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from bot.chat.incoming import parse_address, to_storable_text
from bot.chat.session import Claim, Exchange, HistoryChange, InboxMessage, Session, StoredTurn
from bot.storage import memories
from bot.storage.database import ClockStore, transaction
from bot.storage.rows import (
    TURN_COLUMNS,
    decode_all,
    encode_files,
    encode_names,
    to_turn,
    to_turn_row,
)
from bot.storage.statements import SQL, Rows, Unit


class StoredTurns(ClockStore):
    """Finds turns by their messages on the platform."""

    @transaction
    def find_turns(self, claim: Claim, message_ids: Collection[str]) -> Unit[Sequence[StoredTurn]]:
        """Return the turns that platform messages belong to, in all sessions, oldest first.

        An answer is found by any of its messages. Inactive versions are included.
        """
        values = {"of": claim.conversation, "ids": json.dumps(list(message_ids))}
        rows = list((yield SQL["turns_of_messages"].query(values)))
        address = parse_address(claim.conversation)
        channel = {"of_lane": address.lane, "of_channel": address.channel}
        for name, part in (yield SQL["parts_of_messages"].query({"ids": values["ids"], **channel})):
            part_name = encode_names((f"{name}/{part}",))
            rows += yield SQL["turns_sent_as"].query(of=claim.conversation, part=part_name)
        rows_by_id = {row[0]: row for row in rows}
        return _decode_turns(rows_by_id[number] for number in sorted(rows_by_id))

    @transaction
    def load_exchange(self, claim: Claim, message_id: str, max_turns: int) -> Unit[Exchange | None]:
        """Return a person's message with its answers and up to `max_turns` earlier turns."""
        questions = yield SQL["question"].query(of=claim.conversation, message=message_id)
        return (yield from _load_exchange(claim.conversation, questions, max_turns))

    @transaction
    def load_exchange_by_part(
        self, conversation: str, part: str, max_turns: int
    ) -> Unit[Exchange | None]:
        """Return the exchange whose answer or failure notice was sent as this part.

        A failed question is not in the history: its exchange has no answers, and `before` contains
        the questions that should have been answered with it. Return None if the part is unknown,
        or if the question was answered later.
        """
        values = {"of": conversation}
        rows = yield SQL["sent_as"].query({**values, "part": encode_names((part,))})
        turns = decode_all("turn", rows, _decode_turn_and_other_columns)
        if not turns:
            return None
        [(stored_turn, (session, current, is_active))] = turns
        if stored_turn.turn.role == "user":
            return (yield from _load_failed_question(conversation, stored_turn, session, current))
        answer_values = {**values, "in_session": session, "answer": stored_turn.id}
        questions = (yield SQL["question_before"].query(answer_values)) if is_active else ()
        return (yield from _load_exchange(conversation, questions, max_turns))

    @transaction
    def load_failed_questions(self, claim: Claim) -> Unit[Sequence[StoredTurn]]:
        """Return the unanswered questions and menus after the newest answer, newest first."""
        rows = yield SQL["failed_questions"].query(of=claim.conversation)
        return [_to_stored_turn(row) for row in rows]

    @transaction
    def find_turns_by_person(self, claim: Claim, person_id: str) -> Unit[Sequence[int]]:
        """Return the ids of a person's turns and their answers; all ids if no one else wrote."""
        values = {"of": claim.conversation, "person": person_id}
        if not (yield SQL["turn_of_others"].query(values)):
            return [row[0] for row in (yield SQL["all_turns"].query(values))]
        # An answer's parent is its question or a previous answer; versions share a parent.
        turn_ids: set[int] = set()
        jointly_answered_ids: set[int] = set()
        awaits_answer = False  # whether the person waits for an answer
        for id_, parent, speaker, is_observed in (yield SQL["turns_and_parents"].query(values)):
            if speaker is None:
                awaits_answer = False
                if parent in turn_ids or parent in jointly_answered_ids:
                    turn_ids.add(id_)
            elif speaker == person_id:
                turn_ids.add(id_)
                awaits_answer = awaits_answer or not is_observed
            elif awaits_answer:
                jointly_answered_ids.add(id_)
        return sorted(turn_ids)

    @transaction
    def list_opened_parts(self, message: InboxMessage) -> Unit[Sequence[int]]:
        """Return the numbers of the parts queued for a message, in this or earlier attempts."""
        rows = yield SQL["sends_of_turns"].query(names=json.dumps([message.turn_name]))
        return sorted(part for _, part, _ in rows)


def _load_failed_question(
    conversation: str, question: StoredTurn, session: int, current_session: int
) -> Unit[Exchange | None]:
    """Return a question whose answer failed, or None if it was answered later."""
    message = question.turn.message_id
    if message is not None and (yield SQL["question"].query(of=conversation, message=message)):
        return None
    message_ids = yield from find_part_message_ids(question.turn.part_names)
    sent_parts = tuple(name for name in question.turn.part_names if name in message_ids)
    encoded_names = encode_names(question.turn.part_names)
    values = {"of": conversation, "in_session": session, "question": question.id}
    rows = yield SQL["gathered_turns"].query({**values, "sent_as": encoded_names})
    turns = tuple(_to_stored_turn(one).turn for one in rows)
    return Exchange(question, (), Session(session, turns), session == current_session, sent_parts)


def _load_exchange(conversation: str, rows: Rows, max_turns: int) -> Unit[Exchange | None]:
    turns = decode_all("turn", rows, _decode_turn_and_other_columns)
    if not turns:
        return None
    [(question, (session, current, _))] = turns
    values = {"of": conversation, "in_session": session, "question": question.id}
    earlier_rows = yield SQL["turns_before"].query({**values, "most": max_turns})
    later_turns = _decode_turns((yield SQL["turns_after"].query(values)))
    answers: tuple[StoredTurn, ...] = ()
    if not question.turn.is_observed:  # otherwise, they are to an earlier question
        answers = tuple(itertools.takewhile(lambda one: one.turn.role == "assistant", later_turns))
    newer_turns = later_turns[len(answers) :]
    is_newest_exchange = session == current and all(one.turn.role == "user" for one in newer_turns)
    names = [name for one in answers for name in one.turn.part_names]
    message_ids = (yield from find_part_message_ids(names)) if names else {}
    versions = []
    for one in answers:
        rows = yield SQL["versions"].query(answer=one.id)
        versions.append(tuple(_decode_turns(rows)))
    return Exchange(
        question,
        answers,
        Session(session, tuple(one.turn for one in _decode_turns(reversed(earlier_rows)))),
        is_newest_exchange,
        tuple(name for name in names if name in message_ids),
        tuple(versions),
    )


def find_target_columns(names: Sequence[str]) -> Unit[list[dict[str, object]]]:
    """Return the outbox columns that identify each part's sent message, in the order of `names`."""
    message_ids = yield from find_part_message_ids(names)
    targets: list[dict[str, object]] = []
    for name in names:
        turn_name, _, part = name.rpartition("/")
        target = {"target_turn": turn_name, "target_part": int(part)}
        targets.append({**target, "external_id": message_ids.get(name)})
    return targets


def find_part_message_ids(names: Sequence[str]) -> Unit[dict[str, str | None]]:
    """Return the platform's message id of each part, by part name; None if not sent yet."""
    values = {"names": json.dumps(sorted({name.rpartition("/")[0] for name in names}))}
    rows = [
        *(yield SQL["kept_ids_of_turns"].query(values)),
        *(yield SQL["sends_of_turns"].query(values)),
    ]
    return {f"{name}/{part}": external_id for name, part, external_id in rows}


def _to_stored_turn(row: Sequence[Any]) -> StoredTurn:
    """Decode a row that starts with `id` and `TURN_COLUMNS`; ignore further columns."""
    return StoredTurn(row[0], to_turn(row[1:]))


def _decode_turn_and_other_columns(row: Sequence[Any]) -> tuple[StoredTurn, Sequence[Any]]:
    """Decode a turn; return it and the columns after it."""
    return _to_stored_turn(row), row[1 + len(TURN_COLUMNS) :]


def _decode_turns(rows: Iterable[Sequence[Any]]) -> list[StoredTurn]:
    return decode_all("turn", rows, _to_stored_turn)


def apply_change(conversation: str, change: HistoryChange, now: float) -> Unit[None]:
    """Change turns, and delete the summaries that cover changed turns.

    Deleting a turn also deletes the content of all later receipts, whose prompts may contain the
    turn, and the texts of its unsent parts.
    """
    for turn_id, files in change.files.items():
        yield SQL["set_files"].query(row=turn_id, files=encode_files(files))
    changed_turn_ids = [*change.new_texts, *change.new_versions, *change.superseded_ids]
    changed_turn_ids += [*change.deleted_ids, *change.observed_flags]
    if not changed_turn_ids:
        return
    [(since, first_id)] = yield SQL["first_of_listed"].query(_encode_row_ids(changed_turn_ids))
    if first_id is None:
        return
    yield SQL["delete_summaries_from"].query(of=conversation, first=first_id)
    if reread_ids := [*change.new_texts, *change.new_versions, *change.observed_flags]:
        yield SQL["read_again_from"].query(of=conversation, first=min(reread_ids))
    for turn_id, text in change.new_texts.items():
        yield SQL["set_text"].query(row=turn_id, text=to_storable_text(text))
    for turn_id, is_observed in change.observed_flags.items():
        yield SQL["set_observed"].query(row=turn_id, observed=is_observed)
    yield from _change_versions(change)
    yield from memories.delete_stale_memories(conversation, changed_turn_ids, now)
    if change.deleted_ids:
        yield from _delete_turns(conversation, change.deleted_ids, since)
        yield SQL["note_forgotten"].query(of=conversation, moment=now)


def _change_versions(change: HistoryChange) -> Unit[None]:
    for turn_id, version in change.new_versions.items():
        if turn_id not in change.overwritten_ids:
            yield SQL["keep_version"].query(row=turn_id)
        yield SQL["set_version"].query({"row": turn_id, **to_turn_row(version)})
    if change.restored_ids:
        yield SQL["delete_listed"].query(_encode_row_ids(change.restored_ids))
    if change.superseded_ids:
        yield SQL["supersede_listed"].query(_encode_row_ids(change.superseded_ids))


def _delete_turns(conversation: str, turn_ids: Collection[int], receipts_from: float) -> Unit[None]:
    yield SQL["drop_feedback_since"].query(of=conversation, since=receipts_from)
    yield SQL["empty_receipts_since"].query(of=conversation, since=receipts_from, content=b"")
    name_lists = [row[0] for row in (yield SQL["parts_of_listed"].query(_encode_row_ids(turn_ids)))]
    names = {part.rpartition("/")[0] for parts in name_lists for part in parts.split()}
    yield SQL["empty_unsent"].query(names=json.dumps(sorted(names)))
    yield SQL["delete_listed"].query(_encode_row_ids(turn_ids))
    yield SQL["move_unanswered"].query(of=conversation)
    yield SQL["end_empty_session"].query(of=conversation)


def _encode_row_ids(ids: Collection[int]) -> dict[str, str]:
    return {"rows": json.dumps(list(ids))}

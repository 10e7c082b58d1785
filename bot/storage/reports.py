"""Read-only queries for the console: answers, channels and queues.

Answers are searched by columns in the database, and by content page by page in Python. A receipt
does not contain the id of the answer's turn, which changes when another version of the answer is
shown. So the turn is found by preset, time and text.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bot.chat.answers import AnswerSearch, FoundAnswers, StoredAnswer
from bot.chat.drafts import Scene, find_newest_scene
from bot.chat.incoming import Person
from bot.chat.operation import (
    AnsweredChat,
    KnownSession,
    MessageTrace,
    PartDelivery,
    QueueState,
    StoredChatSetting,
)
from bot.chat.prompt import FinishReason
from bot.chat.receipt import Receipt
from bot.chat.session import Turn
from bot.storage.database import ClockStore, Store, run_readonly
from bot.storage.receipts import decode_receipt
from bot.storage.rows import decode, decode_all, to_turn
from bot.storage.statements import SQL, Rows, Statement, Unit, to_dict

_ROWS_PER_READ = 500
_MAX_ROWS_SEARCHED = 4000
"""The maximum number of receipts to decode per search, in about 0.3 s."""
_MAX_RECEIPT_DELAY_SECONDS = 600.0
"""How long after an answer its receipt may be stored, since other characters may answer, too."""
_SELECT_ANSWERS = (
    "SELECT id, conversation, at, content FROM receipt WHERE length(content) > 0 AND turn <> ''"
)
_FILTER_CONDITIONS = {
    "conversation": "conversation = :conversation",
    "preset": "lower(preset) = lower(:preset)",
    "person": "person = :person",
    "model": "lower(:model) IN (lower(model), lower(provider))",
    "min_cost": "cost >= :min_cost",
    "since": "at >= :since",
    "until": "at < :until",
}
SORT_ORDERS = {
    "": "id DESC",
    "seconds": "seconds DESC NULLS LAST, id DESC",
    "first_word": "first_word_seconds DESC NULLS LAST, id DESC",
    "tokens": "prompt_tokens DESC NULLS LAST, id DESC",
    "cost": "cost DESC NULLS LAST, id DESC",
}
_FILTER_COLUMNS = ("conversation", "person", "preset", "provider")


class AnswerLog(Store):
    """Finds answers whose receipts are still stored."""

    async def search(self, search: AnswerSearch, limit: int) -> FoundAnswers:
        """Return up to `limit` matching answers, newest first.

        If a filter needs receipts' contents, only a few thousand receipts are searched, so some
        answers may be missing. In the default order, the result's `next_page_cursor` says where to
        continue.
        """
        hits: list[StoredAnswer] = []
        before = search.before
        for _ in range(_MAX_ROWS_SEARCHED // _ROWS_PER_READ):
            size = _ROWS_PER_READ if _needs_answer_content(search) else limit + 1
            size = _MAX_ROWS_SEARCHED if search.sort and size > limit + 1 else size
            rows = await self._select_rows(search, before, size)
            hits += await asyncio.to_thread(_find_matches, rows, search, limit + 1 - len(hits))
            if len(hits) > limit:
                return FoundAnswers(hits[:limit], None if search.sort else hits[limit - 1].number)
            if len(rows) < size or search.sort:
                return FoundAnswers(hits, None)
            before = rows[-1][0]
        return FoundAnswers(hits, before)

    @run_readonly
    def find(self, number: int) -> Unit[StoredAnswer | None]:
        """Return an answer, or None if it does not exist or its text was deleted."""
        rows = yield SQL["answer"].query_alone(number=number)
        return next(iter(decode_all("receipt", rows, _to_stored_answer)), None)

    @run_readonly
    def find_reactions_by_person(self, answer_number: int) -> Unit[Mapping[str, str]]:
        """Return the reactions to an answer, 👍 or 👎, by person id."""
        return to_dict((yield SQL["feedback"].query_alone(number=answer_number)))

    @run_readonly
    def find_previous_answer_by_preset(self, answer: StoredAnswer) -> Unit[int | None]:
        """Return the number of the preset's previous answer in the conversation, or None."""
        values = {"of": answer.conversation, "preset": answer.receipt.preset}
        rows = yield SQL["answer_before"].query_alone({**values, "number": answer.number})
        return rows[0][0] if rows else None

    @run_readonly
    def find_adjacent_answers(self, answer: StoredAnswer) -> Unit[tuple[int | None, int | None]]:
        """Return the numbers of the answers before and after this one in its conversation."""
        values = {"of": answer.conversation, "number": answer.number}
        [[previous_number, next_number]] = yield SQL["answers_beside"].query_alone(values)
        return previous_number, next_number

    @run_readonly
    def count_filter_values(
        self, since: float, limit: int
    ) -> Unit[Mapping[str, Mapping[str, int]]]:
        """Return the most frequent values of each filter column, and how often they occur."""
        counts_by_column = {}
        for name in _FILTER_COLUMNS:
            text = SQL["counted_answers"].text.replace("{column}", name)
            counts_by_column[name] = to_dict((yield Statement(text).query(since=since, most=limit)))
        return counts_by_column

    @run_readonly
    def find_sent_time(self, answer: StoredAnswer) -> Unit[float | None]:
        """Return when an answer's last message was sent, or None if unsent or unknown."""
        [[sent_at, is_partial]] = yield SQL["delivery_of_answer"].query_alone(number=answer.number)
        return None if is_partial else sent_at

    @run_readonly
    def find_scene(self, answer: StoredAnswer) -> Unit[Scene | None]:
        """Return the answered message (except quote and files) and its history, if still known."""
        one, key = answer.receipt, {"of": answer.conversation}
        times = {"since": answer.at - _MAX_RECEIPT_DELAY_SECONDS, "until": answer.at}
        rows = yield SQL["answers_around"].query({**key, **times, "preset": one.preset})
        nearby_turns = decode_all("turn", rows, lambda row: (to_turn(row), row[-2], row[-1]))
        positions = (position for turn, *position in nearby_turns if turn.text == one.answer)
        session, parent = next(positions, (None, None))
        if session is None or parent is None:
            return None
        earlier = yield SQL["earlier_turns"].query({**key, "in_session": session, "newest": parent})
        turns = _follow_parents(earlier, parent)
        return find_newest_scene(answer.conversation, session, turns, one.scopes, one.preset)

    @run_readonly
    def _select_rows(self, search: AnswerSearch, before: int | None, limit: int) -> Unit[Rows]:
        values = {name: getattr(search, name) for name in _FILTER_CONDITIONS}
        filter_values = {name: value for name, value in values.items() if value not in {None, ""}}
        conditions = [_FILTER_CONDITIONS[name] for name in filter_values]
        if before is not None and not search.sort:
            conditions.append("id < :older_than")
        query_text = " AND ".join([_SELECT_ANSWERS, *conditions])
        statement = Statement(f"{query_text} ORDER BY {SORT_ORDERS[search.sort]} LIMIT :most")
        return (yield statement.query_alone({**filter_values, "older_than": before, "most": limit}))


def _needs_answer_content(search: AnswerSearch) -> bool:
    return bool(search.text or search.cut_off or search.left_out or search.min_seconds is not None)


def _find_matches(rows: Rows, search: AnswerSearch, limit: int) -> list[StoredAnswer]:
    matching_answers: list[StoredAnswer] = []
    for row in rows:
        if len(matching_answers) == limit:
            break
        answers = decode_all("receipt", [row], _to_stored_answer)
        matching_answers += [one for one in answers if _matches_search(one.receipt, search)]
    return matching_answers


def _matches_search(receipt: Receipt, search: AnswerSearch) -> bool:
    if search.cut_off and receipt.reason is FinishReason.STOP:
        return False
    if search.left_out and not receipt.omitted_count:
        return False
    seconds = receipt.timings.queued_seconds + receipt.timings.seconds
    if search.min_seconds is not None and seconds < search.min_seconds:
        return False
    query = search.text.casefold()
    user_texts = (each.content for each in reversed(receipt.prompt.messages) if each.role == "user")
    return query in receipt.answer.casefold() or query in next(user_texts, "").casefold()


def _to_stored_answer(row: Sequence[Any]) -> StoredAnswer:
    id_, conversation, at, content = row
    return StoredAnswer(id_, conversation, at, decode_receipt(content))


def _follow_parents(rows: Iterable[Sequence[Any]], newest_id: int) -> list[Turn]:
    """Return the turns up to `newest_id`, oldest first, following their parents."""
    turns: list[Turn] = []
    next_id: int | None = newest_id
    for row in rows:
        *_, is_active, id_, parent_id = row
        if next_id is not None and (id_ == next_id or (id_ < next_id and is_active)):
            turns += decode_all("turn", [row], to_turn)
            next_id = parent_id
    return turns[::-1]


class ServiceState(ClockStore):
    """Reads the state of the installation: queues, channels and messages."""

    @run_readonly
    def load_queue_state(self) -> Unit[QueueState]:
        [[waiting_count, oldest_waiting_at, held_count]] = yield SQL["queues"].query(
            now=self._clock.now()
        )
        [[lane_count, unsent_count]] = yield SQL["unsent_counts"].query()
        return QueueState(waiting_count, oldest_waiting_at, held_count, lane_count, unsent_count)

    @run_readonly
    def queue_ages(self) -> Unit[tuple[float, float]]:
        """Return the ages of the oldest unanswered message and oldest unsent row, in seconds."""
        [[message_age, row_age]] = yield SQL["queue_ages"].query_alone(now=self._clock.now())
        return max(0.0, message_age or 0.0), max(0.0, row_age or 0.0)

    @run_readonly
    def trace_message(self, turn: str) -> Unit[MessageTrace]:
        """Return how far a message, given by the name of its turn, has been processed."""
        source, _, external_key = turn.partition(":")
        platform, _, bot_id = source.partition("@")
        message_key = {"platform": platform, "bot_id": bot_id, "external_key": external_key}
        rows = yield SQL["traced_message"].query(message_key)
        conversation, received_at, is_done, crash_count = rows[0] if rows else ("", None, True, 0)
        parts = yield SQL["traced_parts"].query(of=turn)
        delivered_parts = [decode(lambda row: PartDelivery(*row), row) for row in parts]
        return MessageTrace(conversation, received_at, bool(is_done), crash_count, delivered_parts)

    @run_readonly
    def list_newest_speakers(self, limit: int) -> Unit[Sequence[tuple[str, Person]]]:
        """Return the conversation and author of each of the newest messages, newest first."""
        rows = yield SQL["newest_speakers"].query_alone(most=limit)
        return decode_all("turn", rows, lambda row: (row[0], Person(row[1], row[2])))

    @run_readonly
    def channels(self, limit: int) -> Unit[Sequence[AnsweredChat]]:
        """Return up to `limit` conversations with answers, most recent answers first."""
        return [AnsweredChat(*row) for row in (yield SQL["channels"].query_alone(most=limit))]

    @run_readonly
    def chat_settings(self) -> Unit[Sequence[StoredChatSetting]]:
        """Return all chat settings by scope, except what people wrote about themselves."""
        rows = yield SQL["made_settings"].query_alone()
        return [decode(lambda row: StoredChatSetting(*row), row) for row in rows]

    @run_readonly
    def sessions(self, conversation: str, limit: int) -> Unit[Sequence[KnownSession]]:
        """Return a conversation's sessions, newest first."""
        rows = yield SQL["sessions"].query_alone(of=conversation, most=limit)
        return [KnownSession(*row) for row in rows]

    @run_readonly
    def people(self, conversation: str, limit: int) -> Unit[Sequence[Person]]:
        """Return the people in a conversation with their newest names, most recent first."""
        rows = yield SQL["people"].query_alone(of=conversation, most=limit)
        return [decode(lambda row: Person(*row), row) for row in rows]

    @run_readonly
    def turns(self, conversation: str) -> Unit[Sequence[tuple[int, Turn]]]:
        """Return a conversation's turns with their session numbers, oldest first."""
        rows = yield SQL["turns_of_conversation"].query_alone(of=conversation)
        return decode_all("turn", rows, lambda row: (row[-1], to_turn(row)))

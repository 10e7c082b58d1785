"""Memories in SQL: each statement filters by audience before anything is ranked or limited.

Deletion has two steps in one transaction: memories are marked as gone, then they are deleted, with
the content of every receipt whose prompt contains one (see `delete_memories_and_prompts`).
"""

import functools
import json
import math
from array import array
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import replace
from operator import mul
from typing import Any, Concatenate, ParamSpec, TypeVar

from bot.chat.incoming import Person, to_storable_text
from bot.chat.memory import (
    MAX_MEMORIES_PER_CHANNEL,
    MAX_MEMORIES_PER_SUBJECT,
    Audience,
    Memory,
    MemoryKind,
    MemoryPlace,
    MemoryReader,
    MemoryState,
    MemorySubject,
    Reach,
    RecallCandidates,
    RecallingCharacter,
    SubjectKind,
)
from bot.chat.session import CONSENT_KEY, Consent, StoredTurn
from bot.chat.story import PackedVector
from bot.errors import UserError
from bot.runtime.in_process import BoundedDict
from bot.storage.database import run_readonly, transaction
from bot.storage.forgetting import Tombstone, TombstoneStore
from bot.storage.rows import decode, decode_all, encode_names
from bot.storage.statements import SQL, Unit
from bot.texts.text import translatable

_MAX_LISTED_MEMORIES = 1000
_MAX_LISTENERS_WITHOUT_MEMORIES = 4096
_REREAD_SECONDS = 600.0  # in case of a late commit, or of an addition by another process
_MIN_COSINE_OF_DUPLICATES = 0.95
"""The similarity of duplicates; E5 rates unrelated sentences 0.75, and paraphrases 0.93."""
_MIN_OVERLAP_OF_DUPLICATES = 0.7
_MIN_COSINE_OF_CONTRADICTION = 0.88
MEMORY_DELETE_SQL_NAMES = (
    *("note_memories_gone", "empty_receipts_of_memories", "delete_uses_of_gone"),
    "delete_gone_memories",
)

Params = ParamSpec("Params")
Result = TypeVar("Result")


def _then_invalidate_cache(
    method: Callable[Concatenate["SqlMemories", Params], Awaitable[Result]],
) -> Callable[Concatenate["SqlMemories", Params], Coroutine[Any, Any, Result]]:
    """Mark a method after which listeners may recall more memories than before."""

    @functools.wraps(method)
    async def run(self: "SqlMemories", /, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        try:
            return await method(self, *args, **kwargs)
        finally:  # a failed transaction may be committed
            self.invalidate_cache(None)

    return run


class SqlMemories(TombstoneStore):
    """Stores memories; readers see and change only memories that they are allowed to.

    Methods that change a memory return None if it does not exist or the reader may not change it.
    A memory may be changed by its author, its subject, and admins of its place who can see it.
    """

    _version = 0

    @functools.cached_property
    def _listeners_without_memories(self) -> BoundedDict[RecallingCharacter, float]:
        """When each listener was last found to have no memories; most chats have none."""
        return BoundedDict(_MAX_LISTENERS_WITHOUT_MEMORIES)

    @_then_invalidate_cache
    @transaction
    def add(
        self,
        new: Memory,
        sources: Sequence[StoredTurn] = (),
        outdated_fact_vector: PackedVector | None = None,
    ) -> Unit[Memory | None]:
        """Store a memory and return it, replacing a near duplicate by the same author.

        `sources` are the turns that a derived memory comes from, as they were read; its `turns` are
        set from them. `outdated_fact_vector` is the vector of an earlier fact that the memory
        contradicts. An `audience` of None follows the consent of author and subject.

        Returns None if the author or subject opted out, if a source was changed or deleted, or if a
        memory made by hand already says the same. To stay within the limits, the oldest derived
        memories are deleted; if only memories made by hand are left, raises `UserError`.
        """
        return (yield from add(new, sources, outdated_fact_vector))

    async def recall(self, listener: RecallingCharacter) -> RecallCandidates:
        """Return the memories that a character may recall in a place, unranked."""
        now, version = self._clock.monotonic(), self._version
        if now - self._listeners_without_memories.get(listener, -math.inf) < _REREAD_SECONDS:
            return RecallCandidates()
        memories = await self._read_candidates(listener)
        # On PostgreSQL, other processes may add memories.
        if self._database.is_sqlite and version == self._version and memories == RecallCandidates():
            self._listeners_without_memories[listener] = now
        return memories

    def invalidate_cache(self, memories: Iterable[Memory] | None) -> None:
        """Let `recall` read again for listeners that may recall these memories; for all if None."""
        self._version += 1
        if memories is None:
            self._listeners_without_memories.clear()
            return
        keys = {key for one in memories for key in (one.place.server, one.said_by, one.subject.key)}
        for one in list(self._listeners_without_memories) if keys else ():
            if not keys.isdisjoint(one.subjects):
                del self._listeners_without_memories[one]

    @run_readonly
    def _read_candidates(self, listener: RecallingCharacter) -> Unit[RecallCandidates]:
        """Return what a listener may recall, in one query.

        There may be hundreds of memories, so only columns for ranking and prompts are read. Each
        subject's name is decoded only once, because encrypted names are slow to decode.
        """
        place, character = listener.place, encode_names([listener.preset])
        rows = yield SQL["memories_for_listener"].query_alone(
            {
                "here": place.narrowest_audience.database_value,
                "in_server": place.audience_with_reach(Reach.SERVER).database_value,
                "subjects": json.dumps(listener.subjects),
                "character": character,
                "asker": listener.asker_id,
            }
        )
        names_by_key: dict[str, str] = {}

        def parse(row: Sequence[Any]) -> Memory:
            id_, kind, key, text, author, teller_id, teller_name, *other_columns = row
            is_pinned, since, model, vector, name, _ = other_columns
            if key not in names_by_key:
                names_by_key[key] = self._database.codec.decode(name)
            subject = MemorySubject(SubjectKind(kind), key, names_by_key[key])
            person = Person(teller_id, teller_name) if teller_id else None
            args = {"since": since, "model": model, "vector": vector, "id": id_, "told_by": person}
            return Memory(subject, text, author, place, is_pinned=bool(is_pinned), **args)

        recallable_rows = sorted((row for row in rows if not row[-1]), key=lambda row: -row[0])
        private_ids = tuple(row[0] for row in rows if row[-1])
        return RecallCandidates(tuple(decode_all("memory", recallable_rows, parse)), private_ids)

    @run_readonly
    def list_visible(self, reader: MemoryReader, subject: str = "") -> Unit[Sequence[Memory]]:
        """Return the memories that a reader may see, pinned and newest first.

        These are memories that the reader made anywhere, and those that characters may recall in
        the reader's channel. `subject`, if given, selects one person, character, place or scene.
        """
        values = {**_reader_values(reader), "subject": subject, "most": _MAX_LISTED_MEMORIES}
        return decode_all("memory", (yield SQL["visible_memories"].query_alone(values)), _to_memory)

    @run_readonly
    def list_newest(self, state: str = "", number: int = 0) -> Unit[Sequence[Memory]]:
        """Return the newest memories of all places, for operators.

        `state` and `number` (a memory's id), if given, restrict the result.
        """
        values = {"state": state, "id": number, "most": _MAX_LISTED_MEMORIES}
        rows = yield SQL["newest_memories"].query_alone(values)
        return decode_all("memory", rows, _to_memory)

    @_then_invalidate_cache
    async def correct_text(
        self, number: int, reader: MemoryReader, text: str, embedding: tuple[str, bytes] | None
    ) -> Memory | None:
        """Replace a memory's text, and make the reader its author.

        If another author wrote the old text, the memory is recalled only where it was said, until
        the reader widens its audience. `embedding` is the embedding model and the vector of the new
        text. The old text is also removed from the prompts in receipts.
        """
        model, vector = embedding or ("", None)

        def add_correction(old: Memory) -> Unit[Memory]:
            new = replace(old, text=text, said_by=reader.person_id, told_by=None, turn_ids=())
            new = replace(new, is_derived=False, model=model, vector=vector)
            new = replace(new, since=self._clock.now())
            if old.said_by != reader.person_id:  # the old author's consent did not allow more
                new = replace(new, audience=new.place.narrowest_audience, is_widened=True)
            [[new_number]] = yield SQL["add_memory"].query(_to_row(new))
            return replace(new, id=new_number)

        return await self._run_deletion(number, reader, add_correction)

    @_then_invalidate_cache
    @transaction
    def change(
        self,
        number: int,
        reader: MemoryReader,
        *,
        is_pinned: bool | None = None,
        state: MemoryState | None = None,
    ) -> Unit[Memory | None]:
        """Pin a memory (recall it before all others) or unpin it; approve or retire it."""
        old = yield from _find_editable_memory(number, reader)
        if old is None:
            return None
        is_pinned = old.is_pinned if is_pinned is None else is_pinned
        new = replace(old, is_pinned=is_pinned, state=state or old.state)
        yield SQL["change_memory"].query(_to_row(new))
        return new

    @_then_invalidate_cache
    @transaction
    def widen_audience(
        self, number: int, reader: MemoryReader, audience: Audience | None
    ) -> Unit[Memory | None]:
        """Set who may recall the reader's memory; if None, all whom author and subject allow."""
        old = yield from _find_editable_memory(number, reader)
        if old is None or old.said_by != reader.person_id:
            return None
        consents = () if audience else (yield from _load_consents(old))
        new_audience = audience or old.place.widest_allowed_audience(*consents)
        new = replace(old, audience=new_audience, is_widened=audience is not None)
        yield SQL["change_memory"].query(_to_row(new))
        return new

    async def forget(self, number: int, reader: MemoryReader) -> Memory | None:
        """Delete a memory, and the content of all receipts whose prompts contain it."""
        return await self._run_deletion(number, reader)

    async def _run_deletion(
        self,
        number: int,
        reader: MemoryReader,
        add_replacement: Callable[[Memory], Unit[Memory]] | None = None,
    ) -> Memory | None:
        """Delete a memory if the reader may, after recording a tombstone."""

        def delete_memory() -> Unit[Memory | None]:
            old = yield from _find_editable_memory(number, reader)
            if old is None:
                return None
            yield from delete_memories_and_prompts([old.id], self._clock.now())
            return old if add_replacement is None else (yield from add_replacement(old))

        if await self._database.run_readonly(lambda: _find_editable_memory(number, reader)) is None:
            return None
        self._record_tombstone(Tombstone(self._clock.now(), memories=(number,)))
        deleted_or_replaced_memory = await self._database.run(delete_memory)
        await self._database.truncate_log()
        return deleted_or_replaced_memory

    @_then_invalidate_cache
    @transaction
    def apply_consent_to_audiences(self, person: str) -> Unit[None]:
        """Set the audience of memories by or about a person to what that person consents to.

        Call it after storing the consent. Audiences that authors chose do not change.
        """
        yield from apply_consent_to_audiences(person)


def add(
    new: Memory, sources: Sequence[StoredTurn], outdated_fact_vector: PackedVector | None
) -> Unit[Memory | None]:
    """Store a memory as `SqlMemories.add` does, within a unit of work."""
    if new.conversation:  # else a turn may be changed meanwhile
        yield SQL["locked_session"].query(of=new.conversation)
    if new.is_derived and not (yield from _are_sources_current(new.conversation, sources)):
        return None
    new = replace(new, turn_ids=tuple(one.id for one in sources) if new.is_derived else ())
    consents = yield from _load_consents(new)
    if Consent.OFF in consents:
        return None
    if new.audience is None:
        new = replace(new, audience=new.place.widest_allowed_audience(*consents))
    row = _to_row(new)
    memories = decode_all("memory", (yield SQL["memories_of_author"].query(row)), _to_memory)
    matches = (one for one in memories if _have_same_origin(one, new) and is_duplicate(one, new))
    match = next(matches, None)
    if match is not None:
        if new.is_derived and not match.is_derived:
            return None
        new = _merge_memories(match, new)
        yield SQL["change_memory"].query(_to_row(new))
    else:
        [[number]] = yield SQL["add_memory"].query(row)
        new = replace(new, id=number)
    outdated_memory = (
        _find_outdated_memory(outdated_fact_vector, new, memories) if outdated_fact_vector else None
    )
    if outdated_memory is not None:
        yield SQL["retire_memory"].query(id=outdated_memory.id, moment=new.since)
    return new if (yield from _enforce_memory_limits(new)) else None


def _have_same_origin(first: Memory, second: Memory) -> bool:
    """Return whether two memories have the same witnesses (presets) or come from the same turns."""
    return first.witnesses == second.witnesses or bool(
        second.turn_ids and first.turn_ids == second.turn_ids
    )


def _find_outdated_memory(
    vector: PackedVector, new: Memory, memories: Sequence[Memory]
) -> Memory | None:
    """Return the earlier memory most similar to the fact that a new memory contradicts, if any."""
    scored_memories = [
        (_compute_cosine(vector, one.vector), one.id, one)
        for one in memories
        if one.vector and one.model == new.model and one.since < new.since
        if one.id != new.id and one.state is MemoryState.KEPT
    ]
    score, _, best_match = max(scored_memories, default=(0.0, 0, None))
    return best_match if score >= _MIN_COSINE_OF_CONTRADICTION else None


def apply_consent_to_audiences(person: str) -> Unit[None]:
    rows = yield SQL["memories_of_person"].query(person=person)
    for one in decode_all("memory", rows, _to_memory):
        if not one.is_widened:
            audience = one.place.widest_allowed_audience(*(yield from _load_consents(one)))
            if audience != one.audience:
                yield SQL["set_audience"].query(id=one.id, audience=audience.database_value)


def delete_memories_and_prompts(ids: Collection[int], now: float) -> Unit[None]:
    """Delete memories, and the prompts that contain them."""
    yield SQL["mark_listed_memories"].query(ids=json.dumps(list(ids)))
    for name in MEMORY_DELETE_SQL_NAMES:
        yield SQL[name].query(moment=now, content=b"")


def delete_stale_memories(conversation: str, turn_ids: Collection[int], now: float) -> Unit[None]:
    """Delete memories derived from these changed turns, and the prompts that contain them."""
    yield SQL["mark_stale_memories"].query(of=conversation, rows=json.dumps(list(turn_ids)))
    for name in MEMORY_DELETE_SQL_NAMES:
        yield SQL[name].query(moment=now, content=b"")


def is_duplicate(first: Memory, second: Memory) -> bool:
    """Return whether two memories say the same thing in nearly the same words."""
    if first.vector and second.vector and first.model == second.model:
        return _compute_cosine(first.vector, second.vector) >= _MIN_COSINE_OF_DUPLICATES
    first_trigrams, second_trigrams = _list_trigrams(first.text), _list_trigrams(second.text)
    shared_count = len(first_trigrams & second_trigrams)
    return shared_count >= _MIN_OVERLAP_OF_DUPLICATES * len(first_trigrams | second_trigrams)


def _compute_cosine(left: PackedVector, right: PackedVector) -> float:
    """Return the similarity of two vectors; 0 if they have different lengths."""
    return sum(map(mul, array("f", left), array("f", right))) if len(left) == len(right) else 0.0


def _list_trigrams(text: str) -> set[str]:
    letters = "".join(one for one in text.casefold() if one.isalnum())
    return {letters[start : start + 3] for start in range(max(1, len(letters) - 2))}


def _merge_memories(old: Memory, new: Memory) -> Memory:
    """Return the new memory with the old one's id and the choices people made, such as audience."""
    return replace(
        new,
        id=old.id,
        # When turns are read again, fewer witnesses are known than when the turns were new.
        witnesses=old.witnesses if new.turn_ids and new.turn_ids == old.turn_ids else new.witnesses,
        audience=old.audience if old.is_widened else new.audience,
        is_widened=old.is_widened or new.is_widened,
        is_pinned=old.is_pinned or new.is_pinned,
        state=old.state if old.state is MemoryState.KEPT else new.state,
    )


def _are_sources_current(conversation: str, sources: Sequence[StoredTurn]) -> Unit[bool]:
    ids = json.dumps([one.id for one in sources])
    rows = yield SQL["texts_of_active_turns"].query(of=conversation, rows=ids)
    texts = {row[0]: row[1] for row in rows}
    return bool(sources) and all(texts.get(one.id) == one.turn.text for one in sources)


def _load_consents(memory: Memory) -> Unit[list[Consent]]:
    """Return the consents of a memory's author and subject, locked until the commit."""
    people = {memory.said_by}
    if memory.subject.kind is SubjectKind.PERSON:
        people.add(memory.subject.key)
    consents = []
    for person in sorted(people):
        rows = yield SQL["locked_choice"].query(scope=person, key=CONSENT_KEY)
        value = decode(lambda row: str(row[0]), rows[0]) if rows else ""
        consents.append(Consent(value) if value in list(Consent) else Consent.HERE)
    return consents


def _enforce_memory_limits(new: Memory) -> Unit[bool]:
    """Delete memories that exceed the limits; return whether the new memory remains.

    Raises `UserError` if too many memories were made by hand, which are not deleted.
    """
    row, deleted_ids = _to_row(new), set[int]()
    limits_by_statement = {"surplus_of_channel": MAX_MEMORIES_PER_CHANNEL}
    if new.subject.kind in {SubjectKind.PERSON, SubjectKind.CHARACTER}:
        limits_by_statement["surplus_of_subject"] = MAX_MEMORIES_PER_SUBJECT
    for name, limit in limits_by_statement.items():
        for number, is_deletable in (yield SQL[name].query({**row, "most": limit})):
            if not is_deletable:
                raise UserError(
                    translatable(
                        "I can keep at most {count} memories of {name} here, and all of them were"
                        " added by hand. Delete one first: /memory list shows them.",
                        count=limit,
                        name=new.subject.name or new.subject.key,
                    )
                )
            deleted_ids.add(number)
    if deleted_ids:
        yield SQL["delete_memories"].query(ids=json.dumps(sorted(deleted_ids)))
    return new.id not in deleted_ids


def _reader_values(reader: MemoryReader) -> dict[str, object]:
    return {
        "person": reader.person_id,
        "here": reader.place.narrowest_audience.database_value,
        "in_server": reader.place.audience_with_reach(Reach.SERVER).database_value,
        "server": reader.place.server,
        "is_admin": reader.is_admin,
    }


def _find_editable_memory(number: int, reader: MemoryReader) -> Unit[Memory | None]:
    rows = yield SQL["changeable_memory"].query({**_reader_values(reader), "id": number})
    return decode(_to_memory, rows[0]) if rows else None


def _to_row(memory: Memory) -> dict[str, object]:
    teller = memory.told_by
    return {
        "id": memory.id,
        "subject_kind": memory.subject.kind,
        "subject": memory.subject.key,
        "subject_name": to_storable_text(memory.subject.name),
        "text": to_storable_text(memory.text),
        "kind": memory.kind,
        "said_by": memory.said_by,
        "told_by": teller.id if teller else None,
        "told_by_name": to_storable_text(teller.name) if teller else None,
        "present": encode_names(memory.witnesses) or "",
        "conversation": memory.conversation,
        "turns": json.dumps(memory.turn_ids),
        "is_derived": memory.is_derived,
        "audience": (memory.audience or memory.place.narrowest_audience).database_value,
        "origin": memory.place.narrowest_audience.database_value,
        "server": memory.place.server,
        "is_widened": memory.is_widened,
        "state": memory.state,
        "is_pinned": memory.is_pinned,
        "since": memory.since,
        "until": memory.until,
        "model": memory.model,
        "embedding": memory.vector,
    }


def _to_memory(row: Sequence[Any]) -> Memory:
    number, subject_kind, subject, name, text, kind, said_by, teller_id, teller_name, *rest = row
    witnesses, conversation, turns, is_derived, audience, origin, server, is_widened, *rest = rest
    state, is_pinned, since, until, model, vector = rest[:6]
    place = Audience.from_database(origin)
    return Memory(
        MemorySubject(SubjectKind(subject_kind), subject, name),
        text,
        said_by,
        MemoryPlace(place.key, server, place.reach is Reach.PRIVATE),
        MemoryKind(kind),
        Person(teller_id, teller_name) if teller_id else None,
        tuple(one for one in witnesses.split("\n") if one),
        conversation,
        tuple(json.loads(turns)),
        bool(is_derived),
        Audience.from_database(audience),
        bool(is_widened),
        MemoryState(state),
        bool(is_pinned),
        since,
        until,
        model,
        vector,
        number,
    )

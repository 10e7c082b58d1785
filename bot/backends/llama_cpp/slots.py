"""Assign an engine's KV cache slots to conversations, and save them to files."""

import asyncio
import hashlib
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import structlog

from bot.backends.llama_cpp.engine import Engine, EngineFailed, EngineRefused
from bot.ports import Clock

_STATE_SUFFIX, _IDS_SUFFIX, _PART_SUFFIX = _FILE_SUFFIXES = (".state", ".ids", ".part")
_log = structlog.get_logger(__name__)
_MIN_SAVED_TOKENS = 64  # fewer tokens are decoded as fast as they are loaded
_SAVE_ALL_TIMEOUT_SECONDS = 20.0
_MAX_STATE_TO_PREFIX_RATIO = 16  # longer states are not worth copying for their prefix


class SlotOwner(NamedTuple):
    """A character in a conversation; each needs its own slot, because prompt prefixes differ."""

    conversation: str
    character: str


class SlotStore:
    """Stores one model's saved slots; deletes expired files and, if space is short, the oldest."""

    def __init__(
        self, folder: Path, model: str, clock: Clock, *, max_bytes: int, max_age_seconds: float
    ) -> None:
        self._folder = folder
        self._model = model
        self._clock = clock
        self.max_bytes = max_bytes
        self._max_age_seconds = max_age_seconds
        self.token_ids_by_file: dict[str, array[int]] = {}

    def load_saved_slots(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for part_file in self._folder.glob(f"{self._model}*{_PART_SUFFIX}"):
            part_file.unlink(missing_ok=True)
        self._delete_old_files()
        for state_file in self._folder.glob(f"{self._model}-*{_STATE_SUFFIX}"):
            self.token_ids_by_file[state_file.name] = _read_tokens(
                state_file.with_suffix(_IDS_SUFFIX)
            )

    def state_file_name(self, owner: SlotOwner) -> str:
        return f"{self._model}-{_hash(owner.conversation)}-{_hash(owner.character)}{_STATE_SUFFIX}"

    def commit_file(self, part_file_name: str, owner: SlotOwner, token_ids: "array[int]") -> None:
        """Rename a completely written file to its final name; raise `OSError` if that fails."""
        state_file = self._folder / self.state_file_name(owner)
        ids_file = state_file.with_suffix(_IDS_SUFFIX)
        ids_file.touch(mode=0o600)
        ids_file.write_bytes(token_ids.tobytes())
        (self._folder / part_file_name).replace(state_file)
        self.token_ids_by_file[state_file.name] = token_ids
        self._delete_old_files()

    def delete_conversation(self, conversation: str) -> None:
        for file in self._folder.glob(f"{self._model}-{_hash(conversation)}-*{_STATE_SUFFIX}"):
            self.delete(file.name)

    def _delete_old_files(self) -> None:
        saved_files = []
        for state_file in self._folder.glob(f"*{_STATE_SUFFIX}"):
            with suppress(FileNotFoundError):
                file_stat = state_file.stat()
                saved_files.append((file_stat.st_mtime, file_stat.st_size, state_file.name))
        total_bytes = sum(size for _, size, _ in saved_files)
        for modified_at, size, file_name in sorted(saved_files):
            is_expired = modified_at < self._clock.now() - self._max_age_seconds
            if is_expired or total_bytes > self.max_bytes:
                self.delete(file_name)
                total_bytes -= size

    def delete(self, file_name: str) -> None:
        self.token_ids_by_file.pop(file_name, None)
        for suffix in _FILE_SUFFIXES:
            (self._folder / file_name).with_suffix(suffix).unlink(missing_ok=True)


def delete_saved_slots(folder: Path, conversation: str) -> None:
    """Delete the saved slots of a conversation, for all models."""
    for suffix in _FILE_SUFFIXES:
        for path in folder.glob(f"*-{_hash(conversation)}-*{suffix}"):
            path.unlink(missing_ok=True)


def state_fingerprint(model: Path, engine: str) -> str:
    file_stat = model.stat()
    return _hash(f"{engine} {model.name} {file_stat.st_size} {file_stat.st_mtime_ns}")[:16]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read_tokens(path: Path) -> "array[int]":
    token_ids = array("i")
    with suppress(OSError, ValueError):  # even without its ids, a slot can serve its owner
        token_ids.frombytes(path.read_bytes())
    return token_ids


@dataclass(slots=True)
class _Slot:
    slot_number: int
    owner: SlotOwner | None = None
    """None if the slot is free; other conversations may still reuse its tokens as a prefix."""
    conversation: str = ""
    """The conversation whose text is in the slot, even if the slot has no owner."""
    token_ids: "array[int]" = field(default_factory=lambda: array("i"))
    is_saved: bool = True
    """Whether the slot is saved on disk, or is not worth saving."""
    last_use_number: int = 0
    is_busy: bool = False
    must_erase: bool = False

    def mark_empty(self) -> None:
        self.owner, self.token_ids, self.is_saved, self.last_use_number = None, array("i"), True, 0
        self.conversation = ""


class SlotPool:
    """The slots of one engine. Callers must not hold more leases than there are slots."""

    def __init__(self, engine: Engine, store: SlotStore) -> None:
        self._engine = engine
        self._store = store
        self._slots = [_Slot(number) for number in range(engine.slot_count)]
        self._restart_count = engine.restart_count
        self._assignment_lock = asyncio.Lock()
        self._use_count = 0

    @property
    def busy_slot_count(self) -> int:
        return sum(slot.is_busy for slot in self._slots)

    @property
    def owned_slot_count(self) -> int:
        return sum(slot.owner is not None for slot in self._slots)

    @asynccontextmanager
    async def lease(
        self, owner: SlotOwner, prompt_ids: Sequence[int]
    ) -> AsyncIterator[tuple[int, bool]]:
        """Lease a slot; yield its number, and whether it contains only this conversation."""
        prompt_id_array = array("i", prompt_ids)
        async with self._assignment_lock:
            await self._erase_pending_slots()
            slot, is_exclusive = await self._assign_slot(owner, prompt_id_array)
            self._use_count += 1
            slot.is_busy, slot.last_use_number = True, self._use_count
            slot.token_ids, slot.is_saved = prompt_id_array, False
            slot.conversation = owner.conversation
        try:
            yield slot.slot_number, is_exclusive
        finally:
            slot.is_busy = False
            if slot.must_erase:
                async with self._assignment_lock:
                    await self._erase_pending_slots()

    async def end_session(self, conversation: str) -> None:
        """Free a conversation's slots and delete its files, because a new session has begun."""
        async with self._assignment_lock:
            for slot in self._slots:
                if slot.owner and slot.owner.conversation == conversation:
                    slot.owner = None
                    slot.is_saved = True
            self._store.delete_conversation(conversation)

    async def forget(self, conversation: str) -> None:
        """Erase a conversation's data, in memory and on disk."""
        async with self._assignment_lock:
            for slot in self._slots:
                if slot.conversation == conversation:
                    slot.mark_empty()
                    slot.must_erase = True
            self._store.delete_conversation(conversation)
            await self._erase_pending_slots()

    async def save_all(self) -> None:
        """Save every owned slot before the engine stops."""
        try:
            async with asyncio.timeout(_SAVE_ALL_TIMEOUT_SECONDS), self._assignment_lock:
                self._clear_after_restart()
                for slot in self._slots:
                    await self._save(slot)
        except TimeoutError:
            _log.warning("slots_not_saved", reason="the engine does not respond")

    async def _erase_pending_slots(self) -> None:
        self._clear_after_restart()
        for slot in self._slots:
            if slot.must_erase and not slot.is_busy:
                try:
                    await self._engine.erase_slot(slot.slot_number)
                except EngineFailed as error:  # after a crash, the slot is empty anyway
                    _log.warning("slot_not_erased", slot=slot.slot_number, reason=str(error))
                else:
                    slot.must_erase = False

    def _clear_after_restart(self) -> None:
        if self._restart_count != self._engine.restart_count:
            self._restart_count = self._engine.restart_count
            for slot in self._slots:
                slot.mark_empty()
                slot.must_erase = False

    async def _assign_slot(self, owner: SlotOwner, prompt_ids: "array[int]") -> tuple[_Slot, bool]:
        """Return a slot, and whether it contains only the owner's conversation."""
        idle_slots = [each for each in self._slots if not each.is_busy]
        own_slot = next((each for each in self._slots if each.owner == owner), None)
        if own_slot is not None and not own_slot.is_busy:
            return own_slot, True
        slot = min(idle_slots, key=lambda each: _eviction_key(each, prompt_ids))
        await self._save(slot)
        if own_slot is not None:  # the owner's slot is busy; lease another one without owning it
            slot.owner = None
            return slot, False
        file = self._store.state_file_name(owner)
        is_exclusive = file in self._store.token_ids_by_file and await self._restore(slot, file)
        if not is_exclusive:
            await self._copy_prefix(slot, prompt_ids, idle_slots)
        slot.owner = owner
        return slot, is_exclusive

    async def _copy_prefix(
        self, slot: _Slot, prompt_ids: "array[int]", idle_slots: Sequence[_Slot]
    ) -> None:
        best_prefix_length = max(
            _MIN_SAVED_TOKENS - 1, common_prefix_length(slot.token_ids, prompt_ids)
        )
        best_prefix_source: _Slot | str | None = None
        prefix_sources: list[tuple[_Slot | str, array[int]]] = [
            (one, one.token_ids) for one in idle_slots
        ]
        prefix_sources += self._store.token_ids_by_file.items()
        for prefix_source, token_ids in prefix_sources:
            length = common_prefix_length(token_ids, prompt_ids)
            if length > best_prefix_length and length * _MAX_STATE_TO_PREFIX_RATIO > len(token_ids):
                best_prefix_length, best_prefix_source = length, prefix_source
        if isinstance(best_prefix_source, _Slot):
            await self._save(best_prefix_source)
            owner = best_prefix_source.owner
            best_prefix_source = self._store.state_file_name(owner) if owner else None
        if best_prefix_source in self._store.token_ids_by_file:
            await self._restore(slot, best_prefix_source)

    async def _save(self, slot: _Slot) -> None:
        if slot.owner is None or slot.is_saved or not self._store.max_bytes:
            return
        if len(slot.token_ids) >= _MIN_SAVED_TOKENS:
            try:
                part_file = f"{Path(self._store.state_file_name(slot.owner)).stem}{_PART_SUFFIX}"
                token_count = await self._engine.save_slot(slot.slot_number, part_file)
                if token_count >= _MIN_SAVED_TOKENS:  # fewer if prefill was stopped
                    self._store.commit_file(part_file, slot.owner, slot.token_ids[:token_count])
            except (EngineFailed, OSError) as error:  # the prompt will be decoded again
                _log.warning("slot_not_saved", slot=slot.slot_number, reason=str(error))
                return
        slot.is_saved = True

    async def _restore(self, slot: _Slot, file_name: str) -> bool:
        try:
            await self._engine.restore_slot(slot.slot_number, file_name)
        except EngineFailed as error:
            _log.warning("slot_not_restored", slot=slot.slot_number, reason=str(error))
            if isinstance(error, EngineRefused):
                self._store.delete(file_name)
            slot.mark_empty()
            return False
        slot.token_ids = self._store.token_ids_by_file[file_name]
        return True


def common_prefix_length(first_ids: "array[int]", second_ids: "array[int]") -> int:
    low, high = 0, min(len(first_ids), len(second_ids))
    while low < high:
        middle = (low + high + 1) // 2
        if first_ids[low:middle] == second_ids[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _eviction_key(slot: _Slot, prompt_ids: "array[int]") -> tuple[bool, int, int]:
    is_free = slot.owner is None
    return (
        not is_free,
        -common_prefix_length(slot.token_ids, prompt_ids) if is_free else 0,
        slot.last_use_number,
    )

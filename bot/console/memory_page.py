"""The memory page: search all memories, approve proposed ones, and delete memories."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from bot.chat.access import ApiScope
from bot.chat.memory import Memory, MemoryReader, MemoryState
from bot.console.routes import ConsoleRequest, NavigationItem, RouteGroup, route
from bot.errors import RequestRefused
from bot.storage.memories import SqlMemories
from bot.storage.operation import AuditLog
from bot.texts.text import translatable
from bot.value_class import value_class

_MemoryRow = Mapping[str, object]
_ShortText = Annotated[str, Field(max_length=500)]
_StateFilter = Literal["", "proposed", "kept", "retired"]


@value_class
class MemoryPage(RouteGroup):
    navigation = (NavigationItem("/memories", translatable("Memories"), "memories"),)

    memories: SqlMemories
    audit_log: AuditLog

    @route("GET /api/v1/memories", ApiScope.READ)
    @route("GET /memories", ApiScope.READ, template="memories.html")
    async def find(
        self, text: _ShortText = "", state: _StateFilter = "", preset: _ShortText = ""
    ) -> Mapping[str, Sequence[_MemoryRow] | int]:
        """List the newest memories; `text` searches their texts, subjects and authors.

        With `preset`, lists only memories about that character, or made in its presence.
        """
        needle = text.casefold()
        memories = await self.memories.list_newest(state)
        proposed_count = len(await self.memories.list_newest(MemoryState.PROPOSED))
        rows = [
            _to_row(one)
            for one in memories
            if needle in _to_search_text(one) and preset in ("", one.subject.key, *one.witnesses)
        ]
        return {"memories": rows, "waiting": proposed_count}

    @route("POST /api/v1/memories/{number}/approve", ApiScope.OPERATE)
    @route("POST /memories/{number}/approve", ApiScope.OPERATE, redirect="/memories?state=proposed")
    async def approve(self, request: ConsoleRequest, number: int) -> Mapping[str, int]:
        """Approve a memory, so that characters recall it."""
        one = await self._find_memory(number)
        await self.memories.change(number, _make_admin_reader(one), state=MemoryState.KEPT)
        return await self._record_change(request, number, "approve memory")

    @route("DELETE /api/v1/memories/{number}", ApiScope.OPERATE)
    @route("POST /memories/{number}/forget", ApiScope.OPERATE, redirect="/memories")
    async def forget(self, request: ConsoleRequest, number: int) -> Mapping[str, int]:
        """Delete a memory, and the prompts that contain it."""
        one = await self._find_memory(number)
        await self.memories.forget(number, _make_admin_reader(one))
        return await self._record_change(request, number, "forget memory")

    async def _find_memory(self, number: int) -> Memory:
        memories = await self.memories.list_newest(number=number) if number else ()
        if not memories:
            raise RequestRefused(404, translatable("There is no memory with this number."))
        return memories[0]

    async def _record_change(
        self, request: ConsoleRequest, number: int, action: str
    ) -> Mapping[str, int]:
        await self.audit_log.record(request.caller.name, action, str(number))
        return {"number": number}


def _make_admin_reader(memory: Memory) -> MemoryReader:
    return MemoryReader("", memory.place, is_admin=True)


def _to_search_text(one: Memory) -> str:
    return f"{one.text}\n{one.subject.name}\n{one.subject.key}\n{one.said_by}".casefold()


def _to_row(memory: Memory) -> _MemoryRow:
    audience = memory.audience or memory.place.narrowest_audience
    return {
        "number": memory.id,
        "text": memory.text,
        "kind": memory.kind.value,
        "about": memory.subject.name or memory.subject.key,
        "said_by": memory.said_by,
        "channel": memory.place.channel,
        "audience": audience.database_value,
        "characters": list(memory.witnesses),
        "is_by_hand": not memory.is_derived,
        "is_pinned": memory.is_pinned,
        "state": memory.state.value,
        "since": memory.since,
    }

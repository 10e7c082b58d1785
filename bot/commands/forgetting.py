"""Forget a person, a channel or a conversation: what was said, and what is derived from it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence, Set

import structlog
from typing_extensions import override

from bot.chat.incoming import Deleted, ForgetRequested, Incoming, Pressed, Said, address_of
from bot.commands.personas import UserPersonas
from bot.errors import StoreError
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import (
    Clock,
    ConversationMemory,
    ForgottenConversations,
    HistoryIndex,
    PersonalData,
    Signals,
)
from bot.texts.caches import clear_text_caches

_log = structlog.get_logger(__name__)
_TOPIC = "forgotten"
_LOOK_SECONDS = 30.0
_OVERLAP_SECONDS = 600.0  # between two looks: clocks differ, and transactions take time


@frozen_dataclass
class PersonForgetting:
    """Has each conversation forget a person in its turn: only its worker may change a history."""

    data: PersonalData
    personas: UserPersonas
    receive: Callable[[Sequence[Incoming]], Awaitable[None]]

    async def request(self, pressed: Pressed) -> None:
        """Ask for it once for every conversation; may be repeated."""
        person = pressed.author.id
        keys = await self.data.conversations(person)
        await self.receive(
            [
                ForgetRequested(
                    address=address_of(key),
                    external_key=f"{pressed.external_key}:forget:{key}",
                    person_id=person,
                    at=pressed.at,
                    scopes=(key,),
                )
                for key in keys
            ]
        )
        await self.data.drop_set_aside(person)
        await self.data.note_forgotten(person)
        await self.personas.forget(person, await self.data.descriptions(person))


@frozen_dataclass
class ChannelForgetting:
    """Reaches the other histories of a channel; a channel with one history has no others."""

    index: HistoryIndex
    receive: Callable[[Sequence[Incoming]], Awaitable[None]]

    async def request(self, said: Said) -> int:
        """Have all other conversations of the channel deleted; return how many turns they have."""
        others = dict(await self.index.conversations(said.address))
        others.pop(said.address.conversation, None)
        if others:
            await self.receive(
                [
                    ForgetRequested(
                        address=address_of(key),
                        external_key=f"{said.external_key}:forget:{key}",
                        person_id=None,
                        at=said.at,
                        scopes=(key,),
                    )
                    for key in others
                ]
            )
        return sum(others.values())

    async def request_copies(self, said: Said, message_id: str) -> None:
        """Have the copies of a message deleted that branches have."""
        if said.address.history:
            await self.receive(
                [
                    Deleted(
                        address=said.address,
                        external_key=f"{said.external_key}:copies",
                        message_ids=(message_id,),
                        at=said.at,
                        scopes=said.scopes,
                    )
                ]
            )


class SharedMemories(ConversationMemory):
    """What the processes of an installation keep of conversations: all of them forget together.

    A signal tells the others at once, and a row of the database those that missed it.

    Args:
        memories: return what this process keeps: a preset that is published may add a model.
        signals: tell this process and the others.
        forgotten: the rows.
        kept_seconds: how old a row may be that was not seen before; older ones are deleted.
    """

    def __init__(
        self,
        memories: Callable[[], Sequence[ConversationMemory]],
        signals: Signals,
        forgotten: ForgottenConversations,
        clock: Clock,
        kept_seconds: float,
    ) -> None:
        self._memories = memories
        self._signals = signals
        self._forgotten = forgotten
        self._clock = clock
        self._looked_at = clock.now() - kept_seconds
        self._seen: Set[int] = frozenset()
        self._to_forget: asyncio.Queue[str] = asyncio.Queue()
        self._forgetting_here = ""
        signals.subscribe(_TOPIC, self._receive)

    @override
    async def end_session(self, conversation: str) -> None:
        clear_text_caches()
        for memory in self._memories():
            await memory.end_session(conversation)

    @override
    async def forget(self, conversation: str) -> None:
        self._forgetting_here = conversation
        self._signals.publish(_TOPIC, [conversation])
        self._forgetting_here = ""
        await self._forget_here(conversation)

    async def run(self) -> None:
        """Forget what other processes were told to forget, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._forget_signalled(), name="forget: signals")
            group.create_task(self._forget_noted(), name="forget: rows")

    def _receive(self, conversations: Sequence[str]) -> None:
        for key in conversations:
            if key != self._forgetting_here:
                self._to_forget.put_nowait(key)

    async def _forget_signalled(self) -> None:
        while True:
            await self._forget_here(await self._to_forget.get())

    async def _forget_noted(self) -> None:
        while True:
            started = self._clock.now()
            try:
                noted = await self._forgotten.since(self._looked_at)
            except StoreError as error:
                _log.warning("store_failed", reason=str(error))
            else:
                new = {key for number, key in noted.items() if number not in self._seen}
                for key in sorted(new):
                    await self._forget_here(key)
                self._seen, self._looked_at = noted.keys(), started - _OVERLAP_SECONDS
            await self._clock.sleep(_LOOK_SECONDS)

    async def _forget_here(self, conversation: str) -> None:
        clear_text_caches()
        for memory in self._memories():
            await memory.forget(conversation)

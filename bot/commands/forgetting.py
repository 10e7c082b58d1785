"""Forget a person: everything that was said, in every conversation, and what is derived from it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from bot.chat.incoming import ForgetRequested, Incoming, Pressed, address_of
from bot.commands.personas import UserPersonas
from bot.ports import PersonalData


@dataclass(frozen=True, slots=True)
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
        await self.personas.forget(person, await self.data.descriptions(person))

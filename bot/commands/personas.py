"""Who people say they are, kept by their platform's id: everywhere, or for one place."""

from collections.abc import Iterable, Sequence
from itertools import islice

from bot.chat.incoming import Incoming
from bot.chat.session import Session
from bot.errors import UserError
from bot.ports import ChatSettings
from bot.prompting.speakers.user_personas import MAX_SPEAKERS_WITH_PERSONA, sanitize_persona

_KEY = "persona"
_EVERYWHERE = "everywhere"


class UserPersonas:
    """A narrower place wins: topic or thread > channel > guild > everywhere."""

    def __init__(self, choices: ChatSettings) -> None:
        self._choices = choices

    async def resolve(self, personas: Iterable[str], places: Sequence[str]) -> dict[str, str]:
        """What these people (ids) say of themselves at the first of these places, by id."""
        scopes = {
            scope: person
            for person in dict.fromkeys(personas)
            for scope in [*(f"{person}@{place}" for place in places), person]
        }
        told = await self._choices.get_all(list(scopes), _KEY)
        found: dict[str, str] = {}
        for scope, person in scopes.items():  # the narrowest first
            if scope in told:
                found.setdefault(person, told[scope])
        return found

    async def of_speakers(self, session: Session, incoming: Incoming) -> dict[str, str]:
        """Who the author and those heard lately say they are, by id."""
        speakers = (turn.speaker.id for turn in reversed(session.turns) if turn.speaker)
        newest = dict.fromkeys([incoming.author.id, *speakers])
        return await self.resolve(islice(newest, MAX_SPEAKERS_WITH_PERSONA), incoming.scopes)

    async def handle_me(self, argument: str, incoming: Incoming) -> str:
        """Carry out `/me [everywhere] [text|clear]`; gives what is said back."""
        first, _, rest = argument.partition(" ")
        everywhere = first.lower() == _EVERYWHERE
        text = sanitize_persona(rest if everywhere else argument)
        person, place = incoming.author.id, incoming.scopes[0]
        scope, where = (person, _EVERYWHERE) if everywhere else (f"{person}@{place}", "here")
        if not text:
            return await self._shown(incoming)
        if text.lower() == "clear":
            await self._choices.set(scope, _KEY, None, person)
            return f"I no longer know who you are {where}."
        await self._choices.set(scope, _KEY, text, person)
        return f"You are, {where}: {text}"

    async def _shown(self, incoming: Incoming) -> str:
        personas = await self.resolve([incoming.author.id], incoming.scopes)
        if not personas:
            raise UserError("I do not know who you are. For example: /me I am a tall knight")
        return f"You are: {personas[incoming.author.id]}"

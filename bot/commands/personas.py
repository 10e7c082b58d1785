"""Store people's descriptions of themselves, for one channel or for all channels."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bot.chat.command import CommandOption
from bot.chat.incoming import IncomingMessage
from bot.chat.session import Session, person_scopes
from bot.commands.authority import writes_as_the_group
from bot.commands.request import CommandRequest, CommandResult, command
from bot.errors import PrivateError, UserError
from bot.ports import ChatSettings
from bot.prompting.speakers import MAX_SPEAKERS_WITH_PERSONA, sanitize_persona
from bot.texts.text import Text, marked, translatable

_PERSONA_KEY = "persona"
_EVERYWHERE_KEYWORD = "everywhere"
_WRITING_AS_GROUP_NOTICE = translatable(
    "You are writing as the group, like all its anonymous admins, so you would all share this"
    " description. Write under your own name to describe yourself."
)


@dataclass(eq=False)
class UserPersonas:
    """Stores people's self-descriptions, and finds those that apply in a channel."""

    chat_settings: ChatSettings

    async def resolve(self, user_ids: Iterable[str], scopes: Sequence[str]) -> dict[str, str]:
        """Return the personas that apply in a channel with these scopes, by user id."""
        keys = {
            key: user_id
            for user_id in dict.fromkeys(user_ids)
            for key in person_scopes(user_id, scopes)
        }
        values = await self.chat_settings.get_all(list(keys), _PERSONA_KEY)
        personas: dict[str, str] = {}
        if not values:
            return personas
        for key, user_id in keys.items():  # narrowest scope first
            if key in values:
                personas.setdefault(user_id, values[key])
        return personas

    async def find(self, user_id: str, scopes: Sequence[str]) -> tuple[str, str | None] | None:
        """Return a person's description, and the scope that has it; None means all channels."""
        keys: dict[str, str | None] = {f"{user_id}@{scope}": scope for scope in scopes}
        keys[user_id] = None
        values = await self.chat_settings.get_all(list(keys), _PERSONA_KEY)
        return next(((values[key], scope) for key, scope in keys.items() if key in values), None)

    async def resolve_for_speakers(
        self, session: Session, incoming: IncomingMessage
    ) -> dict[str, str]:
        """Return the personas of the author and of the latest speakers, by user id."""
        newest = {incoming.author.id: None}
        for turn in reversed(session.turns):
            if len(newest) == MAX_SPEAKERS_WITH_PERSONA:
                break
            if turn.speaker is not None:
                newest[turn.speaker.id] = None
        return await self.resolve(newest, incoming.scopes)

    async def delete_settings(self, user_id: str, settings: Iterable[tuple[str, str]]) -> None:
        """Delete settings of a person, each given by its scope and key."""
        for scope, key in settings:
            await self.chat_settings.set(scope, key, None, user_id)

    @command(
        "me",
        marked(
            "describe yourself in this channel; `everywhere TEXT` for all channels, `clear` deletes"
            " it"
        ),
        CommandOption("text", marked("for example: I am a tall knight"), required=False),
    )
    async def _me(self, request: CommandRequest) -> CommandResult:
        text = await self.change_or_show(request.argument, request.incoming)
        return CommandResult(text, is_private=not request.argument)

    async def change_or_show(self, argument: str, incoming: IncomingMessage) -> Text:
        """Save, delete or show the author's persona; `argument` is `[everywhere] [TEXT|clear]`."""
        first, _, rest = argument.partition(" ")
        everywhere = first.lower() == _EVERYWHERE_KEYWORD
        text = sanitize_persona(rest if everywhere else argument)
        user_id = incoming.author.id
        key = user_id if everywhere else f"{user_id}@{incoming.scopes[0]}"
        if not text:
            return await self._show_persona(incoming)
        if text.lower() == "clear":
            await self.chat_settings.set(key, _PERSONA_KEY, None, user_id)
            if everywhere:
                return translatable("Your description for all channels was deleted.")
            return translatable("Your description for this channel was deleted.")
        if writes_as_the_group(incoming):
            raise UserError(_WRITING_AS_GROUP_NOTICE)
        await self.chat_settings.set(key, _PERSONA_KEY, text, user_id)
        if everywhere:
            return translatable("Your description for all channels was saved: {text}", text=text)
        return translatable("Your description for this channel was saved: {text}", text=text)

    async def _show_persona(self, incoming: IncomingMessage) -> Text:
        personas = await self.resolve([incoming.author.id], incoming.scopes)
        if not personas:
            raise PrivateError(
                translatable("You have not described yourself. For example: /me I am a tall knight")
            )
        return translatable("Your description here: {text}", text=personas[incoming.author.id])

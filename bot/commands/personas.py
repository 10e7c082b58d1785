"""Store people's descriptions of themselves, for one channel or for all channels."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bot.chat.command import CommandOption
from bot.chat.incoming import IncomingMessage
from bot.chat.session import ChatSetting, Session, setting_scopes
from bot.commands.authority import writes_as_group
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
_NO_PERSONA_NOTICE = translatable(
    "You haven't described yourself. For example: /me I am a tall knight"
)


@dataclass(eq=False)
class UserPersonas:
    """Stores people's self-descriptions, and finds those that apply in a channel."""

    chat_settings: ChatSettings

    async def find_all(self, user_ids: Iterable[str], scopes: Sequence[str]) -> dict[str, str]:
        """Return the personas that apply in a channel with these scopes, by user id."""
        scopes_by_user = {user_id: setting_scopes(user_id, scopes) for user_id in user_ids}
        settings = await self.chat_settings.get_scopes(
            [key for keys in scopes_by_user.values() for key in keys]
        )
        personas = {
            user_id: ChatSetting.find_setting(settings, keys, _PERSONA_KEY)
            for user_id, keys in scopes_by_user.items()
        }
        return {user_id: one.value for user_id, one in personas.items() if one is not None}

    async def find(self, user_id: str, scopes: Sequence[str]) -> ChatSetting | None:
        """Return the description that a person has in a channel, and its scope."""
        return await self.chat_settings.resolve(setting_scopes(user_id, scopes), _PERSONA_KEY)

    async def resolve_for_speakers(
        self, session: Session, incoming: IncomingMessage
    ) -> dict[str, str]:
        """Return the personas of the author and of the latest speakers, by user id."""
        user_ids = {incoming.author.id: None}
        for turn in reversed(session.turns):
            if len(user_ids) == MAX_SPEAKERS_WITH_PERSONA:
                break
            if turn.speaker is not None:
                user_ids[turn.speaker.id] = None
        return await self.find_all(user_ids, incoming.scopes)

    async def delete_settings(self, user_id: str, settings: Iterable[tuple[str, str]]) -> None:
        """Delete a person's settings, which are given as pairs of scope and key."""
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
    async def _handle_me_command(self, request: CommandRequest) -> CommandResult:
        text = await self.run_me_command(request.argument, request.incoming)
        return CommandResult(text, is_private=not request.argument)

    async def run_me_command(self, argument: str, incoming: IncomingMessage) -> Text:
        """Save, delete or show the author's persona; `argument` is `[everywhere] [TEXT|clear]`."""
        first_word, _, remaining_text = argument.partition(" ")
        is_everywhere = first_word.lower() == _EVERYWHERE_KEYWORD
        text = sanitize_persona(remaining_text if is_everywhere else argument)
        user_id = incoming.author.id
        scope = user_id if is_everywhere else f"{user_id}@{incoming.scopes[0]}"
        if not text:
            persona = await self.find(user_id, incoming.scopes)
            if persona is None:
                raise PrivateError(_NO_PERSONA_NOTICE)
            return translatable("Your description here: {text}", text=persona.value)
        if text.lower() == "clear":
            await self.chat_settings.set(scope, _PERSONA_KEY, None, user_id)
            if is_everywhere:
                return translatable("Your description for all channels was deleted.")
            return translatable("Your description for this channel was deleted.")
        if writes_as_group(incoming):
            raise UserError(_WRITING_AS_GROUP_NOTICE)
        await self.chat_settings.set(scope, _PERSONA_KEY, text, user_id)
        if is_everywhere:
            return translatable("Your description for all channels was saved: {text}", text=text)
        return translatable("Your description for this channel was saved: {text}", text=text)

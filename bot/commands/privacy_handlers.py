"""Handle what people decide about their own words: /forget me and last, /export, and more."""

from bot.chat.command import CommandOption
from bot.commands.admins import AdminCheck
from bot.commands.anonymous_admins import writes_as_the_group
from bot.commands.export import PrivateCommands, export_words
from bot.commands.newest_question import find_exchange
from bot.commands.registry import command
from bot.commands.request import CommandRequest, CommandResult
from bot.errors import UserError
from bot.ports import PersonalData
from bot.routing.preset_resolver import PresetResolver
from bot.texts.text import marked, translatable, translatable_count

_FORGET_OTHERS = translatable("make me forget what others said")
_CHANGE_OBSERVING = translatable("change what I remember here")
_SENT_IN_PRIVATE = translatable(
    "I am sending you the file in a private chat. If it does not come, open a chat with me and"
    " write /export there."
)
_OBSERVED = {"on": True, "off": False, "inherit": None}
_OBSERVES = translatable(
    "I now remember what people say to each other here, if the preset of this channel does so."
)
_ONLY_SAID_TO_ME = translatable(
    "From now on I remember only what is said to me here, and my answers."
)

_AUTHOR_UNOBSERVED = translatable(
    "I overhear you nowhere: in all chats I use only what you say to me, and nobody can quote the"
    " rest to me. /settings me on changes that."
)
_AUTHOR_OBSERVED = translatable(
    "Where a channel lets me overhear, what you say there to others is background for my answers."
    " /settings me off stops that for you, in all chats."
)
_WRITE_AS_YOURSELF = translatable(
    "You write as the group itself, as all of its anonymous admins do. Write under your own name to"
    " choose this for yourself."
)


class PrivacyHandlers:
    """The handlers; everybody may use them for what they said themselves."""

    def __init__(
        self,
        data: PersonalData,
        admins: AdminCheck,
        resolver: PresetResolver,
        private_commands: PrivateCommands | None,
    ) -> None:
        self._data = data
        self._admins = admins
        self._resolver = resolver
        self._private_commands = private_commands

    def forget_me(self) -> CommandResult:
        """Ask whether everything is meant that the person said."""
        text = translatable(
            "Delete everything that you said in all channels, and the answers to it?"
            " This cannot be undone."
        )
        return CommandResult(text, asks_to_forget=True)

    async def forget_quoted(self, request: CommandRequest, message_id: str) -> CommandResult:
        """Delete the message that the command replies to: an own one, or an answer to one."""
        quote = request.incoming.quote
        author = quote.author if quote is not None else None
        is_own = author is not None and author.id == request.incoming.author.id
        if not (is_own or request.is_asker) or writes_as_the_group(request.incoming):
            await self._require_deletion(request)
        return CommandResult("", forgets=message_id)

    async def forget_last(self, request: CommandRequest) -> CommandResult:
        """Delete the newest question and its answers for good.

        Raises:
            UserError: there is none, or somebody else asked it.
        """
        exchange = find_exchange(request)
        if exchange is None or exchange.question.message_id is None:
            raise UserError(translatable("There is no question in this conversation yet."))
        author = exchange.question.speaker
        is_own = author is not None and author.id == request.incoming.author.id
        if not is_own or writes_as_the_group(request.incoming):  # which of the admins asked it?
            await self._require_deletion(request)
        return CommandResult("", forgets=exchange.question.message_id, forgets_answers=True)

    async def _require_deletion(self, request: CommandRequest) -> None:
        await self._admins.require(
            request.incoming, _FORGET_OTHERS, needs_name=True, audited_as="forget message"
        )

    @command("export", marked("send you everything you said to me, as a file"), is_private=True)
    async def export(self, request: CommandRequest) -> CommandResult:
        """Send the person's own words as a file that nobody else sees.

        From a group it is sent to the private chat with the person; where there is none, it goes
        with the response to a native command.

        Raises:
            UserError: everybody would see the file, and that chat is not known.
        """
        incoming = request.incoming
        if not incoming.is_private:
            if self._private_commands is not None and await self._private_commands.repeat(incoming):
                return CommandResult(_SENT_IN_PRIVATE)
            if incoming.interaction is None:
                raise UserError(
                    translatable(
                        "Everybody here would see the file. Please write /export to me in a private"
                        " chat."
                    )
                )
        exported = await export_words(self._data, incoming.author.id, incoming.at)
        text = translatable_count(
            "What you have said to me: {count} message.",
            "What you have said to me: {count} messages.",
            exported.messages,
        )
        return CommandResult(text, file=exported.file)

    @command(
        "settings me",
        marked("let me overhear you, or not, in all chats; alone: show it"),
        CommandOption("value", marked("on or off"), required=False, choices=("on", "off")),
    )
    async def set_observing_author(self, request: CommandRequest) -> CommandResult:
        """Switch, in all chats, whether what the author does not say to the bot is remembered.

        Raises:
            UserError: there is no such value, or the author is shown as the group itself.
        """
        value, author = request.argument.lower(), request.incoming.author.id
        if value not in {"", "on", "off"}:
            raise UserError(translatable("Use /settings me off or /settings me on."))
        if value:
            if writes_as_the_group(request.incoming):
                raise UserError(_WRITE_AS_YOURSELF)
            await self._resolver.set_observing_person(author, on=value == "on")
        is_off = bool(await self._resolver.unobserved([author]))
        return CommandResult(_AUTHOR_UNOBSERVED if is_off else _AUTHOR_OBSERVED)

    @command(
        "settings overhear",
        marked("remember what people say to each other here, or not (admins)"),
        CommandOption("value", marked("on, off or inherit"), choices=("on", "off", "inherit")),
        changes_channel=True,
        needs_admin=True,
    )
    async def set_observing(self, request: CommandRequest) -> CommandResult:
        """Switch whether what is not said to the bot is remembered in this channel.

        Raises:
            UserError: the author is no admin, or there is no such value.
        """
        value = request.argument.lower()
        if value not in _OBSERVED:
            raise UserError(
                translatable(
                    "Use /settings overhear on, /settings overhear off, or /settings overhear"
                    " inherit."
                )
            )
        await self._admins.require(request.incoming, _CHANGE_OBSERVING)
        by, audited = request.incoming.author.id, request.is_audited
        await self._resolver.set_observing(
            request.scope, on=_OBSERVED[value], by=by, audited=audited
        )
        observes = await self._resolver.observes(request.incoming.scopes)
        return CommandResult(_OBSERVES if observes else _ONLY_SAID_TO_ME, changes_channel=True)

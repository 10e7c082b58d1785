"""Handle /settings scope: whose messages share one history in a channel."""

from collections.abc import Sequence

from bot.chat.command import CommandOption
from bot.chat.session import HistoryScope
from bot.commands.admins import AdminCheck
from bot.commands.registry import command
from bot.commands.request import CommandRequest, CommandResult
from bot.errors import UserError
from bot.routing.history_scopes import SCOPE_DESCRIPTIONS, HistoryScopes
from bot.texts.stored import looked_up
from bot.texts.text import Text, joined, marked, translatable

INHERIT = "inherit"
_CHANGE_SCOPE = translatable("change who shares a conversation here")


class HistoryScopeHandlers:
    """Everybody may see the scope of a channel; an admin may change it."""

    def __init__(self, scopes: HistoryScopes, admins: AdminCheck) -> None:
        self._scopes = scopes
        self._admins = admins

    @command(
        "settings scope",
        marked("choose who shares a conversation here (admins); alone: show it"),
        CommandOption(
            "value",
            marked("shared, user, thread, replies or inherit"),
            required=False,
            choices=(*HistoryScope, INHERIT),
        ),
    )
    async def choose(self, request: CommandRequest) -> CommandResult:
        """Set the scope of the channel; without a value, show it.

        Raises:
            UserError: there is no such scope, or the author is no admin.
        """
        name = request.argument.lower()
        if not name:
            choices = [_described(one, one) for one in HistoryScope]
            return CommandResult(joined([await self.describe(request.incoming.scopes), *choices]))
        if name not in {*HistoryScope, INHERIT}:
            names = " | ".join([*HistoryScope, INHERIT])
            raise UserError(translatable("Use /settings scope {names}.", names=names))
        await self._admins.require(request.incoming, _CHANGE_SCOPE)
        chosen = None if name == INHERIT else HistoryScope(name)
        by, audited = request.incoming.author.id, request.is_audited
        await self._scopes.set(request.scope, chosen, by, audited=audited)
        holds = await self._scopes.find(request.incoming.scopes) or HistoryScope.SHARED
        described = looked_up(SCOPE_DESCRIPTIONS[holds])
        return CommandResult(
            translatable(
                "From the next message on, {description}. What was said before is kept where it"
                " was said.",
                description=described,
            ),
            changes_channel=True,
        )

    async def describe(self, scopes: Sequence[str]) -> Text:
        """Return a line that says whose messages share one history in a channel."""
        scope = await self._scopes.find(scopes) or HistoryScope.SHARED
        return translatable("Scope: {scope}", scope=_described(scope, scope))


def _described(scope: HistoryScope, name: str) -> Text:
    return translatable(
        "{name} – {description}", name=name, description=looked_up(SCOPE_DESCRIPTIONS[scope])
    )

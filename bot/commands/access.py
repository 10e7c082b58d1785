"""Handle /access: say who may use the bot in a channel, a server or everywhere, and why."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from bot.chat.command import CommandOption, CommandSpec
from bot.chat.incoming import Said
from bot.commands.authority import AdminCheck
from bot.commands.request import CommandRequest, CommandResult, command
from bot.errors import UserError
from bot.routing.decide import ACCESS, Access, AccessRules
from bot.routing.presets import INSTALLATION
from bot.texts.text import Text, joined, marked, translatable

_CHANGE = translatable("change who may use me")
_EVERYWHERE = "everywhere"
_PLACES = ("here", "server", _EVERYWHERE)
_TARGET = CommandOption(
    "target", marked("a person, role or channel: a mention, `role 123`, or reply to a message")
)
_WHERE = CommandOption("where", marked("here, server or everywhere"), False, choices=_PLACES)
ACCESS_GROUP = CommandSpec(
    "access",
    marked("choose who may use me: show, allow, block, reset, off, on"),
    is_for_admins=True,
    default_action="show",
)
_MENTION = re.compile(r"<(?P<kind>@!?|@&|#)(?P<id>\d+)>")
_NAMED = re.compile(r"(?P<kind>person|role|channel)[ :](?:\w+:)?(?P<id>-?\d+)", re.IGNORECASE)
_ID = re.compile(r"(?:\w+:)?(?P<id>-?\d+)")
_KINDS = {"@": "person", "@!": "person", "@&": "role", "#": "channel"}
_WHO = translatable(
    "Whom? Mention a person or role, reply to a message, or write an id: /access block person 123,"
    " role 123 or channel 123."
)
_IN_PRIVATE = translatable("In a private chat there is nothing to choose. Use me in a group.")
_OPERATORS_ONLY = translatable(
    "Only the operators of this bot, the people in TROUPE_ADMINS, can choose that."
)
_REASONS: Mapping[str, Text] = {
    "off": translatable("I am switched off there."),
    "block person": translatable("You are blocked there."),
    "block role": translatable("One of your roles is blocked there."),
    "block channel": translatable("That channel is blocked."),
    "only": translatable("Only some people may use me there."),
}


def explain_refusal(rule: str) -> Text:
    """Tell a refused person which kind of rule it was, and what still works."""
    found = (reason for kind, reason in _REASONS.items() if rule.startswith(kind))
    return translatable(
        "You may not use me where you wrote to me. {reason} What you write there is neither read"
        " nor kept. /forget me, /export, /privacy and /settings me still work.",
        reason=next(found, ""),
    )


@dataclass(eq=False)
class AccessHandlers:
    """The handlers of the /access actions."""

    rules: AccessRules
    admins: AdminCheck

    @command("access show", marked("list who may use me here, and why (admins)"))
    async def _show(self, request: CommandRequest) -> CommandResult:
        said = request.incoming
        await self.admins.require(said, translatable("see who may use me"))
        levels = await self.rules.load(() if said.is_private else said.scopes)
        if said.author.id not in self.admins.admin_ids:
            del levels[INSTALLATION]  # its rules name people of other chats
        lines = [
            translatable("{where}: {rule}", where=_place(scope, said), rule=_written(name, value))
            for scope, rules in levels.items()
            for name, value in sorted(rules.items())
        ]
        if not lines:
            lines = [translatable("Everybody may use me here.")]
        return CommandResult(joined([*lines, describe(await self.rules.find(said), said)]))

    @command("access allow", marked("let nobody but these use me (admins)"), _TARGET, _WHERE)
    async def _allow(self, request: CommandRequest) -> CommandResult:
        return await self._set_rule(request, "allow")

    @command("access block", marked("keep somebody from using me (admins)"), _TARGET, _WHERE)
    async def _block(self, request: CommandRequest) -> CommandResult:
        return await self._set_rule(request, "block")

    @command("access reset", marked("delete the rule about somebody (admins)"), _TARGET, _WHERE)
    async def _reset(self, request: CommandRequest) -> CommandResult:
        return await self._set_rule(request, None)

    @command(
        "access off",
        marked("switch me off here, for everybody (admins)"),
        _WHERE,
        needs_admin=True,
    )
    async def _off(self, request: CommandRequest) -> CommandResult:
        return await self._switch(request, "on")

    @command("access on", marked("switch me on again (admins)"), _WHERE, needs_admin=True)
    async def _on(self, request: CommandRequest) -> CommandResult:
        return await self._switch(request, None)

    async def _set_rule(self, request: CommandRequest, value: str | None) -> CommandResult:
        words, where = _split_place(request.argument)
        target = read_target(words, request.incoming)
        # A rule about a channel means nothing inside another one.
        scope = await self._scope(request, where or ("server" if "channel" in target else "here"))
        await self._set(request, scope, target, value)
        lines = [
            translatable("Saved: {rule}.", rule=_written(target, value))
            if value
            else translatable("Deleted: {rule}.", rule=target)
        ]
        if "allow" in (await self.rules.load([scope]))[scope].values():
            place = _place(scope, request.incoming)
            lines.append(translatable("Nobody else may use me now ({place}).", place=place))
        return CommandResult(joined(lines))

    async def _switch(self, request: CommandRequest, value: str | None) -> CommandResult:
        _, where = _split_place(request.argument)
        await self._set(request, await self._scope(request, where or "here"), "off", value)
        access = await self.rules.find(request.incoming)
        text = translatable(
            "I am switched off here: I answer nobody and remember nothing. /access on ends that."
        )
        if access.rule != "off":
            text = translatable("I am switched on here.")
        elif value is None:
            text = translatable(
                "I am still switched off: {place}.", place=_place(access.scope, request.incoming)
            )
        return CommandResult(text, changes_channel=True)

    async def _scope(self, request: CommandRequest, where: str) -> str:
        """Return the scope to change, if the author may; raises `UserError`."""
        said = request.incoming
        await self.admins.require(said, _CHANGE)
        if where == _EVERYWHERE:
            if said.author.id not in self.admins.admin_ids:
                raise UserError(_OPERATORS_ONLY)
            return INSTALLATION
        if said.is_private:
            raise UserError(_IN_PRIVATE)
        return said.scopes[0] if where == "here" else said.scopes[-1]

    async def _set(self, request: CommandRequest, scope: str, name: str, value: str | None) -> None:
        by, audited = request.incoming.author.id, request.is_audited or scope == INSTALLATION
        await self.rules.chat_settings.set(scope, f"{ACCESS}{name}", value, by, audited=audited)


def read_target(words: str, said: Said) -> str:
    """Parse a target, or the author of the replied-to message: "role discord:9"."""
    quote, platform = said.quote, said.address.platform
    if not words and quote is not None and quote.author is not None:
        return f"person {quote.author.id}"
    if found := _MENTION.fullmatch(words) or _NAMED.fullmatch(words):
        kind = _KINDS.get(found["kind"], found["kind"].lower())
    elif found := _ID.fullmatch(words):
        kind = "channel" if found["id"].startswith("-") else "person"
    else:
        return _mentioned(words, said.mentions)
    source = said.address.source if kind == "channel" else platform
    return f"{kind} {source}:{found['id']}"


def _mentioned(words: str, mentions: Collection[str]) -> str:
    """Return the only person or role that a typed command mentions; raises `UserError`."""
    if not words.startswith("@") or len(mentions) != 1:
        raise UserError(_WHO)
    platform, _, id_ = next(iter(mentions)).partition(":")
    kind = "role" if id_.startswith("&") else "person"
    if not id_.lstrip("&").isdecimal():  # Telegram tells a user name, but not whose it is
        raise UserError(
            translatable("I know people by their id only. Reply to a message of theirs instead.")
        )
    return f"{kind} {platform}:{id_.lstrip('&')}"


def describe(access: Access, said: Said) -> Text:
    """Say what applies to the author of a message, and why."""
    if not access.rule:
        return translatable("You may use me here: no rule applies to you.")
    figures = {"rule": access.rule, "where": _place(access.scope, said)}
    if access.is_allowed:
        return translatable("You may use me here: {rule} ({where}).", **figures)
    return translatable(
        "Without being an admin, you could not use me here: {rule} ({where}).", **figures
    )


def _split_place(argument: str) -> tuple[str, str]:
    """Split "@bob server" into the target and the place; the place may be missing."""
    words, _, last = argument.rpartition(" ")
    return (words.strip(), last.lower()) if last.lower() in _PLACES else (argument, "")


def _place(scope: str, said: Said) -> Text:
    if scope == INSTALLATION:
        return translatable("everywhere")
    if scope == said.scopes[-1] and len(said.scopes) > 1:
        return translatable("in the server or group")
    return translatable("here") if scope == said.scopes[0] else translatable("in the channel")


def _written(name: str, value: str | None) -> str:
    return name if name == "off" else f"{value} {name}"

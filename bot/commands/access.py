"""Handle /access: choose and show who may use the bot in a channel, a server or everywhere."""

import re
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from bot.chat.command import CommandOption, CommandSpec
from bot.chat.incoming import (
    Incoming,
    IncomingMessage,
    Person,
    WakeReason,
    parse_address,
    parse_source,
)
from bot.chat.session import ACCESS_KEY_PREFIX, BANNED_WORDS_KEY
from bot.commands.authority import AdminCheck
from bot.commands.request import (
    CommandRequest,
    CommandResult,
    Method,
    admin_command,
    command,
    private_command,
)
from bot.errors import UserError
from bot.ports import Clock
from bot.routing.decide import Access, AccessRules
from bot.routing.presets import ADULTS_ONLY_KEY, INSTALLATION
from bot.texts.text import Text, join_texts, marked, translatable

_CHANGE_ACCESS_ACTION = translatable("change who may use me")
_EVERYWHERE = "everywhere"
_ACCESS_GIVEN = "given"
"""The value of a rule that allows a role to use a command, tools or a preset's model."""
_PERMISSIONS = ("command", "tools", "model")
_PLACES = ("here", "server", _EVERYWHERE)
_TARGET_OPTION = CommandOption(
    "target", marked("a person, role or channel: a mention, `role 123`, or reply to a message")
)
_PLACE_OPTION = CommandOption("where", marked("here, server or everywhere"), False, choices=_PLACES)
ACCESS_GROUP = CommandSpec(
    "access",
    marked(
        "manage who may use me: show, allow, block, reset, off, on, command, tools, model, dm,"
        " words"
    ),
    is_listed_for_admins=True,
    default_action="show",
)
_CODE_PREFIX, _WRONG_CODES_PREFIX = "code ", "wrong "
"""Prefixes of the settings with a person's code and with an operator's wrong codes."""
_CODE_CHARS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_CODE_LIFETIME_SECONDS = 3600.0
_MAX_PENDING_CODES = 3
_MAX_WRONG_CODES = 10
_MENTION = re.compile(r"<(?P<kind>@!?|@&|#)(?P<id>\d+)>")
_MENTION_KINDS = {"@": "person", "@!": "person", "@&": "role", "#": "channel"}
_TARGET_PATTERN = re.compile(
    r"(?:(?P<kind>person|role|channel)[ :])?(?:(?P<source>[a-z]+(?:@\w+)?):)?(?P<id>-?\d+)",
    re.IGNORECASE,
)
_MISSING_TARGET_NOTICE = translatable(
    "Who do you mean? Mention a person or role, reply to a message, or write an id: /access block"
    " person 123, role 123 or channel 123."
)
_UNKNOWN_NAME_NOTICE = translatable("I can't find people by name. Reply to one of their messages.")
_MISSING_COMMAND_NOTICE = translatable(
    "Which command, and for which role? For example: /access command preset use role 123"
)
_GROUPS_ONLY_NOTICE = translatable(
    "Rules about who may use me are for groups and servers. Send this command there."
)
_OPERATORS_ONLY_NOTICE = translatable(
    "Only the operators of this bot, the people in TROUPE_ADMINS, can choose that."
)
_AGE_RESTRICTION_NOTICE = translatable(
    "On this platform, you mark the channel as age-restricted in the channel's own settings."
)
_ADULT_ON_NOTICE = translatable("Presets for adults now answer here. /access adult off stops them.")
_ADULT_OFF_NOTICE = translatable("Presets for adults are now off here.")
_REFUSAL_REASONS: Mapping[str, Text] = {
    "off": translatable("I am switched off there."),
    "block person": translatable("You are blocked there."),
    "block role": translatable("One of your roles is blocked there."),
    "block channel": translatable("That channel is blocked."),
    "dm closed": translatable("In private chats, I answer only some people."),
    "dm pairing": translatable("Too many people are waiting for approval; please try again later."),
    "only": translatable("Only some people may use me there."),
}


def explain_refusal(rule: str, pairing_code: str) -> Text:
    """Return a notice that says why a person was refused, and what they can do."""
    if pairing_code:
        return translatable(
            "In private chats, I answer only people whom an operator of this bot has approved. Send"
            " the operator your code, which works for an hour: {code}",
            code=pairing_code,
        )
    reasons = (reason for kind, reason in _REFUSAL_REASONS.items() if rule.startswith(kind))
    return translatable(
        "You may not use me where you just wrote to me. {reason} I don't read or keep what you"
        " write there. /forget me, /export, /privacy and /settings me still work.",
        reason=next(reasons, ""),
    )


def _rule_command(action: str, summary: str, *options: CommandOption) -> Callable[[Method], Method]:
    """Register a method as the handler of an /access action that changes a rule."""
    return command(f"access {action}", summary, *options, _TARGET_OPTION, _PLACE_OPTION)


@dataclass(eq=False)
class AccessHandlers:
    """The handlers of the /access actions."""

    rules: AccessRules
    admins: AdminCheck
    grantable_commands: Collection[str]
    """The names of the commands that admins can allow for roles."""
    pairing_codes: "PairingCodes"
    add_events: Callable[[Sequence[Incoming]], Awaitable[None]]
    """Adds events of another conversation to the inbox."""

    @private_command("access show", marked("list who may use me here, and why (admins)"))
    async def _show_rules(self, request: CommandRequest) -> CommandResult:
        message = request.incoming
        await self.admins.require_admin(message, translatable("see who may use me"))
        rules_by_scope = await self.rules.load(() if message.is_private else message.scopes)
        if message.author.id not in self.admins.admin_ids:
            del rules_by_scope[INSTALLATION]  # the installation's rules name people of other chats
        lines = [
            translatable("{where}: {rule}", where=_describe_place(scope, message), rule=rule)
            for scope, rules in rules_by_scope.items()
            for rule in describe_rules(rules)
        ]
        if not lines:
            lines = [translatable("Everybody may use me here.")]
        lines.append(describe_access(await self.rules.find(message), message))
        return CommandResult(join_texts(lines))

    @_rule_command(
        "allow",
        marked("allow a person, role or channel; nobody else can use me then (admins)"),
    )
    @_rule_command("block", marked("block a person, role or channel from using me (admins)"))
    @_rule_command(
        "reset", marked("delete the rule that allows or blocks a person, role or channel (admins)")
    )
    @_rule_command(
        "command",
        marked("let a role use a command that is otherwise only for admins (admins)"),
        CommandOption("name", marked("the command, such as preset use")),
    )
    @_rule_command("tools", marked("let only people with a role use tools (admins)"))
    @_rule_command(
        "model",
        marked(
            "let only people with a role use a preset's own model; others get its fallback (admins)"
        ),
    )
    async def _set_rule(self, request: CommandRequest) -> CommandResult:
        action, message = request.command.name.removeprefix("access "), request.incoming
        typed_rule, chosen_place = _split_off_place(request.argument)
        is_permission = action in _PERMISSIONS
        name = self._parse_rule(f"{action} {typed_rule}" if is_permission else typed_rule, message)
        # A rule about a channel has no effect in another channel.
        default_place = "server" if name.startswith("channel") else "here"
        scope = await self._find_changeable_scope(request, chosen_place or default_place)
        rule_value = _ACCESS_GIVEN if is_permission else None if action == "reset" else action
        await self._store_rule(request, scope, name, rule_value)
        if rule_value is None and scope == INSTALLATION:
            await self._store_rule(request, scope, f"paired {name}", None)
        lines = [translatable("Deleted: {rule}.", rule=name)]
        if rule_value:
            lines = [translatable("Saved: {rule}.", rule=_format_rule(name, rule_value))]
        if not is_permission and "allow" in (await self.rules.load([scope]))[scope].values():
            place = _describe_place(scope, message)
            text = translatable(
                "Only people with an allow rule may use me now ({place}).", place=place
            )
            lines.append(text)
        return CommandResult(join_texts(lines))

    @admin_command(
        "access off", marked("switch me off here, for everybody (admins)"), _PLACE_OPTION
    )
    @admin_command("access on", marked("switch me on again (admins)"), _PLACE_OPTION)
    async def _switch_bot_on_or_off(self, request: CommandRequest) -> CommandResult:
        is_off_command = request.command.name == "access off"
        scope = await self._find_changeable_scope(request, request.argument or "here")
        await self._store_rule(request, scope, "off", "on" if is_off_command else None)
        access = await self.rules.find(request.incoming)
        text = translatable(
            "I'm switched off here and won't answer or remember anything. /access on undoes this."
        )
        if access.rule != "off":
            text = translatable("I am switched on here.")
        elif not is_off_command:
            text = describe_access(access, request.incoming)
        return CommandResult(text, changes_channel=True)

    @admin_command(
        "access adult",
        marked("turn presets for adults on or off in this group (admins)"),
        CommandOption("value", marked("on or off"), choices=("on", "off")),
    )
    async def _switch_adult_presets(self, request: CommandRequest) -> CommandResult:
        scope = await self._find_changeable_scope(request, "server")
        if request.incoming.is_age_restricted is not None:
            raise UserError(_AGE_RESTRICTION_NOTICE)
        stored_value = "on" if request.argument == "on" else None
        await request.store(self.rules.chat_settings, scope, ADULTS_ONLY_KEY, stored_value)
        text = _ADULT_OFF_NOTICE if stored_value is None else _ADULT_ON_NOTICE
        return CommandResult(text, changes_channel=True)

    @private_command(
        "access words",
        marked("ban words from answers; `none` bans no words, `reset` inherits the list (admins)"),
        CommandOption("words", marked("separated by commas; idiot* also bans idiots"), False),
        _PLACE_OPTION,
    )
    async def _set_banned_words(self, request: CommandRequest) -> CommandResult:
        """Replace a scope's banned words, ban none (`none`), or inherit the list (`reset`)."""
        message, settings = request.incoming, self.rules.chat_settings
        argument, chosen_place = _split_off_place(request.argument)
        scope = await self._find_changeable_scope(request, chosen_place or "server")
        if argument:
            banned_words = [" ".join(one.split()) for one in argument.split(",")]
            joined_words = "\n".join(one for one in banned_words if one.strip("* "))
            stored_words = {"none": "", "reset": None}.get(argument.lower(), joined_words)
            await request.store(settings, scope, BANNED_WORDS_KEY, stored_words)
        scopes = () if message.is_private else message.scopes
        setting = await settings.resolve((*scopes, INSTALLATION), BANNED_WORDS_KEY)
        if setting is None or not setting.value:
            return CommandResult(translatable("No words are banned from answers here."))
        words = ", ".join(setting.value.splitlines())
        values = {"where": _describe_place(setting.scope, message), "words": words}
        text = translatable("Answers with these words are not shown ({where}): {words}", **values)
        return CommandResult(text)

    @command(
        "access dm",
        marked("choose who may write to me in private (operators)"),
        CommandOption(
            "who", marked("open, closed or pairing"), choices=("open", "closed", "pairing")
        ),
    )
    async def _set_dm_rule(self, request: CommandRequest) -> CommandResult:
        dm_rule = request.argument
        self._require_operator(request.incoming)
        if "dm" in self.rules.fixed_rules:
            raise UserError(
                translatable(
                    "The setting TROUPE_ACCESS__DM decides who may write to me in private; this"
                    " command works only if that setting is unset."
                )
            )
        await self._store_rule(request, INSTALLATION, "dm", None if dm_rule == "open" else dm_rule)
        replies_by_rule = {
            "open": translatable("Everybody may write to me in private."),
            "closed": translatable(
                "In private chats, I answer only operators and people with an allow rule."
            ),
            "pairing": translatable(
                "Anybody who writes to me in private gets a code; I answer once you approve it."
            ),
        }
        return CommandResult(replies_by_rule[dm_rule])

    @private_command(
        "access approve",
        marked("let the person who sent you a code write to me in private (operators)"),
        CommandOption("code", marked("the code that the person sent you")),
    )
    async def _approve_pairing_code(self, request: CommandRequest) -> CommandResult:
        message = request.incoming
        self._require_operator(message)
        code = request.argument.upper()
        person, conversation = await self.pairing_codes.redeem_code(code, message)
        await self._store_rule(request, INSTALLATION, f"paired person {person}", "given")
        address, event_key = parse_address(conversation), f"{message.external_key}:approved"
        fields = (address, event_key, None, Person(person, ""), "/start", message.at, WakeReason.DM)
        # The approved person is greeted in private.
        await self.add_events([IncomingMessage(*fields, (address.channel,), is_private=True)])
        return CommandResult(translatable("{person} may write to me in private.", person=person))

    def _require_operator(self, message: IncomingMessage) -> None:
        if message.author.id not in self.admins.admin_ids:
            raise UserError(_OPERATORS_ONLY_NOTICE)

    def _parse_rule(self, typed_rule: str, message: IncomingMessage) -> str:
        """Parse a target such as "role 9", or a rule such as "command preset use role 9"."""
        kind, _, arguments = typed_rule.partition(" ")
        if kind in {"tools", "model"}:
            return f"{kind} {parse_target(arguments.strip(), message)}"
        if kind != "command":
            return parse_target(typed_rule, message)
        arguments = f"{arguments.removeprefix('/')} "
        names = (one for one in self.grantable_commands if arguments.lower().startswith(f"{one} "))
        command_name = max(names, key=len, default="")
        if not command_name or command_name.startswith("access"):
            raise UserError(_MISSING_COMMAND_NOTICE)
        target = parse_target(arguments[len(command_name) :].strip(), message)
        return f"command {command_name} {target}"

    async def _find_changeable_scope(self, request: CommandRequest, place: str) -> str:
        """Return the scope to change; raises `UserError` if the author may not change it."""
        message = request.incoming
        await self.admins.require_admin(message, _CHANGE_ACCESS_ACTION)
        if place == _EVERYWHERE:
            self._require_operator(message)
            return INSTALLATION
        if message.is_private:
            raise UserError(_GROUPS_ONLY_NOTICE)
        return message.scopes[0] if place == "here" else message.scopes[-1]

    async def _store_rule(
        self, request: CommandRequest, scope: str, name: str, value: str | None
    ) -> None:
        await request.store(self.rules.chat_settings, scope, f"{ACCESS_KEY_PREFIX}{name}", value)


def parse_target(typed_target: str, message: IncomingMessage) -> str:
    """Parse a target such as "role discord:9"; "" means the author of the replied-to message."""
    quote, platform = message.quote, message.address.platform
    if not typed_target and quote is not None and quote.author is not None:
        return f"person {quote.author.id}"
    if match := _MENTION.fullmatch(typed_target):
        kind, source = _MENTION_KINDS[match["kind"]], None
    elif match := _TARGET_PATTERN.fullmatch(typed_target):
        kind = match["kind"] or ("channel" if match["id"].startswith("-") else "person")
        kind, source = kind.lower(), match["source"]  # an operator may name another platform
    else:
        if not typed_target.startswith("@") or len(message.mentions) != 1:
            raise UserError(_MISSING_TARGET_NOTICE)
        platform, _, raw_id = message.mentions[0].partition(":")
        if not raw_id.lstrip("&").isdecimal():  # Telegram gives the name, not the id
            raise UserError(_UNKNOWN_NAME_NOTICE)
        return f"{'role' if raw_id.startswith('&') else 'person'} {platform}:{raw_id.lstrip('&')}"
    default_source = message.address.source if kind == "channel" else platform
    return f"{kind} {(source or default_source).lower()}:{match['id']}"


def describe_access(access: Access, message: IncomingMessage) -> Text:
    """Return a text that says whether the author may use the bot here, and by which rule."""
    if not access.rule:
        return translatable("You may use me here: no rule applies to you.")
    placeholders = {"rule": access.rule, "where": _describe_place(access.scope, message)}
    if access.rule == "off":
        return translatable("I'm still switched off {place}.", place=placeholders["where"])
    if access.is_allowed:
        return translatable("You may use me here: {rule} ({where}).", **placeholders)
    return translatable(
        "You may use me here only because you are an admin; for others, this rule applies: {rule}"
        " ({where}).",
        **placeholders,
    )


def _split_off_place(argument: str) -> tuple[str, str]:
    """Split "@bob server" into the target "@bob" and the place "server" ("" if not given)."""
    target, _, last_word = argument.rpartition(" ")
    return (target.strip(), last_word.lower()) if last_word.lower() in _PLACES else (argument, "")


def _describe_place(scope: str, message: IncomingMessage) -> Text:
    if scope == INSTALLATION:
        return translatable("everywhere")
    if scope == message.scopes[-1] and len(message.scopes) > 1:
        return translatable("in the server or group")
    return translatable("here") if scope == message.scopes[0] else translatable("in the channel")


def describe_rules(rules: Mapping[str, str]) -> Sequence[str]:
    """Return access rules, sorted, as admins would type them."""
    return [
        _format_rule(name, value)
        for name, value in sorted(rules.items())
        if not name.startswith((_CODE_PREFIX, _WRONG_CODES_PREFIX))
    ]


def _format_rule(name: str, value: str) -> str:
    if value in {"allow", "block"}:
        return f"{value} {name}"
    return f"{name} {value}" if name == "dm" else name


@dataclass(eq=False)
class PairingCodes:
    """Codes for people who write in private. An operator lets a person in by approving the code."""

    rules: AccessRules
    clock: Clock

    async def issue_code(self, message: IncomingMessage) -> str:
        """Return the author's code, or a new one; "" if too many people are waiting."""
        person, source = message.author.id, message.address.source
        people = await self._load_waiting_people()
        if person in people:  # perhaps from another bot of the platform
            return people[person][0]
        if sum(parse_source(one[2]) == source for one in people.values()) >= _MAX_PENDING_CODES:
            return ""
        code = "".join(secrets.choice(_CODE_CHARS) for _ in range(8))
        expires_at = f"{self.clock.now() + _CODE_LIFETIME_SECONDS:.0f}"
        stored_code = f"{code} {expires_at} {message.address.conversation}"
        await self._store_setting(f"{_CODE_PREFIX}{person}", stored_code, person)
        people = await self._load_waiting_people()
        # If others got codes at the same time, the earliest codes are kept.
        expiries_and_people = sorted(
            (one[1], person_id)
            for person_id, one in people.items()
            if parse_source(one[2]) == source
        )
        if person in [person_id for _, person_id in expiries_and_people[:_MAX_PENDING_CODES]]:
            return people[person][0]
        await self._store_setting(f"{_CODE_PREFIX}{person}", None, person)
        return ""

    async def redeem_code(self, code: str, message: IncomingMessage) -> tuple[str, str]:
        """Use up a code; return the id and conversation of the person it was given to.

        Raises `UserError` if the code is wrong. The same message may use the code again, because a
        message may be handled again after a crash.
        """
        operator_id, approval_key = message.author.id, message.external_key
        now, wrong_codes_key = self.clock.now(), f"{_WRONG_CODES_PREFIX}{operator_id}"
        stored_settings = (await self.rules.load(()))[INSTALLATION]
        wrong_code_count_text, _, last_wrong_at = stored_settings.get(
            wrong_codes_key, "0 0"
        ).partition(" ")
        wrong_code_count = (
            int(wrong_code_count_text) if now - float(last_wrong_at) < _CODE_LIFETIME_SECONDS else 0
        )
        if wrong_code_count >= _MAX_WRONG_CODES:
            raise UserError(translatable("Too many wrong codes. Please try again in an hour."))
        waiting_people = await self._load_waiting_people(approval_key)
        for person, (stored_code, expires_at, conversation) in waiting_people.items():
            if secrets.compare_digest(stored_code.encode(), code.encode()):
                used_code = f"{code} {expires_at} {conversation} {approval_key}"
                await self._store_setting(f"{_CODE_PREFIX}{person}", used_code, person)
                await self._store_setting(wrong_codes_key, None, operator_id)
                return person, conversation
        await self._store_setting(wrong_codes_key, f"{wrong_code_count + 1} {now}", operator_id)
        raise UserError(
            translatable("That code is unknown or has expired. A code works for only one hour.")
        )

    async def _load_waiting_people(self, approval_key: str = "") -> dict[str, tuple[str, str, str]]:
        """Return each waiting person's code, its expiry, and the conversation, by the person's id.

        Used codes are left out, except those used by the message `approval_key`.
        """
        waiting_people: dict[str, tuple[str, str, str]] = {}
        for name, value in (await self.rules.load(()))[INSTALLATION].items():
            if not name.startswith(_CODE_PREFIX):
                continue
            code, expires_at, conversation, *approval_keys = value.split(" ", 3)
            if float(expires_at) <= self.clock.now():
                await self._store_setting(name, None, name)
            elif not approval_keys or approval_keys == [approval_key]:
                waiting_people[name.removeprefix(_CODE_PREFIX)] = code, expires_at, conversation
        return waiting_people

    async def _store_setting(self, name: str, value: str | None, author_id: str) -> None:
        settings, key = self.rules.chat_settings, f"{ACCESS_KEY_PREFIX}{name}"
        await settings.set(INSTALLATION, key, value, author_id)

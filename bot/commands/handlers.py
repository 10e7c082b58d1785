"""Run chat commands: each handler gets a request and returns the reply."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bot.chat.command import Command, CommandOption, CommandSpec, MessageCommandSpec
from bot.chat.incoming import ChatJoin
from bot.commands.access import ACCESS_GROUP, AccessHandlers, PairingCodes
from bot.commands.answers import NewestQuestionHandlers
from bot.commands.authority import AdminCheck, unknown_admin_notice
from bot.commands.characters import CHARACTER_GROUP, CharacterHandlers
from bot.commands.memories import MEMORY_GROUP, MemoryHandlers
from bot.commands.menus import HistoryScopeHandlers, SettingMenus
from bot.commands.personas import UserPersonas
from bot.commands.presets import PRESET_GROUP, Greetings, PresetHandlers
from bot.commands.privacy import PRIVACY_GROUP, PrivacyHandlers, PrivacyNotice
from bot.commands.recap import Recaps
from bot.commands.reports import AnswerReports, ContextView, UsageView
from bot.commands.request import (
    CommandRequest,
    CommandResult,
    StopOutcome,
    collect_handlers,
    command,
    command_specs,
    list_commands,
    private_command,
)
from bot.errors import PrivateError, UserError
from bot.prompting.compose.instructions import build_prompter
from bot.prompting.presets.preset import Preset
from bot.prompting.prompters import format_ask_usage
from bot.routing.decide import AccessRules, DecisionLog
from bot.routing.presets import ActiveCharacters
from bot.storage.dead_letters import DeadLetters
from bot.texts.text import Text, join_texts, marked, to_translatable, translatable

_MAX_GREETING_DIGITS = 3
SETTINGS_GROUP = CommandSpec(
    "settings",
    marked(
        "see or change my settings (menu, why, usage, overhear, scope); `me off`: I ignore what you"
        " write"
    ),
    default_action="menu",
)
_SEE_DECISIONS_ACTION = translatable("see why I answer messages here")
_STOP_OTHERS_ACTION = translatable("stop the answer to somebody else's question")
_SEE_PROMPT_ACTION = translatable("see the exact prompt, which contains my instructions")


@dataclass(eq=False)
class CommandHandlers:
    admins: AdminCheck
    context_view: ContextView
    decisions: DecisionLog
    dead_letters: DeadLetters
    privacy_notice: PrivacyNotice
    access_rules: AccessRules
    greetings: Greetings
    menus: SettingMenus
    scope_handlers: HistoryScopeHandlers
    pairing_codes: PairingCodes
    memory_handlers: MemoryHandlers
    platform_commands: Mapping[str, Sequence[CommandSpec]]
    """Commands that platforms run themselves, by the platform's name; /help lists them."""
    other_handlers: Sequence[object]
    """The objects with the other handlers."""

    def __post_init__(self) -> None:
        handlers = (self, self.admins, self.menus, self.scope_handlers, self.memory_handlers)
        self._handlers = collect_handlers(*handlers, *self.other_handlers)

    async def handle(self, request: CommandRequest) -> CommandResult:
        """Run a command; on failure, raise `UserError` with a text for its author."""
        command = _include_action_in_name(request.command)
        handler = self._handlers.get(command.name)
        if handler is None:
            group = _GROUPS_BY_NAME.get(request.command.name)
            if group is not None:
                action = request.command.text.partition(" ")[0]
                raise UserError(_explain_unknown_action(group, action))
            raise UserError(_explain_unknown_command(command.name))
        command, message = _normalize_choice(command), request.incoming
        if await self.access_rules.may_run_admin_command(message, command.name):
            message = replace(message, author_is_admin=True)  # as if by an admin
        return await handler(replace(request, command=command, incoming=message))

    async def greet(self, join: ChatJoin, active: ActiveCharacters) -> CommandResult:
        """Return the first message in a new chat: a greeting and, in groups, the privacy notice."""
        preset, preset_count = active.first.preset, len(active.presets)
        has_greeting = bool(preset.select_greetings(preset_count))
        text = "" if has_greeting else _build_introduction(preset, is_private=join.is_private)
        result = await self.greetings.greet_as(CommandResult(text), preset, join, preset_count)
        notice = None if join.is_private else await self.privacy_notice.prepare_join_notice(join)
        return replace(result, text=join_texts(filter(None, [result.text, notice]), "\n\n"))

    @private_command(
        "settings why", marked("show why the newest messages were answered or not (admins)")
    )
    async def _explain_decisions(self, request: CommandRequest) -> CommandResult:
        message = request.incoming
        await self.admins.require_admin(message, _SEE_DECISIONS_ACTION, audit_name="read decisions")
        lines = await self.decisions.describe_recent_decisions(message.address.channel)
        reasons = await self.dead_letters.list_refusal_reasons(message.address.lane)
        undelivered_lines = [
            translatable("⚠ Not delivered here: “{reason}”", reason=one)
            for one in reversed(reasons)
        ]
        if not (lines or undelivered_lines):
            raise UserError(translatable("I haven't seen any messages here recently."))
        scope = await self.scope_handlers.describe_current_scope(message.scopes)
        return CommandResult(join_texts([scope, *lines, *undelivered_lines]))

    @command(
        "new",
        marked("start a new conversation; `/new 2` uses the second greeting"),
        CommandOption(
            "greeting", marked("the number of the greeting to start with"), required=False
        ),
        changes_channel=True,
    )
    async def _begin_new_session(self, request: CommandRequest) -> CommandResult:
        number = _parse_greeting_number(request.argument, request.active)
        text = translatable("A new conversation has started.")
        result = CommandResult(text, starts_session=True, changes_channel=True)
        return await self.greetings.add_greeting(result, request, number)

    @command("stop", marked("stop the answer that is being written; the text so far stays"))
    async def _stop_answer(self, request: CommandRequest) -> CommandResult:
        """Report the outcome of a /stop, which took effect before this handler ran."""
        match request.stop_outcome:
            case StopOutcome.STOPPED:
                return CommandResult(translatable("Stopped. /retry answers again."))
            case StopOutcome.NO_ANSWER:
                problem = translatable("No answer is being written here.")
            case StopOutcome.REFUSED:
                problem = translatable(
                    "Only the person who asked the question, or an admin, can stop the answer."
                )
            case _:
                problem = unknown_admin_notice(request.incoming, _STOP_OTHERS_ACTION)
        error_class = UserError if request.stop_outcome is StopOutcome.NO_ANSWER else PrivateError
        raise error_class(problem)

    @command("edit")
    async def _explain_edit(self, request: CommandRequest) -> CommandResult:
        raise UserError(translatable("Which message? Write /edit TEXT as a reply to it."))

    @command("ask")
    async def _explain_missing_form(self, request: CommandRequest) -> CommandResult:
        raise UserError(translatable("This channel's preset has no form; just write your message."))

    @private_command(
        "context",
        marked(
            "show what the model read for its last answer; `prompt`: the exact prompt as a file"
            " (admins)"
        ),
        CommandOption(
            "show",
            marked("prompt: exactly what was sent to the model, as a file"),
            required=False,
            choices=("prompt",),
        ),
    )
    async def _show_context(self, request: CommandRequest) -> CommandResult:
        incoming, conversation = request.incoming, request.incoming.address.conversation
        if not request.argument:
            is_for_admin = await self.admins.may_see_prompts(incoming)
            description = await self.context_view.describe_context(
                conversation, is_for_admin=is_for_admin, answered_at=request.answered_at
            )
            return CommandResult(description)
        await self.admins.require_prompt_access(incoming, _SEE_PROMPT_ACTION)
        text, prompt_file = await self.context_view.export_prompts(conversation)
        await self.admins.record_admin_action(incoming, "read prompt")
        return CommandResult(text, file=prompt_file)

    @command("start")  # sent by Telegram's Start button
    async def _introduce_bot(self, request: CommandRequest) -> CommandResult:
        """Explain how to begin; in a new conversation, the character also greets."""
        preset = request.active.first.preset
        hint = translatable("/help lists what I can do, /new starts a new conversation.")
        if len(preset.select_greetings(len(request.active.members))) > 1:
            hint = translatable("/help lists what I can do, /new 2 starts with another greeting.")
        introduction = _build_introduction(preset, is_private=request.incoming.is_private)
        result = CommandResult(join_texts([introduction, hint, *_describe_ask_form(preset)]))
        has_conversation = not all(turn.is_observed for turn in request.recent_turns)
        return result if has_conversation else await self.greetings.add_greeting(result, request)

    @command("help", marked("list all commands"))
    async def _list_commands(self, request: CommandRequest) -> CommandResult:
        preset = request.active.first.preset
        specs = [*COMMANDS, *self.platform_commands.get(request.incoming.address.platform, ())]
        lines = [_build_introduction(preset, is_private=request.incoming.is_private)]
        for spec in specs:
            summary = to_translatable(spec.summary)
            lines.append(translatable("/{name} – {summary}", name=spec.name, summary=summary))
        return CommandResult(join_texts([*lines, *_describe_ask_form(preset)]))


def _describe_ask_form(preset: Preset) -> Sequence[Text]:
    prompter = build_prompter(preset)
    if prompter is None:
        return ()
    usage = format_ask_usage(prompter.fields)
    text = translatable("This preset asks for values. Enter them like this:\n{usage}", usage=usage)
    return [text]


def _include_action_in_name(command: Command) -> Command:
    """Return a command whose name includes its action: "preset use", with the text "nova"."""
    group, name, text = _GROUPS_BY_NAME.get(command.name), command.name, command.text
    if group is not None:
        action, _, text = text.partition(" ")
        name = f"{name} {action.lower() or group.default_action}"
    return Command(name, text.strip())


def has_private_reply(command: Command) -> bool:
    """Return whether only a command's author can see its replies, including errors."""
    spec = _SPECS_BY_NAME.get(_include_action_in_name(command).name)
    return spec is not None and spec.is_private


def _normalize_choice(command: Command) -> Command:
    """Return a command with its choice in lower case; raises `UserError` for other words.

    Commands without choices, or with several options, are returned unchanged.
    """
    options, choice = _SPECS_BY_NAME[command.name].options, command.text.lower()
    if len(options) != 1 or not options[0].choices:
        return command
    if choice not in options[0].choices and (choice or options[0].required):
        choices_text = to_translatable(options[0].summary)
        text = translatable("Use /{command} {choices}.", command=command.name, choices=choices_text)
        raise UserError(text)
    return Command(command.name, choice)


def _explain_unknown_action(group: CommandSpec, action: str) -> Text:
    return translatable(
        "There is no /{group} {action}; use {actions}.",
        group=group.name,
        action=action[:32],
        actions=", ".join(each.name for each in group.actions),
    )


def _explain_unknown_command(name: str) -> Text:
    similar_names = difflib.get_close_matches(name, COMMAND_NAMES, n=1)
    if similar_names:
        return translatable(
            "There is no command /{name}; did you mean /{near}? /help lists them all.",
            name=name[:32],
            near=similar_names[0],
        )
    return translatable("There is no command /{name}; /help lists them all.", name=name[:32])


def _build_introduction(preset: Preset, *, is_private: bool) -> Text:
    name = preset.character_name
    if is_private:
        return translatable("I am {name}. Write to me here.", name=name)
    return translatable(
        "I am {name}. Write to me here; in a group, mention me or reply to me.", name=name
    )


def _parse_greeting_number(argument: str, active: ActiveCharacters) -> int | None:
    if not argument:
        return None
    preset = active.first.preset
    greeting_count = len(preset.select_greetings(len(active.members)))
    is_number = argument.isascii() and argument.isdecimal()
    if is_number and len(argument) <= _MAX_GREETING_DIGITS and 1 <= int(argument) <= greeting_count:
        return int(argument)
    raise UserError(
        translatable(
            "Greetings of {name}: {count}. Send /new, or /new and the number of a greeting.",
            name=preset.character_name,
            count=greeting_count,
        )
    )


_HANDLER_CLASSES = (
    *(PresetHandlers, CharacterHandlers, SettingMenus, CommandHandlers, AdminCheck),
    *(NewestQuestionHandlers, UserPersonas, PrivacyHandlers, HistoryScopeHandlers, UsageView),
    *(AccessHandlers, AnswerReports, Recaps, MemoryHandlers),
)
_COMMAND_ORDER = (
    *("new", "stop", "retry", "undo", "me", "memory", "forget", "export", "recap", "context"),
    *("preset", "character", "settings", "access"),
)
_GROUPS = (PRESET_GROUP, CHARACTER_GROUP, MEMORY_GROUP, SETTINGS_GROUP, ACCESS_GROUP, PRIVACY_GROUP)
COMMANDS = list_commands(_HANDLER_CLASSES, _GROUPS, _COMMAND_ORDER)
"""The commands that menus and /help list, in order."""
_SPECS_BY_NAME = {spec.name: spec for cls in _HANDLER_CLASSES for spec in command_specs(cls)}
COMMAND_NAMES = frozenset(name.partition(" ")[0] for name in _SPECS_BY_NAME)
"""The names of all commands, including those that no menu lists."""
MESSAGE_COMMANDS = (
    MessageCommandSpec(marked("Retry from here"), "retry"),
    MessageCommandSpec(marked("Edit"), "edit", has_form=True),
    MessageCommandSpec(marked("Forget"), "forget"),
    MessageCommandSpec(marked("Inspect"), "context"),
    MessageCommandSpec(marked("Report"), "report"),
)
_GROUPS_BY_NAME = {spec.name: spec for spec in COMMANDS if spec.actions}
GRANTABLE_COMMANDS = frozenset(
    name
    for spec in COMMANDS
    for name in (spec.name, *(f"{spec.name} {action.name}" for action in spec.actions))
) - {"settings", "settings anonymous"}
"""Commands that `/access command` can grant to roles; `AccessHandlers` excludes its own."""

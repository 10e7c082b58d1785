"""Handle the actions of /preset."""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from bot.chat.command import Command, CommandOption, CommandSpec
from bot.chat.incoming import ChatJoin, IncomingMessage, WakeReason
from bot.chat.session import display_name
from bot.commands.authority import AdminCheck
from bot.commands.menus import describe_origin
from bot.commands.request import CommandRequest, CommandResult, admin_command, command
from bot.errors import AgeUnconfirmed, UserError
from bot.prompting.compose.card_macros import choose_greeting
from bot.prompting.presets.preset import Preset
from bot.routing.decide import Unreadable, decide_on_message
from bot.routing.presets import ActivePreset, PresetResolver
from bot.routing.speakers import SpeakerCandidate
from bot.texts.text import Text, join_texts, marked, to_translatable, translatable

_MAX_LISTED_CHARS = 100
_CHANGE_PRESETS_ACTION = translatable("change who answers here")
_PRESET_OPTION = CommandOption("name", marked("the preset"), autocompletes=True)
PRESET_GROUP = CommandSpec(
    "preset",
    marked("choose who answers here: use, add, remove, list, show, who, reset, menu"),
    is_listed_for_admins=True,
    default_action="list",
)


@dataclass(eq=False)
class PresetHandlers:
    """Handles the actions of the command /preset, such as "use" and "list"."""

    resolver: PresetResolver
    admins: AdminCheck
    greetings: "Greetings"

    @admin_command(
        "preset use", marked("make this preset answer in this channel (admins)"), _PRESET_OPTION
    )
    async def _use_preset(self, request: CommandRequest) -> CommandResult:
        preset = await self._find_allowed_preset(request, "use")
        await self.resolver.set_active_presets(request.scope, [preset], **request.audit_arguments)
        text = translatable("{name} answers here from now on.", name=preset.display_name)
        return await self.greetings.begin_session(text, preset, request.incoming)

    @admin_command(
        "preset add", marked("add a character that answers here (admins)"), _PRESET_OPTION
    )
    async def _add_preset(self, request: CommandRequest) -> CommandResult:
        preset = await self._find_allowed_preset(request, "add")
        presets = request.active.presets_with(preset)
        await self.resolver.set_active_presets(request.scope, presets, **request.audit_arguments)
        text = translatable(
            "{name} was added. Active here: {names}.",
            name=preset.display_name,
            names=_join_names(presets),
        )
        result, character_count = CommandResult(text, changes_channel=True), len(presets)
        return await self.greetings.greet_as(result, preset, request.incoming, character_count)

    @admin_command(
        "preset remove", marked("remove a character; the others stay (admins)"), _PRESET_OPTION
    )
    async def _remove_preset(self, request: CommandRequest) -> CommandResult:
        preset = await self._find_allowed_preset(request, "remove")
        presets = request.active.presets_without(preset)
        await self.resolver.set_active_presets(request.scope, presets, **request.audit_arguments)
        text = translatable(
            "{name} was removed. Active here: {names}.",
            name=preset.display_name,
            names=_join_names(presets),
        )
        return CommandResult(text, changes_channel=True)

    @admin_command(
        "preset reset", marked("reset this channel's presets to the inherited ones (admins)")
    )
    async def _reset_presets(self, request: CommandRequest) -> CommandResult:
        await self.admins.require_admin(request.incoming, _CHANGE_PRESETS_ACTION)
        await self.resolver.set_active_presets(request.scope, (), **request.audit_arguments)
        active_preset = (await self.resolver.resolve(request.incoming.scopes)).first
        text = translatable(
            "Back to {name} ({origin}).",
            name=active_preset.preset.display_name,
            origin=_describe_preset_origin(active_preset, request.incoming),
        )
        return await self.greetings.begin_session(text, active_preset.preset, request.incoming)

    @command(
        "preset show",
        marked("show a preset, or the active one if you give no name"),
        replace(_PRESET_OPTION, required=False),
    )
    async def _show_preset(self, request: CommandRequest) -> CommandResult:
        active, preset = request.active, request.active.first.preset
        message, typed_name = request.incoming, request.argument
        origin = None if typed_name else _describe_preset_origin(active.first, message)
        if typed_name:
            preset = await self.resolver.find_named_preset(typed_name, message, active)
        if origin and active.is_group:
            lines = [preset_line(one.name, one.description, active.names) for one in active.presets]
            hint = translatable("/preset show NAME shows one of them.")
            return CommandResult(join_texts([*lines, _origin_line(origin), hint]))
        model = translatable(
            "model: {provider} / {model}", provider=preset.provider, model=preset.model
        )
        lines = [preset.display_name, preset.description, model]
        if version := self.resolver.versions.get(preset.name):
            lines.append(translatable("version: {number}", number=version))
        if origin:
            lines.append(_origin_line(origin))
        if preset.system and await self.admins.may_see_prompts(request.incoming):
            await self.admins.record_admin_action(request.incoming, "read instructions")
            lines.append(translatable("instructions: {text}", text=preset.system))
        return CommandResult(join_texts(line for line in lines if line))

    @command(
        "preset who",
        marked("show who would answer a message, and why"),
        CommandOption("text", marked("the message")),
    )
    async def _show_who_answers(self, request: CommandRequest) -> CommandResult:
        if not request.argument:
            example = "/preset who good morning"
            raise UserError(translatable("Which message? For example: {example}", example=example))
        incoming, draw_random = request.incoming, self.greetings.rng.random
        message = replace(incoming, text=request.argument, wake=WakeReason.MENTION, quote=None)
        decision = decide_on_message(
            message, request.active, request.recent_turns, dice=draw_random, now=request.now
        )
        if isinstance(decision, Command | Unreadable):
            return CommandResult(translatable("That is a command: no character answers it."))
        return CommandResult(join_texts(_candidate_line(one) for one in decision.candidates))

    @command("preset list", marked("list all presets and mark the active ones"))
    async def _list_presets(self, request: CommandRequest) -> CommandResult:
        active = request.active
        lines = [
            preset_line(name, text, active.names)
            for name, text in (await self.resolver.list_descriptions(request.incoming)).items()
        ]
        lines += [
            translatable("· {name} is disabled: {reason}", name=name, reason=reason)
            for name, reason in sorted(self.resolver.disabled_reasons.items())
        ]
        lines.append(_origin_line(_describe_preset_origin(active.first, request.incoming)))
        return CommandResult(join_texts(lines))

    async def _find_allowed_preset(self, request: CommandRequest, action: str) -> Preset:
        if not request.argument:
            example = f"/preset {action} assistant"
            raise UserError(translatable("Which preset? For example: {example}", example=example))
        message = request.incoming
        preset = await self.resolver.find_named_preset(request.argument, message, request.active)
        await self.admins.require_admin(message, _CHANGE_PRESETS_ACTION)
        return preset


@dataclass(eq=False)
class Greetings:
    """Adds characters' greetings to the replies of commands."""

    resolver: PresetResolver
    rng: random.Random = field(default_factory=random.Random)

    async def begin_session(
        self, text: str, preset: Preset, message: IncomingMessage
    ) -> CommandResult:
        """Return a result that starts a new session with a preset and its greeting."""
        result = CommandResult(
            text, starts_session=True, keeps_unanswered_session=True, changes_channel=True
        )
        return await self.greet_as(result, preset, message)

    async def greet_as(
        self,
        result: CommandResult,
        preset: Preset,
        event: IncomingMessage | ChatJoin,
        character_count: int = 1,
        number: int | None = None,
    ) -> CommandResult:
        """Add a preset's greeting to a result, or the reason why the preset may not answer here."""
        greeting = choose_greeting(
            preset, event, rng=self.rng, number=number, character_count=character_count
        )
        try:
            await self.resolver.check_adults_only(preset, event)
        except UserError as error:
            text = join_texts(filter(None, [result.text, error.text]))
            return replace(result, text=text, asks_for_age=isinstance(error, AgeUnconfirmed))
        return (
            replace(result, greeting=greeting, greeting_preset=preset.name) if greeting else result
        )

    async def add_greeting(
        self, result: CommandResult, request: CommandRequest, number: int | None = None
    ) -> CommandResult:
        """Add the greeting of a channel's first character to a result."""
        preset, preset_count = request.active.first.preset, len(request.active.presets)
        return await self.greet_as(result, preset, request.incoming, preset_count, number)


def _candidate_line(candidate: SpeakerCandidate) -> Text:
    reasons = join_texts(map(to_translatable, candidate.reasons), translatable(", "))
    placeholders = {
        "name": display_name(candidate.preset),
        "score": f"{candidate.score:.1f}",
        "reasons": reasons,
    }
    if candidate.chosen:
        return translatable("→ {name} answers (score {score}): {reasons}", **placeholders)
    return translatable("· {name} does not answer (score {score}): {reasons}", **placeholders)


def _origin_line(origin: str) -> Text:
    return translatable("active here: {origin}", origin=origin)


def preset_line(name: str, description: str, active_names: Collection[str]) -> str:
    """Return a line with a preset's name and description, marked if it is active."""
    suffix = f": {description[:_MAX_LISTED_CHARS]}" if description else ""
    return f"{'→' if name in active_names else '·'} {display_name(name)}{suffix}"


def _join_names(presets: Sequence[Preset]) -> str:
    return ", ".join(preset.display_name for preset in presets)


def _describe_preset_origin(active_preset: ActivePreset, incoming: IncomingMessage) -> str:
    if active_preset.scope is None:
        return translatable("the default preset")
    return describe_origin(active_preset.scope, incoming.scopes)

"""Carry out what somebody commanded, and say so."""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from bot.chat.command import Command, CommandSpec
from bot.chat.incoming import Incoming
from bot.chat.outgoing import Attachment
from bot.commands.context import ContextView
from bot.commands.personas import UserPersonas
from bot.errors import UserError
from bot.prompting.compose.instructions import build_prompter
from bot.prompting.compose.scene import greet
from bot.prompting.presets.preset import Preset
from bot.prompting.prompters.form_fields import ask_usage
from bot.routing.active_presets import ActivePreset, PresetResolver

_log = structlog.get_logger(__name__)
_MAX_LISTED_CHARS = 100


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What is said back. With `new_session` a conversation begins, `greeting` is its first line.

    With `forgets` everything said so far is deleted first; what came of it is said in front.
    """

    text: str
    new_session: bool = False
    greeting: str | None = None
    greeter: str | None = None  # the preset whose greeting it is
    forgets: bool = False
    file: Attachment | None = None  # that goes along; the text is then one short line


class CommandHandlers:
    """`may_change(incoming)` asks, at the time, whether the author may change what others see."""

    def __init__(
        self,
        resolver: PresetResolver,
        may_change: Callable[[Incoming], Awaitable[bool]],
        commands: Sequence[CommandSpec],
        context: ContextView,
        personas: UserPersonas,
        dice: random.Random | None = None,
    ) -> None:
        self._resolver = resolver
        self._may_change = may_change
        self._known = commands
        self._personas = personas
        self._dice = dice or random.Random()  # noqa: S311 -- which greeting is said
        self._contexts = context

    async def handle(self, command: Command, incoming: Incoming) -> CommandResult:
        """Raises `UserError`, whose text is for the person, when it cannot be done."""
        match command.name:
            case "preset":
                return await self._preset(command, incoming)
            case "new":
                return await self._new(command.argument, incoming)
            case "me":
                return CommandResult(await self._personas.handle_me(command.argument, incoming))
            case "context":
                return await self._context(command.argument, incoming)
            case "forget":
                await self._require_admin(incoming, "make me forget what was said here")
                return replace(await self._new("", incoming), forgets=True)
            case "help" | "start":
                return await self._help(incoming)
            case name:
                raise _cannot(name)

    async def _preset(self, command: Command, incoming: Incoming) -> CommandResult:
        match command.action:
            case "use":
                return await self._use(command.argument, incoming)
            case "add":
                return await self._add(command.argument, incoming)
            case "remove":
                return await self._remove(command.argument, incoming)
            case "reset":
                return await self._reset(incoming)
            case "show":
                return await self._show(command.argument, incoming)
            case "list" | None:
                return await self._list(incoming)
            case action:
                raise UserError(
                    f"There is no /preset {action}; try use, add, remove, list, show, who or reset."
                )

    async def _use(self, name: str, incoming: Incoming) -> CommandResult:
        if not name:
            raise UserError("Which preset? For example: /preset use assistant")
        preset = self._resolver.find(name)
        await self._require_admin(incoming)
        await self._resolver.use(incoming.scopes[0], preset, incoming.author.id)
        return self._begin(f"{preset.name} answers here from now on.", preset, incoming)

    async def _add(self, name: str, incoming: Incoming) -> CommandResult:
        if not name:
            raise UserError("Which preset? For example: /preset add assistant")
        preset = self._resolver.find(name)
        await self._require_admin(incoming)
        here = await self._resolver.add(incoming.scopes, preset, incoming.author.id)
        said = f"{preset.name} joins. Here are now: {_listed(here)}."
        greeting = greet(preset, incoming, dice=self._dice, number=None)
        return _greeted(said, preset, greeting, new_session=False)

    async def _remove(self, name: str, incoming: Incoming) -> CommandResult:
        if not name:
            raise UserError("Which preset? /preset list says who is here.")
        preset = self._resolver.find(name)
        await self._require_admin(incoming)
        here = await self._resolver.remove(incoming.scopes, preset, incoming.author.id)
        return CommandResult(f"{preset.name} leaves. Here are now: {_listed(here)}.")

    async def _reset(self, incoming: Incoming) -> CommandResult:
        await self._require_admin(incoming)
        await self._resolver.reset(incoming.scopes[0], incoming.author.id)
        cast = await self._resolver.resolve_first(incoming.scopes)
        said = f"Back to {cast.preset.name} ({_origin(cast, incoming)})."
        return self._begin(said, cast.preset, incoming)

    async def _new(self, argument: str, incoming: Incoming) -> CommandResult:
        number = int(argument) if argument.isascii() and argument.isdecimal() else None
        if argument and (number is None or len(argument) > 3):
            raise UserError("Which greeting? Give its number, for example: /new 2")
        cast = await self._resolver.resolve_first(incoming.scopes)
        return self._begin("A new conversation begins.", cast.preset, incoming, number)

    def _begin(
        self, said: str, preset: Preset, incoming: Incoming, number: int | None = None
    ) -> CommandResult:
        greeting = greet(preset, incoming, dice=self._dice, number=number)
        return _greeted(said, preset, greeting, new_session=True)

    async def _show(self, name: str, incoming: Incoming) -> CommandResult:
        if name:
            preset, origin = self._resolver.find(name), None
        else:
            first, *others = await self._resolver.resolve(incoming.scopes)
            preset, origin = first.preset, _origin(first, incoming)
            if others:
                return _many([first, *others], origin)
        lines = [preset.name, preset.description, f"model: {preset.provider} / {preset.model}"]
        if version := self._resolver.versions.get(preset.name):
            lines.append(f"version: {version}")
        lines += [f"used here: {origin}"] if origin else []
        if preset.system and await self._may_change(incoming):
            lines.append(f"instructions: {preset.system}")
        return CommandResult("\n".join(line for line in lines if line))

    async def _list(self, incoming: Incoming) -> CommandResult:
        here = await self._resolver.resolve(incoming.scopes)
        names = {cast.preset.name for cast in here}
        lines = [
            _line("→" if preset.name in names else "·", preset)
            for preset in sorted(self._resolver.presets.values(), key=lambda one: one.name)
        ]
        return CommandResult("\n".join([*lines, f"({_origin(here[0], incoming)})"]))

    async def _context(self, argument: str, incoming: Incoming) -> CommandResult:
        conversation = incoming.address.conversation
        match argument.lower():
            case "":
                for_admin = await self._may_change(incoming)
                return CommandResult(await self._contexts.show(conversation, for_admin=for_admin))
            case "prompt":
                await self._require_admin(
                    incoming, "see the exact prompt, which holds my instructions"
                )
                text, file = await self._contexts.prompts(conversation)
                return CommandResult(text, file=file)
            case _:
                raise UserError("Say /context, or /context prompt for the exact prompt (admins).")

    async def _help(self, incoming: Incoming) -> CommandResult:
        cast = await self._resolver.resolve_first(incoming.scopes)
        lines = [
            f"I am {cast.preset.plays_as}. Write to me here; in a group, "
            "mention me or reply to me.",
            *(f"/{spec.name} – {spec.summary}" for spec in self._known),
        ]
        if prompter := build_prompter(cast.preset):
            lines.append(f"Here I answer what is filled in:\n{ask_usage(prompter.fields)}")
        return CommandResult("\n".join(lines))

    async def _require_admin(
        self, incoming: Incoming, what: str = "change who answers here"
    ) -> None:
        allowed = await self._may_change(incoming)
        place = incoming.address.conversation
        _log.info("admin_asked_for", what=what, by=incoming.author.id, in_=place, allowed=allowed)
        if not allowed:
            raise UserError(f"Only an admin can {what}.")


def _cannot(name: str) -> UserError:
    if name == "ask":
        return UserError("There is nothing to fill in here; just write your message.")
    return UserError(f"I do not know /{name[:32]}. /help says what I can do.")


def _greeted(
    said: str, preset: Preset, greeting: str | None, *, new_session: bool
) -> CommandResult:
    if not greeting:
        return CommandResult(said, new_session)
    return CommandResult(f"{said}\n\n{greeting}", new_session, greeting, preset.name)


def _many(casts: Sequence[ActivePreset], origin: str) -> CommandResult:
    lines = [_line("→", cast.preset) for cast in casts]
    return CommandResult(
        "\n".join([*lines, f"used here: {origin}", "/preset show NAME tells more."])
    )


def _line(mark: str, preset: Preset) -> str:
    about = f": {preset.description[:_MAX_LISTED_CHARS]}" if preset.description else ""
    return f"{mark} {preset.name}{about}"


def _listed(here: Sequence[Preset]) -> str:
    return ", ".join(preset.name for preset in here)


def _origin(cast: ActivePreset, incoming: Incoming) -> str:
    if cast.scope is None:
        return "the default"
    if cast.scope == incoming.scopes[0]:
        return "chosen here"
    return "inherited from the server" if ":guild:" in cast.scope else "inherited from the channel"

"""Menus of settings, presets and history scopes."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bot.chat.command import ButtonAction, ButtonData, CommandOption, encode_button
from bot.chat.incoming import ButtonPress
from bot.chat.outgoing import Button, Menu, MenuOption
from bot.chat.session import ChatSetting, HistoryScope, display_name
from bot.commands.authority import AdminCheck
from bot.commands.personas import UserPersonas
from bot.commands.request import CommandRequest, CommandResult, command
from bot.errors import UserError
from bot.replying.answer_parts import page_buttons
from bot.routing.presets import SCOPE_DESCRIPTIONS, SCOPE_KEY, HistoryScopes, PresetResolver
from bot.texts.text import (
    Text,
    join_texts,
    marked,
    supported_language,
    to_translatable,
    translatable,
    translate,
)

_PAGE_SIZE = 20
_HASH_CHARS = 10
_COMMA = translatable(", ")
_OBSERVING_LABELS = {
    "on": translatable("Remember what people say to each other"),
    "off": translatable("Remember only what is said to me"),
    "inherit": translatable("Use the inherited setting"),
}
INPUT_FORM_LABELS = {
    ButtonAction.ENTER_NAME: (
        translatable("Who should answer here?"),
        translatable("The name of the preset"),
    ),
    ButtonAction.ENTER_BIO: (translatable("About me"), translatable("Your description here")),
}
"""The title and the input label of each form."""


@dataclass(eq=False)
class SettingMenus:
    """Builds a channel's menus, which show its settings and the scopes they come from."""

    resolver: PresetResolver
    history_scopes: HistoryScopes
    personas: UserPersonas

    @command("preset menu", marked("show who answers here, and choose from a list"))
    async def show_presets(self, request: CommandRequest) -> CommandResult:
        """Show the active characters and a page of presets to choose from."""
        title = translatable("Choose who should answer here")
        hint = translatable(
            "/preset use NAME chooses who answers, /preset add NAME lets several answer (admins)."
        )
        buttons = (
            _make_button(translatable("👥 Add or remove"), ButtonAction.CHARACTERS, request, row=1),
            _make_button(translatable("✏ By name"), ButtonAction.ENTER_NAME, request, row=1),
            _make_button(translatable("↩ Inherited"), ButtonAction.RESET_PRESETS, request, row=2),
            _make_button(translatable("⚙ Settings"), ButtonAction.SETTINGS, request, row=2),
        )
        choice_action, page_action = ButtonAction.USE_PRESET, ButtonAction.PRESETS
        return await self._build_page(request, title, hint, choice_action, page_action, buttons)

    async def show_add_or_remove_menu(self, request: CommandRequest) -> CommandResult:
        """Show the active characters and a page of characters to add or remove."""
        title = translatable("Add or remove one character")
        hint = translatable(
            "Admins: choose a character to add it, or to remove it if it already answers here."
        )
        buttons = (
            _make_button(translatable("🎭 Only one"), ButtonAction.PRESETS, request, page=1, row=1),
            _make_button(translatable("⚙ Settings"), ButtonAction.SETTINGS, request, row=1),
        )
        choice_action, page_action = ButtonAction.TOGGLE_CHARACTER, ButtonAction.CHARACTERS
        return await self._build_page(request, title, hint, choice_action, page_action, buttons)

    async def _build_page(
        self,
        request: CommandRequest,
        title: Text,
        hint: Text,
        choice_action: ButtonAction,
        page_action: ButtonAction,
        buttons: tuple[Button, ...],
    ) -> CommandResult:
        presets = list((await self.resolver.list_descriptions(request.incoming)).items())
        page_count = max(1, -(-len(presets) // _PAGE_SIZE))
        page = min(max(1, request.page), page_count)
        shown_presets = presets[(page - 1) * _PAGE_SIZE : page * _PAGE_SIZE]
        active_names = request.active.names
        options = tuple(
            MenuOption(display_name(name), _hash_name(name), description, name in active_names)
            for name, description in shown_presets
        )
        data = encode_button(choice_action, request.part_name, page)
        menu = Menu(data, translate(title, supported_language(request.incoming.locale)), options)
        paging_buttons = page_buttons(page_action, request.part_name, page, page_count)
        text = join_texts([*await self._describe_active_presets(request), hint])
        return CommandResult(text, menus=(menu,), buttons=(*paging_buttons, *buttons))

    @command(
        "settings menu",
        marked("show the settings of this channel and where they come from, and change them"),
    )
    async def show_settings(self, request: CommandRequest) -> CommandResult:
        """Show the settings of this channel, with menus to change them."""
        observing_lines, observing_menu = await self._build_observing_menu(request)
        scope_lines, scope_menu = await self._build_scope_menu(request)
        lines = [
            *await self._describe_active_presets(request),
            *observing_lines,
            *scope_lines,
            await self._describe_persona(request),
            translatable(
                "/settings overhear on, off or inherit changes what I remember (admins); /settings"
                " why shows why I answered, /settings usage shows what your answers cost."
            ),
        ]
        buttons = (
            _make_button(translatable("🎭 Who answers"), ButtonAction.PRESETS, request, page=1),
            _make_button(translatable("✏ About me"), ButtonAction.ENTER_BIO, request),
        )
        return CommandResult(join_texts(lines), menus=(observing_menu, scope_menu), buttons=buttons)

    async def _describe_persona(self, request: CommandRequest) -> Text:
        message, person = request.incoming, request.incoming.author.id
        setting = await self.personas.find(person, message.scopes)
        if setting is None:
            return translatable("Your description: none")
        place = translatable("set for all channels")
        if setting.scope != person:
            place = describe_origin(setting.scope.removeprefix(f"{person}@"), message.scopes)
        if not message.is_private:
            return translatable("Your description: {origin}", origin=place)
        return translatable("Your description: {text} ({origin})", text=setting.value, origin=place)

    async def _build_observing_menu(self, request: CommandRequest) -> tuple[list[Text], Menu]:
        scopes = request.incoming.scopes
        own_setting = await self.resolver.find_observing_setting(scopes)
        inherited_setting = await self.resolver.find_observing_setting(scopes[1:])
        settings = (own_setting, inherited_setting)
        values = ["on" if one is None else one.value for one in settings]
        title = translatable("What I remember here")
        labels = _OBSERVING_LABELS
        return _setting_menu(request, ButtonAction.OBSERVE, title, labels, settings, values)

    async def _build_scope_menu(self, request: CommandRequest) -> tuple[list[Text], Menu]:
        scopes, settings, values = request.incoming.scopes, [], []
        for each in (scopes, scopes[1:]):
            settings.append(await self.history_scopes.find_history_scope_setting(each))
            values.append(await self.history_scopes.find(each) or HistoryScope.SHARED)
        labels = {one.value: to_translatable(label) for one, label in SCOPE_DESCRIPTIONS.items()}
        labels[INHERIT] = _OBSERVING_LABELS["inherit"]
        title = translatable("Who shares a conversation here")
        return _setting_menu(request, ButtonAction.SCOPE, title, labels, settings, values)

    async def find_command_text(
        self, button: ButtonData, press: ButtonPress, active: Collection[str]
    ) -> str:
        """Return the command for a choice, if any; raises `UserError` if its preset is gone."""
        typed_text = " ".join("".join(press.values).split())
        match button.action:
            case ButtonAction.ENTER_NAME:
                return f"/preset use {typed_text}"
            case ButtonAction.ENTER_BIO:
                return f"/me {typed_text or 'clear'}"
            case ButtonAction.TOGGLE_CHARACTER:
                preset = await self._find_chosen_preset(press)
                return f"/preset {'remove' if preset in active else 'add'} {preset}"
            case ButtonAction.USE_PRESET:
                return f"/preset use {await self._find_chosen_preset(press)}"
            case ButtonAction.RESET_PRESETS:
                return "/preset reset"
            case ButtonAction.OBSERVE:
                return f"/settings overhear {''.join(press.values)}"
            case ButtonAction.SCOPE:
                return f"/settings scope {''.join(press.values)}"
            case _:
                return ""

    async def show_next_menu(self, button: ButtonData, request: CommandRequest) -> CommandResult:
        """Show the menu again after a choice, or the menu that the choice opens."""
        match button.action:
            case (
                ButtonAction.PRESETS
                | ButtonAction.USE_PRESET
                | ButtonAction.RESET_PRESETS
                | ButtonAction.ENTER_NAME
            ):
                return await self.show_presets(request)
            case ButtonAction.CHARACTERS | ButtonAction.TOGGLE_CHARACTER:
                return await self.show_add_or_remove_menu(request)
            case _:
                return await self.show_settings(request)

    async def _find_chosen_preset(self, press: ButtonPress) -> str:
        for name in await self.resolver.list_descriptions(press):
            if _hash_name(name) in press.values:
                return name
        raise UserError(translatable("That preset no longer exists."))

    async def _describe_active_presets(self, request: CommandRequest) -> list[Text]:
        active_characters, scopes = request.active, request.incoming.scopes
        line = translatable(
            "Who answers here: {names} ({origin})",
            names=join_texts([one.display_name for one in active_characters.presets], _COMMA),
            origin=describe_origin(active_characters.first.scope, scopes),
        )
        if active_characters.first.scope != scopes[0]:
            return [line]
        inherited_presets = await self.resolver.resolve(scopes[1:])
        names = join_texts([one.display_name for one in inherited_presets.presets], _COMMA)
        return [line, _inherited_value_line(names, inherited_presets.first.scope, scopes)]


def describe_origin(scope: str | None, scopes: Sequence[str]) -> Text:
    """Say which scope a setting comes from; `scopes` are the channel's, narrowest first."""
    if scope is None:
        return translatable("the default")
    if scope == scopes[0]:
        return translatable("chosen for this channel")
    if ":guild:" in scope:
        return translatable("inherited from the server")
    return translatable("inherited from the channel")


def _setting_menu(
    request: CommandRequest,
    action: ButtonAction,
    title: Text,
    labels: Mapping[str, Text],
    settings: Sequence[ChatSetting | None],
    values: Sequence[str],
) -> tuple[list[Text], Menu]:
    """Return lines that show a setting and its inherited value, and a menu for the setting.

    Both `settings` (stored settings) and `values` (values in effect) have two items: the one for
    the channel, and the one that the channel would inherit.
    """
    scopes, language = request.incoming.scopes, supported_language(request.incoming.locale)
    (own_setting, inherited_setting), (value, inherited_value) = settings, values
    origin = describe_origin(own_setting.scope if own_setting is not None else None, scopes)
    lines = [
        translatable("{what}: {value} ({origin})", what=title, value=labels[value], origin=origin)
    ]
    chosen_value = INHERIT
    if own_setting is not None and own_setting.scope == scopes[0]:
        chosen_value = own_setting.value
        inherited_scope = inherited_setting.scope if inherited_setting is not None else None
        lines.append(_inherited_value_line(labels[inherited_value], inherited_scope, scopes))
    options = tuple(
        MenuOption(translate(label, language), one, is_chosen=one == chosen_value)
        for one, label in labels.items()
    )
    menu_data = encode_button(action, request.part_name)
    return lines, Menu(menu_data, translate(title, language), options)


def _inherited_value_line(value: Text, scope: str | None, scopes: Sequence[str]) -> Text:
    return translatable(
        "↩ Inherited: {value} ({origin})", value=value, origin=describe_origin(scope, scopes)
    )


def _hash_name(name: str) -> str:
    """Hash a preset's name to fit into a button; the hash is the same after a restart."""
    return hashlib.sha256(name.encode()).hexdigest()[:_HASH_CHARS]


def _make_button(
    label: Text, action: ButtonAction, request: CommandRequest, *, page: int = 0, row: int = 0
) -> Button:
    label_text = translate(label, supported_language(request.incoming.locale))
    return Button(label_text, encode_button(action, request.part_name, page), row=row)


INHERIT = "inherit"
_CHANGE_SCOPE_ACTION = translatable("change who shares a conversation here")


@dataclass(eq=False)
class HistoryScopeHandlers:
    """Shows a channel's history scope to everybody, and lets admins change it."""

    history_scopes: HistoryScopes
    admins: AdminCheck

    @command(
        "settings scope",
        marked("choose who shares a conversation here (admins), or show the current choice"),
        CommandOption(
            "value",
            marked("shared, user, thread, replies or inherit"),
            required=False,
            choices=(*HistoryScope, INHERIT),
        ),
    )
    async def show_or_set_scope(self, request: CommandRequest) -> CommandResult:
        """Set the channel's history scope (only for admins) or, without a value, show it."""
        if not request.argument:
            choices = [_describe_scope(one, one) for one in HistoryScope]
            return CommandResult(
                join_texts([await self.describe_current_scope(request.incoming.scopes), *choices])
            )
        await self.admins.require_admin(request.incoming, _CHANGE_SCOPE_ACTION)
        new_scope = None if request.argument == INHERIT else HistoryScope(request.argument)
        await request.store(self.history_scopes.chat_settings, request.scope, SCOPE_KEY, new_scope)
        scope = await self.history_scopes.find(request.incoming.scopes) or HistoryScope.SHARED
        description = to_translatable(SCOPE_DESCRIPTIONS[scope])
        return CommandResult(
            translatable(
                "From the next message on, {description}. Earlier messages stay where they are.",
                description=description,
            ),
            changes_channel=True,
        )

    async def describe_current_scope(self, scopes: Sequence[str]) -> Text:
        """Return a line saying which people's messages share one history in a channel."""
        scope = await self.history_scopes.find(scopes) or HistoryScope.SHARED
        return translatable("Scope: {scope}", scope=_describe_scope(scope, scope))


def _describe_scope(scope: HistoryScope, name: str) -> Text:
    return translatable(
        "{name} – {description}", name=name, description=to_translatable(SCOPE_DESCRIPTIONS[scope])
    )

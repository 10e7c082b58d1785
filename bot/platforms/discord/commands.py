"""Application commands: build the payloads that register them, and parse interactions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import discord

from bot.chat.command import FORM_FIELD_SEPARATOR, CommandOption, CommandSpec, MessageCommandSpec
from bot.platforms.spec import EditableText, PlatformContext
from bot.texts.text import to_translatable, translate

_SUBCOMMAND_TYPE, _STRING_TYPE, _ATTACHMENT_TYPE = 1, 3, 11  # option types
_MESSAGE_COMMAND_TYPE = 3
_ROW_TYPE, _TEXT_FIELD_TYPE, _SHORT_STYLE, _PARAGRAPH_STYLE = 1, 4, 1, 2
_MAX_SINGLE_LINE_CHARS = 500
_MAX_LABEL_CHARS = 45
MAX_FORM_CHARS = 4000
_GUILD_CONTEXT, _DM_CONTEXT = 0, 1  # contexts
_MANAGE_SERVER_PERMISSION = str(discord.Permissions(manage_guild=True).value)
_MAX_CHOICES = 25
_MAX_CHOICE_CHARS = 100
_MAX_SUMMARY_CHARS = 100
LOCALES_BY_LANGUAGE = {"zh": ("zh-CN", "zh-TW")}
"""Discord's locales for each language of the service except English."""


def to_command_payload(spec: CommandSpec) -> dict[str, Any]:
    """Return the payload that registers a command with `PUT /applications/{id}/commands`.

    Discord shows admin commands only to people who may manage the server, unless the server's
    settings allow others.
    """
    subcommands = [{**_spec_payload(action), "type": _SUBCOMMAND_TYPE} for action in spec.actions]
    return {
        **_spec_payload(spec),
        "options": subcommands or _spec_payload(spec)["options"],
        "type": 1,
        "contexts": [_GUILD_CONTEXT, _DM_CONTEXT],
        "default_member_permissions": _MANAGE_SERVER_PERMISSION
        if spec.is_listed_for_admins
        else None,
    }


def to_message_command_payload(spec: MessageCommandSpec) -> dict[str, Any]:
    """Return the payload that registers a command in the context menu of messages."""
    return {
        "name": spec.name,
        "name_localizations": _translations_by_locale(spec.name),
        "type": _MESSAGE_COMMAND_TYPE,
        "contexts": [_GUILD_CONTEXT, _DM_CONTEXT],
    }


def interaction_data(interaction: discord.Interaction) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], interaction.data or {})


def find_message_command(
    interaction: discord.Interaction, specs: Sequence[MessageCommandSpec]
) -> MessageCommandSpec | None:
    """Return the command that was called from a message's menu, or None."""
    data = interaction_data(interaction)
    if data.get("type") != _MESSAGE_COMMAND_TYPE:
        return None
    return next((spec for spec in specs if spec.name == data["name"]), None)


def is_button_form(interaction: discord.Interaction, specs: Sequence[MessageCommandSpec]) -> bool:
    """Return whether an interaction submits a form that a button, not a command, opened."""
    if interaction.type is not discord.InteractionType.modal_submit:
        return False
    command, _ = read_command_and_message_id(interaction)
    return not command.startswith("/") and command not in {spec.command for spec in specs}


def should_open_form(interaction: discord.Interaction, context: PlatformContext) -> bool:
    """Return whether an interaction calls a command that has a form, but attaches no file."""
    if interaction.type is not discord.InteractionType.application_command:
        return False
    if (spec := find_message_command(interaction, context.message_commands)) is not None:
        return spec.has_form
    specs = _find_command_specs(interaction, context.commands)
    has_file = bool(interaction_data(interaction).get("resolved", {}).get("attachments"))
    return not has_file and any(option.max_form_chars for one in specs for option in one.options)


def make_form_payload(form_id: str, form: EditableText) -> dict[str, Any]:
    """Return the payload of a form. Discord sends `form_id` back when the form is submitted."""
    title = form.title[:_MAX_LABEL_CHARS]
    fields = form.fields or (replace(form, title="text"),)
    return {"custom_id": form_id, "title": title, "components": [*map(_form_row_payload, fields)]}


def _form_row_payload(form: EditableText) -> dict[str, Any]:
    max_chars = form.max_chars or MAX_FORM_CHARS
    text_field = {
        "type": _TEXT_FIELD_TYPE,
        "custom_id": form.title,
        "style": _PARAGRAPH_STYLE if max_chars > _MAX_SINGLE_LINE_CHARS else _SHORT_STYLE,
        "label": form.label[:_MAX_LABEL_CHARS],
        "value": form.text,
        "max_length": max_chars,
        **({} if form.is_required else {"required": False}),
    }
    return {"type": _ROW_TYPE, "components": [text_field]}


def read_command_and_message_id(interaction: discord.Interaction) -> tuple[str, str]:
    command, _, message_id = str(interaction_data(interaction).get("custom_id", "")).partition(":")
    return command, message_id


def to_command_text(
    interaction: discord.Interaction, specs: Sequence[MessageCommandSpec] = ()
) -> str:
    """Return the text that a person would type for a command, such as "/preset use nova"."""
    if interaction.type is discord.InteractionType.modal_submit:
        form_id = str(interaction_data(interaction).get("custom_id", ""))
        if not form_id.startswith("/"):
            return f"/{read_command_and_message_id(interaction)[0]} {read_form_value(interaction)}"
        has_argument = form_id.count(" ") > 1
        form_text = FORM_FIELD_SEPARATOR.join(_read_form_values(interaction))
        return f"{form_id}{FORM_FIELD_SEPARATOR if has_argument else ' '}{form_text}"
    if (spec := find_message_command(interaction, specs)) is not None:
        return f"/{spec.command}"
    name, action, options = _parse_command(interaction)
    values = [str(option["value"]) for option in options if option.get("type") != _ATTACHMENT_TYPE]
    return " ".join(word for word in (f"/{name}", action, *values) if word)


def manages_guild(interaction: discord.Interaction) -> bool:
    return interaction.permissions.administrator or interaction.permissions.manage_guild


def has_public_response(interaction: discord.Interaction, specs: Sequence[CommandSpec]) -> bool:
    """Return whether the whole server sees a response, which Discord must know in advance."""
    is_command = interaction.type is discord.InteractionType.application_command
    if not is_command or interaction.guild_id is None:
        return False
    return any(
        one.changes_channel and (manages_guild(interaction) or not one.needs_admin)
        for one in _find_command_specs(interaction, specs)
    )


def _find_command_specs(
    interaction: discord.Interaction, specs: Sequence[CommandSpec]
) -> Sequence[CommandSpec]:
    name, action, _ = _parse_command(interaction)
    commands = [one for one in specs if one.name == name]
    return [one for spec in commands for one in spec.actions if one.name == action] or commands


def focused_option_text(interaction: discord.Interaction) -> str | None:
    """Return the text typed so far in the focused option, or None if no option is focused."""
    _, _, options = _parse_command(interaction)
    return next((str(option["value"]) for option in options if option.get("focused")), None)


def to_choices(names: Sequence[str]) -> list[dict[str, str]]:
    """Return autocomplete choices for names, without those that are too long for Discord."""
    valid_names = [name for name in names if 0 < len(name) <= _MAX_CHOICE_CHARS]
    return [{"name": name, "value": name} for name in valid_names[:_MAX_CHOICES]]


def _spec_payload(spec: CommandSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        **_description_payload(spec.summary),
        "options": [
            _option_payload(option) for option in spec.options if not option.max_form_chars
        ],
    }


def _option_payload(option: CommandOption) -> dict[str, Any]:
    choice_payloads = [{"name": choice, "value": choice} for choice in option.choices]
    return {
        "type": _ATTACHMENT_TYPE if option.is_file else _STRING_TYPE,
        "name": option.name,
        **_description_payload(option.summary),
        "required": option.required,
        **({} if option.is_file else {"autocomplete": option.autocompletes}),
        **({"choices": choice_payloads} if choice_payloads else {}),
    }


def _description_payload(summary: str) -> dict[str, Any]:
    translations = {
        locale: text[:_MAX_SUMMARY_CHARS]
        for locale, text in _translations_by_locale(summary).items()
        if text != summary
    }
    payload: dict[str, Any] = {"description": summary[:_MAX_SUMMARY_CHARS]}
    return {**payload, "description_localizations": translations} if translations else payload


def _translations_by_locale(text: str) -> dict[str, str]:
    return {
        locale: translate(to_translatable(text), language)
        for language, locales in LOCALES_BY_LANGUAGE.items()
        for locale in locales
    }


def _parse_command(
    interaction: discord.Interaction,
) -> tuple[str, str | None, list[dict[str, Any]]]:
    data = interaction_data(interaction)
    options: list[dict[str, Any]] = data.get("options") or []
    for option in options:
        if option["type"] == _SUBCOMMAND_TYPE:
            return data["name"], option["name"], option.get("options") or []
    return data.get("name", ""), None, options


def read_form_value(interaction: discord.Interaction) -> str:
    return next(iter(_read_form_values(interaction)), "")


def _read_form_values(interaction: discord.Interaction) -> list[str]:
    form_rows = interaction_data(interaction).get("components", ())
    return [str(one.get("value", "")) for row in form_rows for one in row.get("components", ())]

"""The /character actions, with which people make characters for themselves or a server."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import structlog

from bot.chat.command import FORM_FIELD_SEPARATOR, CommandOption, CommandSpec, parse_command
from bot.chat.incoming import Address, IncomingMessage
from bot.chat.session import OWNER_SEPARATOR, READABLE_KINDS, PresetVersion, display_name
from bot.commands.authority import AdminCheck
from bot.commands.presets import Greetings, preset_line
from bot.commands.request import CommandRequest, CommandResult, admin_command, command
from bot.errors import PlatformError, PresetError, UserError
from bot.media.attachment_reader import ConversionFailed, Download, convert_in_child
from bot.prompting.presets.fields import MAX_NAME_CHARS, preset_id
from bot.prompting.presets.files import export_preset, parse_preset, validate_preset
from bot.prompting.presets.preset import Preset
from bot.prompting.text.confusables import confusable_skeleton
from bot.routing.presets import PresetResolver, find_character_owner
from bot.runtime.addresses import is_http_address
from bot.storage.presets import PresetVersions
from bot.texts.text import error_text, join_texts, marked, supported_language, translatable

_log = structlog.get_logger(__name__)
CHARACTER_GROUP = CommandSpec(
    "character",
    marked("your own characters (in a private chat) or this server's: list, add, use, edit, share"),
    default_action="list",
)
_CHANGE_CHARACTERS_ACTION = translatable("change the characters of this server")
_CHOOSE_CHARACTERS_ACTION = translatable("change who answers here")
_HOW_TO_ADD_NOTICE = translatable(
    "Attach a character card (PNG, JSON or CHARX) to /character add, or write /character add NAME |"
    " PERSONA | GREETING"
)
_HOW_TO_EDIT_NOTICE = translatable(
    "Write /character edit NAME | PERSONA | GREETING, or attach a new card to /character edit NAME"
)
_DAMAGED_CARD_NOTICE = translatable(
    "The card could not be read. It may be damaged, or too large when unpacked; please try again."
)
_FILE_UNREACHABLE_NOTICE = translatable("The file could not be downloaded. Please send it again.")
_NOT_A_LINK_NOTICE = translatable("The picture must be a link that begins with https://")
_SERVER_ONLY_NOTICE = translatable("Send this command in the server that should get the character.")
_NO_CHARACTERS_NOTICE = translatable("There are no characters here yet. /character add makes one.")
_LONG_TEXT_NOTICE = translatable(
    "This character's text is too long for a form; attach a character card instead."
)
_MAX_SUMMARY_CHARS = 100
_make_optional = partial(CommandOption, required=False)
_CARD_OPTION = _make_optional("card", marked("a character card: PNG, JSON or CHARX"), is_file=True)
_NAME_OPTION = CommandOption("name", marked("the character"), autocompletes=True)
_FORM_OPTIONS = (
    _make_optional("persona", marked("who the character is"), max_form_chars=4000),
    _make_optional("greeting", marked("the character's first message"), max_form_chars=4000),
    _make_optional("picture", marked("a link to the character's picture"), max_form_chars=500),
)
_NEW_NAME_OPTION = _make_optional(
    "name", marked("the character's name"), max_form_chars=MAX_NAME_CHARS
)
_PRESET_KEYS = ("persona", "greeting", "avatar")
_CARD_KEYS = ("name", "description", "first_mes", "avatar")


@dataclass(eq=False)
class CharacterHandlers:
    """Makes characters from cards and forms; the characters use the chat's active model."""

    resolver: PresetResolver
    versions: PresetVersions
    admins: AdminCheck
    download: Download
    host_picture: Callable[[Address, bytes], Awaitable[str | None]]
    """Uploads a PNG and returns its URL, or None where unsupported; raises `PlatformError`."""
    max_characters_per_person: int
    max_characters_per_server: int
    max_card_bytes: int

    @command(
        "character list",
        marked("list your own characters (in a private chat) or those of this server"),
    )
    async def _list_characters(self, request: CommandRequest) -> CommandResult:
        active_names, owner = request.active.names, find_character_owner(request.incoming)
        descriptions_by_name = await self.resolver.characters.list_descriptions(owner)
        lines = [
            preset_line(name, text, active_names) for name, text in descriptions_by_name.items()
        ]
        return CommandResult(join_texts(lines) if lines else _NO_CHARACTERS_NOTICE)

    @admin_command(
        "character add",
        marked("make a character from a card that you attach or from a form (admins)"),
        *(_CARD_OPTION, _NEW_NAME_OPTION, *_FORM_OPTIONS),
    )
    async def _add_character(self, request: CommandRequest) -> CommandResult:
        incoming = request.incoming
        await self._require_character_permission(incoming)
        fields = _split_form_fields(request.argument)
        card = await self.download_attached_file(incoming)
        if card is None:
            if len(fields) < 2:  # name and persona are required
                raise UserError(_HOW_TO_ADD_NOTICE)
            card_data = dict(zip(_CARD_KEYS, fields, strict=False))
            card = json.dumps({"spec": "chara_card_v2", "data": card_data}).encode()
            fields = []
        preset = await self._convert_card(card, incoming)
        if fields:  # the typed name replaces the card's
            preset = with_changed_texts(preset, {"name": fields[0]})
        return _announce_character(await self._store_new_character(request, preset))

    @admin_command(
        "character use", marked("make a character answer in this channel (admins)"), _NAME_OPTION
    )
    async def _use_character(self, request: CommandRequest) -> CommandResult:
        incoming, owner = request.incoming, find_character_owner(request.incoming)
        await self.admins.require_admin(incoming, _CHOOSE_CHARACTERS_ACTION)
        name = await self.find_name_with_owner(request.argument, owner, "/character use")
        preset = await self._load_for_chat(request, name)
        await self.resolver.set_active_presets(request.scope, [preset], **request.audit_arguments)
        text = translatable("{name} answers here from now on.", name=preset.display_name)
        return await Greetings(self.resolver).begin_session(text, preset, incoming)

    @admin_command(
        "character edit",
        marked("change a character with a form, or with another card (admins)"),
        *(_NAME_OPTION, _CARD_OPTION, *_FORM_OPTIONS),
    )
    async def _edit_character(self, request: CommandRequest) -> CommandResult:
        incoming = request.incoming
        await self._require_character_permission(incoming)
        typed_name, *fields = _split_form_fields(request.argument) or [""]
        name = await self.find_name_with_owner(
            typed_name, find_character_owner(incoming), "/character edit"
        )
        if (card := await self.download_attached_file(incoming)) is not None:
            preset = await self._convert_card(card, incoming)
            preset = with_changed_texts(preset, {"name": display_name(name)})
        elif not fields:
            raise UserError(_HOW_TO_EDIT_NOTICE)
        else:
            changes = dict(zip(_PRESET_KEYS, fields, strict=False))
            if changes.get("avatar") and not is_http_address(changes["avatar"]):
                raise UserError(_NOT_A_LINK_NOTICE)
            preset = with_changed_texts(await self.load_newest_version(name), changes)
        await self.save_character(request, preset, name)
        text = translatable("{name} was changed.", name=preset.name)
        return CommandResult(text, changes_channel=True)

    @admin_command(
        "character share",
        marked("copy one of your private characters to this server (admins)"),
        _NAME_OPTION,
    )
    async def _share_character(self, request: CommandRequest) -> CommandResult:
        incoming = request.incoming
        await self._require_character_permission(incoming)
        if incoming.is_private:
            raise UserError(_SERVER_ONLY_NOTICE)
        name = await self.find_name_with_owner(
            request.argument, incoming.author.id, "/character share"
        )
        preset = await self.load_newest_version(name)
        return _announce_character(await self._store_new_character(request, preset))

    @admin_command("character remove", marked("delete a character for good (admins)"), _NAME_OPTION)
    async def _remove_character(self, request: CommandRequest) -> CommandResult:
        await self._require_character_permission(request.incoming)
        owner = find_character_owner(request.incoming)
        name = await self.find_name_with_owner(request.argument, owner, "/character remove")
        await self.resolver.characters.record_character(name, "", "", **request.audit_arguments)
        await self.versions.delete(name)
        text = translatable("{name} was deleted.", name=display_name(name))
        return CommandResult(text, changes_channel=True)

    async def load_form(self, message: IncomingMessage) -> Sequence[tuple[CommandOption, str]]:
        """Return a command's form fields, each with the text to show in it; raises `UserError`."""
        await self._require_character_permission(message)
        command = parse_command(message.text)
        action, _, name = (command.text if command else "").partition(" ")
        if action != "edit":
            return [(one, "") for one in (_NEW_NAME_OPTION, *_FORM_OPTIONS)]
        name = await self.find_name_with_owner(
            name, find_character_owner(message), "/character edit"
        )
        preset = await self.load_newest_version(name)
        options = zip(_FORM_OPTIONS, _PRESET_KEYS, strict=True)
        fields = [(one, getattr(preset, key) or "") for one, key in options]
        if any(len(text) > one.max_form_chars for one, text in fields):
            raise UserError(_LONG_TEXT_NOTICE)
        return fields

    async def suggest_names(self, message: IncomingMessage, text: str) -> Sequence[str]:
        """Return the names of presets or characters that complete the typed text."""
        called_command = parse_command(message.text)
        if called_command is None or called_command.name != CHARACTER_GROUP.name:
            names = await self.resolver.list_descriptions(message)
        else:
            is_share_command = called_command.text.partition(" ")[0] == "share"
            owner = message.author.id if is_share_command else find_character_owner(message)
            names = await self.resolver.characters.list_descriptions(owner)
        return self.resolver.complete(text, map(display_name, names))

    async def _require_character_permission(self, message: IncomingMessage) -> None:
        if not message.is_private:
            await self.admins.require_admin(message, _CHANGE_CHARACTERS_ACTION)

    async def find_name_with_owner(self, typed_name: str, owner: str, typed_command: str) -> str:
        """Return the full name of an owner's character. Raises `UserError` if there is none.

        `typed_command` begins the example command in the error message.
        """
        if not typed_name.strip():
            example = f"{typed_command} Nora"
            text = translatable("Which character? For example: {example}", example=example)
            raise UserError(text)
        names = await self.resolver.characters.list_descriptions(owner)
        typed_id = preset_id(typed_name.strip())
        for name in names:
            if preset_id(display_name(name)) == typed_id:
                return name
        raise _missing_character_error(typed_name, [display_name(one) for one in names])

    async def load_newest_version(self, name: str) -> Preset:
        """Return the newest version of a character. `name` is the full name of its preset."""
        newest_version = await self.versions.newest(name)
        if newest_version is None:
            raise _missing_character_error(display_name(name))
        return await asyncio.to_thread(parse_preset, newest_version.content, name)

    async def download_attached_file(self, message: IncomingMessage) -> bytes | None:
        """Return the file attached to a message or its quoted message; None if there is none.

        Raises `UserError` if it is too large or cannot be downloaded.
        """
        quoted_files = message.quote.attachments if message.quote else ()
        attachments = (*message.attachments, *quoted_files)
        files = [one for one in attachments if one.kind in READABLE_KINDS and one.source]
        if not files:
            return None
        max_file_bytes = self.max_card_bytes
        try:
            content = await self.download(message.address, files[0], max_file_bytes + 1)
        except PlatformError:
            raise UserError(_FILE_UNREACHABLE_NOTICE) from None
        if len(content) > max_file_bytes:
            text = translatable(
                "A file can be up to {limit} KiB.", limit=f"{max_file_bytes // 1024:,}"
            )
            raise UserError(text)
        return content

    async def _convert_card(self, card: bytes, message: IncomingMessage) -> Preset:
        """Convert a character card to a preset in a child process; raises `UserError`."""
        try:
            result = msgspec.json.decode(await convert_in_child("card", card))
        except ConversionFailed:
            raise UserError(_DAMAGED_CARD_NOTICE) from None
        if "problem" in result:
            raise UserError(result["problem"][supported_language(message.locale)])
        if len(result["preset"].encode()) > self.max_card_bytes:
            raise UserError(_DAMAGED_CARD_NOTICE)
        preset = await asyncio.to_thread(parse_preset, result["preset"], "card")
        if not result["picture"]:
            return preset
        try:
            avatar = await self.host_picture(message.address, base64.b64decode(result["picture"]))
        except PlatformError as error:  # the character works without a picture
            _log.warning("picture_not_kept", reason=str(error))
            avatar = None
        return preset.model_copy(update={"avatar": avatar})

    async def store_card(self, request: CommandRequest, card: bytes) -> Preset:
        """Store a card's character; return its preset for this chat. Raises `UserError`."""
        message = request.incoming
        await self._require_character_permission(message)
        preset = await self._convert_card(card, message)
        stored_preset = await self._store_new_character(request, preset)
        name = f"{find_character_owner(message)}{OWNER_SEPARATOR}{stored_preset.name}"
        return await self._load_for_chat(request, name)

    async def _load_for_chat(self, request: CommandRequest, name: str) -> Preset:
        """Return a character's preset, adapted to this chat; `name` is its full name."""
        behavior_preset = self.resolver.find_behavior_preset(request.active)
        preset_and_version = await self.resolver.characters.find(name, behavior_preset)
        if preset_and_version is None:
            raise _missing_character_error(display_name(name))
        return preset_and_version[0]

    async def _store_new_character(self, request: CommandRequest, preset: Preset) -> Preset:
        """Store a new character under an unused name; a retry after a crash adds no duplicate."""
        owner, resolver = find_character_owner(request.incoming), self.resolver
        existing_names = await resolver.characters.list_descriptions(owner)
        character_limit = (
            self.max_characters_per_person
            if request.incoming.is_private
            else self.max_characters_per_server
        )
        reserved_keys = set(map(_confusable_key, (*resolver.presets, *resolver.disabled_reasons)))
        names = {_confusable_key(display_name(one)): one for one in existing_names}
        copy_number, new_preset = 1, preset
        while (key := _confusable_key(new_preset.name)) in reserved_keys or key in names:
            version = await self.versions.newest(names[key]) if key not in reserved_keys else None
            if version is not None and version.content == export_preset(new_preset):
                break
            copy_number += 1
            suffix = f" {copy_number}"
            name = preset.name[: MAX_NAME_CHARS - len(suffix)].rstrip() + suffix
            new_preset = preset.model_copy(update={"name": name})
        name = f"{owner}{OWNER_SEPARATOR}{new_preset.name}"
        if name not in existing_names and len(existing_names) >= character_limit:
            raise UserError(
                translatable(
                    "There are {count} characters here already, and no more are allowed."
                    " /character remove makes room.",
                    count=len(existing_names),
                )
            )
        await self.save_character(request, new_preset, name)
        return new_preset

    async def save_character(self, request: CommandRequest, preset: Preset, name: str) -> None:
        """Store a character's next version under the full name of its preset, and announce it."""
        content, owner = export_preset(preset), name.rpartition(OWNER_SEPARATOR)[0]
        await self.versions.save([PresetVersion(name, content, 1, owner)])
        summary = " ".join(preset.description[:_MAX_SUMMARY_CHARS].split())
        summary += f"\t{preset.avatar or ''}"
        await self.resolver.characters.record_character(
            name, content, summary, **request.audit_arguments
        )


def _announce_character(preset: Preset) -> CommandResult:
    text = translatable(
        "{name} is ready. /character use {name} lets it answer here.", name=preset.name
    )
    return CommandResult(text, changes_channel=True)


def _split_form_fields(text: str) -> list[str]:
    """Split typed text at each `|`, or a submitted form into all its fields, even empty ones."""
    if FORM_FIELD_SEPARATOR in text:
        fields = [one.strip() for one in text.split(FORM_FIELD_SEPARATOR)]
        return fields + [""] * (len(_CARD_KEYS) - len(fields))
    return [one.strip() for one in text.split("|", len(_CARD_KEYS) - 1)] if text else []


def with_changed_texts(preset: Preset, changes: Mapping[str, object]) -> Preset:
    """Return a preset with changed texts. A greeting or picture that is now empty is removed."""
    fields = preset.model_dump(mode="json", exclude_defaults=True)
    new_fields = {key: value or None for key, value in changes.items() if value or key != "persona"}
    try:
        return validate_preset({**fields, **new_fields}, preset.name)
    except PresetError as error:
        raise UserError(error_text(error)) from None


def _confusable_key(name: str) -> str:
    return confusable_skeleton(name.casefold())


def _missing_character_error(name: str, names: Sequence[str] = ()) -> UserError:
    text = translatable("There is no character {name}; /character list shows them.", name=name)
    if names:
        values = {"name": name, "names": ", ".join(names)}
        text = translatable("There is no character {name}; the characters are: {names}.", **values)
    return UserError(text)

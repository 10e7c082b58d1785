"""Find a channel's active presets and history scope, and people's characters and consents."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import structlog

from bot.chat.incoming import ChatJoin, Incoming, IncomingMessage, Request, find_person_ids
from bot.chat.outgoing import Face, Limits
from bot.chat.session import (
    CHARACTER_KEY_PREFIX,
    CONSENT_KEY,
    OWNER_SEPARATOR,
    ChatSetting,
    Consent,
    HistoryScope,
    PresetVersion,
    Turn,
    display_name,
    setting_scopes,
)
from bot.errors import AgeUnconfirmed, PresetError, SettingsError, UserError
from bot.ports import ChatSettings
from bot.prompting.presets.fields import preset_id
from bot.prompting.presets.files import find_preset, parse_preset
from bot.prompting.presets.preset import Preset, ScopeName
from bot.prompting.speakers import label_speakers
from bot.runtime.in_process import BoundedDict
from bot.texts.text import marked, translatable
from bot.value_class import value_class

MAX_ACTIVE_CHARACTERS = 8
"""The maximum number of active characters in a channel; every prompt names all of them."""


@value_class
class ActivePreset:
    """A preset that is active in a channel, and the scope where it was chosen."""

    preset: Preset
    scope: str | None
    """The scope whose setting chose this preset; None: it is the default preset."""
    version: int | None
    """The version number of the preset; None: the preset has no numbered versions."""


@value_class
class ActiveCharacters:
    """The active presets of a channel, in the order they were added; at least one."""

    members: tuple[ActivePreset, ...]

    @property
    def first(self) -> ActivePreset:
        return self.members[0]

    @property
    def presets(self) -> list[Preset]:
        return [member.preset for member in self.members]

    @property
    def names(self) -> set[str]:
        return {preset.name for preset in self.presets}

    @property
    def is_group(self) -> bool:
        return len(self.members) > 1

    @property
    def reads_all_messages(self) -> bool:
        """Whether any active preset reads messages that do not address the bot."""
        return any(preset.context == "all" for preset in self.presets)

    def select_members(self, names: Collection[str]) -> tuple[ActivePreset, ...]:
        """Return the members with these preset names, in the order of the names."""
        members_by_name = {member.preset.name: member for member in self.members}
        return tuple(members_by_name[name] for name in names)

    def presets_with(self, preset: Preset) -> list[Preset]:
        """Return the channel's presets with one added; raises `UserError` if impossible."""
        if preset.name in self.names:
            raise UserError.translatable("{name} is already active here.", name=preset.display_name)
        if len(self.members) >= MAX_ACTIVE_CHARACTERS:
            raise UserError.translatable(
                "{count} characters are active here, which is the maximum; remove one first"
                " with /preset remove.",
                count=MAX_ACTIVE_CHARACTERS,
            )
        return [*self.presets, preset]

    def presets_without(self, preset: Preset) -> list[Preset]:
        """Return the channel's presets with one removed; raises `UserError` if impossible."""
        if preset.name not in self.names:
            raise UserError.translatable(
                "{name} is not active here; /preset list shows who is.", name=preset.display_name
            )
        if not self.is_group:
            raise UserError.translatable(
                "{name} is the only character here. Use /preset use to replace it.",
                name=preset.display_name,
            )
        return [one for one in self.presets if one.name != preset.name]

    def build_name_line_and_face(
        self, active_preset: ActivePreset, character_names: Mapping[str, str], limits: Limits
    ) -> tuple[str, Face | None]:
        """Return how to show which character answers: a name line or a face, or neither."""
        preset, shows_faces = active_preset.preset, limits.shows_faces
        needs_name = preset.is_character if shows_faces else limits.always_shows_name
        if not (self.is_group or needs_name):
            return "", None
        name = label_speakers((), character_names).characters[preset.name]
        if shows_faces:
            return "", Face(name, preset.avatar, self.is_group)
        return limits.name_line_format.format(name) + "\n", None


_log = structlog.get_logger(__name__)
PRESET_KEY = "preset"
"""The key of the active presets: one name per line, optionally a tab and a behavior preset."""
OBSERVE_KEY = "observe"
ADULTS_ONLY_KEY = "access adult"
"""The key of the setting in which admins declare a group adults-only."""
AGE_CONFIRMATION_KEY = "persona_adult"
"""The key of a person's confirmation of being an adult; deleted with their persona."""
_CONFIRM_AGE_QUESTION = marked("{name} is for adults only. Are you 18 or older?")
_NOT_AGE_RESTRICTED_REFUSAL = marked(
    "{name} is for adults only: it answers only in age-restricted channels, and this channel is not"
    " age-restricted."
)
_NOT_ADULT_GROUP_REFUSAL = marked(
    "{name} is for adults only. To use it here, an admin has to write /access adult on."
)

_MAX_LOADED_CHARACTERS = 100
_CHARACTER_LIFETIME_SECONDS = 50.0
"""The time a character stays loaded, because `/forget` must take effect within a minute."""


ReadNewestVersion: TypeAlias = Callable[[str], Awaitable[PresetVersion | None]]
"""Returns the newest version of the preset with this name; raises `StoreError`."""


@value_class
class _LoadedCharacter:
    preset: Preset
    version: int
    revision: str


class Characters:
    """Loads characters that people and servers created, and reloads them when they change."""

    def __init__(self, chat_settings: ChatSettings) -> None:
        self._chat_settings = chat_settings
        self.read_newest_version: ReadNewestVersion | None = None
        """Reads stored characters; None: no characters are found."""
        self._loaded_characters = BoundedDict[str, _LoadedCharacter](_MAX_LOADED_CHARACTERS)

    async def list_descriptions(self, owner: str) -> dict[str, str]:
        """Return the descriptions of an owner's characters, by preset name."""
        settings = (await self._chat_settings.get_scopes([owner])).get(owner, {})
        descriptions = {}
        for key, value in sorted(settings.items()):
            if key.startswith(CHARACTER_KEY_PREFIX):
                name = f"{owner}{OWNER_SEPARATOR}{key.removeprefix(CHARACTER_KEY_PREFIX)}"
                descriptions[name] = value.partition(" ")[2].partition("\t")[0]
        return descriptions

    async def record_character(
        self, name: str, content: str, description: str, author: str, *, is_audited: bool
    ) -> None:
        """Update the owner's setting after a character was saved or, if `content` is "", deleted.

        The description may be followed by a tab and the URL of a picture.
        """
        owner, _, short_name = name.rpartition(OWNER_SEPARATOR)
        revision = hashlib.sha256(content.encode()).hexdigest()[:16]
        setting_value = f"{revision} {description}" if content else None
        key = f"{CHARACTER_KEY_PREFIX}{short_name}"
        self._loaded_characters.pop(name, None)
        await self._chat_settings.set(owner, key, setting_value, author, is_audited=is_audited)

    async def find(self, name: str, behavior_preset: Preset) -> tuple[Preset, int] | None:
        """Return a character with this behavior, and its version, or None if deleted."""
        owner, _, short_name = name.rpartition(OWNER_SEPARATOR)
        setting = await self._chat_settings.resolve([owner], f"{CHARACTER_KEY_PREFIX}{short_name}")
        if setting is None:
            self._loaded_characters.pop(name, None)
            return None
        revision = setting.value.partition(" ")[0]
        character = self._loaded_characters.get(name)
        if character is None or character.revision != revision:
            character = await self._load(name, revision)
        if character is None:
            return None
        return character.preset.with_behavior_of(behavior_preset), character.version

    async def _load(self, name: str, revision: str) -> _LoadedCharacter | None:
        read_version = self.read_newest_version
        stored_version = await read_version(name) if read_version is not None else None
        if stored_version is None:
            return None
        try:
            preset = await asyncio.to_thread(_parse_character, stored_version)
        except PresetError as error:
            _log.warning("preset_not_reloaded", preset=name, reason=str(error))
            return None
        character = _LoadedCharacter(preset, stored_version.version, revision)
        self._loaded_characters[name] = character
        # The timer outlasts a /forget, so it must not hold the name, which contains the owner's id.
        asyncio.get_running_loop().call_later(
            _CHARACTER_LIFETIME_SECONDS, self._unload_by_id, id(character)
        )
        return character

    def unload(self, owner: str) -> None:
        """Unload an owner's characters here; other processes unload them within a minute."""
        prefix = f"{owner}{OWNER_SEPARATOR}"
        for name in [one for one in self._loaded_characters if one.startswith(prefix)]:
            del self._loaded_characters[name]

    def _unload_by_id(self, object_id: int) -> None:
        for name in [name for name, one in self._loaded_characters.items() if id(one) == object_id]:
            del self._loaded_characters[name]

    def character_name(self, name: str) -> str:
        """Return a loaded character's name, or the preset's name if it is not loaded."""
        character = self._loaded_characters.get(name)
        return character.preset.character_name if character is not None else display_name(name)


def _parse_character(stored_version: PresetVersion) -> Preset:
    stored_preset = parse_preset(stored_version.content, stored_version.name)
    preset = stored_preset.model_copy(update={"name": stored_version.name})
    _ = preset.parsed_lorebook  # parsed once, shared by all copies
    return preset


def remove_turns_of(opted_out_ids: frozenset[str], turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Return the turns, except those by people in `opted_out_ids` and the answers to them."""
    if not opted_out_ids:
        return tuple(turns)
    kept_turns, drops_answer, is_question_answered = [], False, True
    for turn in turns:
        if turn.role == "user":
            is_opted_out_turn = turn.speaker is not None and turn.speaker.id in opted_out_ids
            if not turn.is_observed:  # an answer is for all questions before it
                drops_answer = is_opted_out_turn or (drops_answer and not is_question_answered)
                is_question_answered = False
        else:
            is_opted_out_turn, is_question_answered = drops_answer, True
        if not is_opted_out_turn:
            kept_turns.append(turn)
    return tuple(kept_turns)


class PresetResolver:
    """Finds active presets: those of the thread, channel or server, or else the default preset."""

    def __init__(
        self,
        presets: Mapping[str, Preset],
        default: str,
        chat_settings: ChatSettings,
        versions: Mapping[str, int] | None = None,
        disabled_reasons: Mapping[str, str] | None = None,
    ) -> None:
        """Create a resolver; raises `SettingsError` if the default is missing or disabled."""
        self.presets = dict(presets)
        self.versions = dict(versions or {})
        """The version numbers of presets that have one, by name."""
        self.disabled_reasons = dict(disabled_reasons or {})
        """The reasons why presets cannot be used, by preset name."""
        self.characters = Characters(chat_settings)
        self._chat_settings = chat_settings
        try:
            self.default_preset = find_preset(presets, default, self.disabled_reasons)
        except PresetError as error:
            raise SettingsError(f"TROUPE_DEFAULT_PRESET: {error}") from None
        default_member = self._to_active_preset(self.default_preset, None)
        self._default_characters = ActiveCharacters((default_member,))

    def publish(self, preset: Preset, version: int) -> None:
        """Add a preset, replacing any preset with the same name."""
        self.presets[preset.name] = preset
        self.disabled_reasons.pop(preset.name, None)
        self.versions[preset.name] = version
        if preset.name == self.default_preset.name:
            self.default_preset = preset
            self._default_characters = ActiveCharacters((self._to_active_preset(preset, None),))

    def remove(self, name: str) -> None:
        """Remove a preset, unless it is the default preset."""
        self.disabled_reasons.pop(name, None)
        if name != self.default_preset.name:
            self.presets.pop(name, None)
            self.versions.pop(name, None)

    async def resolve(self, scopes: Sequence[str]) -> ActiveCharacters:
        """Return the active presets of a channel, given its scopes, narrowest first."""
        settings = await self._chat_settings.get_scopes(scopes)
        return await self._resolve_chosen_characters(settings, scopes)

    async def resolve_for_message(
        self, message: IncomingMessage
    ) -> tuple[ActiveCharacters, frozenset[str]]:
        """Return the presets active for a message, and the people in the message who opted out.

        Other settings needed for the message are loaded into the cache with the same query.
        """
        person_ids = find_person_ids(message)
        personal_scopes = setting_scopes(person_ids[0], message.scopes)
        scopes = [*message.scopes, INSTALLATION, *personal_scopes, *person_ids[1:]]
        settings = await self._chat_settings.get_scopes(scopes)
        opted_out_ids = {
            person_id
            for person_id in person_ids
            if settings.get(person_id, {}).get(CONSENT_KEY) == Consent.OFF
        }
        active_characters = await self._resolve_chosen_characters(settings, message.scopes)
        return active_characters, frozenset(opted_out_ids)

    async def _resolve_chosen_characters(
        self, settings: Mapping[str, Mapping[str, str]], scopes: Sequence[str]
    ) -> ActiveCharacters:
        setting = ChatSetting.find_setting(settings, scopes, PRESET_KEY)
        if setting is None:
            return self._default_characters
        members = []
        for line in setting.value.splitlines():  # names contain neither line breaks nor tabs
            name, _, behavior_name = line.partition("\t")
            preset, version = self.presets.get(name), self.versions.get(name)
            if OWNER_SEPARATOR in name:
                behavior_preset = self.presets.get(behavior_name, self.default_preset)
                preset, version = await self.characters.find(name, behavior_preset) or (None, None)
            if preset is None:  # removed or disabled after it was chosen
                reason = self.disabled_reasons.get(name, "")
                _log.warning("preset_missing", preset=name, scope=setting.scope, reason=reason)
            else:
                members.append(ActivePreset(preset, setting.scope, version))
        return ActiveCharacters(tuple(members)) if members else self._default_characters

    async def set_active_presets(
        self, scope: str, presets: Sequence[Preset], author: str, *, is_audited: bool = False
    ) -> None:
        """Set a scope's active presets; with none, the scope inherits those of a wider scope."""
        lines = (f"{preset.name}\t{preset.behavior_preset_name}".rstrip("\t") for preset in presets)
        value = "\n".join(lines) or None
        await self._chat_settings.set(scope, PRESET_KEY, value, author, is_audited=is_audited)

    async def check_adults_only(self, preset: Preset, event: IncomingMessage | ChatJoin) -> None:
        """Raise `UserError` (in DMs: `AgeUnconfirmed`) if an adults-only preset may not answer."""
        if not preset.adults_only or event.is_age_restricted:
            return
        name = preset.character_name
        if event.is_private:
            author_id = event.author.id if event.author else ""
            if not await self._chat_settings.get_all([author_id], AGE_CONFIRMATION_KEY):
                raise AgeUnconfirmed(translatable(_CONFIRM_AGE_QUESTION, name=name))
        elif event.is_age_restricted is not None:
            raise UserError(translatable(_NOT_AGE_RESTRICTED_REFUSAL, name=name))
        elif not await self._chat_settings.resolve(event.scopes, ADULTS_ONLY_KEY):
            raise UserError(translatable(_NOT_ADULT_GROUP_REFUSAL, name=name))

    async def may_observe(self, scopes: Sequence[str]) -> bool:
        """Return whether messages that do not address the bot may be stored in a channel."""
        setting = await self.find_observing_setting(scopes)
        return setting is None or setting.value != "off"

    async def find_observing_setting(self, scopes: Sequence[str]) -> ChatSetting | None:
        """Return the channel's observing setting, "on" or "off"; None means the default, on."""
        return await self._chat_settings.resolve(scopes, OBSERVE_KEY)

    async def find_consent(self, person_id: str) -> Consent | None:
        """Return the consent that a person chose, or None, which counts as `Consent.HERE`."""
        value = (await self._chat_settings.get_all([person_id], CONSENT_KEY)).get(person_id)
        return Consent(value) if value in list(Consent) else None  # newer versions may store others

    async def find_opted_out(self, person_ids: Iterable[str]) -> frozenset[str]:
        """Return the ids of the people among these who opted out (`Consent.OFF`)."""
        unique_ids = list(dict.fromkeys(person_ids))
        consents = await self._chat_settings.get_all(unique_ids, CONSENT_KEY) if unique_ids else {}
        return frozenset(person_id for person_id, value in consents.items() if value == Consent.OFF)

    async def remove_opted_out_turns(self, turns: Sequence[Turn]) -> tuple[Turn, ...]:
        """Return the turns, except those by people who opted out and the answers to them."""
        opted_out_ids = await self.find_opted_out(turn.speaker.id for turn in turns if turn.speaker)
        return remove_turns_of(opted_out_ids, turns)

    def find(self, name: str) -> Preset:
        """Return the preset with a name, ignoring case; raises `UserError` with suggestions."""
        try:
            return find_preset(self.presets, name, self.disabled_reasons)
        except PresetError as error:
            raise UserError(error.args[0]) from None

    async def find_named_preset(
        self, name_or_id: str, message: Request, active_characters: ActiveCharacters
    ) -> Preset:
        """Return a preset, or a character of the chat's owner, by its name; raises `UserError`."""
        owned_characters = await self.characters.list_descriptions(find_character_owner(message))
        sought_id = preset_id(name_or_id.strip())
        operator_preset_ids = map(preset_id, (*self.presets, *self.disabled_reasons))
        for name in () if sought_id in operator_preset_ids else owned_characters:
            if sought_id in {preset_id(name), preset_id(display_name(name))}:
                behavior_preset = self.find_behavior_preset(active_characters)
                character = await self.characters.find(name, behavior_preset)
                if character is not None:
                    return character[0]
        return self.find(name_or_id)

    def find_behavior_preset(self, active_characters: ActiveCharacters) -> Preset:
        """Return the operator's preset that determines model and behavior in a channel."""
        preset = active_characters.first.preset
        return self.presets.get(preset.behavior_preset_name or preset.name, self.default_preset)

    async def list_descriptions(self, message: Request) -> dict[str, str]:
        """Return the descriptions of all presets and of the chat owner's characters, by name."""
        preset_descriptions = {one.name: one.description for one in self.presets.values()}
        owned_characters = await self.characters.list_descriptions(find_character_owner(message))
        descriptions = (preset_descriptions | owned_characters).items()
        return dict(sorted(descriptions, key=lambda one: preset_id(display_name(one[0]))))

    def character_names(self, preset_names: Iterable[str]) -> dict[str, str]:
        """Map presets' names to their characters' names; a missing preset keeps its own name."""
        presets, find_loaded_name = self.presets, self.characters.character_name
        return {
            name: presets[name].character_name if name in presets else find_loaded_name(name)
            for name in sorted(preset_names)
        }

    def complete(self, partial_name: str, names: Iterable[str] | None = None) -> Sequence[str]:
        """Return names (by default, presets) that contain `partial_name`; prefix matches first."""
        query, all_names = partial_name.strip().casefold(), self.presets if names is None else names
        matches = [name for name in sorted(all_names) if query in name.casefold()]
        return sorted(matches, key=lambda name: not name.casefold().startswith(query))

    def _to_active_preset(self, preset: Preset, scope: str | None) -> ActivePreset:
        return ActivePreset(preset, scope, self.versions.get(preset.name))


def find_character_owner(message: Request) -> str:
    """Return the owner of the characters usable in a chat: the person in private, or the server."""
    return message.author.id if message.is_private else message.scopes[-1]


INSTALLATION = "installation"
"""The scope of operators' settings for all chats."""
SCOPE_KEY = "scope"
_HISTORY_SCOPES: Mapping[ScopeName, HistoryScope | None] = {
    "channel": None,
    "user": HistoryScope.USER,
    "thread": HistoryScope.THREAD,
    "reply_chain": HistoryScope.REPLIES,
}
SCOPE_DESCRIPTIONS: Mapping[HistoryScope, str] = {
    HistoryScope.SHARED: marked("everybody here shares one conversation"),
    HistoryScope.USER: marked("each person has a separate conversation"),
    HistoryScope.THREAD: marked("everybody in a thread or topic shares one conversation"),
    HistoryScope.REPLIES: marked(
        "each reply chain is a separate conversation; any other message starts a new one"
    ),
}


@dataclass(eq=False)
class HistoryScopes:
    """Finds a channel's history scope: an admin's choice, or the preset's."""

    chat_settings: ChatSettings
    resolver: PresetResolver

    async def find(
        self, scopes: Sequence[str], person_id: str | None = None
    ) -> HistoryScope | None:
        """Return the history scope, or None if all messages share one history; fill the cache."""
        personal_scopes = setting_scopes(person_id, scopes) if person_id else ()
        settings = await self.chat_settings.get_scopes([*scopes, INSTALLATION, *personal_scopes])
        choices = [settings[one][SCOPE_KEY] for one in scopes if SCOPE_KEY in settings.get(one, ())]
        if choices and choices[0] in list(HistoryScope):  # a newer version may store other values
            return HistoryScope(choices[0])
        if all(one.scope == "channel" for one in self.resolver.presets.values()):
            return None
        active_characters = await self.resolver.resolve(scopes)
        return _HISTORY_SCOPES[active_characters.first.preset.scope]

    async def set_consent(self, person_id: str, consent: Consent | None) -> None:
        """Store a person's consent for all chats; None deletes the stored consent."""
        await self.chat_settings.set(person_id, CONSENT_KEY, consent, person_id)

    async def find_opted_out(self, events: Sequence[Incoming]) -> frozenset[str]:
        """Return the ids of people in these events who opted out; cache their other settings."""
        scopes_by_person = {one: event.scopes for event in events for one in find_person_ids(event)}
        all_scopes = [
            one for each, scopes in scopes_by_person.items() for one in setting_scopes(each, scopes)
        ]
        all_scopes += [INSTALLATION, *(one for event in events for one in event.scopes)]
        settings = await self.chat_settings.get_scopes(list(dict.fromkeys(all_scopes)))
        opted_out_ids = {
            one for one in scopes_by_person if settings.get(one, {}).get(CONSENT_KEY) == Consent.OFF
        }
        return frozenset(opted_out_ids)

    async def find_history_scope_setting(self, scopes: Sequence[str]) -> ChatSetting | None:
        """Return the setting in which an admin chose a channel's history scope, or None."""
        return await self.chat_settings.resolve(scopes, SCOPE_KEY)

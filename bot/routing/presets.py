"""The presets that answer in a channel, and whose messages share a history."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import structlog

from bot.chat.incoming import Said
from bot.chat.outgoing import Face, Limits
from bot.chat.session import ChatSetting, HistoryScope, Turn, scopes_of_person
from bot.errors import PresetError, SettingsError, StoreError, UserError
from bot.ports import ChatSettings
from bot.prompting.presets.files import find_preset
from bot.prompting.presets.preset import Preset, ScopeName
from bot.prompting.speakers import label_speakers
from bot.texts.text import marked, translatable
from bot.value_class import value_class

MAX_CHARACTERS = 8
"""In one channel; every prompt has to name all of them."""


@value_class
class ActivePreset:
    """A preset that answers in a channel, and the scope where it was chosen."""

    preset: Preset
    scope: str | None
    """The scope whose setting names it; None: nobody chose, it is the default."""
    version: int | None
    """The number of the preset's current edition; None if editions are not numbered."""


@value_class
class ActiveCharacters:
    """A channel's active presets, in the order they were added; at least one."""

    members: tuple[ActivePreset, ...]

    @property
    def first(self) -> ActivePreset:
        return self.members[0]

    @property
    def presets(self) -> list[Preset]:
        return [member.preset for member in self.members]

    @property
    def names(self) -> set[str]:
        """The names of the presets."""
        return {preset.name for preset in self.presets}

    @property
    def is_group(self) -> bool:
        return len(self.members) > 1

    @property
    def reads_all(self) -> bool:
        """Whether any of them reads messages between people."""
        return any(preset.context == "all" for preset in self.presets)

    def pick(self, names: Collection[str]) -> tuple[ActivePreset, ...]:
        """Return the members with these preset names, in that order."""
        by_name = {member.preset.name: member for member in self.members}
        return tuple(by_name[name] for name in names)

    def with_added(self, preset: Preset) -> list[Preset]:
        """Return the channel's presets with this one added, or raise `UserError`."""
        if preset.name in self.names:
            raise UserError(translatable("{name} is already active here.", name=preset.name))
        if len(self.members) >= MAX_CHARACTERS:
            raise UserError(
                translatable(
                    "{count} characters are active here, which is the maximum; remove one first"
                    " with /preset remove.",
                    count=MAX_CHARACTERS,
                )
            )
        return [*self.presets, preset]

    def with_removed(self, preset: Preset) -> list[Preset]:
        """Return the channel's presets with this one removed, or raise `UserError`."""
        if preset.name not in self.names:
            raise UserError(
                translatable(
                    "{name} is not active here; /preset list shows who is.", name=preset.name
                )
            )
        if not self.is_group:
            raise UserError(
                translatable(
                    "{name} is the only character here; /preset use replaces it with another.",
                    name=preset.name,
                )
            )
        return [one for one in self.presets if one.name != preset.name]

    def shown_as(
        self, speaker: ActivePreset, character_names: Mapping[str, str], limits: Limits
    ) -> tuple[str, Face | None]:
        """Return how the speaker is shown: a name line, or a face where supported."""
        preset, shows_faces = speaker.preset, limits.shows_faces
        is_named = preset.is_character if shows_faces else limits.names_only_speaker
        if not (self.is_group or is_named):
            return "", None
        name = label_speakers((), character_names).characters[preset.name]
        if shows_faces:
            return "", Face(name, preset.avatar, self.is_group)
        return limits.speaker_line.format(name) + "\n", None


_log = structlog.get_logger(__name__)
_PRESET_KEY = "preset"
_OBSERVE_KEY = "observe"
_OBSERVE_PERSON_KEY = "observe_person"

LoadPublished: TypeAlias = Callable[[str], Awaitable[tuple[Preset, int] | None]]
"""Return the newest version of a preset by its name, and its number; None: it was deleted.

May raise `SettingsError` or `StoreError`."""


class PresetResolver:
    """Finds the presets of the narrowest scope: thread or topic > channel > guild > default."""

    def __init__(
        self,
        presets: Mapping[str, Preset],
        default: str,
        chat_settings: ChatSettings,
        versions: Mapping[str, int] | None = None,
        disabled: Mapping[str, str] | None = None,
    ) -> None:
        """Check the presets; raises `SettingsError` if the default is missing or disabled."""
        self.presets = dict(presets)
        """By name, as they are now."""
        self.versions = dict(versions or {})
        """By the name of the preset; empty if versions are not numbered."""
        self.disabled = dict(disabled or {})
        """Why a preset cannot be used, by its name."""
        self._chat_settings = chat_settings
        self._load: LoadPublished | None = None
        self._stale: set[str] = set()
        try:
            self.default = find_preset(presets, default, self.disabled)
        except PresetError as error:
            raise SettingsError(f"TROUPE_DEFAULT_PRESET: {error}") from None
        self._default_alone = ActiveCharacters((self._activate(self.default, None),))

    def publish(self, preset: Preset, version: int) -> None:
        """Add a preset, or replace the one with its name."""
        self.presets[preset.name] = preset
        self.disabled.pop(preset.name, None)
        self.versions[preset.name] = version
        if preset.name == self.default.name:
            self.default = preset
            self._default_alone = ActiveCharacters((self._activate(preset, None),))

    def remove(self, name: str) -> None:
        """Remove a preset; the default preset stays."""
        self.disabled.pop(name, None)
        if name != self.default.name:
            self.presets.pop(name, None)
            self.versions.pop(name, None)

    def follow(self, load: LoadPublished) -> None:
        """Set the function that loads presets published by other processes."""
        self._load = load

    def mark_stale(self, names: Sequence[str]) -> None:
        """Mark presets as published by another process, to be reloaded."""
        self._stale |= set(names)

    async def _reload(self, load: LoadPublished) -> None:
        while self._stale:
            name = self._stale.pop()
            try:
                found = await load(name)
            except (SettingsError, StoreError) as error:  # what is known goes on answering
                _log.warning("preset_not_reloaded", preset=name, reason=str(error))
            else:
                if found is None:
                    self.remove(name)
                else:
                    self.publish(*found)

    async def resolve(self, scopes: Sequence[str]) -> ActiveCharacters:
        """Return a channel's active presets; scopes are narrowest first."""
        if self._stale and self._load is not None:
            await self._reload(self._load)
        setting = await self._chat_settings.resolve(scopes, _PRESET_KEY)
        if setting is None:
            return self._default_alone
        members = []
        for name in setting.value.splitlines():  # a preset's name has no line break
            preset = self.presets.get(name)
            if preset is None:  # its file was removed since it was chosen, or is disabled
                reason = self.disabled.get(name, "")
                _log.warning("preset_missing", preset=name, scope=setting.scope, reason=reason)
            else:
                members.append(self._activate(preset, setting.scope))
        return ActiveCharacters(tuple(members)) if members else self._default_alone

    async def set_active(
        self, scope: str, presets: Sequence[Preset], by: str, *, audited: bool = False
    ) -> None:
        """Activate exactly these presets in a scope; `by` is the admin's id."""
        value = "\n".join(preset.name for preset in presets)
        await self._chat_settings.set(scope, _PRESET_KEY, value, by, audited=audited)

    async def reset(self, scope: str, by: str, *, audited: bool = False) -> None:
        """Remove the choice made for this scope itself."""
        await self._chat_settings.set(scope, _PRESET_KEY, None, by, audited=audited)

    async def observes(self, scopes: Sequence[str]) -> bool:
        """Return whether messages between people may be remembered in a channel."""
        setting = await self.observing_setting(scopes)
        return setting is None or setting.value != "off"

    async def observing_setting(self, scopes: Sequence[str]) -> ChatSetting | None:
        """Return the setting, "on" or "off", and its scope; None means the default, on."""
        return await self._chat_settings.resolve(scopes, _OBSERVE_KEY)

    async def set_observing(
        self, scope: str, *, on: bool | None, by: str, audited: bool = False
    ) -> None:
        """Turn observing on or off in a scope; None inherits. `by` is the admin's id."""
        value = None if on is None else "on" if on else "off"
        await self._chat_settings.set(scope, _OBSERVE_KEY, value, by, audited=audited)

    async def set_observing_person(self, person: str, *, on: bool) -> None:
        """Allow or forbid remembering a person's messages to other people, in all chats."""
        await self._chat_settings.set(person, _OBSERVE_PERSON_KEY, None if on else "off", person)

    async def unobserved(self, people: Iterable[str]) -> frozenset[str]:
        """Return the ids of people whose messages must not be remembered."""
        ids = list(dict.fromkeys(people))
        return frozenset(await self._chat_settings.get_all(ids, _OBSERVE_PERSON_KEY))

    async def is_unobserved(self, said: Said) -> bool:
        """Return whether a message to other people is by somebody who opted out of observation."""
        is_said_to_bot = said.wake is not None or said.opened_from is not None
        return not is_said_to_bot and bool(await self.unobserved([said.author.id]))

    async def readable(self, turns: Sequence[Turn]) -> tuple[Turn, ...]:
        """Remove background turns by people who opted out of observation."""
        people = [one.speaker.id for one in turns if one.observed and one.speaker]
        unobserved = await self.unobserved(people) if people else frozenset()
        if not unobserved:
            return tuple(turns)
        speakers = (one.speaker.id if one.observed and one.speaker else "" for one in turns)
        return tuple(one for one, by in zip(turns, speakers, strict=True) if by not in unobserved)

    def find(self, name: str) -> Preset:
        """Find a preset by name, ignoring case; raises `UserError` with the closest name."""
        try:
            return find_preset(self.presets, name, self.disabled)
        except PresetError as error:
            raise UserError(error.args[0]) from None

    def character_names(self, presets: Iterable[str]) -> dict[str, str]:
        """Return each preset's character name; the preset's own name if its file is missing."""
        known = self.presets
        return {
            name: known[name].character_name if name in known else name for name in sorted(presets)
        }

    def complete(self, partial: str) -> Sequence[str]:
        """Suggest preset names for a partial input; prefix matches come first."""
        typed = partial.strip().casefold()
        matching = [name for name in sorted(self.presets) if typed in name.casefold()]
        return sorted(matching, key=lambda name: not name.casefold().startswith(typed))

    def _activate(self, preset: Preset, scope: str | None) -> ActivePreset:
        return ActivePreset(preset, scope, self.versions.get(preset.name))


INSTALLATION = "installation"
"""The scope of settings for all chats; operators make them."""
_SCOPE_KEY = "scope"
_SCOPES: Mapping[ScopeName, HistoryScope | None] = {
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
        "each reply chain is a conversation; a message that is not a reply begins one"
    ),
}


@dataclass(eq=False)
class HistoryScopes:
    """Whose messages share a history: an admin's choice for the channel, else the preset's."""

    chat_settings: ChatSettings
    resolver: PresetResolver

    async def find(
        self, scopes: Sequence[str], person_id: str | None = None
    ) -> HistoryScope | None:
        """Return a channel's history scope; None means nobody chose one, so that all share it.

        The author's and the installation's settings are read with it, to save later queries.
        """
        own = scopes_of_person(person_id, scopes) if person_id else ()
        found = await self.chat_settings.get_scopes([*scopes, INSTALLATION, *own])
        chosen = [found[one][_SCOPE_KEY] for one in scopes if _SCOPE_KEY in found.get(one, ())]
        if chosen and chosen[0] in list(HistoryScope):  # a newer version may know others
            return HistoryScope(chosen[0])
        if all(one.scope == "channel" for one in self.resolver.presets.values()):
            return None
        active = await self.resolver.resolve(scopes)
        return _SCOPES[active.first.preset.scope]

    async def setting(self, scopes: Sequence[str]) -> ChatSetting | None:
        """Return an admin's choice for a channel, or the one it inherits."""
        return await self.chat_settings.resolve(scopes, _SCOPE_KEY)

    async def set(
        self, scope: str, value: HistoryScope | None, by: str, *, audited: bool = False
    ) -> None:
        """Set a channel's history scope; None inherits. Existing messages keep their history."""
        await self.chat_settings.set(scope, _SCOPE_KEY, value, by, audited=audited)

"""Which presets answer in a channel, and whose messages share a history."""

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
    """A preset that answers in a channel, and where it was chosen."""

    preset: Preset
    scope: str | None
    """The scope whose setting names it; None: nobody chose, it is the default."""
    version: int | None
    """The number of the preset's current edition; None if editions are not numbered."""


@value_class
class ActiveCharacters:
    """All presets that answer in one channel, in the order they were added; at least one."""

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
        """Whether any of them reads what people say to each other."""
        return any(preset.context == "all" for preset in self.presets)

    def pick(self, names: Collection[str]) -> tuple[ActivePreset, ...]:
        """Return the members with these preset names, in the order of the names."""
        by_name = {member.preset.name: member for member in self.members}
        return tuple(by_name[name] for name in names)

    def with_added(self, preset: Preset) -> list[Preset]:
        """Return the presets of the channel once this one has joined, or raise `UserError`."""
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
        """Return the presets of the channel once this one has left, or raise `UserError`."""
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
        """Return what shows readers who speaks: a line, or a face where the platform has faces."""
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
    """Resolve presets from the narrowest scope out: thread or topic > channel > guild > default."""

    def __init__(
        self,
        presets: Mapping[str, Preset],
        default: str,
        chat_settings: ChatSettings,
        versions: Mapping[str, int] | None = None,
        disabled: Mapping[str, str] | None = None,
    ) -> None:
        """Take the presets; raises `SettingsError` if the default one is missing or disabled."""
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
        """Add a preset, or replace the one of its name."""
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
        """Read presets that another process has published before the next answer."""
        self._load = load

    def mark_stale(self, names: Sequence[str]) -> None:
        """Note that another process has published these presets."""
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
        """Return the presets that answer in a channel with these scopes, narrowest first."""
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
        """Make these presets, and no others, answer in a scope; `by` is the admin's id."""
        value = "\n".join(preset.name for preset in presets)
        await self._chat_settings.set(scope, _PRESET_KEY, value, by, audited=audited)

    async def reset(self, scope: str, by: str, *, audited: bool = False) -> None:
        """Remove the choice for exactly this scope."""
        await self._chat_settings.set(scope, _PRESET_KEY, None, by, audited=audited)

    async def observes(self, scopes: Sequence[str]) -> bool:
        """Return whether messages between people may be remembered in a channel."""
        setting = await self.observing_setting(scopes)
        return setting is None or setting.value != "off"

    async def observing_setting(self, scopes: Sequence[str]) -> ChatSetting | None:
        """Return "on" or "off" with the scope that says so; None: nobody chose, it is on."""
        return await self._chat_settings.resolve(scopes, _OBSERVE_KEY)

    async def set_observing(
        self, scope: str, *, on: bool | None, by: str, audited: bool = False
    ) -> None:
        """Allow or forbid observing in a scope; None: inherit. `by` is the admin's id."""
        value = None if on is None else "on" if on else "off"
        await self._chat_settings.set(scope, _OBSERVE_KEY, value, by, audited=audited)

    async def set_observing_person(self, person: str, *, on: bool) -> None:
        """Allow or forbid remembering a person's messages to others, in all chats."""
        await self._chat_settings.set(person, _OBSERVE_PERSON_KEY, None if on else "off", person)

    async def unobserved(self, people: Iterable[str]) -> frozenset[str]:
        """Return the ids of the people who have forbidden remembering their messages."""
        ids = list(dict.fromkeys(people))
        return frozenset(await self._chat_settings.get_all(ids, _OBSERVE_PERSON_KEY))

    async def is_unobserved(self, said: Said) -> bool:
        """Return whether a message to others is by somebody who has forbidden remembering it."""
        is_said_to_bot = said.wake is not None or said.opened_from is not None
        return not is_said_to_bot and bool(await self.unobserved([said.author.id]))

    async def readable(self, turns: Sequence[Turn]) -> tuple[Turn, ...]:
        """Leave out background turns by people who do not want to be observed."""
        people = [one.speaker.id for one in turns if one.observed and one.speaker]
        unobserved = await self.unobserved(people) if people else frozenset()
        if not unobserved:
            return tuple(turns)
        speakers = (one.speaker.id if one.observed and one.speaker else "" for one in turns)
        return tuple(one for one, by in zip(turns, speakers, strict=True) if by not in unobserved)

    def find(self, name: str) -> Preset:
        """Find a preset by its name in any case; raise `UserError` with the nearest name."""
        try:
            return find_preset(self.presets, name, self.disabled)
        except PresetError as error:
            raise UserError(error.args[0]) from None

    def character_names(self, presets: Iterable[str]) -> dict[str, str]:
        """Return the name of each preset's character; the preset's own if its file is gone."""
        known = self.presets
        return {
            name: known[name].character_name if name in known else name for name in sorted(presets)
        }

    def complete(self, partial: str) -> Sequence[str]:
        """Suggest preset names for a partial input: first those that start with it."""
        typed = partial.strip().casefold()
        matching = [name for name in sorted(self.presets) if typed in name.casefold()]
        return sorted(matching, key=lambda name: not name.casefold().startswith(typed))

    def _activate(self, preset: Preset, scope: str | None) -> ActivePreset:
        return ActivePreset(preset, scope, self.versions.get(preset.name))


_SCOPE_KEY = "scope"
_SCOPES: Mapping[ScopeName, HistoryScope | None] = {
    "channel": None,
    "user": HistoryScope.USER,
    "thread": HistoryScope.THREAD,
    "reply_chain": HistoryScope.REPLIES,
}
SCOPE_DESCRIPTIONS: Mapping[HistoryScope, str] = {
    HistoryScope.SHARED: marked("everybody here shares one conversation"),
    HistoryScope.USER: marked("each person has a conversation of their own"),
    HistoryScope.THREAD: marked("everybody in a thread or topic shares one conversation"),
    HistoryScope.REPLIES: marked(
        "each chain of replies is a conversation; a message that replies to nothing begins one"
    ),
}


@dataclass(eq=False)
class HistoryScopes:
    """Whose messages share a history: an admin's choice for the channel, else its preset's."""

    chat_settings: ChatSettings
    resolver: PresetResolver

    async def find(
        self, scopes: Sequence[str], person_id: str | None = None
    ) -> HistoryScope | None:
        """Return the scope of a channel; None: nobody chose one, and everybody shares it.

        The settings of the person to be answered are read in the same go, to save a query later.
        """
        own = scopes_of_person(person_id, scopes) if person_id else ()
        found = await self.chat_settings.get_scopes([*scopes, *own])
        chosen = [found[one][_SCOPE_KEY] for one in scopes if _SCOPE_KEY in found.get(one, ())]
        if chosen and chosen[0] in list(HistoryScope):  # a newer version may know others
            return HistoryScope(chosen[0])
        if all(one.scope == "channel" for one in self.resolver.presets.values()):
            return None
        active = await self.resolver.resolve(scopes)
        return _SCOPES[active.first.preset.scope]

    async def setting(self, scopes: Sequence[str]) -> ChatSetting | None:
        """Return an admin's choice for a channel, or for what is around it."""
        return await self.chat_settings.resolve(scopes, _SCOPE_KEY)

    async def set(
        self, scope: str, value: HistoryScope | None, by: str, *, audited: bool = False
    ) -> None:
        """Choose for a channel; None: inherit. What was said keeps its history."""
        await self.chat_settings.set(scope, _SCOPE_KEY, value, by, audited=audited)

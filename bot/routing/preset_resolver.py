"""Look up which presets answer in a channel and what is observed there, and change it."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import structlog

from bot.chat.incoming import Said
from bot.chat.session import ChatSetting, Turn
from bot.errors import PresetError, SettingsError, StoreError, UserError
from bot.ports import ChatSettings
from bot.prompting.presets.files import find_preset
from bot.prompting.presets.preset import Preset
from bot.routing.active_presets import ActiveCharacters, ActivePreset

_log = structlog.get_logger(__name__)
_KEY = "preset"
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
        """Check that the default preset can be used.

        Args:
            presets: those that can be used, by name.
            default: the name of the default preset.
            chat_settings: which presets were chosen where.
            versions: the numbers of the presets' current editions.
            disabled: why other presets cannot be used, by name.

        Raises:
            SettingsError: there is no such preset, or it is disabled.
        """
        self._presets = dict(presets)
        self._versions = dict(versions or {})
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

    @property
    def presets(self) -> Mapping[str, Preset]:
        """By name, as they are now."""
        return self._presets

    @property
    def versions(self) -> Mapping[str, int]:
        """By the name of the preset; empty if versions are not numbered."""
        return self._versions

    def publish(self, preset: Preset, version: int) -> None:
        """Let a preset answer from now on, in place of the one of its name if there is one."""
        self._presets[preset.name] = preset
        self.disabled.pop(preset.name, None)
        self._versions[preset.name] = version
        if preset.name == self.default.name:
            self.default = preset
            self._default_alone = ActiveCharacters((self._activate(preset, None),))

    def remove(self, name: str) -> None:
        """Let a preset answer nowhere any more; the default preset stays."""
        self.disabled.pop(name, None)
        if name != self.default.name:
            self._presets.pop(name, None)
            self._versions.pop(name, None)

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
        setting = await self._chat_settings.resolve(scopes, _KEY)
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
        await self._chat_settings.set(scope, _KEY, value, by, audited=audited)

    async def reset(self, scope: str, by: str, *, audited: bool = False) -> None:
        """Remove the choice that was made in this very scope."""
        await self._chat_settings.set(scope, _KEY, None, by, audited=audited)

    async def observes(self, scopes: Sequence[str]) -> bool:
        """Return whether what is not said to the bot may be remembered in a channel."""
        setting = await self.observing_setting(scopes)
        return setting is None or setting.value != "off"

    async def observing_setting(self, scopes: Sequence[str]) -> ChatSetting | None:
        """Return "on" or "off" with the scope that says so; None: nobody chose, it is on."""
        return await self._chat_settings.resolve(scopes, _OBSERVE_KEY)

    async def set_observing(
        self, scope: str, *, on: bool | None, by: str, audited: bool = False
    ) -> None:
        """Allow or forbid that in a scope; None: as in the wider scope. `by` is the admin's id."""
        value = None if on is None else "on" if on else "off"
        await self._chat_settings.set(scope, _OBSERVE_KEY, value, by, audited=audited)

    async def set_observing_person(self, person: str, *, on: bool) -> None:
        """Allow or forbid, in all chats, to remember what a person does not say to the bot."""
        await self._chat_settings.set(person, _OBSERVE_PERSON_KEY, None if on else "off", person)

    async def unobserved(self, people: Iterable[str]) -> frozenset[str]:
        """Return those of these people, by their ids, who have forbidden that."""
        ids = list(dict.fromkeys(people))
        return frozenset(await self._chat_settings.get_all(ids, _OBSERVE_PERSON_KEY))

    async def is_unobserved(self, said: Said) -> bool:
        """Return whether a message is not said to the bot, by somebody who has forbidden that."""
        is_said_to_bot = said.wake is not None or said.opened_from is not None
        return not is_said_to_bot and bool(await self.unobserved([said.author.id]))

    async def readable(self, turns: Sequence[Turn]) -> tuple[Turn, ...]:
        """Leave out what people said to each other who have forbidden to remember it."""
        people = [one.speaker.id for one in turns if one.observed and one.speaker]
        unobserved = await self.unobserved(people) if people else frozenset()
        if not unobserved:
            return tuple(turns)
        return tuple(
            one
            for one in turns
            if not (one.observed and one.speaker and one.speaker.id in unobserved)
        )

    def find(self, name: str) -> Preset:
        """Find a preset by its name in any case.

        Raises:
            UserError: there is none, or it is disabled; the text suggests the nearest name, or
                gives the reason.
        """
        try:
            return find_preset(self.presets, name, self.disabled)
        except PresetError as error:
            raise UserError(error.args[0]) from None

    def character_names(self, presets: Iterable[str]) -> dict[str, str]:
        """Return the name of each preset's character; the preset's own if its file is gone."""
        return {
            name: self.presets[name].character_name if name in self.presets else name
            for name in sorted(presets)
        }

    def complete(self, partial: str) -> Sequence[str]:
        """Suggest preset names for a partial input: first those that start with it."""
        typed = partial.strip().casefold()
        matching = [name for name in sorted(self.presets) if typed in name.casefold()]
        return sorted(matching, key=lambda name: not name.casefold().startswith(typed))

    def _activate(self, preset: Preset, scope: str | None) -> ActivePreset:
        return ActivePreset(preset, scope, self.versions.get(preset.name))

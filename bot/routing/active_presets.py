"""Who answers where: the presets of a place, and from where the place has them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from bot.errors import PresetError, SettingsError, UserError
from bot.ports import ChatSettings
from bot.prompting.presets.files import find_preset
from bot.prompting.presets.preset import Preset

_log = structlog.get_logger(__name__)
_KEY = "preset"
_MOST_CHARACTERS = 8  # in one place; each has to be told of all others


@dataclass(frozen=True, slots=True)
class ActivePreset:
    """A preset, and the scope that it was chosen in; None: nobody chose, it is the default."""

    preset: Preset
    scope: str | None
    version: int | None  # None: nobody numbered it


class PresetResolver:
    """Presets resolve from the narrowest scope out: topic or thread > channel > guild > default."""

    def __init__(
        self,
        presets: Mapping[str, Preset],
        default: str,
        choices: ChatSettings,
        versions: Mapping[str, int] | None = None,
    ) -> None:
        """Raises `SettingsError` when there is no preset with the default's name."""
        self.presets = presets
        self.versions = versions or {}
        self._choices = choices
        try:
            self.default = find_preset(presets, default)
        except PresetError as error:
            raise SettingsError(f"TROUPE_DEFAULT_PRESET: {error}") from None

    async def resolve_first(self, scopes: Sequence[str]) -> ActivePreset:
        """Who answers here, or the first of those who do."""
        first, *_ = await self.resolve(scopes)
        return first

    async def resolve(self, scopes: Sequence[str]) -> tuple[ActivePreset, ...]:
        """Everybody who answers here, in the order in which they were added; at least one."""
        choice = await self._choices.resolve(scopes, _KEY)
        if choice is None:
            return (self._cast(self.default, None),)
        here = []
        for name in choice.value.splitlines():  # a preset's name has no line break
            preset = self.presets.get(name)
            if preset is None:  # its file was taken away since
                _log.warning("preset_missing", preset=name, scope=choice.scope)
            else:
                here.append(self._cast(preset, choice.scope))
        return tuple(here) or (self._cast(self.default, None),)

    def character_names(self, presets: Iterable[str]) -> dict[str, str]:
        """What these presets' characters are called; one whose file is gone goes by its name."""
        return {
            name: self.presets[name].plays_as if name in self.presets else name
            for name in sorted(presets)
        }

    def _cast(self, preset: Preset, scope: str | None) -> ActivePreset:
        return ActivePreset(preset, scope, self.versions.get(preset.name))

    def find(self, name: str) -> Preset:
        """Find a preset by name in any case; raises `UserError` that tells the nearest name."""
        try:
            return find_preset(self.presets, name)
        except PresetError as error:
            raise UserError(str(error)) from None

    async def use(self, scope: str, preset: Preset, by: str) -> None:
        """Let this one alone answer here."""
        await self._choices.set(scope, _KEY, preset.name, by)

    async def add(self, scopes: Sequence[str], preset: Preset, by: str) -> Sequence[Preset]:
        """Let this one answer here, too; raises `UserError` if it does. Gives all who do now."""
        here = [cast.preset for cast in await self.resolve(scopes)]
        if preset in here:
            raise UserError(f"{preset.name} is here already.")
        if len(here) >= _MOST_CHARACTERS:
            raise UserError(
                f"{_MOST_CHARACTERS} are here already; /preset remove one of them first."
            )
        return await self._set(scopes[0], [*here, preset], by)

    async def remove(self, scopes: Sequence[str], preset: Preset, by: str) -> Sequence[Preset]:
        """Let all others go on without it; raises `UserError` if there are none."""
        here = [cast.preset for cast in await self.resolve(scopes)]
        if preset not in here:
            raise UserError(f"{preset.name} is not here; /preset list says who is.")
        if len(here) == 1:
            raise UserError(
                f"{preset.name} is the only one here; /preset use puts another in its place."
            )
        return await self._set(scopes[0], [one for one in here if one != preset], by)

    async def _set(self, scope: str, here: Sequence[Preset], by: str) -> Sequence[Preset]:
        await self._choices.set(scope, _KEY, "\n".join(one.name for one in here), by)
        return here

    async def reset(self, scope: str, by: str) -> None:
        """Unset what was chosen in this very scope."""
        await self._choices.set(scope, _KEY, None, by)

    def complete(self, partial: str) -> Sequence[str]:
        """Names to suggest while somebody types: those that begin so, then those that hold it."""
        typed = partial.strip().casefold()
        fitting = [name for name in sorted(self.presets) if typed in name.casefold()]
        return sorted(fitting, key=lambda name: not name.casefold().startswith(typed))

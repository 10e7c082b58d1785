"""Who answers where: the preset of a place, and from where the place has it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from bot.errors import PresetError, SettingsError, UserError
from bot.ports import Choices
from bot.prompting.preset import Preset
from bot.prompting.presets import find_preset

_log = structlog.get_logger(__name__)
_KEY = "preset"


@dataclass(frozen=True, slots=True)
class Cast:
    """A preset, and the scope that it was chosen in; None: nobody chose, it is the default."""

    preset: Preset
    scope: str | None
    version: int | None  # None: nobody numbered it


class Casting:
    """Presets resolve from the narrowest scope out: topic or thread > channel > guild > default."""

    def __init__(
        self,
        presets: Mapping[str, Preset],
        default: str,
        choices: Choices,
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

    async def cast(self, scopes: Sequence[str]) -> Cast:
        choice = await self._choices.chosen(scopes, _KEY)
        if choice is None:
            return self._cast(self.default, None)
        preset = self.presets.get(choice.value)
        if preset is None:  # its file was taken away since
            _log.warning("preset_missing", preset=choice.value, scope=choice.scope)
            return self._cast(self.default, None)
        return self._cast(preset, choice.scope)

    def _cast(self, preset: Preset, scope: str | None) -> Cast:
        return Cast(preset, scope, self.versions.get(preset.name))

    def find(self, name: str) -> Preset:
        """Find a preset by name in any case; raises `UserError` that tells the nearest name."""
        try:
            return find_preset(self.presets, name)
        except PresetError as error:
            raise UserError(str(error)) from None

    async def use(self, scope: str, preset: Preset, by: str) -> None:
        await self._choices.choose(scope, _KEY, preset.name, by)

    async def reset(self, scope: str, by: str) -> None:
        await self._choices.choose(scope, _KEY, None, by)

    def complete(self, partial: str) -> Sequence[str]:
        """Names to suggest while somebody types: those that begin so, then those that hold it."""
        typed = partial.strip().casefold()
        fitting = [name for name in sorted(self.presets) if typed in name.casefold()]
        return sorted(fitting, key=lambda name: not name.casefold().startswith(typed))

"""Presets that the console publishes: a process follows those that another has published."""

from collections.abc import Sequence

from bot.prompting.presets.files import parse_preset
from bot.prompting.presets.preset import Preset
from bot.service.backends import add_backends
from bot.service.parts.run_context import RunContext
from bot.service.parts.stored import StoredParts
from bot.service.run_options import replace_model

_PUBLISHED_PRESETS = "presets"


class PublishedPresets:
    """Loads and announces published versions of presets."""

    def __init__(self, context: RunContext, stored: StoredParts) -> None:
        self._context = context
        self._stored = stored

    def follow(self) -> None:
        """Use what other processes publish from now on."""
        resources = self._context.resources
        resources.resolver.follow(self._load)
        resources.signals.subscribe(_PUBLISHED_PRESETS, resources.resolver.mark_stale)

    def announce(self, names: Sequence[str]) -> None:
        """Tell all processes that presets have a newer version."""
        self._context.resources.signals.publish(_PUBLISHED_PRESETS, names)

    def prepare(self, preset: Preset) -> Preset:
        """Make the backends of a preset ready; return it as this run uses it."""
        settings, models = self._context.settings, self._context.models
        presets = replace_model({preset.name: preset}, self._context.options.model, settings)
        add_backends(
            models.backends, settings, presets.values(), models.renderer, models.session_key
        )
        return presets[preset.name]

    async def _load(self, name: str) -> tuple[Preset, int] | None:
        """Return the newest version of a preset that another process has published or deleted."""
        newest = await self._stored.preset_versions.newest(name)
        if newest is None or not newest.content:
            return None
        preset = parse_preset(newest.content, f"preset {name!r}")
        is_answering = self._context.resources.models is not None
        return self.prepare(preset) if is_answering else preset, newest.version

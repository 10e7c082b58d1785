"""Presets that change while the service runs: published by a console, or files read again."""

import asyncio
import secrets
from collections.abc import Mapping, Sequence

import structlog

from bot.chat.session import PresetVersion
from bot.errors import PresetError, SettingsError, StoreError
from bot.importers.character_files import load_complete_presets
from bot.prompting.presets.files import export_preset, find_preset, parse_preset, preset_version
from bot.prompting.presets.preset import Preset
from bot.runtime.shipped_files import presets_folder
from bot.service.backends import add_backends
from bot.service.parts.run_context import RunContext
from bot.service.parts.stored import StoredParts
from bot.service.run_options import replace_model

_log = structlog.get_logger(__name__)
_PUBLISHED_PRESETS = "presets"
_ROW = "published preset "
"""With the preset's name behind it, a row that has another value after each publishing."""
_LOOK_SECONDS = 2.0


class PublishedPresets:
    """Loads and announces published versions of presets."""

    def __init__(self, context: RunContext, stored: StoredParts) -> None:
        self._context = context
        self._stored = stored
        self._file_contents = _contents(context.resources.file_presets)
        """Of the presets folder as this process knows it, by the name of the preset."""
        self._seen: Mapping[str, str] | None = None
        """The rows of the last look; None: there was none."""

    def follow(self) -> None:
        """Use what other processes publish from now on."""
        resources = self._context.resources
        resources.resolver.follow(self._load)
        resources.signals.subscribe(_PUBLISHED_PRESETS, resources.resolver.mark_stale)

    async def announce(self, names: Sequence[str]) -> None:
        """Tell all processes that presets have a newer version; raises `StoreError`."""
        resources = self._context.resources
        for name in names:  # its file was written, or deleted, by this process
            self._file_contents.pop(name, None)
            if name in resources.resolver.presets:
                self._file_contents |= _contents({name: resources.resolver.presets[name]})
        await self._tell(names)

    async def _tell(self, names: Sequence[str]) -> None:
        """Leave a row for processes that miss the signal, and send that."""
        rows = {f"{_ROW}{name}": secrets.token_hex(4) for name in names}
        await self._stored.inbox.receive((), rows)
        self._context.resources.signals.publish(_PUBLISHED_PRESETS, names)

    async def watch(self) -> None:
        """Look every two seconds for what was published without a signal, until cancelled."""
        while True:
            try:
                await self.look()
            except StoreError as error:
                _log.warning("store_failed", reason=str(error))
            await self._context.clock.sleep(_LOOK_SECONDS)

    async def look(self) -> None:
        """Read before the next answer what was published since the last look."""
        rows = await self._stored.inbox.cursors(_ROW)
        seen = rows if self._seen is None else self._seen
        new = [name.removeprefix(_ROW) for name in rows if rows[name] != seen.get(name)]
        self._context.resources.resolver.mark_stale(new)
        self._seen = rows

    async def reload_files(self) -> None:
        """Read the presets folder again, and let every process use what has changed in it.

        Files that did not change since this process read them are left alone: a console on another
        machine may have published a newer version. If the folder cannot be read, or a preset in it
        is invalid, all presets stay as they are, and the log says why.
        """
        resources = self._context.resources
        folder = presets_folder(self._context.settings.presets_dir)
        try:
            presets = await asyncio.to_thread(load_complete_presets, folder)
            find_preset(presets, resources.resolver.default.name)
            names = await self._use_changes(presets)
            if names:
                await self._tell(names)
        except (PresetError, SettingsError, StoreError, OSError) as error:
            _log.error("presets_not_reloaded", reason=str(error))
            return
        self._file_contents = _contents(presets)
        _log.info("presets_reloaded", changed=names)

    async def _use_changes(self, presets: Mapping[str, Preset]) -> list[str]:
        """Store and use the presets whose files have changed; return their names."""
        resolver, versions = self._context.resources.resolver, self._stored.preset_versions
        contents = _contents(presets)
        changed = [name for name in contents if contents[name] != self._file_contents.get(name)]
        deleted = sorted(self._file_contents.keys() - contents.keys())
        prepared = [self._prepare_if_used(presets[name]) for name in changed]
        numbers = await versions.save(
            [
                *(preset_version(presets[name]) for name in changed),
                *(PresetVersion(name, "", 1) for name in deleted),
            ]
        )
        for preset in prepared:
            resolver.publish(preset, numbers[preset.name])
        for name in deleted:
            resolver.remove(name)
        return [*changed, *deleted]

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
        return self._prepare_if_used(preset), newest.version

    def _prepare_if_used(self, preset: Preset) -> Preset:
        """Make the backends of a preset ready where this process answers or describes answers."""
        is_answering = self._context.resources.models is not None
        return self.prepare(preset) if is_answering else preset


def _contents(presets: Mapping[str, Preset]) -> dict[str, str]:
    return {name: export_preset(preset) for name, preset in presets.items()}

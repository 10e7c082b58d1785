"""Presets that change while the service runs: published in a console, or edited files."""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from bot.chat.session import PresetVersion
from bot.errors import SettingsError, StoreError
from bot.importers.character_files import read_character_folder
from bot.prompting.presets.files import PresetsInFolder, export_preset, parse_preset, to_version
from bot.prompting.presets.preset import Preset
from bot.prompting.text.preset_folder import read_file_stamps
from bot.runtime.shipped_files import presets_folder
from bot.service.backends import add_backends
from bot.service.jobs import repeat
from bot.service.options import replace_model
from bot.service.stores import StorageContainer
from bot.texts.text import error_text

_log = structlog.get_logger(__name__)
_CURSOR_PREFIX = "published preset "
"""The prefix of cursor names; a preset's cursor changes when a new version is published."""
_POLL_SECONDS = 2.0


class PublishedPresets:
    """Loads new versions of presets, and announces them to other processes."""

    def __init__(self, container: StorageContainer) -> None:
        self._container = container
        self._resources = resources = container.resources
        self._resolver = resources.resolver
        self._file_contents = _export_presets(resources.folder_presets.presets)
        """The last known contents of the presets folder, by preset name."""
        self._file_stamps = resources.preset_file_stamps
        self._last_known_names: Mapping[Path, str] = resources.folder_presets.names
        """The preset name of each file, including files that are now broken."""
        self._reported_problems: Mapping[str, str] = dict(self._resolver.disabled_reasons)
        """The problems that were already logged, by preset name."""
        self._last_polled_rows: Mapping[str, str] | None = None
        """The rows of the last poll; None before the first poll."""

    async def announce_changes(self, names: Sequence[str]) -> None:
        """Announce new versions of presets to all processes; raises `StoreError`."""
        presets = self._resolver.presets
        for name in names:  # this process wrote or deleted the file
            self._file_contents.pop(name, None)
            if name in presets:
                self._file_contents |= _export_presets({name: presets[name]})
        await self._signal_changes(names)

    async def _signal_changes(self, names: Sequence[str]) -> None:
        """Store a new random value for each changed preset; other processes poll these values."""
        rows = {f"{_CURSOR_PREFIX}{name}": secrets.token_hex(4) for name in names}
        await self._container.inbox.receive((), rows)

    async def watch_other_processes(self) -> None:
        """Poll for presets that other processes published, until cancelled."""
        await repeat(self.poll, self._container.clock, _POLL_SECONDS)

    async def poll(self) -> None:
        """Load the presets that were published since the last poll."""
        rows = await self._container.inbox.cursors(_CURSOR_PREFIX)
        old_rows = self._last_polled_rows or {}
        names = [key.removeprefix(_CURSOR_PREFIX) for key in rows if rows[key] != old_rows.get(key)]
        if self._last_polled_rows is None:  # one may have been published while this process started
            names = [name for name in names if name in self._resolver.presets]
        await self.reload_presets(names)
        self._last_polled_rows = rows

    async def reload_presets(self, names: Sequence[str]) -> None:
        """Load the newest versions of presets; if one is invalid, keep the version in use."""
        for name in names:
            version = await self._container.preset_versions.newest(name)
            if version is None or not version.content:
                self._resolver.remove(name)
                continue
            try:
                preset = self.prepare_preset(parse_preset(version.content, f"preset {name!r}"))
            except SettingsError as error:
                _log.warning("preset_not_reloaded", preset=name, reason=str(error))
            else:
                self._resolver.publish(preset, version.version)

    async def watch_files(self) -> None:
        """Check the presets folder every two seconds and publish changes, until cancelled."""
        while True:
            folder = presets_folder(self._container.settings.presets_dir)
            new_stamps = await asyncio.to_thread(read_file_stamps, folder)
            if new_stamps != self._file_stamps and await self.reload_and_publish():
                self._file_stamps = new_stamps
            await self._container.clock.sleep(_POLL_SECONDS)

    async def reload_and_publish(self) -> bool:
        """Publish changes in the presets folder; return False if they could not be stored.

        Unchanged files are ignored, because a console on another machine may have published a newer
        version. A preset whose file became invalid stays unchanged, as does the default preset if
        its file is missing; the log explains why.
        """
        try:
            folder = presets_folder(self._container.settings.presets_dir)
            files = await asyncio.to_thread(read_character_folder, folder)
            names = await self._activate_changes(files)
            if names:
                await self._signal_changes(names)
        except (SettingsError, StoreError, OSError) as error:
            _log.error("presets_not_reloaded", reason=str(error))
            return not isinstance(error, StoreError)
        if names:
            _log.info("presets_reloaded", changed=names)
        return True

    async def _activate_changes(self, files: PresetsInFolder) -> list[str]:
        """Store and activate the presets whose files have changed; return their names."""
        resolver = self._resolver
        problems = {
            self._last_known_names.get(file, files.names[file]): reason
            for file, reason in files.problems.items()
        }
        new_contents = _export_presets(files.presets)
        deleted_names = sorted(self._file_contents.keys() - new_contents.keys() - problems.keys())
        if resolver.default_preset.name in deleted_names:
            deleted_names.remove(resolver.default_preset.name)
            problems[resolver.default_preset.name] = "no file contains the default preset"
        changed_names, prepared_presets = [], []
        for name, content in new_contents.items():
            if content == self._file_contents.get(name) and name not in resolver.disabled_reasons:
                continue
            try:
                prepared_presets.append(self.prepare_preset(files.presets[name]))
                changed_names.append(name)
            except SettingsError as error:
                problems[name] = error_text(error)
        self._report_problems(problems)
        version_numbers = await self._container.preset_versions.save(
            [
                *(to_version(files.presets[name]) for name in changed_names),
                *(PresetVersion(name, "", 1) for name in deleted_names),
            ]
        )
        for preset in prepared_presets:
            resolver.publish(preset, version_numbers[preset.name])
        for name in deleted_names:
            resolver.remove(name)
            self._file_contents.pop(name)
        self._file_contents |= {name: new_contents[name] for name in changed_names}
        names = {file: name for file, name in files.names.items() if file not in files.problems}
        self._last_known_names = {**self._last_known_names, **names}
        return [*changed_names, *deleted_names]

    def _report_problems(self, problems: Mapping[str, str]) -> None:
        """Log each preset's problem once, and disable presets that never loaded successfully."""
        resolver = self._resolver
        for name, reason in problems.items():
            if self._reported_problems.get(name) != reason:
                _log.error("preset_not_reloaded", preset=name, reason=str(reason))
            if name not in resolver.presets:
                resolver.disabled_reasons[name] = reason
        for name in self._reported_problems.keys() - problems.keys():
            resolver.disabled_reasons.pop(name, None)
        self._reported_problems = problems

    def prepare_preset(self, preset: Preset) -> Preset:
        """Create a preset's missing backends; return the preset, with this run's model if set."""
        settings, models = self._container.settings, self._resources.models
        if models is None:
            return preset
        presets = replace_model({preset.name: preset}, self._container.options.model, settings)
        add_backends(
            models.backends, settings, presets.values(), models.renderer, models.id_hashing_key
        )
        return presets[preset.name]


def _export_presets(presets: Mapping[str, Preset]) -> dict[str, str]:
    return {name: export_preset(preset) for name, preset in presets.items()}

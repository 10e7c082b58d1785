"""Test that a running service reloads its presets when a file changes."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bot.backends.registry import EchoSettings
from bot.chat.session import PresetVersion
from bot.errors import UserError
from bot.platforms.registry import companion_platforms
from bot.service.container import Container
from bot.service.options import RunOptions
from bot.service.resources import open_resources
from bot.service.run import open_service
from bot.settings import Settings
from tests.waiting import PATIENCE_SECONDS, wait_until

OPTIONS = RunOptions(serves_http=False, answers_messages=False)


def write_preset(settings: Settings, name: str, **more: object) -> None:
    assert settings.presets_dir is not None
    preset = {"name": name, "provider": "test", "model": "m", **more}
    (settings.presets_dir / f"{name}.json").write_text(json.dumps(preset))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "presets").mkdir()
    made = Settings(
        data_dir=tmp_path / "data",
        presets_dir=tmp_path / "presets",
        default_preset="nora",
        providers={"test": EchoSettings()},
    )
    made.data_dir.mkdir()
    for name in ("nora", "nova"):
        write_preset(made, name, system="Old.")
    return made


@pytest.fixture
async def container(settings: Settings) -> AsyncIterator[Container]:
    async with open_resources(settings, (), pytest.fail, OPTIONS) as resources:
        yield Container(settings, resources, (), pytest.fail, OPTIONS)


async def announced_presets(container: Container) -> set[str]:
    """Return the names of the presets that other processes will reload."""
    rows = await container.inbox.cursors("published preset ")
    return {name.removeprefix("published preset ") for name in rows}


async def test_changed_preset_files_are_announced_to_other_processes(
    container: Container, settings: Settings
) -> None:
    resolver = container.resolver
    write_preset(settings, "nora", system="New.")
    write_preset(settings, "niko")
    (settings.presets_dir / "nova.json").unlink()  # type: ignore[operator]

    await container.published_presets.reload_and_publish()

    assert resolver.default_preset.system == "New."
    assert resolver.versions == {"nora": 2, "niko": 1}
    assert await announced_presets(container) == {"niko", "nora", "nova"}
    deleted = await container.preset_versions.newest("nova")
    assert deleted is not None
    assert deleted.content == ""


async def test_unchanged_file_does_not_revert_a_newer_version(container: Container) -> None:
    """A console on another machine has published a newer version."""
    resolver = container.resolver
    resolver.publish(resolver.presets["nova"].model_copy(update={"system": "Newer."}), 2)

    await container.published_presets.reload_and_publish()

    assert resolver.presets["nova"].system == "Newer."
    assert resolver.versions["nova"] == 2


@pytest.mark.parametrize("is_starting", [True, False])
async def test_other_process_finds_the_change_by_polling_the_database(
    container: Container, settings: Settings, *, is_starting: bool
) -> None:
    async with open_resources(settings, (), pytest.fail, OPTIONS) as resources:
        other, resolver = (
            Container(settings, resources, (), pytest.fail, OPTIONS),
            resources.resolver,
        )
        if not is_starting:
            await other.published_presets.poll()
        write_preset(settings, "nova", system="New.")
        await container.published_presets.reload_and_publish()
        assert resolver.presets["nova"].system == "Old."

        await other.published_presets.poll()
        assert resolver.presets["nova"].system == "New."
        assert resolver.versions["nova"] == 2

        await container.preset_versions.save([PresetVersion("nova", "{", 3)])
        await other.published_presets.reload_presets(["nova"])
        assert resolver.versions["nova"] == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "nora.json, line 1"),
        ('{"name": "nora", "provider": "gone", "model": "m"}', "'gone' is not set up"),
        ('{"name": "other", "provider": "test", "model": "m"}', "no file contains the default"),
        (None, "no file contains the default"),
    ],
)
async def test_invalid_file_keeps_its_preset_and_affects_no_other(
    container: Container, settings: Settings, content: str | None, reason: str
) -> None:
    resolver = container.resolver
    write_preset(settings, "nova", system="New.")
    broken = settings.presets_dir / "nora.json"  # type: ignore[operator]
    broken.unlink() if content is None else broken.write_text(content)

    with capture_logs() as logs:
        await container.published_presets.reload_and_publish()
        await container.published_presets.reload_and_publish()

    [problem] = [one for one in logs if one["event"] == "preset_not_reloaded"]
    assert problem["preset"] == "nora"
    assert reason in problem["reason"]
    assert resolver.default_preset.system == "Old."
    assert resolver.presets["nova"].system == "New."
    assert "nova" in await announced_presets(container)

    write_preset(settings, "nora", system="Right again.")
    await container.published_presets.reload_and_publish()
    assert resolver.default_preset.system == "Right again."


async def test_preset_is_disabled_by_a_bad_file(container: Container, settings: Settings) -> None:
    resolver = container.resolver
    write_preset(settings, "niko", provider="gone")
    await container.published_presets.reload_and_publish()
    with pytest.raises(UserError, match=r"niko is disabled: .* the provider 'gone'"):
        resolver.find("niko")

    write_preset(settings, "niko")
    await container.published_presets.reload_and_publish()
    assert resolver.find("niko").name == "niko"


async def test_presets_are_reloaded_on_file_changes_and_a_hangup_is_ignored(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    platforms, options = companion_platforms(), RunOptions(serves_http=False)
    opened = open_service(settings, lambda _: None, platforms, options)
    async with asyncio.timeout(PATIENCE_SECONDS), opened as service:
        write_preset(settings, "nova", system="New.")
        os.kill(os.getpid(), signal.SIGHUP)
        with capture_logs() as logs:
            serving = asyncio.create_task(service.serve())
            await wait_until(lambda: any(one["event"] == "presets_reloaded" for one in logs))
        assert not serving.done()
        os.kill(os.getpid(), signal.SIGTERM)
        await serving

"""Test that SIGHUP lets a running service read its presets folder again."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bot.backends.echo.settings import EchoSettings
from bot.platforms.registry import companion_platforms
from bot.service.resources import open_resources
from bot.service.run_options import RunOptions
from bot.service.service import running
from bot.service.wiring import Wiring
from bot.settings import Settings
from tests.waiting import wait_until

OPTIONS = RunOptions(has_port=False, answers_messages=False)


def write(settings: Settings, name: str, **more: object) -> None:
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
        write(made, name, system="Old.")
    return made


@pytest.fixture
async def wiring(settings: Settings) -> AsyncIterator[Wiring]:
    async with open_resources(settings, (), pytest.fail, OPTIONS) as resources:
        yield Wiring(settings, resources, (), pytest.fail, OPTIONS)


def told(wiring: Wiring) -> list[Sequence[str]]:
    """What all processes are told from now on."""
    names: list[Sequence[str]] = []
    wiring.context.resources.signals.subscribe("presets", names.append)
    return names


async def test_changed_files_answer_and_all_processes_are_told(
    wiring: Wiring, settings: Settings
) -> None:
    resolver, names = wiring.context.resources.resolver, told(wiring)
    write(settings, "nora", system="New.")
    write(settings, "niko")
    (settings.presets_dir / "nova.json").unlink()  # type: ignore[operator]

    await wiring.published.reload_files()

    assert resolver.default.system == "New."
    assert resolver.versions == {"nora": 2, "niko": 1}
    assert names == [["niko", "nora", "nova"]]
    deleted = await wiring.stored.preset_versions.newest("nova")
    assert deleted is not None
    assert deleted.content == ""


async def test_file_that_did_not_change_takes_nothing_back(wiring: Wiring) -> None:
    """A console on another machine has published a newer version."""
    resolver = wiring.context.resources.resolver
    resolver.publish(resolver.presets["nova"].model_copy(update={"system": "Newer."}), 2)

    await wiring.published.reload_files()

    assert resolver.presets["nova"].system == "Newer."
    assert resolver.versions["nova"] == 2


async def test_process_that_missed_the_signal_learns_it_from_a_row(
    wiring: Wiring, settings: Settings
) -> None:
    """Without Redis there is no signal between processes at all."""
    async with open_resources(settings, (), pytest.fail, OPTIONS) as resources:
        other, resolver = Wiring(settings, resources, (), pytest.fail, OPTIONS), resources.resolver
        await other.published.look()
        write(settings, "nova", system="New.")
        await wiring.published.reload_files()
        await resolver.resolve(["telegram:1"])
        assert resolver.presets["nova"].system == "Old."

        await other.published.look()
        await resolver.resolve(["telegram:1"])
        assert resolver.presets["nova"].system == "New."
        assert resolver.versions["nova"] == 2


@pytest.mark.parametrize(
    ("file", "content"),
    [("nora.json", "{"), ("nora.json", '{"name": "other", "provider": "test", "model": "m"}')],
)
async def test_folder_with_a_mistake_changes_nothing(
    wiring: Wiring, settings: Settings, file: str, content: str
) -> None:
    resolver, names = wiring.context.resources.resolver, told(wiring)
    write(settings, "nova", system="New.")
    (settings.presets_dir / file).write_text(content)  # type: ignore[operator]

    with capture_logs() as logs:
        await wiring.published.reload_files()

    assert [entry["event"] for entry in logs] == ["presets_not_reloaded"]
    assert resolver.presets["nova"].system == "Old."
    assert names == []


async def test_hangup_reads_the_presets_and_ends_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    platforms, options = companion_platforms(), RunOptions(has_port=False)
    opened = running(settings, lambda _: None, platforms, options)
    async with asyncio.timeout(60), opened as service:
        write(settings, "nova", system="New.")
        with capture_logs() as logs:
            os.kill(os.getpid(), signal.SIGHUP)
            serving = asyncio.create_task(service.serve())
            await wait_until(lambda: any(one["event"] == "presets_reloaded" for one in logs))
        assert not serving.done()
        os.kill(os.getpid(), signal.SIGTERM)
        await serving

"""Expected errors print one line and exit with code 1, without a traceback."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from bot.storage.data_dir import DataDirUse, lock_data_dir
from tests.support.child_launcher import ChildLauncher

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="session")]
RunFailing: TypeAlias = Callable[..., Awaitable[list[str]]]


@pytest.fixture(autouse=True)
def _prepare(folder: Path) -> None:
    """Prepare a working directory with an empty presets folder."""
    (folder / "presets").mkdir()


@pytest.fixture
def run_failing(launcher: ChildLauncher, folder: Path) -> RunFailing:
    """Return a function that runs a failing command as a process and returns its output."""

    async def run(*words: str, **environment: str) -> list[str]:
        log = folder / "printed"
        log.unlink(missing_ok=True)
        process = await launcher.launch(
            ["never", "1", "--", *words],
            folder=folder,
            settings={"TROUPE_CONSOLE__PORT": "0", **environment},
            log=log,
        )
        async with asyncio.timeout(240):
            code = await process.wait()
        printed = log.read_text("utf-8").splitlines()
        assert code == 1, printed
        return printed

    return run


def echo_preset(folder: Path, **keys: str) -> None:
    preset = {"name": "assistant", "provider": "echo", "model": "m", **keys}
    (folder / "presets" / "assistant.json").write_text(json.dumps(preset), encoding="utf-8")


ECHO = {"TROUPE_PROVIDERS__ECHO__KIND": "echo"}


async def test_each_invalid_setting_is_reported_in_one_line(run_failing: RunFailing) -> None:
    assert await run_failing("run", TROUPE_LOG_FORMAT="xml", TROUPE_CONSOLE__PORT="x") == [
        "troupe: TROUPE_CONSOLE__PORT: should be a whole number (an integer)",
        "troupe: TROUPE_LOG_FORMAT: should be 'console' or 'json'",
    ]


async def test_empty_presets_folder_is_reported_in_one_line(run_failing: RunFailing) -> None:
    assert await run_failing("run", **ECHO) == [
        "troupe: no *.json in the presets folder presets; put a preset there"
    ]


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("preset show asistant", "no preset 'asistant'; did you mean 'assistant'?"),
        ("preset validate none.json", "none.json cannot be read: No such file or directory"),
        (
            "preset export assistant no/where.json",
            "no/where.json cannot be written: No such file or directory",
        ),
    ],
)
async def test_wrong_argument_is_reported_in_one_line(
    run_failing: RunFailing, folder: Path, command: str, complaint: str
) -> None:
    echo_preset(folder)
    assert await run_failing(*command.split()) == [f"troupe: {complaint}"]


@pytest.mark.parametrize("words", [("run",), ("chat",), ("db", "upgrade")])
async def test_unusable_data_directory_is_reported_in_one_line(
    run_failing: RunFailing, folder: Path, words: tuple[str, ...]
) -> None:
    echo_preset(folder)
    (folder / "data").touch()
    assert await run_failing(*words, **ECHO) == [
        "troupe: the data directory data cannot be used (File exists); "
        "fix it or set TROUPE_DATA_DIR to another directory"
    ]


async def test_error_for_a_data_directory_in_use_states_which_process_uses_it(
    run_failing: RunFailing, folder: Path
) -> None:
    echo_preset(folder)
    with lock_data_dir(folder / "data", DataDirUse.TERMINAL):
        [complaint] = await run_failing("chat", **ECHO)
    assert f"another terminal chat (process {os.getpid()}) is using data" in complaint
    with lock_data_dir(folder / "data"):
        [complaint] = await run_failing("run", **ECHO, TROUPE_TELEGRAM__TOKEN="1:x")
    assert f"another Troupe service (process {os.getpid()}) is using data" in complaint


async def test_import_without_a_presets_folder_is_reported_in_one_line(
    run_failing: RunFailing, folder: Path
) -> None:
    (folder / "nova.json").write_text('{"name": "nova", "provider": "p", "model": "m"}', "utf-8")
    [complaint] = await run_failing("preset", "import", "nova.json", TROUPE_PRESETS_DIR="none")
    assert complaint.startswith("troupe: none/nova.json cannot be written: ")


async def test_escape_sequences_of_files_do_not_reach_the_terminal(
    run_failing: RunFailing, folder: Path
) -> None:
    echo_preset(folder, **{"prov\x1b[2Jider": ""})
    [complaint] = await run_failing("run", **ECHO)
    assert "\\x1b[2J" in complaint
    assert "\x1b" not in complaint

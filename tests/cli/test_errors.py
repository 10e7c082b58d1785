"""Expected errors print one line and exit with code 1, without a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bot.storage.data_dir import DataDirUse, lock_data_dir
from tests.checkout import CHECKOUT

pytestmark = pytest.mark.service


@pytest.fixture(autouse=True)
def _prepare(folder: Path) -> None:
    """Prepare a working directory with an empty presets folder."""
    (folder / "presets").mkdir()


def run_failing(*words: str, **environment: str) -> list[str]:
    """Run a failing command in a process; return its lines on stderr."""
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}  # noqa: TID251
    root = str(CHECKOUT)
    settings = {"TROUPE_CONSOLE__PORT": "0", "PYTHONPATH": root, **inherited, **environment}
    result = subprocess.run(
        [sys.executable, "-m", "bot", *words],
        env=settings,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=240,
        check=False,
    )
    complaint = result.stderr.decode().splitlines()
    assert result.returncode == 1, (result.stdout, complaint)
    return complaint


def echo_preset(folder: Path, **keys: str) -> None:
    preset = {"name": "assistant", "provider": "echo", "model": "m", **keys}
    (folder / "presets" / "assistant.json").write_text(json.dumps(preset), encoding="utf-8")


ECHO = {"TROUPE_PROVIDERS__ECHO__KIND": "echo"}


def test_each_invalid_setting_is_reported_in_one_line() -> None:
    assert run_failing("run", TROUPE_LOG_FORMAT="xml", TROUPE_CONSOLE__PORT="x") == [
        "troupe: TROUPE_CONSOLE__PORT: should be a whole number (an integer)",
        "troupe: TROUPE_LOG_FORMAT: should be 'console' or 'json'",
    ]


def test_empty_presets_folder_is_reported_in_one_line() -> None:
    assert run_failing("run", **ECHO) == [
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
def test_wrong_argument_is_reported_in_one_line(folder: Path, command: str, complaint: str) -> None:
    echo_preset(folder)
    assert run_failing(*command.split()) == [f"troupe: {complaint}"]


@pytest.mark.parametrize("words", [("run",), ("chat",), ("db", "upgrade")])
def test_unusable_data_directory_is_reported_in_one_line(
    folder: Path, words: tuple[str, ...]
) -> None:
    echo_preset(folder)
    (folder / "data").touch()
    assert run_failing(*words, **ECHO) == [
        "troupe: the data directory data cannot be used (File exists); "
        "fix it or set TROUPE_DATA_DIR to another directory"
    ]


def test_data_directory_in_use_error_states_the_process(folder: Path) -> None:
    echo_preset(folder)
    with lock_data_dir(folder / "data", DataDirUse.TERMINAL):
        [complaint] = run_failing("chat", **ECHO)
    assert f"another chat in a terminal (process {os.getpid()}) uses data" in complaint
    with lock_data_dir(folder / "data"):
        [complaint] = run_failing("run", **ECHO, TROUPE_TELEGRAM__TOKEN="1:x")
    assert f"another troupe (process {os.getpid()}) uses data" in complaint


def test_import_without_a_presets_folder_is_reported_in_one_line(folder: Path) -> None:
    (folder / "nova.json").write_text('{"name": "nova", "provider": "p", "model": "m"}', "utf-8")
    [complaint] = run_failing("preset", "import", "nova.json", TROUPE_PRESETS_DIR="none")
    assert complaint.startswith("troupe: none/nova.json cannot be written: ")


def test_escape_sequences_of_files_do_not_reach_the_terminal(folder: Path) -> None:
    echo_preset(folder, **{"prov\x1b[2Jider": ""})
    [complaint] = run_failing("run", **ECHO)
    assert "\\x1b[2J" in complaint
    assert "\x1b" not in complaint

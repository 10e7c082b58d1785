"""What goes wrong on purpose ends in one line and exit code 1, never in a traceback."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bot.storage.data_dir import lock_data_dir
from tests.checkout import CHECKOUT

pytestmark = pytest.mark.service


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with an empty presets folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "presets").mkdir()
    return tmp_path


def fails(*words: str, **environment: str) -> list[str]:
    """Run a command as a process of its own; gives the lines it complained with."""
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}  # noqa: TID251
    root = str(CHECKOUT)
    settings = {"TROUPE_CONSOLE__PORT": "0", "PYTHONPATH": root, **inherited, **environment}
    ended = subprocess.run(
        [sys.executable, "-m", "bot", *words],
        env=settings,
        input=b"hello\n",
        capture_output=True,
        timeout=60,
        check=False,
    )
    complaint = ended.stderr.decode().splitlines()
    assert ended.returncode == 1, (ended.stdout, complaint)
    return complaint


def echo_preset(folder: Path) -> None:
    preset = {"name": "assistant", "provider": "echo", "model": "m"}
    (folder / "presets" / "assistant.json").write_text(json.dumps(preset), encoding="utf-8")


ECHO = {"TROUPE_PROVIDERS__ECHO__KIND": "echo"}


def test_wrong_settings_are_told_a_line_each() -> None:
    assert fails("run", TROUPE_LOG_FORMAT="xml", TROUPE_CONSOLE__PORT="x") == [
        "troupe: TROUPE_CONSOLE__PORT: Input should be a valid integer, "
        "unable to parse string as an integer",
        "troupe: TROUPE_LOG_FORMAT: Input should be 'console' or 'json'",
    ]


def test_a_preset_that_is_not_there_is_one_line(folder: Path) -> None:
    echo_preset(folder)
    assert fails("preset", "show", "asistant") == [
        "troupe: no preset 'asistant'; did you mean 'assistant'?"
    ]


def test_a_folder_without_presets_is_one_line() -> None:
    assert fails("run", **ECHO) == [
        "troupe: no *.json in the presets directory presets; put a preset there"
    ]


@pytest.mark.parametrize("words", [("run",), ("chat",), ("db", "upgrade")])
def test_a_data_directory_that_cannot_be_used_is_one_line(
    folder: Path, words: tuple[str, ...]
) -> None:
    echo_preset(folder)
    (folder / "data").touch()
    assert fails(*words, **ECHO) == [
        "troupe: the data directory data cannot be used (File exists); "
        "mend it or set TROUPE_DATA_DIR"
    ]


def test_a_data_directory_in_use_names_who_uses_it(folder: Path) -> None:
    echo_preset(folder)
    with lock_data_dir(folder / "data"):
        [complaint] = fails("chat", **ECHO)
    assert f"another troupe (process {os.getpid()}) works in data" in complaint


def test_a_taken_port_is_one_line(folder: Path) -> None:
    echo_preset(folder)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        [complaint] = fails("chat", **{**ECHO, "TROUPE_CONSOLE__PORT": port})
    assert f"cannot listen on 127.0.0.1:{port}" in complaint
    assert "TROUPE_CONSOLE__PORT" in complaint


def test_a_file_that_is_not_there_is_one_line() -> None:
    assert fails("preset", "validate", "none.json") == [
        "troupe: none.json cannot be read: No such file or directory"
    ]


def test_a_preset_cannot_be_exported_to_where_no_folder_is(folder: Path) -> None:
    echo_preset(folder)
    assert fails("preset", "export", "assistant", "no/where.json") == [
        "troupe: no/where.json cannot be written: No such file or directory"
    ]


def test_a_preset_cannot_be_imported_without_a_presets_folder(folder: Path) -> None:
    (folder / "nova.json").write_text('{"name": "nova", "provider": "p", "model": "m"}', "utf-8")
    [complaint] = fails("preset", "import", "nova.json", TROUPE_PRESETS_DIR="none")
    assert complaint.startswith("troupe: none/nova.json cannot be written: ")


def test_a_check_that_finds_something_ends_with_one(folder: Path) -> None:
    fails("check", **ECHO)


def test_what_is_piped_in_is_answered_and_the_end_of_input_ends_it(folder: Path) -> None:
    echo_preset(folder)
    result = subprocess.run(
        [sys.executable, "-m", "bot", "chat"],
        env={
            "PATH": os.environ["PATH"],  # noqa: TID251
            "PYTHONPATH": str(CHECKOUT),
            "TROUPE_CONSOLE__PORT": "0",
            **ECHO,
        },
        input=b"hello there\n",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.decode() == "hello there\n"

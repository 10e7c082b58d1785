"""`troupe --help` lists every command without importing it."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bot import __version__
from bot.cli.app import COMMANDS, app, load_command
from tests.checkout import CHECKOUT

HEAVY = {
    *("aiogram", "aiohttp", "alembic", "asyncio", "asyncpg", "discord", "jinja2", "llama_cpp"),
    *("numpy", "openai", "pydantic", "pydantic_settings", "redis", "sqlalchemy", "structlog"),
    *("uvloop", "xllamacpp"),
}

_MAIN = """
import json, sys
from bot.cli.app import main
sys.argv = ["troupe", *sys.argv[1:]]
try:
    main()
finally:
    sys.stderr.write(json.dumps(sorted(sys.modules)))
"""


def imported_by(folder: Path, *words: str) -> set[str]:
    """Run a command in a new process; return the modules that it imported."""
    result = subprocess.run(
        [sys.executable, "-c", _MAIN, *words],
        env={"PYTHONPATH": str(CHECKOUT), "TROUPE_PRESETS_DIR": str(CHECKOUT / "presets")},
        cwd=folder,
        capture_output=True,
        check=True,
        timeout=240,
    )
    assert result.stdout
    return set(json.loads(result.stderr))


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("preset", "list")])
def test_command_line_imports_no_library_that_it_does_not_need(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    assert not imported_by(tmp_path, *words) & HEAVY


@pytest.mark.parametrize("place", ["variable", "file"])
@pytest.mark.parametrize("words", [("run",), ("check",), ("nonsense",), ("preset", "show", "x")])
def test_every_log_line_is_json_if_configured(
    tmp_path: Path, place: str, words: tuple[str, ...]
) -> None:
    settings = {"PYTHONPATH": str(CHECKOUT), "TROUPE_CONSOLE__PORT": "wrong"}
    if place == "variable":
        settings["TROUPE_LOG_FORMAT"] = "json"
    else:
        (tmp_path / "troupe.toml").write_text('log_format = "json"\n', "utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "bot", *words],
        env=settings,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert result.returncode != 0
    lines = [json.loads(line) for line in (result.stdout + result.stderr).splitlines()]
    assert {"event", "level", "timestamp"} == set.intersection(*map(set, lines))
    assert any(line["level"] == "error" or "Error" in line["event"] for line in lines)


def test_summary_in_the_list_is_the_first_line_of_the_command_help() -> None:
    for name, (_, summary) in COMMANDS.items():
        assert (load_command(name).help or "").splitlines()[0] == summary, name


def test_help_lists_every_command_with_its_summary() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output

    for name in ("run", "chat", "check", "preset", "character", "model", "render", "replay"):
        assert f"\n  {name} " in shown
    assert "Start the service on Discord, Telegram, or in this terminal." in shown


def test_unknown_command_error_suggests_the_nearest() -> None:
    result = CliRunner().invoke(app, ["prest", "list"])

    assert result.exit_code == 2
    assert "Did you mean 'preset'" in result.output


def test_version_option_prints_the_version_of_the_package() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"troupe {__version__}\n"


@pytest.mark.service
@pytest.mark.parametrize("words", [("--help",), ("preset", "list")])
def test_command_takes_less_cpu_time_than_two_and_a_half_imports_of_typer_and_rich(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    imports = [sys.executable, "-c", "import typer, rich"]
    command = [sys.executable, "-m", "bot", *words]

    assert cpu_seconds(command, tmp_path) < 2.5 * cpu_seconds(imports, tmp_path)


def cpu_seconds(command: list[str], folder: Path) -> float:
    """Return the lowest CPU time of seven runs, because load can only increase it."""
    environment = {"PYTHONPATH": str(CHECKOUT), "TROUPE_PRESETS_DIR": str(CHECKOUT / "presets")}
    seconds = []
    for _ in range(7):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, env=environment, cwd=folder, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(seconds)

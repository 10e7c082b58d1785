"""Run a command of `troupe` in this process."""

from typer.testing import CliRunner

from bot.cli.app import app


def troupe(*words: str, given: str | None = None) -> str:
    """Return what a command prints to stdout; raise what it raises."""
    result = CliRunner().invoke(app, words, input=given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout

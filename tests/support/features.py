"""Marks for tests that run the service with loopback platforms and a model."""

import pytest

GROUPS = ("channel", "telegram_group")
PRIVATE = ("discord_dm", "telegram_dm")
EVERYWHERE = (*GROUPS, *PRIVATE)

ON_THE_WIRES = [
    pytest.mark.service,
    pytest.mark.asyncio(loop_scope="session"),
]


def at(*kinds: str) -> pytest.MarkDecorator:
    """Run a test once per kind of conversation, as its parameter `where`."""
    return pytest.mark.parametrize("where", kinds, indirect=True)


ALONE_AND_IN_PAIRS = pytest.mark.parametrize("service", ["alone", "pair"], indirect=True)
"""Runs a test with one process and SQLite, and with two processes, PostgreSQL and a Valkey."""

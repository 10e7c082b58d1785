"""`troupe replay`: what was asked for an answer is asked again, or only shown."""

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from typer.testing import CliRunner

from bot.__main__ import app
from bot.chat.receipt import Receipt
from bot.chat.session import TurnResult
from bot.cli.replay import difference
from bot.errors import SettingsError, UserError
from bot.runtime.clock import SystemClock
from bot.storage.sql.conversations import SqlConversations
from bot.storage.sql.database import open_database
from bot.storage.sql.inbox import SqlInbox
from tests.commands.test_context import RECEIPT
from tests.samples import incoming

SECRET = "sk-thesecretofanoperator"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TROUPE_PROVIDERS__PARROT__KIND", "echo")
    monkeypatch.setenv("TROUPE_PROVIDERS__OPENAI__API_KEY", SECRET)
    (tmp_path / "data").mkdir()
    return tmp_path


def keep(receipt: Receipt) -> None:
    """Let this be receipt 1."""

    async def finish() -> None:
        async with open_database("sqlite:///data/troupe.db") as database:
            conversations = SqlConversations(database, SystemClock())
            await SqlInbox(database, SystemClock()).receive([incoming()], {})
            claim = await conversations.claim("telegram:5", "me", 60)
            assert claim is not None
            heard = await conversations.next_message(claim)
            assert heard is not None
            await conversations.finish(claim, heard, TurnResult(receipts=[receipt]))

    asyncio.run(finish())


def unstyle(text: str) -> str:
    return re.sub(r"\x1b\[\d*m", "", text)


def replay(*words: str) -> str:
    result = CliRunner().invoke(app, ["replay", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return unstyle(result.stdout)


def test_the_new_answer_is_compared_with_the_old_one() -> None:
    keep(replace(RECEIPT, provider="parrot", answer="Once at the inn … and then?"))
    said = replay("1")
    assert said.startswith("Once at the inn …")
    assert "% of both answers is the same." in said


def test_the_same_answer_is_said_to_be_the_same() -> None:
    keep(replace(RECEIPT, provider="parrot", answer="Once at the inn …\n\nand now?"))
    assert replay("1").endswith("The answer is the same, letter by letter.\n")


def test_the_exact_prompt_is_shown_without_secrets() -> None:
    told = replace(RECEIPT.prompt, parameters={"temperature": 0, "user": SECRET})
    keep(replace(RECEIPT, prompt=told))
    shown = replay("1", "--show")
    head, _, body = shown.partition("\n\n")
    assert head.startswith("receipt: 1, nora (version 3)\nmodel: local / default\n")
    prompt = json.loads(body)
    assert [each["role"] for each in prompt["messages"]] == [
        *("system", "user", "assistant", "system", "user", "assistant", "user")
    ]
    assert (prompt["temperature"], prompt["user"]) == (0, "***ator")
    assert SECRET not in shown


@pytest.mark.parametrize("number", ["1", "7"])
def test_a_receipt_that_is_not_there_is_named(number: str) -> None:
    if number == "7":
        keep(RECEIPT)
    with pytest.raises(UserError, match=rf"no receipt {number}; /context in a chat"):
        replay(number)


def test_a_provider_that_is_gone_is_named() -> None:
    keep(replace(RECEIPT, provider="gone"))
    with pytest.raises(SettingsError, match="the provider 'gone' is not set up any more"):
        replay("1")


def test_differences_are_marked_word_by_word() -> None:
    assert unstyle(difference("The sea is calm.", "The sea was very calm.")) == snapshot("""\
The sea [-is-]{+was very+} calm.

79% of both answers is the same.
""")


def test_an_answer_that_became_another_is_shown_whole() -> None:
    assert unstyle(difference("", "Hi.")) == snapshot("""\
{+Hi.+}

0% of both answers is the same.
""")

"""`troupe replay` sends a stored prompt again, or only prints it."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from bot.chat.drafts import PresetDraft
from bot.chat.receipt import Receipt
from bot.chat.session import Turn
from bot.cli.render import color_differences
from bot.errors import SettingsError, UserError
from bot.storage.database import Database
from bot.storage.presets import PresetDrafts
from tests.cli.command import troupe, use_database
from tests.commands.test_reports import RECEIPT
from tests.samples import ALICE, make_incoming
from tests.support.store import store_answer

SECRET = "sk-thesecretofanoperator"


@pytest.fixture(autouse=True)
def _prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROUPE_PROVIDERS__PARROT__KIND", "echo")
    monkeypatch.setenv("TROUPE_PROVIDERS__OPENAI__API_KEY", SECRET)


def store_receipts(*receipts: Receipt) -> None:
    """Store the prompts as receipts 1, 2, and so on."""
    use_database(lambda database: store_answer(database, *receipts))


def unstyle(text: str) -> str:
    return re.sub(r"\x1b\[\d*m", "", text)


def replay(*words: str) -> str:
    return unstyle(troupe("replay", *words))


def test_replay_compares_the_new_answer_with_the_old_one() -> None:
    answers = ("Once at the inn … and then?", "Once at the inn …\n\nand now?")
    store_receipts(*(replace(RECEIPT, provider="parrot", answer=one) for one in answers))
    output = replay("1")
    assert output.startswith("Once at the inn …")
    assert "{+" in output
    assert replay("2").endswith("The two answers are identical.\n")


def test_replay_show_prints_the_prompt_without_secrets() -> None:
    prompt_with_secret = replace(RECEIPT.prompt, parameters={"temperature": 0, "user": SECRET})
    store_receipts(replace(RECEIPT, prompt=prompt_with_secret))
    shown = replay("1", "--show")
    head, _, body = shown.partition("\n\n")
    assert head.startswith("receipt: 1, nora (version 3)\nmodel: local / default\n")
    prompt = json.loads(body)
    assert [each["role"] for each in prompt["messages"]] == [
        *("system", "user", "assistant", "system", "user", "assistant", "user")
    ]
    assert (prompt["temperature"], prompt["user"]) == (0, "***ator")
    assert SECRET not in shown


def test_replay_reports_a_missing_receipt_or_provider() -> None:
    with pytest.raises(UserError, match="no receipt 1; in a chat, /context"):
        replay("1")
    store_receipts(replace(RECEIPT, provider="gone"))
    with pytest.raises(SettingsError, match="the provider 'gone' is no longer set up"):
        replay("1")
    with pytest.raises(UserError, match="no receipt 7; in a chat, /context"):
        replay("7")


def test_differences_are_marked_and_control_characters_escaped() -> None:
    marked = unstyle(color_differences("The sea is calm.", "The sea was very calm.\x1b[2J"))
    assert marked == "The sea [-is-]{+was very+} calm.{+\\x1b[2J+}"
    assert unstyle(color_differences("", "Hi.")) == "{+Hi.+}"


def test_replay_with_a_draft_shows_differences_in_prompt_and_answer() -> None:
    content = json.dumps({"name": "nora", "provider": "parrot", "model": "m", "system": "A draft."})
    stored = replace(RECEIPT, preset="nora", provider="parrot", answer="Hi.")

    now = datetime.now(UTC)
    turns = [
        Turn("user", "hello", ALICE, now, message_id="1"),
        Turn("assistant", "Hi.", None, now, "nora", 3),
    ]

    async def prepare(database: Database) -> None:
        await store_answer(database, stored, incoming=make_incoming("hello"), turns=turns)
        assert await PresetDrafts(database).save(PresetDraft("nora", 0, 1, content, 0))

    use_database(prepare)

    shown = replay("1", "--draft", "nora")

    answer, _, prompt = shown.partition("\nThe prompt:\n")
    assert "{+" in answer
    assert prompt.startswith("\n[system]\n[-You-]{+A+} [-are Nora.")
    assert prompt.endswith("{+hello+}\n")
    with pytest.raises(UserError, match="no preset with this name"):
        replay("1", "--draft", "nobody")

"""Every kind of refusal has specific texts for chats and operators, in all API dialects."""

import json
from pathlib import Path
from typing import Any

import pytest

from bot.backends.chat_completions.errors import (
    ContextOverflow,
    Endpoint,
    parse_context_overflow,
    translate_error_event,
    translate_status,
)

ACME = Endpoint("acme", "http://acme/v1")
KEY = "TROUPE_PROVIDERS__ACME__API_KEY"
BODIES = json.loads((Path(__file__).parent / "error_bodies.json").read_text("utf-8"))
CONTEXTS = json.loads((Path(__file__).parent / "context_errors.json").read_text("utf-8"))
WORDS = {
    "model": ("model does not exist at its provider", "check the preset's model"),
    "key": ("the bot's operator has to renew it", f"check {KEY}"),
    "quota": ("has no credit left", "top up its account"),
    "context": ("Start a new one with /new", "lower the preset's max_input_tokens"),
    "moderation": ("because of its content rules", "because of its content rules"),
    "limit": ("the bot's operator has to fix it", "lower the preset's max_output_tokens"),
    "memory": ("the bot's operator has to fix it", "choose a smaller one"),
    "busy": ("", "try again later"),
}
NAMES = [f"{dialect} {kind} {status}" for dialect, kind, status, _ in BODIES]


@pytest.mark.parametrize(("dialect", "kind", "status", "body"), BODIES, ids=NAMES)
def test_refusal_gets_the_message_for_its_kind(
    dialect: str, kind: str, status: int, body: Any
) -> None:
    for_people, for_operator = WORDS[kind]
    failed = translate_status(ACME, "m", status, {}, json.dumps(body).encode(), 0.0)
    assert for_people in failed.notice
    assert for_operator in str(failed)
    assert "SECRET" not in f"{failed} {failed.notice}"
    assert failed.is_retryable is (kind == "busy"), dialect


@pytest.mark.parametrize(
    ("dialect", "kind", "status", "body"),
    [each for each in BODIES if each[0] in {"openai", "litellm", "gemini"} and each[1] != "busy"],
)
def test_streamed_refusal_gets_the_same_message(
    dialect: str, kind: str, status: int, body: Any
) -> None:
    failed = translate_error_event(ACME, "m", json.dumps(body).encode(), 0.0)
    assert WORDS[kind][0] in failed.notice, (dialect, status)


def test_every_dialect_has_sample_errors() -> None:
    kinds = {
        name: {kind for dialect, kind, *_ in BODIES if dialect == name}
        for name in ("openai", "anthropic", "litellm", "llama.cpp", "vllm", "ollama")
    }
    full = {"model", "key", "quota", "context", "moderation"}
    assert all(full <= kinds[name] for name in ("openai", "anthropic", "litellm"))
    # Servers of one's own have neither quotas nor rules.
    assert all({"model", "key", "context"} <= found for found in kinds.values())


@pytest.mark.parametrize(("error", "context", "prompt"), CONTEXTS)
def test_token_counts_in_an_error_are_parsed(
    error: str, context: int | None, prompt: int | None
) -> None:
    assert parse_context_overflow(error.encode()) == ContextOverflow(context, prompt)

"""Words have no authority: whatever is said, stored or written changes nothing but the answer."""

from typing import Any

import pytest

from bot.chat.prompt import Prompt
from bot.chat.session import Session
from bot.prompting.compose import compose
from bot.prompting.draft import Part
from bot.prompting.preset import Preset
from bot.routing.decide import Answer, decide
from bot.settings import read_settings, secrets_of
from tests.attacks import attacks, expanded
from tests.samples import incoming

CANARY = "sk-CANARY-0001"


def attack_text(attack: dict[str, Any]) -> str:
    given = attack["input"]
    return expanded(given if isinstance(given, str) else next(iter(given.values())))


def prompt_with(attack: dict[str, Any]) -> Prompt:
    """The prompt with the hostile text where it enters: as a message, a document or a persona."""
    text, place = attack_text(attack), attack["enters_at"]
    persona = text if place.startswith("preset") else "You are Nora."
    preset = Preset.model_validate(
        {"name": "nora", "provider": "p", "model": "m", "persona": persona}
    )
    said = incoming(text if "message" in place else "hello")
    found = [Part("stories", text, "pricing")] if "RAG" in place else []
    return compose(preset, Session(1, ()), said, bot_name="nora", found=found).prompt


@pytest.mark.parametrize(
    "attack", attacks("prompt_injection"), ids=lambda attack: str(attack["title"])
)
def test_hostile_words_get_neither_rights_nor_secrets(
    attack: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TROUPE_PROVIDERS__OPENAI__API_KEY", CANARY)
    monkeypatch.setenv("TROUPE_TELEGRAM__TOKEN", "1:" + CANARY)
    preset = Preset.model_validate({"name": "nora", "provider": "p", "model": "m"})

    decision = decide(incoming(attack_text(attack)), preset, lambda: 0.5)
    prompt = prompt_with(attack)

    assert decision == Answer()
    everything = "\n".join(message.content for message in prompt.messages)
    secrets = secrets_of(read_settings())
    assert secrets
    assert sum(secret in everything for secret in secrets) == attack["oracle"]["secrets_in_prompt"]
    assert not [sign for sign in everything if 0xE0000 <= ord(sign) < 0xE0080]
    # Of a person or a document nothing comes to stand where the instructions do.
    system = [message for message in prompt.messages if message.role == "system"]
    if not attack["enters_at"].startswith("preset"):
        assert [message.content for message in system] == ["You are Nora."]


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("hi\U000e0073\U000e0061\U000e0079", "hi"),
        ("hi 😀\ufe0f\U000e0143\U000e0151\U000e0153", "hi 😀\ufe0f"),  # bytes as selectors
        ("葛\U000e0100城 ❤\ufe0f", "葛\U000e0100城 ❤\ufe0f"),  # each has its one
    ],
)
def test_what_nobody_sees_is_not_read_either(said: str, read: str) -> None:
    preset = Preset.model_validate({"name": "nora", "provider": "p", "model": "m"})

    prompt = compose(preset, Session(1, ()), incoming(said), bot_name="nora").prompt

    assert prompt.messages[-1].content == read

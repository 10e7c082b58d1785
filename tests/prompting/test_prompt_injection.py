"""Hostile text in messages, stories, or presets cannot change the rest of the prompt."""

from typing import Any

import pytest

from bot.chat.prompt import Prompt
from bot.chat.session import Session
from bot.chat.story import Story
from bot.prompting.compose.compose import compose
from bot.prompting.haruhi import HaruhiRow, read_rows
from bot.routing.decide import Answer, decide_on_message
from bot.routing.presets import ActiveCharacters, ActivePreset
from bot.settings import collect_secrets, read_settings
from tests.attacks import attacks, expanded
from tests.prompting.samples import preset as make_preset
from tests.samples import make_incoming

CANARY = "sk-CANARY-0001"
PERSONA = "You are Nora.\n{{RAG-dialogue}}"


def attack_text(attack: dict[str, Any]) -> str:
    given = attack["input"]
    return expanded(given if isinstance(given, str) else next(iter(given.values())))


def prompt_with(attack: dict[str, Any]) -> Prompt:
    """Return a prompt with the hostile text as a message, a story, or a persona."""
    text, position = attack_text(attack), attack["enters_at"]
    persona = text if position.startswith("preset") else PERSONA
    preset = make_preset(persona=persona)
    said = make_incoming(text if "message" in position else "hello")
    rows: list[HaruhiRow] = [{"text": PERSONA, "e": "system_prompt"}, {"text": text, "e": None}]
    stories = [Story(0, read_rows(rows, "e").texts[0], 1.0)] if "RAG" in position else []
    found = {said.text: stories}
    return compose(preset, Session(1, ()), said, stories=found).prompt


def test_hidden_text_of_a_lorebook_is_removed() -> None:
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "obey")
    book = {"entries": [{"keys": [], "content": f"It rains.{hidden}", "constant": True}]}
    preset = make_preset(lorebook=book)

    prompt = compose(preset, Session(1, ()), make_incoming("hello")).prompt

    assert prompt.messages[0].content == "It rains."


@pytest.mark.parametrize(
    "attack", attacks("prompt_injection"), ids=lambda attack: str(attack["title"])
)
def test_hostile_text_gets_no_permissions_or_secrets(
    attack: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TROUPE_PROVIDERS__OPENAI__API_KEY", CANARY)
    monkeypatch.setenv("TROUPE_TELEGRAM__TOKEN", "1:" + CANARY)
    preset = make_preset()

    active = ActiveCharacters((ActivePreset(preset, None, None),))
    message = make_incoming(attack_text(attack))
    decision = decide_on_message(message, active, (), dice=lambda: 0.5, now=message.at)
    prompt = prompt_with(attack)

    assert isinstance(decision, Answer)
    everything = "\n".join(message.content for message in prompt.messages)
    secrets = collect_secrets(read_settings())
    assert secrets
    assert sum(secret in everything for secret in secrets) == attack["oracle"]["secrets_in_prompt"]
    assert not [sign for sign in everything if 0xE0000 <= ord(sign) < 0xE0080]
    # No message becomes part of the instructions; a story follows them, separated as in ChatHaruhi.
    system = [message.content for message in prompt.messages if message.role == "system"]
    if "RAG" in attack["enters_at"]:
        seen = "".join(sign for sign in attack_text(attack) if not 0xE0000 <= ord(sign) < 0xE0080)
        assert system == [f"You are Nora.\n###\n{seen.strip()}"]
    elif not attack["enters_at"].startswith("preset"):
        assert system == ["You are Nora.\n"]


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("hi\U000e0073\U000e0061\U000e0079", "hi"),
        ("hi 😀\ufe0f\U000e0143\U000e0151\U000e0153", "hi 😀\ufe0f"),  # bytes as selectors
        ("hi\u2062\u2064\u2062\u2062\u2064\u2064", "hi"),  # bits
        ("hi\u200b\u200c\u200d\u2060\ufeff", "hi"),
        ("علی\u200cرضا 👩\u200d🚀 \u200f\u200eok", "علی\u200cرضا 👩\u200d🚀 \u200f\u200eok"),
        ("葛\U000e0100城 ❤\ufe0f", "葛\U000e0100城 ❤\ufe0f"),  # each has its one
    ],
)
def test_hidden_text_of_a_message_is_removed(said: str, read: str) -> None:
    preset = make_preset()

    prompt = compose(preset, Session(1, ()), make_incoming(said)).prompt

    assert prompt.messages[-1].content == read

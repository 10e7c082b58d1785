"""Every defense against attacks.json is needed: without it, some of its attacks succeed.

A defense is a function applied to a hostile text. Each is tried as it is, and replaced with the
code that would be there without it. Defenses that are more than a function are tested elsewhere:
`test_canary_server_is_reached_if_the_check_is_off` (fetching) and
`test_tokenizing_the_whole_text_would_add_control_tokens` (local models).
"""

import contextlib
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import SplitResult, urlsplit

import pytest
from jinja2 import TemplateError as JinjaError
from jinja2.sandbox import SandboxedEnvironment

from bot.backends.chat_completions.streaming import SseParser
from bot.chat.incoming import Person, to_storable_text
from bot.chat.outgoing import Limits
from bot.chat.session import Turn
from bot.errors import TemplateError
from bot.markup.graphemes import is_visible
from bot.media.fetching import FetchRefused, is_public_address, parse_public_url
from bot.platforms.telegram.markup import render_markdown
from bot.prompting.presets.fields import find_name_problem
from bot.prompting.speakers import label_speakers
from bot.prompting.text.confusables import strip_hidden_text
from bot.replying.split import split
from bot.telemetry.logs import render_for_console
from bot.telemetry.secret_masker import SecretMasker
from bot.templates import JinjaTemplate
from bot.templates.control_tokens import break_control_tokens, find_control_tokens
from bot.tools import quote_result
from tests.attacks import attack_texts, secret_in
from tests.support.templates import ALL

Apply = Callable[[str], Any]


@dataclass(frozen=True)
class Defence:
    """A function for hostile texts, its replacement without the defense, and a condition."""

    name: str
    category: str
    on: Apply
    off: Apply
    holds: Callable[[str, Any], bool]


def leave_unchanged(text: str) -> str:
    return text


TOKENS = {token for template in ALL.values() for token in find_control_tokens(template)}
EVE, BOB = Person("a:1", "Eve"), Person("a:2", "Bob")
DISCORD = Limits(2000, "characters", 1, 5)


def tag_with_speaker(text: str) -> str:
    labels = label_speakers([EVE, BOB], {"nora": "Nora"})
    turn = Turn("user", text, EVE, datetime(2026, 11, 22, tzinfo=UTC), None)
    return labels.tag_text(labels.find_label(turn, "nora"), text)


def forges_no_line(_text: str, prompt: str) -> bool:
    return not any(re.match(r"\s*(Bob|Bot|Nora)\s*:", line) for line in prompt.splitlines()[1:])


def label(name: str) -> str:
    return label_speakers([Person("a:1", name), BOB], {"nora": "Nora"}).people["a:1"]


def active_mentions(_text: str, sent: tuple[str, Any]) -> bool:
    shown, entities = sent
    code = [range(one.offset, one.offset + one.length) for one in entities or ()]
    found = re.finditer(r"(?<!\w)@[A-Za-z][A-Za-z0-9_]{2,31}", shown)
    return all(any(one.start() in each for each in code) for one in found)


def rendered_log(render: Any) -> Apply:
    return lambda text: render(None, "warning", {"event": "said", "text": text, "level": "warning"})


def print_event(_logger: object, _method: str, event: dict[str, Any]) -> str:
    return f"{event['event']} text={event['text']}"


def is_one_line(_text: str, line: str) -> bool:
    return len(line.splitlines()) == 1 and "\x1b" not in line


def is_storable(_text: str, stored: str) -> bool:
    return "\0" not in stored and not any("\ud800" <= sign < "\ue000" for sign in stored)


def stays_in_folder(_text: str, problem: tuple[str, str | None]) -> bool:
    name, refusal = problem
    folder = PurePosixPath("/data/presets")
    is_inside = (folder / f"{name}.json").parent == folder and "\0" not in name
    return refusal is not None or is_inside


def list_addresses(parse: Callable[[str], SplitResult], allows: Callable[[str], bool]) -> Apply:
    """Return a function that lists the server addresses that a URL would reach."""

    def look_up(text: str) -> list[str]:
        try:
            host = parse(text).hostname or ""
            # Names are not looked up: no server is asked for them in a test.
            flags = socket.AI_NUMERICHOST
            found = socket.getaddrinfo(host, 80, type=socket.SOCK_STREAM, flags=flags)
        except (FetchRefused, ValueError, OSError):
            return []
        asked = [str(one[4][0]) for one in found]
        return asked if all(map(allows, asked)) else []

    return look_up


HISTORY = [{"role": "user", "content": "hi"}]


def history_after(render: Callable[[str, list[dict[str, str]]], str]) -> Apply:
    """Return a function that renders a template, then returns the history."""

    def attempt(source: str) -> list[dict[str, str]]:
        history = [dict(one) for one in HISTORY]
        with contextlib.suppress(TemplateError, JinjaError, TypeError, AttributeError):
            render(source, history)
        return history

    return attempt


def render_hardened(source: str, history: list[dict[str, str]]) -> str:
    return JinjaTemplate(source).render(history)


def render_in_stock_sandbox(source: str, history: list[dict[str, str]]) -> str:
    return SandboxedEnvironment().from_string(source).render(messages=history)


DEFENCES = [
    Defence(
        "control tokens are broken",
        "special_tokens",
        lambda text: break_control_tokens(text, TOKENS),
        leave_unchanged,
        lambda _text, prompt: not any(token in prompt for token in TOKENS),
    ),
    Defence("lines are quoted", "name_spoof", tag_with_speaker, "Eve: {}".format, forges_no_line),
    Defence(
        "names become labels",
        "name_spoof",
        label,
        leave_unchanged,
        lambda _text, name: re.search(r"[\n\u2028\u202e{}:\[\]]", name) is None,
    ),
    Defence(
        "hidden text is removed",
        "prompt_injection",
        strip_hidden_text,
        leave_unchanged,
        lambda _text, prompt: not any(0xE0000 <= ord(sign) < 0xE0080 for sign in prompt),
    ),
    Defence(
        "mentions become code on Telegram",
        "discord_mentions",
        render_markdown,
        lambda text: (text, None),
        active_mentions,
    ),
    Defence(
        "answers are split",
        "markup",
        lambda text: split(text, DISCORD),
        lambda text: [text],
        lambda _text, parts: all(len(one) <= 2000 and is_visible(one) for one in parts),
    ),
    Defence(
        "texts are made storable", "store_injection", to_storable_text, leave_unchanged, is_storable
    ),
    Defence(
        "log lines are escaped",
        "store_injection",
        rendered_log(render_for_console),
        rendered_log(print_event),
        is_one_line,
    ),
    Defence(
        "secrets are masked",
        "secrets",
        SecretMasker(()).mask,
        leave_unchanged,
        lambda text, logged: secret_in(text) not in logged,
    ),
    Defence(
        "preset names are checked",
        "path_traversal",
        lambda name: (name, find_name_problem(name)),
        lambda name: (name, None),
        stays_in_folder,
    ),
    Defence(
        "only public servers are asked",
        "ssrf",
        list_addresses(parse_public_url, is_public_address),
        list_addresses(urlsplit, lambda _address: True),
        lambda _text, asked: all(map(is_public_address, asked)),
    ),
    Defence(
        "templates cannot change the history",
        "ssti",
        history_after(render_hardened),
        history_after(render_in_stock_sandbox),
        lambda _text, history: bool(history == HISTORY),
    ),
    Defence(
        "results of tools are quoted",
        "name_spoof",
        lambda text: quote_result("history", text),
        leave_unchanged,
        lambda _text, result: all(one.startswith("> ") for one in result.splitlines()[1:]),
    ),
]


@pytest.mark.parametrize("defence", DEFENCES, ids=lambda one: one.name)
def test_attacks_succeed_if_their_defense_is_removed(defence: Defence) -> None:
    texts = attack_texts(defence.category)

    assert [text for text in texts if not defence.holds(text, defence.on(text))] == []
    assert [text for text in texts if not defence.holds(text, defence.off(text))] != []


def test_long_event_is_accepted_if_its_limit_is_removed() -> None:
    line = b"data: " + b"x" * 5_000_000 + b"\n\n"
    with pytest.raises(ValueError, match="an event of more than"):
        SseParser().feed(line)
    assert len(SseParser(max_event_bytes=10**8).feed(line)) == 1

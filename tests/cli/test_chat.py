"""`troupe chat` as a process, with options, over pipes, and in a terminal."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.backends.local_model import lend_model
from tests.checkout import CHECKOUT
from tests.platforms.terminal.screen import Terminal, open_terminal

pytestmark = pytest.mark.service
ANSWERS = {
    "assistant": "I am the assistant.",
    "nora": "*Waves.* Nora here.",
    "slow": "one two three " * 99,
}


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    """Return the environment of an installation with presets that answer with their names."""
    presets = tmp_path / "presets"
    presets.mkdir()
    for name, answer in ANSWERS.items():
        parameters = {"echo_answer": answer, "echo_delay_seconds": 0.05 * (name == "slow")}
        preset = {"name": name, "provider": "echo", "model": "m", "parameters": parameters}
        (presets / f"{name}.json").write_text(json.dumps(preset), encoding="utf-8")
    return {
        "PATH": os.defpath,
        "PYTHONPATH": str(CHECKOUT),
        "TERM": "xterm-256color",
        "TROUPE_DATA_DIR": str(tmp_path / "data"),
        "TROUPE_PRESETS_DIR": str(presets),
        "TROUPE_PROVIDERS__ECHO__KIND": "echo",
    }


def chat(
    settings: dict[str, str],
    lines: str,
    *words: str,
    command: str = "chat",
    code: int | None = None,
) -> tuple[str, str]:
    """Run a chat over pipes; return its output and error output."""
    done = subprocess.run(
        [sys.executable, "-m", "bot", command, *words],
        env=settings,
        input=lines,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert code is None or done.returncode == code, done
    return done.stdout, done.stderr


@contextmanager
def chatting(
    settings: dict[str, str], terminal: Terminal, *words: str, command: str = "chat"
) -> Iterator[Terminal]:
    """Run a chat in a terminal until the block exits."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bot", command, *words],
        env=settings,
        stdin=terminal.theirs,
        stdout=terminal.theirs,
        stderr=terminal.theirs,
    )
    try:
        yield terminal
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def test_preset_and_model_are_chosen_for_one_run(settings: dict[str, str]) -> None:
    assert chat(settings, "hello\n/preset show\n", "--preset", "nora", "--model", "other") == (
        "*Waves.* Nora here.\nnora\nmodel: echo / other\nversion: 1\n"
        "active here: the default preset\n",
        "",
    )
    assert chat(settings, "hello\n/preset show\n") == (
        "I am the assistant.\nassistant\nmodel: echo / m\nversion: 1\n"
        "active here: the default preset\n",
        "",
    )


@pytest.mark.soak
async def test_chat_with_a_preset_is_a_separate_conversation(settings: dict[str, str]) -> None:
    with open_terminal(60) as terminal, chatting(settings, terminal, "--preset", "nora"):
        await terminal.shows_text("I am nora. Write to me here.")
        terminal.enter("a")
        await terminal.shows_text("Waves. Nora here.")
        terminal.enter("/preset use assistant")
        await terminal.shows_text("assistant answers here from now on.")
        terminal.enter("b")
        await terminal.shows_text("I am the assistant.")
        terminal.enter("/quit")
    with open_terminal(60) as terminal, chatting(settings, terminal):
        await terminal.shows_text("I am assistant. Write to me here.")
        terminal.enter("/quit")
    with open_terminal(60) as terminal, chatting(settings, terminal, "--preset", "nora"):
        await terminal.shows_text("nora answers here. This conversation has 2 messages;")
        terminal.enter("/quit")


def test_unknown_preset_error_suggests_the_nearest(settings: dict[str, str]) -> None:
    assert chat(settings, "", "--preset", "nor") == (
        "",
        "troupe: no preset 'nor'; did you mean 'nora'?\n",
    )


@pytest.mark.soak
def test_other_presets_work_if_one_preset_is_unusable(settings: dict[str, str]) -> None:
    presets = Path(settings["TROUPE_PRESETS_DIR"])
    lacking = {"name": "lacking", "provider": "open_router", "model": "m"}
    (presets / "lacking.json").write_text(json.dumps(lacking))
    (presets / "broken.json").write_text("{")
    reason = "the preset lacking is disabled: the provider 'open_router' is not set"
    lines, errors = chat(settings, "hello\n/preset use lacking\n/preset use broken\n/preset list\n")
    assert lines.startswith("I am the assistant.\n⚠ " + reason)
    assert "the preset broken is disabled" in lines
    assert "· lacking is disabled" in lines
    assert reason in errors
    assert chat(settings, "hello\n", "--preset", "nora")[0] == "*Waves.* Nora here.\n"
    assert reason in chat(settings, "hello\n", "--preset", "lacking")[1]


async def test_chat_works_in_a_terminal_with_sixty_columns(settings: dict[str, str]) -> None:
    with (
        open_terminal(60) as terminal,
        chatting(settings, terminal, "--preset", "nora"),
    ):
        terminal.enter("/as alice")
        await terminal.shows("Your name is now alice.", "alice>")
        terminal.enter("hello")
        await terminal.shows("alice> hello", "nora", "Waves. Nora here.", "alice>")
        terminal.enter("/retry")
        await terminal.shows("alice> /retry", "nora", "Waves. Nora here.", "alice>")
        terminal.enter("/undo")
        await terminal.shows(
            "alice> /undo", "Removed from the conversation: “hello” and its answer.", "alice>"
        )
        terminal.enter("/help")
        await terminal.shows("/as – write under another name", "/quit – end this chat", "alice>")
        terminal.enter("/quit")
        assert b"\x1b[3mWaves." in terminal.raw, "in italics"


@pytest.mark.soak
def test_piped_questions_are_answered_in_the_language_of_the_locale(
    settings: dict[str, str],
) -> None:
    said = {"zh_CN.UTF-8": "这个对话里还没有提问。", "de_DE.UTF-8": "There is no question in this"}
    for locale, text in said.items():
        assert chat({**settings, "LANG": locale}, "/undo\n")[0].startswith(f"⚠ {text}")


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_answer_is_cut_off_if_the_included_model_repeats_itself(
    settings: dict[str, str], tmp_path: Path
) -> None:
    looping = {"temperature": 0, "repeat_penalty": 0.8}
    preset = {"name": "poet", "provider": "local", "model": "default", "parameters": looping}
    (tmp_path / "presets" / "poet.json").write_text(
        json.dumps({**preset, "max_output_tokens": 2000}), encoding="utf-8"
    )
    await lend_model(tmp_path / "data")
    for limit in ("IDLE", "TOTAL"):  # a busy machine writes a token in seconds
        settings[f"TROUPE_PROVIDERS__LOCAL__{limit}_SECONDS"] = "600"
    answer, errors = chat(settings, "Write a poem about rain.\n", "--preset", "poet")
    mark = "⚠ (cut off: the model began to repeat itself; try again, or ask differently)"
    beyond = "⚠ The small model that comes with Troupe isn't good at this."
    assert f"\n\n{mark}\n{beyond}" in answer
    assert len(answer) < 2500, "long before the limit of 2000 tokens"
    assert errors == ""


async def test_next_free_port_is_used_and_printed_if_the_default_is_in_use(
    settings: dict[str, str],
) -> None:
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # somebody else has it: that will do as well
            stack.enter_context(socket.create_server(("127.0.0.1", 8710)))
        terminal = stack.enter_context(open_terminal(80, rows=40))
        stack.enter_context(chatting(settings, terminal, command="run"))
        await terminal.shows("I am assistant. Write to me here.", "root>")
        text = "\n".join(terminal.lines)
        assert "troupe: port 8710 is in use; health at http://127.0.0.1:87" in text
        assert re.search(r"^http://127\.0\.0\.1:87[123]\d/login#[\w-]{43}$", text, re.MULTILINE)
        terminal.enter("/quit")


def test_piped_chat_starts_a_new_conversation_and_opens_no_port(settings: dict[str, str]) -> None:
    for _ in range(2):
        shown, errors = chat(settings, "hello\n/context\n", command="run", code=0)
        assert errors == ""
        assert shown.startswith("I am the assistant.\n")
        assert "history" not in shown


def test_piped_chat_without_an_answer_prints_the_reason_and_fails(settings: dict[str, str]) -> None:
    presets = Path(settings["TROUPE_PRESETS_DIR"])
    (presets / "away.json").write_text('{"name": "away", "provider": "away", "model": "m"}')
    settings["TROUPE_PROVIDERS__AWAY__BASE_URL"] = "http://127.0.0.1:1/v1"
    assert "Connection refused" in chat(settings, "hi\n", "--preset", "away", code=1)[0]

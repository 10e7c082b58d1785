"""Test which replies to questions of menus stand for commands."""

from dataclasses import replace

import pytest

from bot.chat.command import ButtonAction, Command
from bot.chat.incoming import Quote, Said, WakeReason
from bot.routing.decide import QUESTIONS, replied_command
from bot.texts.text import translate
from tests.samples import make_incoming


def reply(text: str, quoted: str, *, is_ours: bool = True) -> Said:
    said = make_incoming(text, wake=WakeReason.REPLY)
    return replace(said, quote=Quote(None, "7", quoted, is_ours=is_ours))


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(
    ("action", "command"),
    [
        (ButtonAction.NAME, Command("preset", "use nova")),
        (ButtonAction.ABOUT, Command("me", "nova")),
    ],
)
def test_reply_gives_the_value(action: ButtonAction, command: Command, language: str) -> None:
    question = translate(QUESTIONS[action], language)
    assert replied_command(reply(" nova\n", question)) == command


def test_other_replies_are_no_commands() -> None:
    question = translate(QUESTIONS[ButtonAction.NAME], "en")
    assert replied_command(reply("nova", question, is_ours=False)) is None
    assert replied_command(reply("nova", f"{question} Please.")) is None
    assert replied_command(reply("/help", question)) is None
    assert replied_command(reply(" ", question)) is None
    assert replied_command(make_incoming(question)) is None

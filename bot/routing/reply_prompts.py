"""Free values of menus on platforms without forms: a question, and a reply to it as a command.

Nothing is kept between the two: the text of the question, which the reply quotes, tells what it
asks for. Whoever replies does what the command does, with the own rights.
"""

from collections.abc import Mapping

from bot.chat.button import ButtonAction
from bot.chat.command import Command, parse
from bot.chat.incoming import Said
from bot.texts.text import LANGUAGES, Text, translatable, translate

QUESTIONS: Mapping[ButtonAction, Text] = {
    ButtonAction.NAME: translatable(
        "Who is to answer here? Reply to this message with the name of the preset."
    ),
    ButtonAction.ABOUT: translatable(
        "How do you describe yourself here? Reply to this message; clear deletes it."
    ),
}
"""What a person is asked, by the button that asks for it."""
_COMMANDS = {ButtonAction.NAME: "/preset use", ButtonAction.ABOUT: "/me"}


def replied_command(said: Said) -> Command | None:
    """Return the command that a reply to one of the questions stands for; None: it is no reply."""
    quote = said.quote
    if quote is None or not quote.is_ours:
        return None
    text = " ".join(said.text.split())
    if not text or text.startswith("/"):
        return None
    for action, question in QUESTIONS.items():
        if quote.text in {translate(question, language) for language in LANGUAGES}:
            return parse(f"{_COMMANDS[action]} {text}")
    return None

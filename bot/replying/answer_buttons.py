"""The buttons under an answer: Stop while it grows, then Retry, Continue, Delete and versions."""

from functools import cache

from bot.chat.button import ButtonAction, encode_button
from bot.chat.outgoing import Button, ButtonStyle
from bot.texts.text import Text, language_of, translatable, translate

_STOP = translatable("⏹ Stop")
_RETRY = translatable("🔄 Retry")
_CONTINUE = translatable("▶ Continue")
_DELETE = translatable("🗑 Delete")
_FORGET = translatable("Forget everything I said")
_KEEP = translatable("Keep it")


def stop_button(part: str, locale: str | None) -> tuple[Button, ...]:
    """Return the button under an answer that is being written; `part` names its first part."""
    return (_button(_STOP, ButtonAction.STOP, part, locale, ButtonStyle.DANGER),)


def retry_button(part: str, locale: str | None) -> tuple[Button, ...]:
    """Return the button under the notice that an answer failed."""
    return (_button(_RETRY, ButtonAction.RETRY, part, locale, ButtonStyle.PRIMARY),)


def forget_buttons(part: str, locale: str | None) -> tuple[Button, ...]:
    """Return the buttons under the question whether a person is to be forgotten."""
    return (
        _button(_FORGET, ButtonAction.FORGET, part, locale, ButtonStyle.DANGER),
        _button(_KEEP, ButtonAction.KEEP, part, locale),
    )


def answer_buttons(
    part: str, locale: str | None, number: int = 1, versions: int = 1
) -> tuple[Button, ...]:
    """Return the buttons under a complete answer.

    Args:
        part: names its last part.
        locale: of who asked.
        number: which of its versions is shown, from 1.
        versions: how many there are; with more than one, others can be chosen.
    """
    return (
        _button(_RETRY, ButtonAction.RETRY, part, locale),
        _button(_CONTINUE, ButtonAction.CONTINUE, part, locale),
        _button(_DELETE, ButtonAction.DELETE, part, locale, ButtonStyle.DANGER),
        *(_version_buttons(part, number, versions) if versions > 1 else ()),
    )


def _version_buttons(part: str, number: int, versions: int) -> tuple[Button, ...]:
    """Return `‹ 2/3 ›`, without an arrow that leads nowhere."""
    labels = {number - 1: "‹", number: f"{number}/{versions}", number + 1: "›"}
    return tuple(
        Button(label, encode_button(ButtonAction.VERSION, part, chosen), row=1)
        for chosen, label in labels.items()
        if 1 <= chosen <= versions
    )


def _button(
    label: Text,
    action: ButtonAction,
    part: str,
    locale: str | None,
    style: ButtonStyle = ButtonStyle.PLAIN,
) -> Button:
    return Button(_translated(label, language_of(locale)), encode_button(action, part), style)


@cache  # of the few labels above; every answer has some of them
def _translated(label: Text, language: str) -> str:
    return translate(label, language)

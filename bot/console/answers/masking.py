"""Remove secrets from stored answers before they are shown."""

from collections.abc import Callable
from dataclasses import replace

from bot.chat.console.answers import StoredAnswer
from bot.errors import RequestRefused
from bot.ports import AnswerLog
from bot.texts.text import translatable


async def find_answer(answers: AnswerLog, number: int) -> StoredAnswer:
    """Return an answer as it is stored; raises `RequestRefused` with 404 if there is none."""
    found = await answers.find(number)
    if found is None:
        text = translatable("There is no such answer, or its text was deleted since.")
        raise RequestRefused(404, text)
    return found


def with_masked_text(answer: StoredAnswer, mask: Callable[[str], str]) -> StoredAnswer:
    """Return an answer without secrets in its text, for lists, which show nothing of the prompt."""
    return replace(answer, receipt=replace(answer.receipt, answer=mask(answer.receipt.answer)))


def masked_answer(answer: StoredAnswer, mask: Callable[[str], str]) -> StoredAnswer:
    """Return an answer without secrets."""
    receipt = answer.receipt
    messages = tuple(
        replace(
            one,
            content=mask(one.content),
            parts=tuple(mask(each) if isinstance(each, str) else each for each in one.parts),
        )
        for one in receipt.prompt.messages
    )
    return replace(
        answer,
        receipt=replace(
            receipt,
            answer=mask(receipt.answer),
            thoughts=mask(receipt.thoughts),
            prompt=replace(receipt.prompt, messages=messages),
            layout=tuple(replace(span, name=mask(span.name)) for span in receipt.layout),
            dropped=tuple(replace(item, name=mask(item.name)) for item in receipt.dropped),
        ),
    )

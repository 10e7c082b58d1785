"""Ask again what was asked for an answer of before, and show how the new answer differs."""

import difflib
import re
from collections.abc import Iterator

import typer

from bot.backends.exact_prompt import ExactPrompts
from bot.backends.registry import make_backend
from bot.chat.receipt import Receipt
from bot.errors import SettingsError, UserError
from bot.replying.generate import generate_answer
from bot.runtime.clock import SystemClock
from bot.settings import Settings
from bot.storage.sql.database import database_exists, open_database
from bot.storage.sql.receipts import SqlReceipts
from bot.templates.renderer import Renderer

_WORD = re.compile(r"\s+|\w+|[^\w\s]")


async def find_receipt(number: int, settings: Settings) -> Receipt:
    """Read a receipt by its number; raises UserError when there is none."""
    receipt = None
    if database_exists(settings.sqlalchemy_url):
        async with open_database(settings.sqlalchemy_url) as database:
            receipt = await SqlReceipts(database).get(number)
    if receipt is None:
        raise UserError(
            f"no receipt {number}; /context in a chat tells the number of its last answer, and "
            f"receipts are kept for {settings.receipt_days:g} days (TROUPE_RECEIPT_DAYS)"
        )
    return receipt


async def replay(receipt: Receipt, settings: Settings) -> str:
    """Send the same prompt to the same provider; gives both answers as one coloured text.

    Raises:
        SettingsError: the provider is not set up any more.
        BackendError: it gives no answer.
    """
    provider = settings.providers.get(receipt.provider)
    if provider is None:
        raise SettingsError(f"the provider {receipt.provider!r} is not set up any more")
    async with Renderer() as renderer:
        backend = make_backend(receipt.provider, provider, settings.data_dir, renderer)
        try:
            written = await generate_answer(
                backend, receipt.prompt, _quietly, _quietly, SystemClock()
            )
        finally:
            await backend.close()
    return difference(receipt.answer, written.text)


def _quietly(_event: object) -> None:
    """Nobody watches this answer grow."""


def difference(before: str, after: str) -> str:
    """Both texts in one: what is only in the first is red, what is only in the second green."""
    if before == after:
        return f"{after}\n\nThe answer is the same, letter by letter.\n"
    text = "".join(_marked(_WORD.findall(before), _WORD.findall(after)))
    share = difflib.SequenceMatcher(None, before, after, autojunk=False).ratio()
    return f"{text}\n\n{share:.0%} of both answers is the same.\n"


async def as_sent(number: int, receipt: Receipt, settings: Settings) -> str:
    """The exact prompt, as `/context prompt` gives it to an admin."""
    async with Renderer() as renderer:
        return await ExactPrompts(settings, renderer).write_out(number, receipt)


def _marked(before: list[str], after: list[str]) -> Iterator[str]:
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for what, begin, end, new_begin, new_end in matcher.get_opcodes():
        gone, new = "".join(before[begin:end]), "".join(after[new_begin:new_end])
        if what == "equal":
            yield new
            continue
        if gone:
            yield typer.style(f"[-{gone}-]", fg="red")
        if new:
            yield typer.style(f"{{+{new}+}}", fg="green")

"""`troupe replay`: send a stored prompt again, and show how the new answer differs."""

import difflib
import re
from collections.abc import Iterator
from typing import Annotated

import typer
import uvloop

from bot.backends.exact_prompt import ExactPromptWriter
from bot.backends.factory import make_backend
from bot.chat.receipt import Receipt
from bot.cli.text_io import print_exactly
from bot.cli.typer_apps import command_app
from bot.errors import SettingsError, UserError
from bot.replying.generate import generate_answer
from bot.runtime.clock import SystemClock
from bot.runtime.control_characters import escape_control_characters
from bot.service.stored_keys import with_stored_keys
from bot.settings import Settings, collect_secrets, read_settings
from bot.storage.sql.database import database_exists, open_database
from bot.storage.sql.receipts import SqlReceipts
from bot.telemetry.secret_masker import SecretMasker
from bot.templates.renderer import Renderer

_WORD = re.compile(r"\s+|\w+|[^\w\s]")

app = command_app()


@app.command()
def replay(
    receipt: Annotated[int, typer.Argument(help="The receipt's number, as /context shows it.")],
    show: Annotated[
        bool, typer.Option("--show", help="Only print the stored prompt, without secrets.")
    ] = False,
) -> None:
    """Ask a model again for an earlier answer.

    What only the old answer has is shown [-red-], what only the new one has {+green+}.
    """
    settings = uvloop.run(with_stored_keys(read_settings()))
    found = uvloop.run(find_receipt(receipt, settings))
    if show:
        print_exactly(uvloop.run(format_prompt(receipt, found, settings)))
    else:
        typer.echo(uvloop.run(compare_answers(found, settings)), nl=False)


async def find_receipt(number: int, settings: Settings) -> Receipt:
    """Read a receipt by its number; raises `UserError` when there is none."""
    receipt = None
    if database_exists(settings.sqlalchemy_url):
        async with open_database(settings.sqlalchemy_url, settings.text_encryption) as database:
            receipt = await SqlReceipts(database).get(number)
    if receipt is None:
        raise UserError(
            f"no receipt {number}; /context in a chat shows the number of its last answer, and "
            f"receipts are kept for {settings.receipt_days:g} days (TROUPE_RECEIPT_DAYS)"
        )
    return receipt


async def compare_answers(receipt: Receipt, settings: Settings) -> str:
    """Send the same prompt to the same provider; return both answers as one coloured text.

    Raises:
        SettingsError: the provider is not set up any more.
        BackendError: the provider does not answer.
    """
    provider = settings.providers.get(receipt.provider)
    if provider is None:
        raise SettingsError(f"the provider {receipt.provider!r} is not set up any more")
    async with Renderer() as renderer:
        backend = make_backend(receipt.provider, provider, settings.data_dir, renderer)
        try:
            answer = await generate_answer(backend, receipt.prompt, _ignore, _ignore, SystemClock())
        finally:
            await backend.close()
    return mark_differences(receipt.answer, answer.text)


def _ignore(_event: object) -> None:
    """Do nothing: the answer is shown when it is complete."""


def mark_differences(before: str, after: str) -> str:
    """Merge two texts: what only the first has is red, what only the second has is green.

    Control characters in them are escaped: the result goes to a terminal.
    """
    before, after = escape_control_characters(before), escape_control_characters(after)
    if before == after:
        return f"{after}\n\nThe two answers are identical.\n"
    text = "".join(_merge(_WORD.findall(before), _WORD.findall(after)))
    share = difflib.SequenceMatcher(None, before, after, autojunk=False).ratio()
    return f"{text}\n\n{share:.0%} of the two answers is the same.\n"


async def format_prompt(number: int, receipt: Receipt, settings: Settings) -> str:
    """Format the exact prompt, as `/context prompt` gives it to an admin."""
    async with Renderer() as renderer:
        mask = SecretMasker(collect_secrets(settings)).mask
        writer = ExactPromptWriter(settings.providers, settings.data_dir, renderer, mask)
        return await writer.write(number, receipt)


def _merge(before: list[str], after: list[str]) -> Iterator[str]:
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for operation, begin, end, new_begin, new_end in matcher.get_opcodes():
        removed, added = "".join(before[begin:end]), "".join(after[new_begin:new_end])
        if operation == "equal":
            yield added
            continue
        if removed:
            yield typer.style(f"[-{removed}-]", fg="red")
        if added:
            yield typer.style(f"{{+{added}+}}", fg="green")

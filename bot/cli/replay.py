"""`troupe replay`: send a stored prompt again, and show how the new answer differs."""

import difflib
from typing import Annotated

import typer
import uvloop

from bot.backends.exact_prompt import ExactPromptWriter
from bot.chat.answers import StoredAnswer
from bot.chat.receipt import Receipt
from bot.cli.text_io import print_exactly, print_progress
from bot.cli.typer_apps import command_app
from bot.console.differences import DifferingPiece, differing_pieces
from bot.console.operator_requests import ReplayChanges
from bot.console.prompt_view import joined_messages
from bot.errors import RequestRefused, SettingsError, UserError
from bot.runtime.terminal import escape_control_characters
from bot.service.resources import with_stored_keys
from bot.service.run import open_replay
from bot.settings import Settings, collect_secrets, read_settings
from bot.storage.database import database_exists, open_database
from bot.storage.reports import AnswerLog
from bot.telemetry.secret_masker import SecretMasker
from bot.templates.renderer import Renderer

app = command_app()


@app.command()
def replay(
    receipt: Annotated[int, typer.Argument(help="The receipt's number, as /context shows it.")],
    show: Annotated[
        bool, typer.Option("--show", help="Only print the stored prompt, without secrets.")
    ] = False,
    draft: Annotated[
        str,
        typer.Option(
            "--draft",
            help="Compose the prompt anew from the draft of this preset in the console, or as it is"
            " published, and ask its model.",
        ),
    ] = "",
) -> None:
    """Ask a model again for an earlier answer.

    What only the old answer has is shown [-red-], what only the new one has {+green+}; so is the
    prompt, if it is another one. It counts as usage of the operator; nothing is said in the chat.
    """
    settings = uvloop.run(with_stored_keys(read_settings()))
    found = uvloop.run(find_answer(receipt, settings))
    if show:
        print_exactly(uvloop.run(format_prompt(receipt, found.receipt, settings)))
    else:
        typer.echo(uvloop.run(compare_answers(found, draft, settings)), nl=False)


async def find_answer(number: int, settings: Settings) -> StoredAnswer:
    """Read an answer by the number of its receipt; raises `UserError` when there is none."""
    found = None
    if database_exists(settings.sqlalchemy_url):
        async with open_database(settings.sqlalchemy_url, settings.text_encryption) as database:
            found = await AnswerLog(database).find(number)
    if found is None:
        raise UserError(
            f"no receipt {number}; /context in a chat shows the number of its last answer, and "
            f"receipts are kept for {settings.receipt_days:g} days (TROUPE_RECEIPT_DAYS)"
        )
    return found


async def compare_answers(answer: StoredAnswer, draft: str, settings: Settings) -> str:
    """Ask again as the console does; return what differs as coloured text.

    Raises:
        SettingsError: the provider is not set up any more.
        UserError: there is no such preset, or no prompt can be composed from its draft.
        BackendError: the provider does not answer.
    """
    receipt = answer.receipt
    if not draft and receipt.provider not in settings.providers:
        raise SettingsError(f"the provider {receipt.provider!r} is not set up any more")
    async with open_replay(settings, print_progress) as replay_prompt:
        try:
            made = await replay_prompt.replay(answer, ReplayChanges(draft=draft))
        except RequestRefused as error:
            raise UserError(error.text) from error
    mask = SecretMasker(collect_secrets(settings)).mask
    text = mark_differences(receipt.answer, made.generated.text)
    prompts = [mask(joined_messages(one)) for one in (receipt.prompt, made.prompt)]
    if prompts[0] == prompts[1]:
        return text
    return f"{text}\nThe prompt:\n\n{merge_texts(*prompts)}\n"


def mark_differences(before: str, after: str) -> str:
    """Merge two answers, and say how much of them is the same.

    Control characters in them are escaped: the result goes to a terminal.
    """
    if before == after:
        return f"{escape_control_characters(after)}\n\nThe two answers are identical.\n"
    share = difflib.SequenceMatcher(None, before, after, autojunk=False).ratio()
    merged = merge_texts(before, after)
    return f"{merged}\n\n{share:.0%} of the two answers is the same.\n"


def merge_texts(before: str, after: str) -> str:
    """Merge two texts: what only the first has is red, what only the second has is green.

    Control characters in them are escaped.
    """
    return "".join(_style(one) for one in differing_pieces(before, after))


def _style(piece: DifferingPiece) -> str:
    text = escape_control_characters(piece.text)
    match piece.change:
        case "same":
            return text
        case "removed":
            return typer.style(f"[-{text}-]", fg="red")
        case "added":
            return typer.style(f"{{+{text}+}}", fg="green")


async def format_prompt(number: int, receipt: Receipt, settings: Settings) -> str:
    """Format the exact prompt, as `/context prompt` gives it to an admin."""
    async with Renderer() as renderer:
        mask = SecretMasker(collect_secrets(settings)).mask
        writer = ExactPromptWriter(settings.providers, settings.data_dir, renderer, mask)
        return await writer.write(number, receipt)

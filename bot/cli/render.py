"""`troupe render` and `troupe replay`: show a model's exact input, and ask again."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from bot.backends.exact_prompt import PastPromptWriter
from bot.backends.factory import make_backend
from bot.chat.answers import StoredAnswer
from bot.chat.incoming import Address, IncomingMessage, Person, WakeReason
from bot.chat.prompt import Message, PromptToken, TemplateChoice, TemplateNames
from bot.chat.receipt import Receipt
from bot.chat.session import Session, Turn
from bot.cli.text_io import print_exactly, print_progress, read_bytes, read_text
from bot.cli.typer_apps import create_command_app
from bot.console.differences import DifferingPiece, compare_texts
from bot.console.prompt_view import join_messages
from bot.errors import RequestRefused, SettingsError, TemplateError, UserError
from bot.importers.character_files import read_character_folder
from bot.importers.file_kinds import (
    MAX_BYTES_READ,
    RENDER_TEMPLATE_KINDS,
    FileKind,
    check_file_kind,
    detect_file_kind,
)
from bot.importers.preset_files import preset_from_text
from bot.prompting.compose.compose import choose_template, compose, fit_for_backend, fit_for_preset
from bot.prompting.draft import Draft
from bot.prompting.presets.preset import Preset
from bot.prompting.text.tokens import count_tokens
from bot.runtime.shipped_files import presets_folder
from bot.runtime.tasks import run_async
from bot.runtime.terminal import escape_control_characters
from bot.service.resources import add_stored_keys
from bot.service.run import open_replay
from bot.settings import Settings, collect_secrets, read_settings
from bot.storage.database import database_exists, open_database
from bot.storage.reports import AnswerLog
from bot.telemetry.secret_masker import SecretMasker
from bot.templates import get, names
from bot.templates.renderer import ModelTemplate, RenderedPrompt, Renderer

_UNNAMED_USER = Person("render:1", "You")
_DEFAULT_NAMES = TemplateNames(char="Assistant", user="You", is_group=False)
_FIXED_TIME = datetime.fromtimestamp(0, UTC)
_RENDER_ADDRESS = Address("render", "1")


class PromptView(StrEnum):
    TEXT = "text"
    MESSAGES = "messages"
    TOKENS = "tokens"


app = create_command_app()


@app.command()
def render(
    messages: Annotated[
        Path, typer.Option(help='A file with a JSON list of {"role", "content"}; - for stdin.')
    ],
    preset: Annotated[
        str | None, typer.Option(help="A preset's name; default: the default preset.")
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            help="Instead of a preset: the name of a template, or a file (Jinja, a chat template "
            "of LMDeploy or SillyTavern, or a tokenizer_config.json)."
        ),
    ] = None,
    view: Annotated[
        PromptView, typer.Option("--as", help="How to show the prompt.")
    ] = PromptView.TEXT,
) -> None:
    """Show the exact prompt that a model would receive.

    The last message must be the user's, which the preset answers. With --as tokens, a local model's
    own tokenizer is used; for other providers, the count is an estimate.
    """
    if preset and template:
        raise UserError("use either --preset or --template, not both")
    reads_stdin = str(messages) == "-"
    if not reads_stdin:
        check_file_kind(read_bytes(messages, MAX_BYTES_READ), messages, {FileKind.MESSAGES})
    input_messages = read_messages(
        sys.stdin.read() if reads_stdin else read_text(messages),
        "the input" if reads_stdin else str(messages),
    )
    if template:
        output = run_async(render_template(template, input_messages, view))
    else:
        settings = read_settings()
        presets = read_character_folder(presets_folder(settings.presets_dir))
        chosen_preset = presets.find(preset or settings.default_preset)
        output = run_async(render_preset(chosen_preset, input_messages, view, settings))
    if view is PromptView.TOKENS:
        typer.echo(output, nl=False)  # typer removes colors if stdout is not a terminal
    else:
        print_exactly(output, end="\n" if sys.stdout.isatty() and not output.endswith("\n") else "")


def read_messages(text: str, source: str) -> list[Message]:
    """Parse a JSON list of {"role", "content"}; raise `UserError` with the problem."""
    try:
        messages = msgspec.json.decode(text, type=list[Message])
    except (msgspec.DecodeError, RecursionError) as error:
        raise UserError(f"{source} is not a list of messages: {error}") from None
    if not messages:
        raise UserError(f"{source} is an empty list; at least one message is needed")
    return messages


async def render_preset(
    preset: Preset, messages: Sequence[Message], view: PromptView, settings: Settings
) -> str:
    """Return a preset's prompt for the last message, which must be the user's.

    Raises `TroupeError`.
    """
    draft = _compose_draft(preset, messages)
    prompt = (await fit_for_preset(preset, draft)).prompt
    provider = settings.providers.get(preset.provider)
    if provider is None:
        raise SettingsError(
            f"preset {preset.name!r}: the provider {preset.provider!r} is not set up"
        )
    if view is PromptView.MESSAGES:
        return format_messages(prompt.messages)
    async with Renderer() as renderer:
        backend = make_backend(preset.provider, provider, settings.data_dir, renderer)
        try:
            if view is PromptView.TOKENS and backend.can_tokenize:
                fitted_prompt = await fit_for_backend(preset, draft, backend)
                return format_tokens(await backend.tokenize(fitted_prompt.prompt))
            choice = prompt.template
            if choice.named is None and choice.strings is None:
                description = await backend.describe(prompt)
                if not description.is_rendered:
                    print_progress(
                        f"the provider {preset.provider!r} receives messages and renders them"
                        " itself: this is the body of the request"
                    )
                return description.text
        finally:
            await backend.close()
        result = await renderer.render(prompt.messages, choice, ModelTemplate(), has_prefill=True)
        return _format_rendering(result, view)


async def render_template(name_or_file: str, messages: Sequence[Message], view: PromptView) -> str:
    if view is PromptView.MESSAGES:
        return format_messages(messages)
    async with Renderer() as renderer:
        choice, model_template = _find_template(name_or_file)
        return _format_rendering(await renderer.render(messages, choice, model_template), view)


def format_messages(messages: Sequence[Message]) -> str:
    message_dicts = [msgspec.to_builtins(each) for each in messages]
    compact_dicts = [
        {key: each[key] for key in ("role", "content", "parts") if each[key]}
        for each in message_dicts
    ]
    return json.dumps(compact_dicts, ensure_ascii=False, indent=2) + "\n"


def format_tokens(tokens: Sequence[PromptToken]) -> str:
    """Format tokens, one per line with its origin; control tokens are colored."""
    lines = []
    for token in tokens:
        token_origin = "control" if token.control else "" if token.trusted else "message"
        line = f"{token.id:>7}  {token_origin:<7}  {token.text!r}"
        lines.append(typer.style(line, fg="magenta", bold=True) if token.control else line)
    control_tokens = sum(token.control for token in tokens)
    message_tokens = sum(not token.trusted for token in tokens)
    lines.append(f"{len(tokens)} tokens: {control_tokens} control, {message_tokens} from messages")
    return "\n".join(lines) + "\n"


def _format_rendering(prompt: RenderedPrompt, view: PromptView) -> str:
    if view is PromptView.TEXT:
        return prompt.text
    counts = count_tokens([span.text for span in prompt.spans])
    lines = []
    for span, count in zip(prompt.spans, counts, strict=True):
        line = f"{count:>7}  {'' if span.trusted else 'message':<7}  {span.text!r}"
        lines.append(typer.style(line, fg="magenta", bold=True) if span.trusted else line)
    lines.append(
        f"about {sum(counts)} tokens: an estimate with cl100k_base, because a template has no"
        " tokenizer"
    )
    return "\n".join(lines) + "\n"


def _compose_draft(preset: Preset, messages: Sequence[Message]) -> Draft:
    *earlier_messages, last_message = messages
    if last_message.role != "user":
        raise UserError("the last message must be the user's, because the preset answers it")
    turns = tuple(
        Turn(one.role, one.content, _to_author(one) if one.role == "user" else None, _FIXED_TIME)
        for one in earlier_messages
    )
    incoming_message = IncomingMessage(
        address=_RENDER_ADDRESS,
        external_key="1",
        message_id=None,
        author=_to_author(last_message),
        text=last_message.content,
        at=_FIXED_TIME,
        wake=WakeReason.DM,
        scopes=(_RENDER_ADDRESS.lane,),
    )
    return compose(preset, Session(1, turns), incoming_message)


def _to_author(message: Message) -> Person:
    """Return a message's author from the file; messages without a `name` share one author."""
    return Person(f"render:{message.name}", message.name) if message.name else _UNNAMED_USER


def _find_template(name_or_file: str) -> tuple[TemplateChoice, ModelTemplate]:
    if name_or_file in names():
        return TemplateChoice(named=name_or_file), ModelTemplate()
    file = Path(name_or_file)
    if not os.path.isfile(file):  # `Path.is_file` raises if a name is too long
        try:
            get(name_or_file)
        except TemplateError as error:
            raise UserError(f"{error} (and there is no such file)") from None
    data = read_bytes(file, MAX_BYTES_READ)
    check_file_kind(data, file, RENDER_TEMPLATE_KINDS)
    match detect_file_kind(data):
        case FileKind.TOKENIZER_CONFIG:
            return TemplateChoice(), _parse_tokenizer_config(read_text(file), name_or_file)
        case FileKind.LMDEPLOY_TEMPLATE | FileKind.INSTRUCT | FileKind.KOBOLDCPP_ADAPTER:
            choice = choose_template(preset_from_text(read_text(file), file).preset)
            return replace(choice, names=_DEFAULT_NAMES), ModelTemplate()
        case _:
            return TemplateChoice(source=read_text(file)), ModelTemplate()


def _parse_tokenizer_config(text: str, source: str) -> ModelTemplate:
    match json.loads(text):
        case {"chat_template": str(template), **rest}:
            tokens = {key: _get_token_text(rest.get(key)) for key in ("bos_token", "eos_token")}
            return ModelTemplate(template, **tokens)
        case _:
            raise UserError(f"{source} has no text in `chat_template`; save it as a .jinja file")


def _get_token_text(value: object) -> str:
    match value:
        case str(text) | {"content": str(text)}:
            return text
        case _:
            return ""


@app.command()
def replay(
    receipt: Annotated[
        int, typer.Argument(help="The receipt number of the answer, which /context shows.")
    ],
    show: Annotated[
        bool, typer.Option("--show", help="Only print the stored prompt, without secrets.")
    ] = False,
    draft: Annotated[
        str,
        typer.Option(
            "--draft",
            help="Compose a new prompt with this preset (its draft in the console, or its "
            "published version), and ask its model.",
        ),
    ] = "",
) -> None:
    """Generate an earlier answer again, and compare the two.

    Text only in the old answer is shown as [-red-], text only in the new answer as {+green+}. If
    the prompts differ, they are compared as well. The request counts as the operator's usage;
    nothing is sent to the chat.
    """
    settings = run_async(add_stored_keys(read_settings()))
    answer = run_async(find_answer(receipt, settings))
    if show:
        print_exactly(run_async(format_prompt(receipt, answer.receipt, settings)))
    else:
        typer.echo(run_async(ask_again_and_compare(answer, draft, settings)), nl=False)


async def find_answer(number: int, settings: Settings) -> StoredAnswer:
    """Return the stored answer with a receipt number; raise `UserError` if there is none."""
    answer = None
    if database_exists(settings.sqlalchemy_url):
        async with open_database(settings.sqlalchemy_url, settings.text_encryption) as database:
            answer = await AnswerLog(database).find(number)
    if answer is None:
        raise UserError(
            f"there is no receipt {number}; in a chat, /context shows the number of the last "
            f"answer; receipts are kept for {settings.receipt_days:g} days (TROUPE_RECEIPT_DAYS)"
        )
    return answer


async def ask_again_and_compare(answer: StoredAnswer, draft: str, settings: Settings) -> str:
    """Ask again for an answer, as the console does; return the differences as colored text."""
    receipt = answer.receipt
    if not draft and receipt.provider not in settings.providers:
        raise SettingsError(f"the provider {receipt.provider!r} is no longer set up")
    async with open_replay(settings, print_progress) as prompt_replay:
        try:
            new_answer = await prompt_replay.replay(answer, "", draft)
        except RequestRefused as error:
            raise UserError(error.text) from error
    mask = SecretMasker(collect_secrets(settings)).mask
    answer_texts = receipt.answer, new_answer.receipt.answer
    text = color_differences(*answer_texts)
    if answer_texts[0] == answer_texts[1]:
        text += "\n\nThe two answers are identical."
    prompt_texts = [mask(join_messages(one)) for one in (receipt.prompt, new_answer.receipt.prompt)]
    if prompt_texts[0] != prompt_texts[1]:
        text += f"\n\nThe prompt:\n\n{color_differences(*prompt_texts)}"
    return f"{text}\n"


def color_differences(before: str, after: str) -> str:
    """Merge two texts into one, with text only in `before` red and text only in `after` green."""
    return "".join(_style_piece(one) for one in compare_texts(before, after))


def _style_piece(piece: DifferingPiece) -> str:
    text = escape_control_characters(piece.text)
    match piece.change:
        case "same":
            return text
        case "removed":
            return typer.style(f"[-{text}-]", fg="red")
        case "added":
            return typer.style(f"{{+{text}+}}", fg="green")


async def format_prompt(number: int, receipt: Receipt, settings: Settings) -> str:
    async with Renderer() as renderer:
        mask = SecretMasker(collect_secrets(settings)).mask
        writer = PastPromptWriter(settings.providers, settings.data_dir, renderer, mask)
        return await writer.format(number, receipt)

"""`troupe run` and `troupe chat`: start the service."""

import gc
import os
import stat
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import typer

from bot.cli.init import confirm, init
from bot.cli.text_io import print_line, print_progress
from bot.cli.typer_apps import create_command_app
from bot.errors import SettingsError
from bot.platforms.registry import companion_platforms, terminal_platforms
from bot.platforms.spec import PlatformSpec
from bot.runtime.tasks import run_async
from bot.service.options import RunOptions, parse_roles, select_platforms
from bot.service.resources import add_stored_keys
from bot.service.run import open_service
from bot.settings import (
    Settings,
    collect_secrets,
    describe_unknown_variables,
    has_settings,
    read_settings,
)
from bot.storage.data_dir import create_data_dir
from bot.storage.database import database_exists
from bot.telemetry.json_lines import JsonLines
from bot.telemetry.logs import configure_logs, log_crash, open_log_stream
from bot.telemetry.metrics import count_unanswered_messages, start_tracing

_GC_THRESHOLDS = (2_000, 500, 2)
"""The garbage collector's thresholds for its three generations of objects.

Reference counts free nearly all garbage. With 2,000 chats, messages in progress have 100,000
objects. Checking all of these takes a tenth of a second; checking only the newest takes 20 ms.
"""

_STACK_FRAME_SLOTS = 40_000
"""The frame size of `call_in_stack_chunk`, in slots of 8 bytes. For it, CPython maps a chunk of
512 KB, of which over a third remains for calls from that frame. Untouched pages use no memory."""

T = TypeVar("T")
_DEFAULT_OPTIONS = RunOptions()

app = create_command_app()


@app.command()
def run(
    offer_setup: Annotated[
        bool,
        typer.Option(
            "--offer-setup", help="In a terminal, offer the setup first if nothing is set up yet."
        ),
    ] = False,
    role: Annotated[
        str,
        typer.Option(
            "--role",
            help="What this process does if several share a PostgreSQL database: gateway, worker, "
            "sender, console (or several of these, separated by commas), or all.",
        ),
    ] = "all",
    platforms: Annotated[
        str | None,
        typer.Option("--platforms", help="Start only these platforms, separated by commas."),
    ] = None,
) -> None:
    """Start the service on Discord, Telegram, or in this terminal.

    It answers on every platform that has a token, or in this terminal if none has; piped lines
    start a new conversation. The database is upgraded first if needed. Ctrl+C stops it.
    """
    roles = parse_roles(role)
    settings = read_settings()
    if offer_setup and _is_first_start(settings):
        print_line("Nothing is set up yet, so you'll chat here with a small model.")
        if confirm("Set up a better model, or Telegram or Discord, now?", default=False):
            init()
            settings = read_settings()
    configured_platforms = settings.configured_platforms
    if platforms is not None:
        configured_platforms = select_platforms(platforms, configured_platforms)
    serves_http = bool(configured_platforms) or not _has_piped_stdin()
    options = RunOptions(serves_http=serves_http, roles=roles)
    if options.shares_work and not configured_platforms:
        raise SettingsError(
            "--role needs a chat platform, because processes cannot share a terminal: set"
            " TROUPE_TELEGRAM__TOKEN or TROUPE_DISCORD__TOKEN"
        )
    companion_specs = companion_platforms() if settings.console.pages and serves_http else ()
    serve(settings, [*(configured_platforms or terminal_platforms()), *companion_specs], options)


@app.command()
def chat(
    preset: Annotated[
        str | None, typer.Option(help="The preset that answers, in a conversation of its own.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model to use this time: MODEL or PROVIDER/MODEL.")
    ] = None,
) -> None:
    """Chat with your presets in this terminal.

    It opens no port and can run beside a service with the same data directory. Tokens of other
    platforms are ignored. Piped lines start a new conversation and are answered in order; the exit
    code is 1 if any was not answered: echo hello | troupe chat
    """
    options = RunOptions(serves_http=False, preset=preset, model=model)
    serve(read_settings(), terminal_platforms(), options)


def _has_piped_stdin() -> bool:
    if sys.stdin is None:
        return False
    stdin_mode = os.fstat(sys.stdin.fileno()).st_mode
    return stat.S_ISFIFO(stdin_mode) or stat.S_ISREG(stdin_mode)


def _is_first_start(settings: Settings) -> bool:
    """Return whether nothing is set up yet and there is a terminal to ask questions in."""
    if has_settings() or database_exists(settings.sqlalchemy_url):
        return False
    return sys.stdin.isatty() and sys.stdout.isatty()


def serve(
    settings: Settings, platforms: Sequence[PlatformSpec], options: RunOptions = _DEFAULT_OPTIONS
) -> None:
    for line in describe_unknown_variables():
        print_progress(line)
    settings = run_async(add_stored_keys(settings))
    uses_terminal = any(spec.uses_terminal for spec in platforms)
    log_file = create_data_dir(settings.data_dir) / "troupe.log" if uses_terminal else None
    if log_file is None:
        sys.stdout = JsonLines(sys.stdout, lambda: settings.log_format == "json")
        sys.excepthook = log_crash
    configure_logs(
        log_format=settings.log_format,
        level=settings.log_level,
        secrets=collect_secrets(settings),
        stream=open_log_stream(log_file),
    )
    stop_tracing = None if settings.traces_url is None else start_tracing(settings.traces_url)
    try:
        call_in_stack_chunk(lambda: run_async(_serve(settings, platforms, options)))
    finally:
        if stop_tracing is not None:
            stop_tracing()
    if uses_terminal and not sys.stdin.isatty() and count_unanswered_messages("terminal"):
        raise typer.Exit(1)


async def _serve(
    settings: Settings, platforms: Sequence[PlatformSpec], options: RunOptions
) -> None:
    # Nearly all objects of the start stay alive, and collecting would take a fifth of its time.
    gc.disable()
    async with open_service(settings, print_progress, platforms, options) as service:
        # Objects that are alive now stay alive. Checking them repeatedly took an eighth of a
        # message's CPU time, and paused everything for up to a quarter of a second. Later objects
        # belong to messages in progress; if collections are rare, reference counts free most.
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        gc.enable()
        await service.serve()


def call_in_stack_chunk(function: Callable[[], T]) -> T:
    """Call a function in a stack chunk that is large enough for the frames of all its calls.

    CPython keeps a thread's frames in chunks of 16 KB. It maps a new chunk when a call's frame does
    not fit, and unmaps it when that call returns. An event loop calls everything from the same
    depth: near the end of a chunk, each message would cost fifty pairs of these system calls.
    """
    return function()


call_in_stack_chunk.__code__ = call_in_stack_chunk.__code__.replace(co_stacksize=_STACK_FRAME_SLOTS)

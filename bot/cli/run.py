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
from bot.cli.typer_apps import command_app
from bot.errors import SettingsError
from bot.platforms.registry import companion_platforms, terminal_platforms
from bot.platforms.spec import PlatformSpec
from bot.runtime.tasks import run_async
from bot.service.options import RunOptions, parse_roles, select_platforms
from bot.service.resources import with_stored_keys
from bot.service.run import running
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
from bot.telemetry.metrics import count_unanswered, start_traces

_GC_THRESHOLDS = (2_000, 500, 2)
"""New objects between two collections of these, then how many of those between two of older ones.

Nearly all garbage is freed by reference counts. With 2,000 chats, messages in progress hold 100,000
objects: looking through them takes a tenth of a second, and looking through the newest 20 ms.
"""

_RESERVED_SLOTS = 40_000
"""Of 8 bytes. A chunk is a power of two that holds the frame that it was mapped for: 512 KB here,
of which more than a third is left for the calls from this frame. Untouched pages use no memory."""

T = TypeVar("T")
_AS_SET = RunOptions()

app = command_app()


@app.command()
def run(
    offer_setup: Annotated[
        bool,
        typer.Option(
            "--offer-setup", help="In a terminal, if nothing is set up: offer to do that first."
        ),
    ] = False,
    role: Annotated[
        str,
        typer.Option(
            "--role",
            help="What this process does, of several that share a PostgreSQL: gateway, worker,"
            " sender, console, several of them with commas, or all.",
        ),
    ] = "all",
    platforms: Annotated[
        str | None,
        typer.Option("--platforms", help="Only these platforms, separated by commas."),
    ] = None,
) -> None:
    """Start the service on Discord, Telegram or in this terminal.

    It answers on every platform that has a token, or in this terminal if none has; piped lines
    start a new conversation. The database is upgraded first if needed. Ctrl+C stops it.
    """
    roles = parse_roles(role)
    settings = read_settings()
    if offer_setup and _is_first_start(settings):
        print_line("Nothing is set up yet. Without a set-up you chat here, with a small model.")
        if confirm("Set up a better model, Telegram or Discord now?", default=False):
            init()
            settings = read_settings()
    configured = settings.configured_platforms
    if platforms is not None:
        configured = select_platforms(platforms, configured)
    has_port = bool(configured) or not _reads_pipe()
    options = RunOptions(has_port=has_port, roles=roles)
    if options.shares_work and not configured:
        raise SettingsError(
            "--role needs a platform whose messages are shared out: set TROUPE_TELEGRAM__TOKEN or"
            " TROUPE_DISCORD__TOKEN"
        )
    companions = companion_platforms() if settings.console.pages and has_port else ()
    serve(settings, [*(configured or terminal_platforms()), *companions], options)


@app.command()
def chat(
    preset: Annotated[
        str | None,
        typer.Option(help="Who answers, in a conversation of its own; the usual one is unchanged."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The model that answers this time: MODEL or PROVIDER/MODEL."),
    ] = None,
) -> None:
    """Chat with your presets in this terminal.

    It opens no port and can run beside a service with the same data directory. Tokens of other
    platforms are ignored. Piped lines start a new conversation and are answered in order; the exit
    code is 1 if any was not answered: echo hello | troupe chat
    """
    options = RunOptions(has_port=False, preset=preset, model=model)
    serve(read_settings(), terminal_platforms(), options)


def _reads_pipe() -> bool:
    if sys.stdin is None:
        return False
    mode = os.fstat(sys.stdin.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _is_first_start(settings: Settings) -> bool:
    """Return whether nothing has been set up or started yet, and somebody can answer questions."""
    if has_settings() or database_exists(settings.sqlalchemy_url):
        return False
    return sys.stdin.isatty() and sys.stdout.isatty()


def serve(
    settings: Settings, platforms: Sequence[PlatformSpec], options: RunOptions = _AS_SET
) -> None:
    for line in describe_unknown_variables():
        print_progress(line)
    settings = run_async(with_stored_keys(settings))
    uses_terminal = any(spec.uses_terminal for spec in platforms)
    log_file = create_data_dir(settings.data_dir) / "troupe.log" if uses_terminal else None
    if log_file is None:
        sys.stdout = JsonLines(sys.stdout, lambda: settings.log_format == "json")
        sys.excepthook = log_crash
    configure_logs(
        form=settings.log_format,
        level=settings.log_level,
        secrets=collect_secrets(settings),
        stream=open_log_stream(log_file),
    )
    end_traces = None if settings.traces_url is None else start_traces(settings.traces_url)
    try:
        call_in_large_chunk(lambda: run_async(_serve(settings, platforms, options)))
    finally:
        if end_traces is not None:
            end_traces()
    if uses_terminal and not sys.stdin.isatty() and count_unanswered("terminal"):
        raise typer.Exit(1)


async def _serve(
    settings: Settings, platforms: Sequence[PlatformSpec], options: RunOptions
) -> None:
    # Nearly all objects of a start stay alive: collecting garbage would take a fifth of it.
    gc.disable()
    async with running(settings, print_progress, platforms, options) as service:
        # What is alive now stays alive. Looking through it for garbage again and again was an
        # eighth of a message's cost and stopped everything for up to a quarter of a second. What
        # comes later belongs to messages in progress: collected less often, most of it is freed
        # by reference counts alone.
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        gc.enable()
        await service.serve()


def call_in_large_chunk(function: Callable[[], T]) -> T:
    """Call a function so that all of its own calls fit into one chunk of the frame stack.

    CPython keeps a thread's frames in chunks of 16 KB. It maps a new chunk when a call does not
    fit, and unmaps it when that call returns. An event loop calls everything from the same depth:
    near the end of a chunk, each message costs some fifty pairs of these system calls.
    """
    return function()


call_in_large_chunk.__code__ = call_in_large_chunk.__code__.replace(co_stacksize=_RESERVED_SLOTS)

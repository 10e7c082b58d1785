"""Configure structured logs: constant event names, ids as fields, and every secret masked."""

import logging
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from bot.errors import SettingsError
from bot.telemetry.recent_events import RECENT_EVENTS
from bot.telemetry.secret_masker import SecretMasker

_LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error")}

# Control characters: they move a terminal's cursor, break a line or reverse its direction.
_CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class ConsoleLogRenderer:
    """Render an event as one line for people, with its traceback indented below.

    Control characters are escaped, so that text from people cannot forge a log line or control the
    terminal.
    """

    def __init__(self) -> None:
        self._render = structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback
        )

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> str:
        event["event"] = _escape(str(event["event"]))
        traceback = str(event.pop("exception", "")).splitlines()
        lines = [_escape(self._render(logger, method, event))]
        return "\n".join([*lines, *(f"  {_escape(line)}" for line in traceback)])


class BoundTurn:
    """Has every line that is logged in the block name a turn.

    structlog's `bound_contextvars` reads all variables of the context before and after it, which
    takes four times as long.
    """

    def __init__(self, turn: str) -> None:
        self._turn = turn

    def __enter__(self) -> None:
        self._tokens = structlog.contextvars.bind_contextvars(turn=self._turn)

    def __exit__(self, *_: object) -> None:
        structlog.contextvars.reset_contextvars(**self._tokens)


def configure_logs(*, form: str, level: str, secrets: Iterable[str], stream: TextIO) -> None:
    """Send our events, and the libraries' warnings, through one processor chain to one stream."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        SecretMasker(secrets),
        RECENT_EVENTS,
    ]
    renderer: Processor = (
        structlog.processors.JSONRenderer() if form == "json" else ConsoleLogRenderer()
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("bot").setLevel(_LEVELS[level])
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        cache_logger_on_first_use=True,
    )


def open_log_stream(file: Path | None) -> TextIO:
    """Open a log file; without one, return standard error.

    Raises:
        SettingsError: the file cannot be written.
    """
    if file is None:
        return sys.stderr
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.open("a", encoding="utf-8", buffering=1)
    except OSError as error:
        raise SettingsError(
            f"the log {file} cannot be written ({error.strerror}); "
            "fix its permissions or set TROUPE_DATA_DIR"
        ) from None


def _escape(text: str) -> str:
    return _CONTROL_CHARACTERS.sub(lambda found: repr(found[0])[1:-1], text)

"""Configure structured logs with masked secrets, and keep recent events for the console."""

import contextlib
import logging
import math
import re
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger
from typing_extensions import override

from bot.chat.operation import FailedMessage, LogEntry
from bot.chat.session import MessageNote, short_error_id
from bot.errors import SettingsError
from bot.telemetry.json_lines import JsonLines
from bot.telemetry.secret_masker import SecretMasker
from bot.texts.text import escape_to_one_line

_LOG_LEVELS = {one: getattr(logging, one.upper()) for one in ("debug", "info", "warning", "error")}
_SECONDS_BETWEEN_REPEATS = 60.0
_MAX_ERROR_IDS = 500
_UNIQUE_FIELDS = {"timestamp", "turn", "error_id"}
# A number that may differ between repeats, such as a duration; not part of a name or URL.
_VARIABLE_NUMBER = re.compile(r"0x[0-9a-f]+|(?<=Task-)\d+|(?<![\w.:=-])\d+(?:\.\d+)?(?!\.?\d)")

_format_exception = structlog.dev.plain_traceback
_render_event = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=_format_exception)


def render_for_console(logger: WrappedLogger, method: str, event: EventDict) -> str:
    """Return an event as one line of text, followed by its traceback; escape control characters."""
    event["event"] = escape_to_one_line(str(event["event"]))
    traceback_lines = str(event.pop("exception", "")).splitlines()
    lines = [escape_to_one_line(_render_event(logger, method, event))]
    return "\n".join([*lines, *(f"  {escape_to_one_line(line)}" for line in traceback_lines)])


@dataclass(slots=True)
class _RepeatedRecord:
    written_at: float
    """When a record was last written."""
    last_repeat: logging.LogRecord | None = None
    repeat_count: int = 0
    error_ids: list[str] = field(default_factory=list)  # of the repeats

    def add(self, record: logging.LogRecord) -> None:
        self.last_repeat = record
        self.repeat_count += 1
        error_id = record.msg.get("error_id") if isinstance(record.msg, dict) else None
        if error_id is not None and len(self.error_ids) < _MAX_ERROR_IDS:
            self.error_ids.append(error_id)


class RateLimitedHandler(logging.StreamHandler[TextIO]):
    """Logs repeats of a warning or error at most once a minute, with the number of repeats.

    A record repeats another if all fields are equal, apart from the time, the turn, the error id,
    and numbers in texts.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._recent_records: dict[str, _RepeatedRecord] = {}

    @override
    def emit(self, record: logging.LogRecord) -> None:
        now = record.created
        key = _key_of_repeats(record) if record.levelno >= logging.WARNING else None
        if key is not None and key in self._recent_records:
            self._recent_records[key].add(record)
        self._write_repeats(now, now - _SECONDS_BETWEEN_REPEATS)
        if key is None:
            super().emit(record)
        elif key not in self._recent_records:
            self._recent_records[key] = _RepeatedRecord(now)
            super().emit(record)

    @override
    def close(self) -> None:
        self._write_repeats(math.inf, math.inf)
        super().close()

    def _write_repeats(self, now: float, cutoff: float) -> None:
        """Log the repeats of records written before `cutoff`; forget records without repeats."""
        for key, repeated_record in list(self._recent_records.items()):
            if repeated_record.written_at > cutoff:
                continue
            del self._recent_records[key]
            if (record := repeated_record.last_repeat) is None:
                continue
            self._recent_records[key] = _RepeatedRecord(now)
            if isinstance(record.msg, dict):  # logged with structlog
                ids = {"error_ids": repeated_record.error_ids} if repeated_record.error_ids else {}
                record.msg = {**record.msg, "repeats": repeated_record.repeat_count, **ids}
            else:
                record.msg = f"{record.getMessage()} (repeats: {repeated_record.repeat_count})"
                record.args = ()
            super().emit(record)


def _key_of_repeats(record: logging.LogRecord) -> str:
    """Return a key that is the same for all repeats of a warning or error."""
    if isinstance(record.msg, dict):
        fields = {key: str(value) for key, value in record.msg.items() if key not in _UNIQUE_FIELDS}
        fields["exception"] = fields.get("exception", "").rpartition("\n")[2]
        text = repr(sorted(fields.items()))
    else:
        exception = record.exc_info[1] if record.exc_info else ""
        text = f"{record.name}: {record.getMessage()} {exception}"
    return _VARIABLE_NUMBER.sub("0", text)


class TurnLogContext:
    """Adds the field `turn` to log lines in a block, faster than `bound_contextvars` does."""

    def __init__(self, turn: str) -> None:
        self._turn = turn

    def __enter__(self) -> None:
        self._tokens = structlog.contextvars.bind_contextvars(turn=self._turn)

    def __exit__(self, *_: object) -> None:
        structlog.contextvars.reset_contextvars(**self._tokens)


@contextmanager
def log_only_warnings() -> Iterator[None]:
    """Log only warnings and errors in the block, to stderr, so that they do not mix with output."""
    previous_config = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        yield
    finally:
        structlog.configure(**previous_config)


def configure_logs(*, log_format: str, level: str, secrets: Iterable[str], stream: TextIO) -> None:
    """Log our events from `level` up, and libraries' warnings, to a stream; mask all secrets."""
    shared_processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        SecretMasker(secrets),
        RECENT_EVENTS,
    ]
    json_renderer = structlog.processors.JSONRenderer()
    renderer: Processor = json_renderer if log_format == "json" else render_for_console
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared_processors,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    handler = RateLimitedHandler(stream)
    handler.setFormatter(formatter)
    logging.captureWarnings(True)
    root_logger = logging.getLogger()
    root_logger.handlers = [handler]
    root_logger.setLevel(logging.WARNING)
    logging.getLogger("bot").setLevel(_LOG_LEVELS[level])
    structlog.configure(
        processors=[*shared_processors, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(_LOG_LEVELS[level]),
    )


def log_crash(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Log an uncaught exception; install this as `sys.excepthook`."""
    structlog.get_logger(__name__).critical("crashed", exc_info=(kind, error, traceback))


def open_log_stream(file: Path | None) -> TextIO:
    """Open a log file for appending, or return stderr if `file` is None; raises `SettingsError`."""
    if file is None:
        return sys.stderr.stream if isinstance(sys.stderr, JsonLines) else sys.stderr
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.open("a", encoding="utf-8", buffering=1)
    except OSError as error:
        raise SettingsError(
            f"cannot write the log file {file} ({error.strerror}); "
            "fix its permissions or set TROUPE_DATA_DIR"
        ) from None


_MAX_KEPT_EVENTS = 2000
_MAX_LOG_ENTRIES_PER_MESSAGE = 30
_MAX_VALUE_CHARS = 1000  # per value; the end is kept, because a traceback ends with the error
_FAILURE_LEVELS = {"warning", "error", "critical"}
_COMMON_FIELDS = {"event", "level", "timestamp", "turn", "logger"}


class RecentEvents:
    """A structlog processor that keeps the latest log events of chat messages, already masked."""

    def __init__(self, max_events: int = _MAX_KEPT_EVENTS) -> None:
        self._steps: deque[tuple[str, LogEntry]] = deque(maxlen=max_events)

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        turn = event.get("turn")
        if turn is not None:
            detail_names = event.keys() - _COMMON_FIELDS
            details = {
                name: str(event[name])[-_MAX_VALUE_CHARS:] for name in event if name in detail_names
            }
            at, level = str(event.get("timestamp", "")), str(event.get("level", method))
            step = LogEntry(at, level, str(event.get("event", "")), details)
            self._steps.append((str(turn), step))
        return event

    def list_failed_messages(self, limit: int) -> Sequence[FailedMessage]:
        """Return up to `limit` messages that logged a warning or error, newest first."""
        reversed_steps = reversed(self._steps)
        failed_turns = (turn for turn, step in reversed_steps if step.level in _FAILURE_LEVELS)
        return [self._to_failed_message(turn) for turn in list(dict.fromkeys(failed_turns))[:limit]]

    def find_failed_message(self, error_id: str) -> FailedMessage | None:
        """Return the failed message with an error id, or None if this process did not log it."""
        turns = dict.fromkeys(turn for turn, _ in reversed(self._steps))
        failed_turn = next((turn for turn in turns if short_error_id(turn) == error_id), None)
        return None if failed_turn is None else self._to_failed_message(failed_turn)

    def _to_failed_message(self, turn: str) -> FailedMessage:
        steps = tuple(step for each, step in self._steps if each == turn)
        return FailedMessage(short_error_id(turn), turn, steps[-_MAX_LOG_ENTRIES_PER_MESSAGE:])


_encode_failed_message = msgspec.json.Encoder().encode
_decode_failed_message = msgspec.json.Decoder(FailedMessage).decode


def create_failure_note(events: RecentEvents, turn: str) -> MessageNote:
    """Return a note for the database that contains the log of a failed message."""
    error_id = short_error_id(turn)
    message = events.find_failed_message(error_id) or FailedMessage(error_id, turn, ())
    return MessageNote(_note_key(error_id), _encode_failed_message(message).decode())


async def find_failed_message(
    read_notes: Callable[[str, int], Awaitable[Sequence[str]]], error_id: str
) -> FailedMessage | None:
    """Return the failed message with an error id, from any process; raises `StoreError`."""
    return next(iter(parse_failure_notes(await read_notes(_note_key(error_id), 1))), None)


def parse_failure_notes(notes: Iterable[str]) -> Sequence[FailedMessage]:
    """Parse notes into failed messages; skip notes that another version of Troupe wrote."""
    messages = []
    for one in notes:
        with contextlib.suppress(msgspec.DecodeError):
            messages.append(_decode_failed_message(one))
    return messages


ERROR_PREFIX = "error:"  # of the keys of failure notes


def _note_key(error_id: str) -> str:
    return f"{ERROR_PREFIX}{error_id}"


RECENT_EVENTS = RecentEvents()
"""The latest events of this process."""

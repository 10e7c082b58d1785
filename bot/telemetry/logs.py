"""Configure structured logs: constant event names, ids as fields, and every secret masked."""

import logging
import re
import sys
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from bot.errors import SettingsError

_LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error")}

_MIN_SECRET_CHARS = 6
_MIN_CHARS_TO_SHOW_TAIL = 12  # of a shorter secret, four characters would be too much
# Formats of tokens, which may appear in the messages of a library's exceptions.
_TELEGRAM = r"\d{6,12}(?::|%(?:25)*3[Aa])[A-Za-z0-9_-]{30,}"
_TOKEN_FORMATS = re.compile(
    _TELEGRAM + r"|[A-Za-z0-9_-]{23,28}\.[A-Za-z0-9_-]{6,7}\.[A-Za-z0-9_-]{27,}"  # Discord
    r"|\b(?:sk|gsk|xai|hf|pplx|nvapi|r8|gh[opsu]|xox[abp])[-_][A-Za-z0-9_-]{7,}"  # providers
    r"|\bAIza[A-Za-z0-9_-]{30,}|\bAKIA[A-Z0-9]{12,}|\beyJ[\w-]+\.eyJ[\w-]+\.[\w-]+"
    r"|(?<=Bot )[A-Za-z0-9._-]{20,}"
    r"|(?<=[Ss]ecret-[Tt]oken: )\S+"
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"  # a password in an address
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
# The name that a header, an address or a setting gives to a secret, and the secret.
_NAMED_SECRET = re.compile(
    r"""
      (?P<name> (?<![a-z]) (?: authorization | cookie | bearer | token | secret | password | passwd
                             | (?:x-)? api[-_]?key | (?<=[?&]) key )
                ["']? (?: \s*[:=]\s*["']? (?:(?:bearer|basic|bot)\s+)? | (?<=bearer) \s+ ) )
      (?P<value> [^\s"'&,;)}]{6,} )
    """,
    re.IGNORECASE | re.VERBOSE,
)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{40,}={0,2}")
# Control characters: they move a terminal's cursor, break a line or reverse its direction.
_CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class SecretMasker:
    """A structlog processor that masks secrets, but for their last four characters at most."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {
            form for one in secrets if len(one) >= _MIN_SECRET_CHARS for form in _encodings(one)
        }
        self._secrets = sorted(forms, key=len, reverse=True)

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {key: self._mask_value(value) for key, value in event.items()}

    def mask(self, text: str) -> str:
        """Mask every secret in a text."""
        for secret in self._secrets:
            text = text.replace(secret, _masked(secret))
        text = _TOKEN_FORMATS.sub(lambda found: _masked(found[0]), text)
        text = _NAMED_SECRET.sub(lambda found: found["name"] + _masked(found["value"]), text)
        return _BASE64.sub(_mask_base64, text)

    def _mask_value(self, value: Any) -> Any:
        match value:
            case str():
                return self.mask(value)
            case dict():
                return {key: self._mask_value(one) for key, one in value.items()}
            case list() | tuple() | set() | frozenset():
                return [self._mask_value(one) for one in value]
            case bool() | int() | float() | None:
                return value
            case _:
                return self.mask(str(value))


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


def configure_logs(*, form: str, level: str, secrets: Iterable[str], stream: TextIO) -> None:
    """Send our events, and the libraries' warnings, through one processor chain to one stream."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        SecretMasker(secrets),
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


def _encodings(secret: str) -> set[str]:
    """Return how a secret may be written: as it is, URL-quoted, in base64."""
    return {secret, quote(secret, safe=""), b64encode(secret.encode()).decode().rstrip("=")}


def _escape(text: str) -> str:
    return _CONTROL_CHARACTERS.sub(lambda found: repr(found[0])[1:-1], text)


def _mask_base64(found: re.Match[str]) -> str:
    """Mask a long word that decodes to a Telegram token."""
    word = found[0].rstrip("=")
    try:
        decoded = urlsafe_b64decode(
            word.replace("+", "-").replace("/", "_") + "=" * (-len(word) % 4)
        ).decode("ascii")
    except ValueError:
        return found[0]
    return _masked(found[0]) if re.search(_TELEGRAM, decoded) else found[0]


def _masked(secret: str) -> str:
    return f"***{secret[-4:]}" if len(secret) >= _MIN_CHARS_TO_SHOW_TAIL else "***"

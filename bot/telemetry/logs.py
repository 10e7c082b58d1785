"""Logs: constant text, ids as fields, and no secret in any of them, exceptions included."""

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

_SHORTEST_SECRET = 6
_SHORTEST_SHOWN_IN_PART = 12  # of a shorter one, four characters would be too much
# Shapes of tokens that may stand in the texts of other people's exceptions.
_TELEGRAM = r"\d{6,12}(?::|%(?:25)*3[Aa])[A-Za-z0-9_-]{30,}"
_SHAPES = re.compile(
    _TELEGRAM + r"|[A-Za-z0-9_-]{23,28}\.[A-Za-z0-9_-]{6,7}\.[A-Za-z0-9_-]{27,}"  # Discord
    r"|\b(?:sk|gsk|xai|hf|pplx|nvapi|r8|gh[opsu]|xox[abp])[-_][A-Za-z0-9_-]{7,}"  # providers
    r"|\bAIza[A-Za-z0-9_-]{30,}|\bAKIA[A-Z0-9]{12,}|\beyJ[\w-]+\.eyJ[\w-]+\.[\w-]+"
    r"|(?<=Bot )[A-Za-z0-9._-]{20,}"
    r"|(?<=[Ss]ecret-[Tt]oken: )\S+"
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"  # a password in an address
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
# What a header, an address or a setting calls a secret, and the secret.
_NAMED = re.compile(
    r"""
      (?P<name> (?<![a-z]) (?: authorization | cookie | bearer | token | secret | password | passwd
                             | (?:x-)? api[-_]?key | (?<=[?&]) key )
                ["']? (?: \s*[:=]\s*["']? (?:(?:bearer|basic|bot)\s+)? | (?<=bearer) \s+ ) )
      (?P<value> [^\s"'&,;)}]{6,} )
    """,
    re.IGNORECASE | re.VERBOSE,
)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{40,}={0,2}")
# What moves a terminal's cursor, breaks a line or turns its direction.
_NOT_SHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class Masking:
    """A processor that leaves of every secret at most its last four characters."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for one in secrets if len(one) >= _SHORTEST_SECRET for form in _forms_of(one)}
        self._secrets = sorted(forms, key=len, reverse=True)

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {key: self._masked(value) for key, value in event.items()}

    def text(self, text: str) -> str:
        """Leave of every secret in it at most the last four characters."""
        for secret in self._secrets:
            text = text.replace(secret, _stub(secret))
        text = _SHAPES.sub(lambda found: _stub(found[0]), text)
        text = _NAMED.sub(lambda found: found["name"] + _stub(found["value"]), text)
        return _BASE64.sub(_masked_base64, text)

    def _masked(self, value: Any) -> Any:
        match value:
            case str():
                return self.text(value)
            case dict():
                return {key: self._masked(one) for key, one in value.items()}
            case list() | tuple() | set() | frozenset():
                return [self._masked(one) for one in value]
            case bool() | int() | float() | None:
                return value
            case _:
                return self.text(str(value))


class Console:
    """A renderer for people: a line for each event, and a traceback moved in below its own.

    So nobody whose words get into an error can write a line of the log, or to the terminal.
    """

    def __init__(self) -> None:
        self._render = structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback
        )

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> str:
        event["event"] = _escaped(str(event["event"]))
        traceback = str(event.pop("exception", "")).splitlines()
        lines = [_escaped(self._render(logger, method, event))]
        return "\n".join([*lines, *(f"  {_escaped(line)}" for line in traceback)])


def configure_logs(*, form: str, level: str, secrets: Iterable[str], stream: TextIO) -> None:
    """Send our events, and the warnings of the libraries, through one chain to one stream."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        Masking(secrets),
    ]
    renderer: Processor = structlog.processors.JSONRenderer() if form == "json" else Console()
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


def log_stream(file: Path | None) -> TextIO:
    """Open a file to log to, or give the standard error where there is none."""
    if file is None:
        return sys.stderr
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.open("a", encoding="utf-8", buffering=1)
    except OSError as error:
        raise SettingsError(
            f"the log {file} cannot be written ({error.strerror}); mend it or set TROUPE_DATA_DIR"
        ) from None


def _forms_of(secret: str) -> set[str]:
    """How a secret may be written: as it is, in an address, in base64."""
    return {secret, quote(secret, safe=""), b64encode(secret.encode()).decode().rstrip("=")}


def _escaped(text: str) -> str:
    return _NOT_SHOWN.sub(lambda found: repr(found[0])[1:-1], text)


def _masked_base64(found: re.Match[str]) -> str:
    """Mask a long word that is a token in base64."""
    word = found[0].rstrip("=")
    try:
        decoded = urlsafe_b64decode(
            word.replace("+", "-").replace("/", "_") + "=" * (-len(word) % 4)
        ).decode("ascii")
    except ValueError:
        return found[0]
    return _stub(found[0]) if re.search(_TELEGRAM, decoded) else found[0]


def _stub(secret: str) -> str:
    return f"***{secret[-4:]}" if len(secret) >= _SHORTEST_SHOWN_IN_PART else "***"

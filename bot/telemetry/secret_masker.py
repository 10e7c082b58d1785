"""Mask secrets in texts: those in the settings, and anything that looks like a token or key."""

import re
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, unquote

from structlog.typing import EventDict, WrappedLogger

_MIN_SECRET_CHARS = 6
_MIN_CHARS_TO_SHOW_TAIL = 12  # of a shorter secret, four characters would be too much
# Formats of tokens, which may appear in the messages of a library's exceptions.
_TELEGRAM = r"\d{6,12}(?::|%(?:25)*3[Aa])[A-Za-z0-9_-]{30,}"
_PREFIXES = (
    *(
        f"{name}{separator}"
        for name in ("sk", "rk", "gsk", "xai", "hf", "pplx", "nvapi", "r8")
        for separator in "-_"
    ),
    *("gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_", "glpat-", "glsa_"),
    *("xoxa-", "xoxb-", "xoxe-", "xoxp-", "xoxr-", "xoxs-", "xapp-", "npm_", "pypi-", "dckr_pat_"),
    *("dop_v1_", "doo_v1_", "shpat_", "shpca_", "shppa_", "shpss_", "whsec_", "figd_", "ntn_"),
    *("lin_api_", "tskey-", "sntrys_", "sntryu_", "pscale_", "sbp_", "dapi", "hvs.", "ya29."),
    *("SG.", "AGE-SECRET-KEY-", "ATATT3", "GOCSPX-", "HRKU-", "PMAK-"),
)
"""Prefixes of the keys of providers and services."""
_ANY_PREFIX = "|".join(map(re.escape, _PREFIXES))
_TOKEN_FORMATS = re.compile(
    _TELEGRAM + r"|[A-Za-z0-9_-]{23,28}\.[A-Za-z0-9_-]{6,7}\.[A-Za-z0-9_-]{27,}"  # Discord
    rf"|\b(?:{_ANY_PREFIX})[A-Za-z0-9_-]{{7,}}(?:\.[A-Za-z0-9_-]+)*"
    r"|\bAIza[A-Za-z0-9_-]{30,}|\bA[KS]IA[A-Z0-9]{12,}|\beyJ[\w-]+\.eyJ[\w-]+\.[\w-]+"
    r"|\bSK[0-9a-f]{32}"  # Twilio
    r"|(?<=/webhooks/)\d{15,21}/[A-Za-z0-9_-]{40,}"  # Discord
    r"|(?<=/services/)T[A-Z0-9]{6,}/B[A-Z0-9]{6,}/[A-Za-z0-9]{20,}"  # Slack
    r"|(?<=Bot )[A-Za-z0-9._-]{20,}"
    r"|(?<=[Ss]ecret-[Tt]oken: )\S+"
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"  # a password in an address
    r"|-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?"
    r"(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
# The name that a header, an address or a setting gives to a secret, and the secret.
_NAMED_SECRET = re.compile(
    r"""
      (?P<name> (?<![a-z]) (?: authorization | cookie | bearer | token | secret | password | passwd
                             | (?:x-)? api[-_]?key | (?:access|account|private)[-_]?key
                             | (?<=[?&]) (?:key|sig) )
                ["']? (?: \s*[:=]\s*["']? (?:(?:bearer|basic|bot)\s+)? | (?<=bearer) \s+ ) )
      (?P<value> [^\s"'&,;)}]{6,} )
    """,
    re.IGNORECASE | re.VERBOSE,
)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{40,}={0,2}")
# In a chat, words such as sk-learning are words: only what is long and has a digit is a token.
_MIN_PASTED_CHARS = 20
_MAY_BE_PASTED = re.compile(r"[A-Za-z0-9_-]{20}|-----BEGIN|://[^/\s@]{0,200}@")
# Whatever is masked has a digit or an @, or is a private key; of other scripts, who knows.
_DIGIT_OR_AT = re.compile(r"[^\x00-/:-?A-~]")
_MAY_BE_NAMED = re.compile("passw|secret|token|key|bearer|authoriz|cookie|sig=", re.IGNORECASE)
_MIN_NAMED_CHARS = 8
_ZERO_WIDTH = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff"))

# The end of a text may still grow into a token if it is a word with signs or digits, or the
# beginning of a prefix. A token of Discord begins with the digits of an id in base64.
_SIGNS = "".join(map(chr, range(ord("!"), ord("~") + 1)))
_PLAIN_WORD = re.compile(r"[A-Za-z]*[.,!?]*")
_LETTERS_BEFORE = (
    *("AIza", "AKIA", "ASIA", "SK", "dapi", "eyJ"),
    *(first + second for first in "MNO" for second in "DTjz"),
)
_BEGINNINGS = {
    one[:length] for one in (*_PREFIXES, *_LETTERS_BEFORE) for length in range(1, len(one) + 1)
}
_NAMES_BEFORE = ("Bot ", "oken: ")
_LONGEST_OPEN_CHARS = 16_384
_LONGEST_BEFORE_CHARS = 20  # what a format looks at before the token
_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z ]*(?:PRIVATE KEY(?: BLOCK)?-----|-{0,4}\Z)")
_KEY_END = re.compile(r"-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----")

_PASSWORD = re.compile(r"://[^/\s:@]*:([^/\s]+)@|^[^/\s:@]+:(?!//)(\S+)$")

_NEWER: set[str] = set()
"""Secrets added after the settings were read, in all encodings."""


def mask_from_now_on(secrets: Iterable[str]) -> None:
    """Make all maskers also mask these secrets, from a file that was replaced."""
    for one in secrets:
        if len(one) >= _MIN_SECRET_CHARS:
            _NEWER.update(_encodings(one))


def passwords_in(address: str) -> set[str]:
    """Return the password in a URL or "name:password", as written and decoded."""
    found = _PASSWORD.search(address)
    password = (found[1] or found[2]) if found else ""
    return {password, unquote(password)} - {""}


class SecretMasker:
    """A structlog processor that masks secrets, except for up to four final characters."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {each for one in secrets for each in (one, *passwords_in(one))}
        forms = {form for one in known if len(one) >= _MIN_SECRET_CHARS for form in _encodings(one)}
        self._secrets = sorted(forms, key=len, reverse=True)

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {key: self._mask_value(value) for key, value in event.items()}

    def mask(self, text: str) -> str:
        """Mask every secret in a text."""
        for secret in (*self._secrets, *sorted(_NEWER, key=len, reverse=True)):
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


def mask_pasted_tokens(text: str) -> str:
    """Mask anything in a person's text that looks like a token, key or password.

    This includes values with letters and digits after a name such as `PASSWORD=`. Zero-width
    characters do not hide a token: they are removed with it.
    """
    bare = text if text.isascii() else text.translate(_ZERO_WIDTH)
    masked = bare
    if _MAY_BE_PASTED.search(bare):
        masked = _TOKEN_FORMATS.sub(_mask_pasted, masked)
    if _MAY_BE_NAMED.search(bare):
        masked = _NAMED_SECRET.sub(_mask_named, masked)
    return text if masked == bare else masked


def _may_have_token(text: str) -> bool:
    """Return quickly whether a text may contain a token, password or key; most do not."""
    if _DIGIT_OR_AT.search(text) is None and "-----BEGIN" not in text:
        return False
    longest = max(map(len, text.split()), default=0)
    return longest >= _MIN_PASTED_CHARS or "@" in text or "-----BEGIN" in text


class TokenFilter:
    """Masks tokens in a stream: text that may become a token is held back.

    Names such as `PASSWORD=` are ignored, because a model invents the values after them.
    """

    def __init__(self) -> None:
        self._before = ""
        """The end of what was returned, unmasked: formats look at it."""
        self._held = ""

    def feed(self, text: str) -> str:
        """Add text; return the text that can be shown now."""
        self._held += text
        return self._release(self._safe_length())

    def finish(self) -> str:
        """Return the remaining text at the end."""
        return self._release(len(self._held))

    def _safe_length(self) -> int:
        """Return how many held characters can be released, as they cannot grow into a token."""
        held, after_keys = self._held, 0
        while begin := _KEY_BEGIN.search(held, after_keys):
            end = _KEY_END.search(held, begin.end())
            if end is None:
                return begin.start()
            after_keys = end.end()
        start = max(after_keys, len(held.rstrip(_SIGNS)))  # no other format has white space in it
        word = held[start:]
        may_grow = (
            _PLAIN_WORD.fullmatch(word) is None
            or word in _BEGINNINGS
            or word.startswith(_LETTERS_BEFORE)
            or (self._before + held[:start]).endswith(_NAMES_BEFORE)
        )
        return start if may_grow and len(word) <= _LONGEST_OPEN_CHARS else len(held)

    def _release(self, length: int) -> str:
        released, self._held = self._held[:length], self._held[length:]
        if not released:
            return ""
        whole, at = self._before + released, len(self._before)
        self._before = whole[-_LONGEST_BEFORE_CHARS:]
        if not _may_have_token(whole):
            return released
        masked: list[str] = []
        for found in _TOKEN_FORMATS.finditer(whole, at):
            masked += [whole[at : found.start()], _mask_pasted(found)]
            at = found.end()
        return "".join([*masked, whole[at:]])


def _mask_pasted(found: re.Match[str]) -> str:
    word = found[0]
    if found.string[: found.start()].endswith("://") or word.startswith("-----BEGIN"):
        return "***"
    is_token = len(word) >= _MIN_PASTED_CHARS and any(char.isdigit() for char in word)
    return _masked(word) if is_token else word


def _mask_named(found: re.Match[str]) -> str:
    value = found["value"]
    has_both = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    is_secret = len(value) >= _MIN_NAMED_CHARS and has_both and not value.startswith("***")
    return found["name"] + _masked(value) if is_secret else found[0]


def _encodings(secret: str) -> set[str]:
    """Return a secret in all forms it may take: plain, URL-quoted, base64."""
    return {secret, quote(secret, safe=""), b64encode(secret.encode()).decode().rstrip("=")}


def _mask_base64(found: re.Match[str]) -> str:
    """Mask a long word that decodes to a Telegram token."""
    word = found[0].rstrip("=").replace("+", "-").replace("/", "_")
    try:
        decoded = urlsafe_b64decode(word + "=" * (-len(word) % 4)).decode("ascii")
    except ValueError:
        return found[0]
    return _masked(found[0]) if re.search(_TELEGRAM, decoded) else found[0]


def _masked(secret: str) -> str:
    return f"***{secret[-4:]}" if len(secret) >= _MIN_CHARS_TO_SHOW_TAIL else "***"

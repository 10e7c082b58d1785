"""Mask secrets in texts: secrets from the settings, and anything that looks like a token or key."""

import re
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, unquote

from structlog.typing import EventDict, WrappedLogger

_MIN_SECRET_CHARS = 6
_MIN_CHARS_TO_SHOW_TAIL = 12  # of a shorter secret, the last four characters would reveal too much
# Formats of tokens, which libraries may quote in error messages.
_TELEGRAM_PATTERN = r"\d{6,12}(?::|%(?:25)*3[Aa])[A-Za-z0-9_-]{30,}"
_TOKEN_PREFIXES = (
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
"""Prefixes of API keys of well-known services."""
_ANY_TOKEN_PREFIX = "|".join(map(re.escape, _TOKEN_PREFIXES))
_TOKEN_FORMATS = re.compile(
    _TELEGRAM_PATTERN + r"|[A-Za-z0-9_-]{23,28}\.[A-Za-z0-9_-]{6,7}\.[A-Za-z0-9_-]{27,}"  # Discord
    rf"|\b(?:{_ANY_TOKEN_PREFIX})[A-Za-z0-9_-]{{7,}}(?:\.[A-Za-z0-9_-]+)*"
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
# A secret after its name in a header, a URL or a setting, such as `api_key=...`.
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
_BASE64_TEXT = re.compile(r"[A-Za-z0-9+/_-]{40,}={0,2}")
# People write words such as sk-learning; in their texts, only long words with a digit are tokens.
_MIN_PASTED_TOKEN_CHARS = 20
_PASTED_TOKEN_HINT = re.compile(r"[A-Za-z0-9_-]{20}|-----BEGIN|://[^/\s@]{0,200}@")
# A text that contains only ASCII letters and signs except @ has no token except a private key.
_DIGIT_OR_AT = re.compile(r"[^\x00-/:-?A-~]")
_NAMED_SECRET_HINT = re.compile("passw|secret|token|key|bearer|authoriz|cookie|sig=", re.IGNORECASE)
_MIN_NAMED_SECRET_CHARS = 8
_ZERO_WIDTH_CHARACTERS = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff"))

# The last word of a text may still grow into a token if it contains signs or digits, or may be
# the start of a prefix. A Discord token starts with an id's digits in base64.
_PRINTABLE_ASCII = "".join(map(chr, range(ord("!"), ord("~") + 1)))
_PLAIN_WORD = re.compile(r"[A-Za-z]*[.,!?]*")
_LETTER_PREFIXES = (
    *("AIza", "AKIA", "ASIA", "SK", "dapi", "eyJ"),
    *(first + second for first in "MNO" for second in "DTjz"),
)
_PARTIAL_TOKEN_PREFIXES = {
    one[:length]
    for one in (*_TOKEN_PREFIXES, *_LETTER_PREFIXES)
    for length in range(1, len(one) + 1)
}
_NAMES_BEFORE_TOKENS = ("Bot ", "oken: ")
_MAX_HELD_CHARS = 16_384
_MAX_CONTEXT_CHARS = 20  # the longest context before a token that a format checks
_PRIVATE_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z ]*(?:PRIVATE KEY(?: BLOCK)?-----|-{0,4}\Z)")
_PRIVATE_KEY_END = re.compile(r"-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----")
_PASSWORD_IN_ADDRESS = re.compile(r"://[^/\s:@]*:([^/\s]+)@|^[^/\s:@]+:(?!//)(\S+)$")

_REGISTERED_SECRETS: set[str] = set()
"""Secrets added after the settings were read, in all encodings in which they may appear."""


def register_secrets(secrets: Iterable[str]) -> None:
    """Also mask these secrets from now on, such as the new contents of a secret's file."""
    for one in secrets:
        if len(one) >= _MIN_SECRET_CHARS:
            _REGISTERED_SECRETS.update(_list_encodings(one))


def find_passwords(address: str) -> set[str]:
    """Return the password in a URL or in "name:password", as written and percent-decoded."""
    match = _PASSWORD_IN_ADDRESS.search(address)
    password = (match[1] or match[2]) if match else ""
    return {password, unquote(password)} - {""}


class SecretMasker:
    """A structlog processor that masks secrets; long ones keep their last four characters."""

    def __init__(self, secrets: Iterable[str]) -> None:
        secret_texts = {text for one in secrets for text in (one, *find_passwords(one))}
        long_secrets = (text for text in secret_texts if len(text) >= _MIN_SECRET_CHARS)
        encoded_secrets = {form for text in long_secrets for form in _list_encodings(text)}
        self._secrets = sorted(encoded_secrets, key=len, reverse=True)

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {key: self._mask_value(value) for key, value in event.items()}

    def mask(self, text: str) -> str:
        """Return a text with every secret in it masked."""
        for secret in (*self._secrets, *sorted(_REGISTERED_SECRETS, key=len, reverse=True)):
            text = text.replace(secret, _mask_secret(secret))
        text = _TOKEN_FORMATS.sub(lambda match: _mask_secret(match[0]), text)
        text = _NAMED_SECRET.sub(lambda match: match["name"] + _mask_secret(match["value"]), text)
        return _BASE64_TEXT.sub(_mask_base64_token, text)

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
    """Mask everything in a person's text that looks like a token, key or password.

    After a name such as `PASSWORD=`, a value with letters and digits is masked. Zero-width
    characters cannot hide a token: if anything is masked, they are removed.
    """
    visible_text = text if text.isascii() else text.translate(_ZERO_WIDTH_CHARACTERS)
    masked_text = visible_text
    if _PASTED_TOKEN_HINT.search(visible_text):
        masked_text = _TOKEN_FORMATS.sub(_mask_pasted_token, masked_text)
    if _NAMED_SECRET_HINT.search(visible_text):
        masked_text = _NAMED_SECRET.sub(_mask_named_secret, masked_text)
    return text if masked_text == visible_text else masked_text


def _may_have_token(text: str) -> bool:
    """Quickly check whether a text may contain a token or key."""
    if _DIGIT_OR_AT.search(text) is None and "-----BEGIN" not in text:
        return False
    max_word_chars = max(map(len, text.split()), default=0)
    return max_word_chars >= _MIN_PASTED_TOKEN_CHARS or "@" in text or "-----BEGIN" in text


class SecretTokenFilter:
    """Masks secret tokens in streamed text, and holds back text that may still become a token.

    Values after names such as `PASSWORD=` are not masked, because the model invents them.
    """

    def __init__(self) -> None:
        self._context_text = ""
        """The end of the text returned so far, unmasked, as context for the token formats."""
        self._held_text = ""

    def feed(self, text: str) -> str:
        """Add text, and return the text that can be shown now."""
        self._held_text += text
        return self._release_text(self._releasable_length())

    def finish(self) -> str:
        """Return the text that is still held back, at the end of the stream."""
        return self._release_text(len(self._held_text))

    def _releasable_length(self) -> int:
        """Return how many characters can be shown because they cannot become a secret token."""
        held_text, last_key_end = self._held_text, 0
        while key_begin := _PRIVATE_KEY_BEGIN.search(held_text, last_key_end):
            key_end = _PRIVATE_KEY_END.search(held_text, key_begin.end())
            if key_end is None:
                return key_begin.start()
            last_key_end = key_end.end()
        # Other formats contain no whitespace.
        start = max(last_key_end, len(held_text.rstrip(_PRINTABLE_ASCII)))
        word = held_text[start:]
        may_become_token = (
            _PLAIN_WORD.fullmatch(word) is None
            or word in _PARTIAL_TOKEN_PREFIXES
            or word.startswith(_LETTER_PREFIXES)
            or (self._context_text + held_text[:start]).endswith(_NAMES_BEFORE_TOKENS)
        )
        return start if may_become_token and len(word) <= _MAX_HELD_CHARS else len(held_text)

    def _release_text(self, length: int) -> str:
        released_text, self._held_text = self._held_text[:length], self._held_text[length:]
        if not released_text:
            return ""
        full_text, position = self._context_text + released_text, len(self._context_text)
        self._context_text = full_text[-_MAX_CONTEXT_CHARS:]
        if not _may_have_token(full_text):
            return released_text
        pieces: list[str] = []
        for match in _TOKEN_FORMATS.finditer(full_text, position):
            pieces += [full_text[position : match.start()], _mask_pasted_token(match)]
            position = match.end()
        return "".join([*pieces, full_text[position:]])


def _mask_pasted_token(match: re.Match[str]) -> str:
    word = match[0]
    if match.string[: match.start()].endswith("://") or word.startswith("-----BEGIN"):
        return "***"
    is_token = len(word) >= _MIN_PASTED_TOKEN_CHARS and any(char.isdigit() for char in word)
    return _mask_secret(word) if is_token else word


def _mask_named_secret(match: re.Match[str]) -> str:
    value = match["value"]
    is_mixed = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    is_secret = len(value) >= _MIN_NAMED_SECRET_CHARS and is_mixed and not value.startswith("***")
    return match["name"] + _mask_secret(value) if is_secret else match[0]


def _list_encodings(secret: str) -> set[str]:
    """Return the forms in which a secret may appear: plain, URL-quoted, base64."""
    return {secret, quote(secret, safe=""), b64encode(secret.encode()).decode().rstrip("=")}


def _mask_base64_token(match: re.Match[str]) -> str:
    """Mask a base64 word if it decodes to a Telegram token; return any other word unchanged."""
    word = match[0].rstrip("=").replace("+", "-").replace("/", "_")
    try:
        decoded_word = urlsafe_b64decode(word + "=" * (-len(word) % 4)).decode("ascii")
    except ValueError:
        return match[0]
    return _mask_secret(match[0]) if re.search(_TELEGRAM_PATTERN, decoded_word) else match[0]


def _mask_secret(secret: str) -> str:
    return f"***{secret[-4:]}" if len(secret) >= _MIN_CHARS_TO_SHOW_TAIL else "***"

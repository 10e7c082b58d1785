"""No secret reaches a log, in whatever shape, and nobody's words make a line of their own there."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from bot.telemetry.logs import configure_logs
from bot.telemetry.secret_masker import SecretMasker, mask_pasted_tokens
from tests.attacks import with_ours
from tests.shared_data import shared_folder

TOKEN = "123456789:AAFAKEfakeFAKEfakeFAKEfakeFAKEfakeFAKE"
KEY = "a-key-of-no-known-shape"
# By case of attacks.json: what must not be seen.
SECRETS = {
    "SECRETS-001": TOKEN,
    "SECRETS-003": "sk-proj-FAKE0000000000000000000000000000",
    "SECRETS-004": "s3cr3t%40pw",
    "SECRETS-006": "FAKE_secret-123",
    "SECRETS-008": "sk-FAKE222",
    "SECRETS-009": "FAKE",
    "SECRETS-010": "AAFAKEfakeFAKEfakeFAKEfakeFAKEfakeFAKE",
    "SECRETS-011": "MTIzNDU2Nzg5OkFBRkFLRWZha2VGQUtFZmFrZUZBS0VmYWtlRkFLRWZha2VGQUtF",
}


@pytest.fixture(params=["json", "console"])
def log(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    stream = io.StringIO()
    configure_logs(form=request.param, level="info", secrets=[KEY], stream=stream)
    yield stream
    structlog.reset_defaults()
    root.handlers, root.level = handlers, level


def hostile() -> list[tuple[str, str]]:
    cases = json.loads((shared_folder() / "attacks.json").read_text(encoding="utf-8"))["cases"]
    return [(case["id"], case["input"]) for case in cases if case["category"] == "secrets"]


def test_secrets_in_hostile_texts_are_masked(log: io.StringIO) -> None:
    for case, text in hostile():
        structlog.get_logger("bot.test").warning("event", text=text, nested={"list": [text]})
        logging.getLogger("aiogram").warning("said %s", text)

        assert SECRETS[case] not in log.getvalue().replace("\\n", "\n").replace('\\"', '"')
        log.truncate(0)


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Basic {}",
        "{{'authorization': 'BEARER {}'}}",
        "x-api-key: {}",
        "https://api.test/v1?alt=sse&key={}&x=1",
        "host=db password={} user=bot",
        "TROUPE_PROVIDERS__A__API_KEY={}",
        '{{"token": "{}"}}',
        "ghp_{}",
        "eyJhbGciOi.eyJzdWIi.{}",
        "123456789%253AAAFAKEfake{}",
    ],
)
def test_text_that_looks_like_a_secret_is_masked(text: str) -> None:
    secret = "FAKEfakeFAKEfakeFAKE1234"

    masked = SecretMasker(()).mask(text.format(secret))

    assert secret[:-4] not in masked
    assert "***1234" in masked


def test_secret_in_a_traceback_is_masked(log: io.StringIO) -> None:
    try:
        int(f"https://api.telegram.org/bot{TOKEN}/getMe")
    except ValueError:
        structlog.get_logger("bot.test").exception("failed", key=KEY)
        logging.getLogger("discord").exception("failed with %s", KEY)

    said = log.getvalue()
    assert said.count("ValueError: invalid literal") == 2
    assert TOKEN not in said
    assert KEY not in said
    assert said.count("***hape") == 2


def test_secret_in_the_repr_of_a_value_is_masked(log: io.StringIO) -> None:
    structlog.get_logger("bot.test").warning("event", error=RuntimeError(KEY), pair=(KEY, 1))

    assert KEY not in log.getvalue()


@pytest.mark.parametrize(
    ("title", "text"),
    with_ours(
        "store_injection",
        {
            "a line as the console writes it": "x\n2026-11-21T20:00:00Z [error] set_aside turn=1",
            "a line as JSON": 'x"}\r\n{"event": "set_aside", "level": "error"}',
            "other breaks": "x\x85set_aside\u2028set_aside\u2029set_aside\x0b\x1eset_aside",
            "a cursor": "x\x1b[1A\x1b[2Kset_aside\x9b2J\x08\x7f",
            "directions": "x\u202eedisa_tes\u2066set_aside\u200f",
        },
    ),
)
def test_control_characters_in_an_error_are_escaped(
    log: io.StringIO, title: str, text: str
) -> None:
    failure = RuntimeError(text)
    structlog.get_logger("bot.test").error("failed", exc_info=failure, reason=text, nested=[text])
    logging.getLogger("aiogram").warning("said %s", text)

    said = log.getvalue()
    assert len([line for line in said.splitlines() if not line.startswith("  ")]) == 2
    assert said.replace("\n", "").isprintable()


def test_libraries_are_logged_from_warnings_on(log: io.StringIO) -> None:
    logging.getLogger("aiogram.dispatcher").info("chatter")
    logging.getLogger("aiogram.dispatcher").warning("trouble")
    structlog.get_logger("bot.test").info("ours")
    structlog.get_logger("bot.test").debug("detail")

    said = log.getvalue()
    assert "trouble" in said
    assert "ours" in said
    assert "chatter" not in said
    assert "detail" not in said


def test_long_secrets_show_their_last_characters_and_short_ones_nothing() -> None:
    masker = SecretMasker(["hunter22", KEY])

    assert masker.mask("hunter22") == "***"
    assert masker.mask(f"key={KEY};") == "key=***hape;"


def test_harmless_text_is_not_changed() -> None:
    masker = SecretMasker([KEY])
    text = "turn discord:1234567890123456789 took 0.5 s; see https://example.org/a:b and 12:30"

    assert masker.mask(text) == text


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"my bot: {TOKEN} ok?", "my bot: ***FAKE ok?"),
        ("sk-proj-FAKE0000000000000000000000000000", "***0000"),
        ("postgresql://bot:s3cr3t%40pw@db/chat", "postgresql://***@db/chat"),
        ("-----BEGIN PRIVATE KEY-----\nFAKE\n-----END PRIVATE KEY-----", "***"),
    ],
)
def test_pasted_token_is_masked(text: str, masked: str) -> None:
    assert mask_pasted_tokens(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "scikit: from sk-learning-is-fun import everything_that_is_here",
        "see https://example.org/a/very/long/path/with-many-words-in-it?x=1",
        "f47ac10b-58cc-4372-a567-0e02b2c3d479",
        "0123456789abcdef0123456789abcdef01234567",
        "write to ada@example.org: at 10:30",
        "hf_tokenizer_fast is a class",
    ],
)
def test_ordinary_text_is_not_masked(text: str) -> None:
    assert mask_pasted_tokens(text) == text

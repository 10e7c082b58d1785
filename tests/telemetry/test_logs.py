"""Logs contain no secrets in any encoding, and text from people cannot forge a log line."""

import io
import logging
import re
from collections.abc import Iterator

import pytest
import structlog

from bot.chat.session import short_error_id
from bot.telemetry.logs import RecentEvents, TurnLogContext, configure_logs
from bot.telemetry.secret_masker import SecretMasker, mask_pasted_tokens
from tests.attacks import attack_texts, secret_in, with_ours

TOKEN = "123456789:AAFAKEfakeFAKEfakeFAKEfakeFAKEfakeFAKE"
KEY = "a-key-of-no-known-shape"


@pytest.fixture(params=["json", "console"])
def log(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level, before = root.handlers, root.level, structlog.get_config()
    stream = io.StringIO()
    configure_logs(log_format=request.param, level="info", secrets=[KEY], stream=stream)
    yield stream
    structlog.configure(**before)
    root.handlers, root.level = handlers, level


def test_secrets_in_hostile_texts_are_masked(log: io.StringIO) -> None:
    for text in attack_texts("secrets"):
        structlog.get_logger("bot.test").warning("event", text=text, nested={"list": [text]})
        logging.getLogger("aiogram").warning("said %s", text)

        said = log.getvalue().replace("\\n", "\n").replace('\\"', '"')
        assert said.count("***") >= 3
        assert secret_in(text) not in said
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


def test_repeated_error_is_written_once_a_minute_and_counted(
    log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr("time.time", lambda: now)
    monkeypatch.setattr("time.time_ns", lambda: int(now * 1e9))
    for passed in (0, 20, 20, 30, 20):
        now += passed
        for turn in "ab":
            with TurnLogContext(turn):
                structlog.get_logger("bot.test").error("store_failed", reason=f"after {now} s")
                logging.getLogger("discord").warning("%s s behind, at %r", now, object())
            structlog.get_logger("bot.test").warning("refused", lane=f"telegram:{turn}")
            structlog.get_logger("bot.test").error("answer_failed", error_id=f"{turn}{passed}")
    logging.getLogger().handlers[0].close()

    lines = log.getvalue().splitlines()
    assert all(f"{turn}30" in log.getvalue() for turn in "ab"), "people were told this id"
    for event in ("store_failed", "s behind", "telegram:a", "telegram:b"):
        first, *later = [re.findall(r"repeats\W+(\d+)", one) for one in lines if event in one]
        assert first == []
        assert len(later) == 2
        assert 1 + sum(int(one) for [one] in later) == (5 if "telegram" in event else 10)


def test_only_warnings_and_errors_of_libraries_are_logged(log: io.StringIO) -> None:
    logging.getLogger("aiogram.dispatcher").info("chatter")
    logging.getLogger("aiogram.dispatcher").warning("trouble")
    structlog.get_logger("bot.test").info("ours")
    structlog.get_logger("bot.test").debug("detail")

    said = log.getvalue()
    assert "trouble" in said
    assert "ours" in said
    assert "chatter" not in said
    assert "detail" not in said


def test_mask_shows_the_last_characters_of_long_secrets_only() -> None:
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


def note(events: RecentEvents, level: str, event: str, **details: object) -> None:
    given = {"event": event, "level": level, "timestamp": "now", **details}
    assert events(None, level, given) is given


def test_failed_messages_are_listed_newest_first_and_found_by_error_id() -> None:
    events = RecentEvents(max_events=5)
    note(events, "warning", "of_a_dropped_message", turn="a:0")
    note(events, "info", "answer_cut", turn="a:1")
    note(events, "info", "answer_continued", turn="a:2", reason="cut")
    note(events, "warning", "answer_failed", turn="a:2", reason="503" + "x" * 9999)
    note(events, "error", "of_no_message")
    note(events, "error", "turn_failed", turn="a:3")
    note(events, "info", "answered", turn="a:3")

    assert [one.turn for one in events.list_failed_messages(9)] == ["a:3", "a:2"]
    assert [one.turn for one in events.list_failed_messages(1)] == ["a:3"]
    found = events.find_failed_message(short_error_id("a:2"))
    assert found is not None
    assert [one.event for one in found.steps] == ["answer_continued", "answer_failed"]
    assert found.newest_failure.details == {"reason": "x" * 1000}
    assert events.find_failed_message("ffffff") is None

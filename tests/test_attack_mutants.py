"""Mutated texts from attacks.json are as harmless as the original texts.

CI tries 20,000 mutants and `make soak` 200,000, divided among eight properties.
"""

import contextlib
import io
import logging
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bot.backends.model_files.store import validate_model_name
from bot.chat.incoming import Person, to_storable_text
from bot.chat.outgoing import Limits
from bot.chat.session import Session, Turn
from bot.errors import SettingsError
from bot.markup.graphemes import is_visible
from bot.platforms.telegram.markup import render_markdown
from bot.prompting.compose.compose import compose
from bot.prompting.presets.fields import find_name_problem
from bot.prompting.presets.preset import Preset
from bot.prompting.speakers import label_speakers
from bot.replying.split import split
from bot.telemetry.logs import configure_logs
from bot.telemetry.secret_masker import SecretMasker
from bot.templates.control_tokens import (
    WORD_JOINER,
    TextSpan,
    break_control_tokens,
    find_control_tokens,
    render_spans,
)
from tests.attacks import attack_texts, secret_in
from tests.samples import make_incoming
from tests.support.templates import ALL, conversation

pytestmark = pytest.mark.timeout(1800)  # in `make soak`, a property takes minutes
_EXAMPLES = {"quick": 50, "full": 1000, "soak": 25_000}
_MAX_CHARS = 600  # a long one is long enough at its beginning
_PIECES = (
    *(" ", "\n", "\r\n", "\t", "\0", "\x1b[2J", "\u2028", "\u200b", "\u202e", "\u3164", "\ud800"),
    *("%00", "%2f", "../", "{{", "}}"),
    *"\\/<>|[]`*#:：",
    *("@", "é", "Ⓐ", "🅰", "ａ", "😀", "\U000e0041", "Nora: ", "system", "-->", '"', "'", "${x}"),
)
NORA = Preset.model_validate(
    {"name": "nora", "provider": "p", "model": "m", "system": "You are Nora."}
)
_FORGED = re.compile(r"(?i)[^\w>]*(alice|bob|nora|system|assistant|user)[^\w\n]*[:：]")

mutation = st.tuples(
    st.sampled_from(["insert", "delete", "repeat", "case", "wide", "splice"]),
    st.integers(0, 9999),
    st.integers(1, 12),
    st.sampled_from(_PIECES),
)


def mutate(text: str, mutations: list[tuple[str, int, int, str]], other: str) -> str:
    """Change a text in a few places, also by inserting parts of `other`."""
    for kind, where, size, piece in mutations:
        at = where % (len(text) + 1)
        before, run, after = text[:at], text[at : at + size], text[at + size :]
        match kind:
            case "insert":
                text = before + piece + run + after
            case "delete":
                text = before + after
            case "repeat":
                text = before + run * 3 + after
            case "case":
                text = before + run.swapcase() + after
            case "wide":
                wide = (chr(ord(one) + 0xFEE0) if "!" <= one <= "~" else one for one in run)
                text = before + "".join(wide) + after
            case _:
                text = before + other[:size] + run + after
    return text


def mutants(*categories: str) -> st.SearchStrategy[str]:
    texts = [text[:_MAX_CHARS] for text in attack_texts(*categories)]
    return st.builds(
        mutate,
        st.sampled_from(texts),
        st.lists(mutation, min_size=1, max_size=4),
        st.sampled_from(texts),
    )


tries = settings(
    max_examples=_EXAMPLES[settings.get_current_profile_name()],
    suppress_health_check=[HealthCheck.too_slow],
)


@tries
@given(mutants("special_tokens", "ssti"), st.sampled_from(sorted(ALL)))
def test_mutated_text_adds_no_control_token(text: str, name: str) -> None:
    template = ALL[name]
    tokens = find_control_tokens(template)
    broken = break_control_tokens(text, tokens)
    assert not any(token.lower() in broken.lower() for token in tokens)
    assert broken.replace(WORD_JOINER, "") == text.replace(WORD_JOINER, "")
    spans = render_spans(template, conversation("Hello", "Hi", text))
    harmless = render_spans(template, conversation("Hello", "Hi", "x"))
    assert trusted_text(spans).split() == trusted_text(harmless).split()


def trusted_text(spans: list[TextSpan]) -> str:
    return "".join(span.text for span in spans if span.trusted)


@tries
@given(mutants("name_spoof", "special_tokens"), mutants("name_spoof"))
def test_mutated_text_forges_neither_names_nor_lines(name: str, text: str) -> None:
    eve = Person("a:1", name)
    labels = label_speakers([eve, Person("a:2", "Bob"), Person("a:3", name)], {"nora": "Nora"})
    assert len(set(labels.people.values())) == 3
    assert not re.search(r"[\n\r\u2028\u2029\[\]<>|:：]", labels.people["a:1"])
    turn = Turn("user", text, eve, datetime(2026, 11, 22, tzinfo=UTC), None)
    first, *further = labels.tag_text(labels.find_label(turn, "nora"), text).splitlines()
    assert first.startswith(f"{labels.people['a:1']}:")
    assert not [line for line in further if _FORGED.match(line.replace("\u200b", ""))]


@tries
@given(
    mutants("markup", "discord_mentions"),
    st.sampled_from([Limits(2000, "characters", 1, 5), Limits(60, "utf16", 1, 5)]),
)
def test_mutated_text_is_split_into_valid_messages(text: str, limits: Limits) -> None:
    for part in split(text, limits):
        units = len(part) if limits.unit == "characters" else len(_utf16(part)) // 2
        assert units <= limits.max_units
        assert is_visible(part)
        shown, entities = render_markdown(part)
        for one in entities or ():
            assert 0 <= one.offset < one.offset + one.length <= len(_utf16(shown)) // 2
            assert one.url is None or one.url.startswith(("http://", "https://"))


@tries
@given(mutants("discord_mentions"))
def test_mutated_text_mentions_nobody_on_telegram(text: str) -> None:
    shown, entities = render_markdown(text)
    assert not {one.type for one in entities or ()} & {"mention", "text_mention"}
    coded = [
        range(one.offset, one.offset + one.length)
        for one in entities or ()
        if one.type in {"code", "pre"}
    ]
    for mention in re.finditer(r"(?<!\w)@[A-Za-z][A-Za-z0-9_]{2,31}", shown):
        at = len(_utf16(shown[: mention.start()])) // 2
        assert any(at in one for one in coded), mention


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-le", "surrogatepass")


@tries
@given(mutants("store_injection", "name_spoof"))
def test_mutated_text_can_be_stored_and_is_one_line_in_logs(text: str) -> None:
    stored = to_storable_text(text)
    assert to_storable_text(stored) == stored
    assert "\0" not in stored.encode().decode()
    stream, root = io.StringIO(), logging.getLogger()
    handlers, before = root.handlers, structlog.get_config()
    try:
        configure_logs(log_format="console", level="info", secrets=(), stream=stream)
        logging.getLogger("aiogram").warning("said %s", stored)
    finally:
        root.handlers = handlers
        structlog.configure(**before)
    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b" not in stream.getvalue()


@tries
@given(
    st.sampled_from(attack_texts("secrets")),
    st.sampled_from(["", " ", "\n", "(", '"', "{'a': '", "see: ", "字 "]),
    st.sampled_from(["", " ", "\n", ")", '"', "'}", ", thanks", " 字"]),
    mutants("store_injection"),
)
def test_secret_in_mutated_text_is_masked(text: str, before: str, after: str, noise: str) -> None:
    masked = SecretMasker(()).mask(f"{noise}{' ' if before == '' else before}{text}{after}")
    assert secret_in(text) not in masked


@tries
@given(mutants("path_traversal"))
def test_mutated_path_never_leaves_its_folder(name: str) -> None:
    folder = Path("/data/presets")
    if find_name_problem(name) is None:
        assert Path(folder / f"{name}.json").parent == folder
        assert not re.search(r"[\x00-\x1f/\\]|^\.", name)
    with contextlib.suppress(SettingsError):
        stem = validate_model_name(name)
        assert (folder / f"{stem}.gguf").parent == folder
        assert ".." not in stem


@tries
@given(mutants("prompt_injection", "ssti", "special_tokens"))
def test_mutated_message_does_not_change_instructions(text: str) -> None:
    prompt = compose(NORA, Session(1, ()), make_incoming(text)).prompt
    assert [(one.role, one.content) for one in prompt.messages[:-1]] == [
        ("system", "You are Nora.")
    ]
    newest = prompt.messages[-1]
    assert newest.role == "user"
    assert not [sign for sign in newest.content if 0xE0000 <= ord(sign) < 0xE0080]
    assert len(newest.content) <= len(text)

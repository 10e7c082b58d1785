"""What the readers of files refuse is told in the reader's language, never as a plain string."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bot.errors import CharacterError, PresetError, TemplateError, UserError
from bot.importers.card import read_card
from bot.importers.character_files import read_character_content, read_character_file
from bot.importers.file_kinds import FileKind, check_file_kind
from bot.importers.go_to_jinja import jinja_from_go
from bot.importers.preset_files import preset_from_text
from bot.texts.text import Text, text_of, translate
from tests.importers.cards.test_card import HOSTILE

_CHINESE = re.compile("[\u4e00-\u9fff]")
_ENGLISH = re.compile(
    r"\b(the|must|should|cannot|is|are|in|use|write|not|it|its|with|unexpected|again)\b"
)
_VALUES = re.compile(r"`[^`]*`|\"[^\"]*\"|（[^）]*）")
"""Commands, quoted words of the file, and what Python says of a damaged file."""


def _is_refused_in_chinese(read: Callable[[], object]) -> bool:
    with pytest.raises((PresetError, CharacterError, TemplateError, UserError)) as caught:
        read()
    told = text_of(caught.value)
    assert isinstance(told, Text), told
    in_chinese = translate(told, "zh")
    assert not _ENGLISH.search(_VALUES.sub("", in_chinese)), in_chinese
    return _CHINESE.search(in_chinese) is not None


@pytest.mark.parametrize("kind", FileKind, ids=lambda kind: kind.name)
def test_every_kind_of_file_has_a_translation(kind: FileKind) -> None:
    told = translate(kind.describe(Path("x.bin")), "zh")
    assert told.startswith("x.bin 是")
    assert not _ENGLISH.search(_VALUES.sub("", told)), told


@pytest.mark.parametrize("case", list(HOSTILE))
def test_refusal_of_a_card_has_a_translation(case: str) -> None:
    assert _is_refused_in_chinese(lambda: read_card(HOSTILE[case][0], "evil.png"))


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "FROM a\nHELLO b\n",
        "FROM a\nMESSAGE nobody x\n",
        "FROM a\nPARAMETER stop\n",
        'FROM a\nSYSTEM """x',
        "FROM a\nPARAMETER topp 1\n",
        "FROM a\nPARAMETER top_p high\n",
        "FROM ~nobody-of-this-name/x.gguf\n",
        '{"name": "n", "provider": "echo", "model": 3}',
        '{"name": "n", "provider": "echo"',
        json.dumps({"input_sequence": "{{random}}", "output_sequence": "b"}),
    ],
)
def test_refusal_of_a_preset_file_has_a_translation(text: str) -> None:
    assert _is_refused_in_chinese(lambda: preset_from_text(text, Path("x.txt")))


@pytest.mark.parametrize(
    "source",
    [
        "{{", "{{/* x", "{{/* x */ y}}", '{{"', "{{`", "{{ % }}", "{{end}}", "{{break}}",
        "{{if .System}}", "{{if}}{{end}}", "{{.System | }}", "{{$x}}", "{{nothing}}",
        "{{range .Messages}}{{else}}{{else}}{{end}}", "{{ 1x }}", "{{.Messages}}",
        '{{printf "%q" .System}}', "{{printf .System}}", '{{template "x"}}', "x" * 200_000,
    ],
)  # fmt: skip
def test_refusal_of_a_go_template_has_a_translation(source: str) -> None:
    assert _is_refused_in_chinese(lambda: jinja_from_go(source))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.jsonl", b""),
        ("x.jsonl", b"\xff"),
        ("x.jsonl", b'{"luotuo_openai": "a"}\n'),
        ("x.jsonl", b'{"luotuo_openai": "a", "text": "x"}\n'),
        ("x.jsonl", b'{"luotuo_openai": "a", "enc_text": "?"}\n'),
        ("x.txt", b"x"),
        ("x.zip", b"PK"),
    ],
)
def test_refusal_of_a_character_file_has_a_translation(name: str, content: bytes) -> None:
    assert _is_refused_in_chinese(lambda: read_character_content(Path(name), content))


@pytest.mark.parametrize("reference", ["../x.jsonl", "x.jsonl", "harhui", "qqqqqq"])
def test_refusal_of_a_reference_has_a_translation(reference: str, tmp_path: Path) -> None:
    assert _is_refused_in_chinese(lambda: read_character_file(reference, tmp_path))


def test_refusal_of_a_file_for_another_command_has_a_translation() -> None:
    assert _is_refused_in_chinese(
        lambda: check_file_kind(b"GGUF", Path("m.gguf"), [FileKind.PRESET])
    )

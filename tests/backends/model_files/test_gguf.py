"""Reading the metadata of GGUF files, including broken files."""

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.backends.model_files.gguf import read_metadata, read_special_tokens
from bot.errors import SettingsError
from tests.backends.tiny_gguf import Vocabulary, write

NEST = struct.pack("<IQ", 9, 1)  # an array of one array of one array ...
VOCABULARY = Vocabulary("qwen2", ("<|im_end|>", "<|im_start|>"), ("<tool_call>",))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write(path, VOCABULARY, tokenizer__chat_template="{{ messages }}")
    return path.read_bytes()


def test_special_tokens_and_template_are_read(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(whole)

    tokens = read_special_tokens(path)

    assert tokens.chat_template == "{{ messages }}"
    assert (tokens.bos_token, tokens.eos_token) == ("<|im_end|>", "<|im_start|>")
    assert tokens.control_tokens == {0: "<|im_end|>", 1: "<|im_start|>"}
    assert tokens.added_tokens == {2: "<tool_call>"}


def test_all_end_tokens_are_read(tmp_path: Path) -> None:
    more = {"tokenizer__ggml__eot_token_id": 0, "tokenizer__ggml__eom_token_id": 9999}

    tokens = read_special_tokens(write(tmp_path / "tiny.gguf", VOCABULARY, **more))

    assert tokens.end_tokens == ("<|im_start|>", "<|im_end|>")


@given(data=st.data())
def test_damaged_file_is_read_or_rejected(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    at = data.draw(st.integers(0, 3000))
    junk = data.draw(st.binary(max_size=16))
    path.write_bytes(
        (whole[:at] + junk + whole[at + len(junk) :])[: data.draw(st.integers(1, 9000))]
    )

    with contextlib.suppress(SettingsError):
        read_special_tokens(path)
    with contextlib.suppress(SettingsError):
        read_metadata(path)


def test_file_that_is_not_gguf_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "letter.gguf"
    nested = struct.pack("<4sIQQQ1sI", b"GGUF", 3, 0, 1, 1, b"k", 9) + NEST * 100_000
    for content in (b"", b"Dear Bob", nested):
        path.write_bytes(content)
        with pytest.raises(SettingsError, match=r"letter\.gguf cannot be read as a GGUF file"):
            read_special_tokens(path)

"""What a model says of itself, and the memory that follows from it."""

from pathlib import Path

import pytest

from bot.backends.model_files.metadata import read_facts
from bot.errors import SettingsError
from bot.settings import ProviderSettings
from tests.backends import tiny_gguf
from tests.backends.local_model import lend_model
from tests.backends.tiny_gguf import Vocabulary

VOCABULARY = Vocabulary("qwen2", ("<|im_start|>", "<|im_end|>"))
TWO_CHATS = ProviderSettings(kind="llama_cpp", context_tokens=400, parallel=2)


def test_model_that_says_little_is_described_by_what_it_has(tmp_path: Path) -> None:
    facts = read_facts(tiny_gguf.write(tmp_path / "m.gguf", VOCABULARY))

    assert (facts.name, facts.licence, facts.quantization) == ("", "", "")
    assert (facts.architecture, facts.context_tokens) == ("llama", 512)
    assert facts.template == "none; prompts are written in ChatML"
    assert facts.parameters == 32 * (258 + 3 + 7 * 32)  # vocabulary, norms, projections
    assert facts.bytes_for_each_token == 1 * 1 * (32 + 32) * 2


@pytest.mark.parametrize(
    ("heads", "kept"), [(4, 4 * 2 * 8 * 2), ([4, 0], 4 * 2 * 8 * 2), ([2, 4], 6 * 2 * 8 * 2)]
)
def test_keys_and_values_are_counted_layer_by_layer(
    tmp_path: Path, heads: int | list[int], kept: int
) -> None:
    model = tiny_gguf.write(
        tmp_path / "m.gguf",
        VOCABULARY,
        llama__attention__head_count_kv=heads,
        llama__attention__key_length=8,
        llama__attention__value_length=8,
        general__license="mit",
        general__file_type=15,
        tokenizer__chat_template="{{ messages }}",
    )

    facts = read_facts(model)

    assert facts.bytes_for_each_token == kept
    assert (facts.licence, facts.quantization, facts.template) == ("mit", "Q4_K_M", "its own")


def test_memory_grows_with_every_conversation(tmp_path: Path) -> None:
    facts = read_facts(tiny_gguf.write(tmp_path / "m.gguf", VOCABULARY))
    one_chat = TWO_CHATS.model_copy(update={"parallel": 1})

    more = facts.memory_bytes(TWO_CHATS) - facts.memory_bytes(one_chat)

    assert more == facts.bytes_for_each_token * 400


def test_file_that_ends_too_early_is_said(tmp_path: Path) -> None:
    whole = tiny_gguf.write(tmp_path / "m.gguf", VOCABULARY).read_bytes()
    (tmp_path / "half.gguf").write_bytes(whole[:2000])

    with pytest.raises(SettingsError, match=r"half\.gguf cannot be read as a GGUF file"):
        read_facts(tmp_path / "half.gguf")


@pytest.mark.service
async def test_model_that_comes_with_troupe_is_what_it_says(tmp_path: Path) -> None:
    facts = read_facts(await lend_model(tmp_path))

    assert (facts.licence, facts.quantization, facts.context_tokens) == ("apache-2.0", "Q4_1", 8192)
    assert facts.template == "its own, which is our smollm2"
    assert facts.bytes_for_each_token == 23_040  # llama.cpp: 180 MiB for 8,192 tokens
    assert 134e6 < facts.parameters < 136e6

"""A model's metadata, and the memory estimate based on it."""

from pathlib import Path

import pytest

from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.backends.model_files.gguf import read_metadata
from bot.errors import SettingsError
from tests.backends import tiny_gguf
from tests.backends.local_model import lend_model
from tests.backends.tiny_gguf import Vocabulary

VOCABULARY = Vocabulary("qwen2", ("<|im_start|>", "<|im_end|>"))
TWO_CHATS = LlamaCppSettings(context_tokens=400, parallel=2)


def test_missing_metadata_gets_defaults(tmp_path: Path) -> None:
    facts = read_metadata(tiny_gguf.write(tmp_path / "m.gguf", VOCABULARY))

    assert (facts.name, facts.license) == ("", "")
    assert (facts.architecture, facts.context_tokens) == ("llama", 512)
    assert facts.template_description == "none; prompts are rendered as ChatML"
    assert facts.cache_bytes_per_token == 1 * 1 * (32 + 32) * 2


@pytest.mark.parametrize(
    ("heads", "kept"), [(4, 4 * 2 * 8 * 2), ([4, 0], 4 * 2 * 8 * 2), ([2, 4], 6 * 2 * 8 * 2)]
)
def test_cache_bytes_are_summed_by_layer(tmp_path: Path, heads: int | list[int], kept: int) -> None:
    model = tiny_gguf.write(
        tmp_path / "m.gguf",
        VOCABULARY,
        llama__attention__head_count_kv=heads,
        llama__attention__key_length=8,
        llama__attention__value_length=8,
        general__license="mit",
        tokenizer__chat_template="{{ messages }}",
    )

    facts = read_metadata(model)

    assert facts.cache_bytes_per_token == kept
    assert (facts.license, facts.template_description) == ("mit", "its own")


def test_memory_estimate_grows_with_parallel_slots(tmp_path: Path) -> None:
    facts = read_metadata(tiny_gguf.write(tmp_path / "m.gguf", VOCABULARY))
    one_chat = TWO_CHATS.model_copy(update={"parallel": 1})

    more = facts.estimate_memory_bytes(TWO_CHATS) - facts.estimate_memory_bytes(one_chat)

    assert more == facts.cache_bytes_per_token * 400


def test_truncated_file_is_reported(tmp_path: Path) -> None:
    whole = tiny_gguf.write(tmp_path / "m.gguf", VOCABULARY).read_bytes()
    (tmp_path / "half.gguf").write_bytes(whole[:2000])

    with pytest.raises(SettingsError, match=r"half\.gguf cannot be read as a GGUF file"):
        read_metadata(tmp_path / "half.gguf")


@pytest.mark.service
async def test_metadata_of_the_default_model_is_read(tmp_path: Path) -> None:
    facts = read_metadata(await lend_model(tmp_path))

    assert (facts.license, facts.context_tokens) == ("apache-2.0", 8192)
    assert facts.template_description == "its own, the same as the built-in smollm2"
    assert facts.cache_bytes_per_token == 23_040  # llama.cpp: 180 MiB for 8,192 tokens

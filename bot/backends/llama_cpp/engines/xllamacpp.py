"""The prebuilt engine: llama.cpp's own server, out of the package xllamacpp."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from bot.backends.llama_cpp.engines.engine import Engine, Start
from bot.backends.llama_cpp.engines.server_engine import served
from bot.backends.llama_cpp.hardware import check_cpu


@asynccontextmanager
async def running(start: Start) -> AsyncIterator[Engine]:
    """Keep an engine up for the length of the block.

    Raises:
        ChildFailed: it does not start.
        SettingsError: the processor is too old for it.
    """
    check_cpu(f"TROUPE_PROVIDERS__{start.provider.upper()}__")
    child = "bot.backends.llama_cpp.engines.xllamacpp_child"
    async with served(start, child, f"xllamacpp {version('xllamacpp')}") as engine:
        yield engine

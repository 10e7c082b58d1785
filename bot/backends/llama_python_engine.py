"""The engine for those who compile llama.cpp themselves: the bindings, in a child process.

Both engines answer alike, so only what is started differs.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from bot.backends.engines import Engine, Start
from bot.backends.xllamacpp_engine import served


@asynccontextmanager
async def running(start: Start) -> AsyncIterator[Engine]:
    """Keep an engine up for the length of the block; raises `ChildFailed` if it won't start."""
    written_by = f"llama_cpp_python {version('llama_cpp_python')}"
    async with served(start, "bot.backends.llama_python", written_by) as engine:
        yield engine

"""Keep CPython from allocating and freeing a piece of its frame stack at every other call.

CPython keeps the frames of a thread in chunks of 16 KB. One is mapped when a call does not fit into
the last one, and unmapped when that call returns. An event loop calls everything from the same
depth: if the end of a chunk is near it, each message costs some fifty pairs of these system calls.
"""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_RESERVED_SLOTS = 40_000
"""Of 8 bytes. A chunk is a power of two that holds the frame that it was mapped for: 512 KB here,
of which more than a third is left for the calls from this frame. Untouched pages are no memory."""


def call_in_large_chunk(function: Callable[[], T]) -> T:
    """Call a function whose own calls all fit into one chunk of the frame stack."""
    return function()


call_in_large_chunk.__code__ = call_in_large_chunk.__code__.replace(co_stacksize=_RESERVED_SLOTS)

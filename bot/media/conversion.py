"""Convert the pictures, PDFs and text files of strangers, each in a child process with limits."""

import asyncio
import sys
from pathlib import Path
from typing import Literal, TypeAlias

import structlog

from bot.errors import TroupeError

Conversion: TypeAlias = Literal["picture", "pdf", "text"]

_log = structlog.get_logger(__name__)
_PACKAGE_FOLDER = Path(__file__).resolve().parents[2]
_SECONDS = 20.0  # of wall clock; the child limits its CPU time itself
_slots = asyncio.Semaphore(2)


class Unconvertible(TroupeError):
    """The file is damaged, too large inside, or not of the kind that it seems to be."""


async def convert(kind: Conversion, data: bytes) -> bytes:
    """Return a picture as a JPEG, or the text of a PDF in UTF-8.

    Of a text file in another encoding than UTF-8: what that probably is, and the text behind this
    first line.

    Raises:
        Unconvertible: it cannot be read within the limits.
    """
    async with _slots:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-s", "-m", "bot.media.conversion_child", kind),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            # Our own environment holds the tokens of the service.
            env={"PYTHONPATH": str(_PACKAGE_FOLDER)},
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_SECONDS):
                converted, _ = await child.communicate(data)
        except TimeoutError:
            raise Unconvertible(f"a {kind} took more than {_SECONDS:.0f} s to read") from None
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
    if child.returncode != 0:
        _log.info("file_not_converted", kind=kind, exit_code=child.returncode)
        raise Unconvertible(f"a {kind} cannot be read (exit code {child.returncode})")
    return converted

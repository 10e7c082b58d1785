"""Get a model from a repository of a hub, by the hub's own library where it is installed."""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import msgspec

from bot.backends.model_files import store as models
from bot.errors import SettingsError

_LIBRARY = "huggingface_hub"
_PART = r"[A-Za-z0-9][\w.-]{0,95}"
_SOURCE = re.compile(rf"(?P<repository>{_PART}/{_PART})(:(?P<word>[\w./-]{{1,200}}))?", re.ASCII)
_OTHERWISE = "or fetch the file in another way and take it in with `troupe model pull FILE`"
_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True)
class Source:
    """`OWNER/NAME` or `OWNER/NAME:WORD`; the word is a file's name or a part of it (`Q4_K_M`)."""

    repository: str
    word: str


class _Told(msgspec.Struct):
    """What the child says; see hub_child.py."""

    file: str
    sha256: str | None


def source_of(word: str) -> Source | None:
    """Read what somebody wants; None when it names no repository."""
    found = _SOURCE.fullmatch(word)
    if found is None or ".." in word:
        return None
    return Source(found["repository"], found["word"] or "")


async def pull(
    source: Source, data_dir: Path, progress: Callable[[str], None], sha256: str | None = None
) -> Path:
    """Fetch a GGUF, check it by its hash, and put it among the models.

    Without a `sha256` that is what the hub itself has of the file.

    Raises:
        SettingsError: the library is missing, there is no such file, or it could not be fetched.
    """
    if find_spec(_LIBRARY) is None:
        raise SettingsError(
            f"{source.repository} is on a hub, which needs the package {_LIBRARY}; "
            f"`pip install {_LIBRARY}`, {_OTHERWISE}"
        )
    progress(f"fetching from {source.repository} ...")
    try:
        with models.workshop(data_dir) as shop:
            command = [sys.executable, "-m", "bot.backends.model_files.hub_child"]
            worked, said = await models.run(*command, source.repository, source.word, str(shop))
            if not worked:
                raise _not_fetched(source, said)
            told = msgspec.json.decode(said, type=_Told)
            return _taken(Path(told.file), sha256 or told.sha256, shop, data_dir)
    except msgspec.DecodeError:
        raise _not_fetched(source, "its library said nothing that we know") from None
    except OSError as error:
        raise _not_fetched(source, str(error.strerror)) from None


def _taken(file: Path, sha256: str | None, shop: Path, data_dir: Path) -> Path:
    if not file.resolve().is_relative_to(shop.resolve()):
        raise SettingsError(f"the hub names a file outside of the folder: {file.name!r}")
    target = models.folder(data_dir) / f"{models.checked_name(file.name)}.gguf"
    models.place(file, target, sha256)
    return target


def _not_fetched(source: Source, why: str) -> SettingsError:
    return SettingsError(
        f"{source.repository} could not be fetched ({why[:_LONGEST_REASON]}); "
        f"try again when there is a network, {_OTHERWISE}"
    )

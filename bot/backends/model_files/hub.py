"""Download a model from a repository of the Hugging Face hub."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from bot.backends.model_files import store as model_store
from bot.errors import SettingsError
from bot.value_class import value_class

_PART = r"[A-Za-z0-9][\w.-]{0,95}"
_SOURCE = re.compile(rf"(?P<repository>{_PART}/{_PART})(:(?P<file>[\w./-]{{1,200}}))?", re.ASCII)
_ALTERNATIVE = "or download the file by other means and import it with `troupe model pull FILE`"
_MAX_REASON_CHARS = 300


@value_class
class HubSource:
    """`OWNER/NAME` or `OWNER/NAME:FILE`, where FILE may be a part of a name (`Q4_K_M`)."""

    repository: str
    file: str


class _ChildOutput(msgspec.Struct):
    """The last line of hub_download.py."""

    file: str
    sha256: str | None


def parse_source(text: str) -> HubSource | None:
    """Parse what names a repository; None if the text does not."""
    found = _SOURCE.fullmatch(text)
    if found is None or ".." in text:
        return None
    return HubSource(found["repository"], found["file"] or "")


async def pull_model(
    source: HubSource, data_dir: Path, progress: Callable[[str], None], sha256: str | None = None
) -> Path:
    """Download a GGUF, verify its hash (by default the hub's), and add it to the models.

    Raises `SettingsError` where there is no such file, or the download fails.
    """
    progress(f"downloading from {source.repository} ...")
    try:
        with model_store.staging_folder(data_dir) as staging:
            command = [sys.executable, "-m", "bot.backends.model_files.hub_download"]
            succeeded, output = await model_store.run_command(
                *command, source.repository, source.file, str(staging)
            )
            if not succeeded:
                raise _download_error(source, output)
            fetched = msgspec.json.decode(output, type=_ChildOutput)
            return _install(Path(fetched.file), sha256 or fetched.sha256, staging, data_dir)
    except msgspec.DecodeError:
        raise _download_error(source, "unexpected output of its library") from None
    except OSError as error:
        raise _download_error(source, str(error.strerror)) from None


def _install(file: Path, sha256: str | None, staging: Path, data_dir: Path) -> Path:
    if not file.resolve().is_relative_to(staging.resolve()):
        raise SettingsError(f"the hub names a file outside its folder: {file.name!r}")
    target = (
        model_store.models_folder(data_dir) / f"{model_store.validate_model_name(file.name)}.gguf"
    )
    model_store.install_file(file, target, sha256)
    return target


def _download_error(source: HubSource, why: str) -> SettingsError:
    return SettingsError(
        f"{source.repository} could not be downloaded ({why[:_MAX_REASON_CHARS]}); "
        f"try again when there is a network, {_ALTERNATIVE}"
    )

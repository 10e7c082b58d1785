"""Download a model from a Hugging Face repository."""

import os
import re
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp

from bot.backends.model_files import store as model_store
from bot.errors import SettingsError

_HUB_URL = "https://huggingface.co"
_HUB_NAME_PATTERN = r"[A-Za-z0-9][\w.-]{0,95}"
_MODEL_SOURCE_PATTERN = re.compile(
    rf"(?P<repository>{_HUB_NAME_PATTERN}/{_HUB_NAME_PATTERN})(:(?P<file>[\w./-]{{1,200}}))?",
    re.ASCII,
)
_CLIENT_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=60, sock_read=60)
_MAX_DOWNLOAD_TRIES = 5
_CHUNK_BYTES = 1 << 20
_MAX_REASON_CHARS = 300


def parse_model_source(text: str) -> tuple[str, str] | None:
    """Split "OWNER/NAME[:FILE]" (a missing FILE is ""), or return None for any other text."""
    match = _MODEL_SOURCE_PATTERN.fullmatch(text)
    if match is None or ".." in text:
        return None
    return match["repository"], match["file"] or ""


async def pull_model(
    source: tuple[str, str],
    data_dir: Path,
    report_progress: Callable[[str], None],
    sha256: str | None = None,
) -> Path:
    """Download and verify a GGUF file; raise `SettingsError` if that fails."""
    repository, name_part = source
    report_progress(f"downloading from {repository} ...")
    try:
        with model_store.staging_folder(data_dir) as folder:
            file, published_sha256 = await _download(repository, name_part, folder)
            model_name = model_store.validate_model_name(file.name)
            target_file = model_store.models_folder(data_dir) / f"{model_name}.gguf"
            model_store.install_file(file, target_file, sha256 or published_sha256)
            return target_file
    except (aiohttp.ClientError, OSError, ValueError, LookupError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SettingsError(
            f"{repository} could not be downloaded ({reason[:_MAX_REASON_CHARS]}); check the"
            " network and try again, or download the file another way and import it with"
            " `troupe model pull FILE`"
        ) from None


async def _download(repository: str, name_part: str, folder: Path) -> tuple[Path, str | None]:
    """Return the downloaded file, and the SHA-256 that the hub reports, if any."""
    hub_url = os.environ.get("HF_ENDPOINT", _HUB_URL).rstrip("/")  # noqa: TID251 # as the hub's tools do
    token = os.environ.get("HF_TOKEN")  # noqa: TID251
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession(
        headers=headers, timeout=_CLIENT_TIMEOUT, trust_env=True, raise_for_status=True
    ) as session:
        async with session.get(f"{hub_url}/api/models/{repository}?blobs=true") as response:
            repository_info = await response.json()
        lfs_info_by_file: dict[str, Any] = {
            one["rfilename"]: one.get("lfs") or {} for one in repository_info["siblings"]
        }
        name = _pick_file(sorted(lfs_info_by_file), name_part)
        url = f"{hub_url}/{repository}/resolve/{repository_info['sha']}/{quote(name)}"
        file = folder / Path(name).name
        for tries_left in reversed(range(_MAX_DOWNLOAD_TRIES)):
            try:
                await _resume_download(session, url, file)
                break
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError):
                if not tries_left:
                    raise
    return file, lfs_info_by_file[name].get("sha256")


async def _resume_download(session: aiohttp.ClientSession, url: str, file: Path) -> None:
    with file.open("ab") as stream:
        offset = stream.tell()
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        async with session.get(url, headers=headers) as response:
            if response.status != HTTPStatus.PARTIAL_CONTENT:
                stream.truncate(0)
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                stream.write(chunk)


def _pick_file(file_names: Sequence[str], name_part: str) -> str:
    """Return the GGUF file whose name contains `name_part`; raise ValueError if not exactly one."""
    model_files = [
        file
        for file in file_names
        if file.lower().endswith(".gguf") and not Path(file).name.lower().startswith("mmproj")
    ]
    if name_part in model_files:
        return name_part
    matches = [file for file in model_files if name_part.lower() in Path(file).name.lower()]
    if len(matches) != 1:
        problem = f"{len(matches)} files match" if matches else "no GGUF file matches"
        raise ValueError(f"{problem} {name_part!r}; available: {', '.join(model_files) or 'none'}")
    if "-of-" in matches[0]:
        raise ValueError(
            f"{matches[0]} is one part of a split model; choose a model in a single file"
        )
    return matches[0]

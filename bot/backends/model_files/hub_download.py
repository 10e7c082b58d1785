"""Download one GGUF from a model hub: by `huggingface_hub` where it is installed, else without.

A child process with the arguments REPOSITORY FILE FOLDER, because the library raises whatever its
network layers raise: the last line of output is that error. On success it is JSON: the file, and
the hub's hash of it. Repositories that need a token need the library.
"""

import json
import os
import shutil
import sys
import urllib.error
import urllib.request
from importlib import import_module  # noqa: TID251 # an optional package
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

_HUB = "https://huggingface.co"
_SECONDS_WITHOUT_DATA = 60
_MAX_TRIES = 5
_CHUNK_BYTES = 1 << 20
_PARTIAL_CONTENT = 206


def main() -> None:
    """Download the chosen file and print its path and hash."""
    has_library = find_spec("huggingface_hub") is not None
    file, sha256 = (_download_by_library if has_library else _download)(*sys.argv[1:])
    print(json.dumps({"file": str(file), "sha256": sha256}))  # noqa: T201 # the parent reads it


def _download_by_library(repository: str, wanted: str, folder: str) -> tuple[Path, str | None]:
    library = import_module("huggingface_hub")
    info = library.HfApi().model_info(repository, files_metadata=True)
    files = {each.rfilename: each.lfs for each in info.siblings or ()}
    name = _pick_file(sorted(files), wanted)
    library.hf_hub_download(repository, name, revision=info.sha, local_dir=folder)
    return Path(folder) / name, files[name].sha256 if files[name] else None


def _download(repository: str, wanted: str, folder: str) -> tuple[Path, str | None]:
    hub = os.environ.get("HF_ENDPOINT", _HUB).rstrip("/")  # noqa: TID251 # the library's name
    with _open(f"{hub}/api/models/{repository}?blobs=true") as response:
        info = json.load(response)
    files = {one["rfilename"]: one.get("lfs") or {} for one in info["siblings"]}
    name = _pick_file(sorted(files), wanted)
    file = Path(folder) / Path(name).name
    url = f"{hub}/{repository}/resolve/{info['sha']}/{quote(name)}"
    for tries_left in reversed(range(_MAX_TRIES)):
        try:
            if _fetch(url, file):
                break
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError) or not tries_left:
                raise
    return file, files[name].get("sha256")


def _fetch(url: str, file: Path) -> bool:
    """Append to a file what it lacks; return whether it is complete."""
    begin = file.stat().st_size if file.exists() else 0
    with _open(url, {"Range": f"bytes={begin}-"} if begin else {}) as response:
        is_rest = response.status == _PARTIAL_CONTENT
        length = response.length
        with file.open("ab" if is_rest else "wb") as stream:
            shutil.copyfileobj(response, stream, _CHUNK_BYTES)
    received = file.stat().st_size - (begin if is_rest else 0)
    return length is None or received == length


def _open(url: str, headers: dict[str, str] | None = None) -> Any:
    request = urllib.request.Request(url, headers=headers or {})  # noqa: S310 # the hub's address
    return urllib.request.urlopen(request, timeout=_SECONDS_WITHOUT_DATA)  # noqa: S310


def _pick_file(files: list[str], wanted: str) -> str:
    """Return the GGUF with this name or the only one with this part of a name, such as `q4_k_m`."""
    models = [
        file
        for file in files
        if file.lower().endswith(".gguf") and not Path(file).name.lower().startswith("mmproj")
    ]
    if wanted in models:
        return wanted
    found = [file for file in models if wanted.lower() in Path(file).name.lower()]
    if len(found) != 1:
        what = f"{len(found)} files" if found else "no GGUF file"
        sys.exit(f"it has {what} for {wanted!r}; there are: {', '.join(models) or 'none'}")
    if "-of-" in found[0]:
        sys.exit(f"{found[0]} is one part of several; choose a model in one file")
    return found[0]


if __name__ == "__main__":
    main()

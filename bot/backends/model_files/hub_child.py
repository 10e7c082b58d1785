"""Download one GGUF from a model hub: a child process with arguments `REPOSITORY FILE FOLDER`.

The library raises whatever its network layers raise, so it runs in a process of its own, whose last
line of output is that error. On success the last line is JSON: the file, and the hub's hash of it.
"""

import json
import sys
from pathlib import Path
from typing import Any

import huggingface_hub


def main() -> None:
    """Download the chosen file and print its path and hash."""
    repository, wanted, folder = sys.argv[1:]
    info = huggingface_hub.HfApi().model_info(repository, files_metadata=True)
    files = {each.rfilename: each for each in info.siblings or ()}
    name = pick_file(sorted(files), wanted)
    huggingface_hub.hf_hub_download(repository, name, revision=info.sha, local_dir=folder)
    output = {"file": str(Path(folder) / name), "sha256": _sha256(files[name])}
    print(json.dumps(output))  # noqa: T201 # the parent reads it


def pick_file(files: list[str], wanted: str) -> str:
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


def _sha256(file: Any) -> str | None:
    return file.lfs.sha256 if file.lfs else None


if __name__ == "__main__":
    main()

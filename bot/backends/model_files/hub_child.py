"""Fetch one GGUF from a hub of models, in a process of its own: `REPOSITORY WORD FOLDER`.

The hub's library raises whatever its network layers raise; here that ends a process and its last
line says why. On success the last line is JSON: the file, and the hash that the hub has of it.
"""

import json
import sys
from pathlib import Path
from typing import Any

import huggingface_hub


def main() -> None:
    """Download the file that the word picks, and print what the hub says of it."""
    repository, word, folder = sys.argv[1:]
    info = huggingface_hub.HfApi().model_info(repository, files_metadata=True)
    files = {each.rfilename: each for each in info.siblings or ()}
    name = pick(sorted(files), word)
    huggingface_hub.hf_hub_download(repository, name, revision=info.sha, local_dir=folder)
    told = {"file": str(Path(folder) / name), "sha256": _sha256(files[name])}
    print(json.dumps(told))  # noqa: T201 # the parent reads it


def pick(files: list[str], word: str) -> str:
    """The GGUF that a word means: its name, or a part of it as `q4_k_m`; the only one without."""
    models = [
        file
        for file in files
        if file.lower().endswith(".gguf") and not Path(file).name.lower().startswith("mmproj")
    ]
    if word in models:
        return word
    found = [file for file in models if word.lower() in Path(file).name.lower()]
    if len(found) != 1:
        what = f"{len(found)} files" if found else "no GGUF file"
        sys.exit(f"it has {what} for {word!r}; there are: {', '.join(models) or 'none'}")
    if "-of-" in found[0]:
        sys.exit(f"{found[0]} is one part of several; choose a model in one file")
    return found[0]


def _sha256(file: Any) -> str | None:
    return file.lfs.sha256 if file.lfs else None


if __name__ == "__main__":
    main()

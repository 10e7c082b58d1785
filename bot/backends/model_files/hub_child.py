"""Download one GGUF from a model hub with the library `huggingface_hub`, where that is installed.

A child process with arguments `REPOSITORY FILE FOLDER`. The library raises whatever its network
layers raise, so it runs in a process of its own, whose last line of output is that error. On
success the last line is JSON: the file, and the hub's hash of it.
"""

import sys
from pathlib import Path
from typing import Any

import huggingface_hub

from bot.backends.model_files.hub_download import pick_file, print_output


def main() -> None:
    """Download the chosen file and print its path and hash."""
    repository, wanted, folder = sys.argv[1:]
    info = huggingface_hub.HfApi().model_info(repository, files_metadata=True)
    files = {each.rfilename: each for each in info.siblings or ()}
    name = pick_file(sorted(files), wanted)
    huggingface_hub.hf_hub_download(repository, name, revision=info.sha, local_dir=folder)
    print_output(Path(folder) / name, _sha256(files[name]))


def _sha256(file: Any) -> str | None:
    return file.lfs.sha256 if file.lfs else None


if __name__ == "__main__":
    main()

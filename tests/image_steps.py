"""Run the steps of a Dockerfile in a folder, on machines that cannot build containers.

    python -m tests.image_steps deploy/Dockerfile FOLDER

Paths in the Dockerfile are relative to the folder, and no users are created. The installed files
are then made read-only, and `troupe check` must pass, writing only to the data directory.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

_WITHOUT_CAPABILITIES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
"""With capabilities, root could write read-only files."""


def read_instructions(dockerfile: Path) -> Iterator[tuple[str, str]]:
    """Yield each instruction and its arguments, with continued lines joined."""
    lines = (line for line in dockerfile.read_text().splitlines() if not line.startswith("#"))
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            instruction, _, rest = line.partition(" ")
            yield instruction, " ".join(rest.split())


def copy(source: Path, target: Path, context: Set[Path]) -> None:
    if source not in context:
        sys.exit(f"Dockerfile.dockerignore excludes {source}")
    if source.is_dir():
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target, ignore=skipped, dirs_exist_ok=True)
    else:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target / source.name)


def run(command: str, root: Path, folder: Path) -> None:
    subprocess.run(  # noqa: S602 # as the Dockerfile means it
        re.sub(r"(?<![\w.])/opt/", f"{root}/opt/", command),
        shell=True,
        check=True,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(root)},  # noqa: TID251
    )


def start(words: Sequence[str], root: Path, environment: Mapping[str, str]) -> str:
    """Run a program that may write only to the data directory; return its output."""
    for path in root.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o555 if path.is_dir() or os.access(path, os.X_OK) else 0o444)
    data = root / "srv/troupe/data"
    data.parent.chmod(0o755)
    data.mkdir(mode=0o700)
    search = environment["PATH"].replace("/opt/", f"{root}/opt/").replace("$PATH", "/usr/bin:/bin")
    found = subprocess.run(
        [*(_WITHOUT_CAPABILITIES if os.getuid() == 0 else ()), *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=data.parent,
        env={**environment, "PATH": search},
    )
    return found.stdout + found.stderr


def main(dockerfile: Path, root: Path) -> None:
    root.mkdir()
    for folder in (root, root.parent):
        folder.chmod(0o755)
    ignored = dockerfile.with_name(f"{dockerfile.name}.dockerignore").read_text().splitlines()
    context = {Path(line.removeprefix("!")) for line in ignored if line.startswith("!")}
    workdir, environment, entrypoint = root, dict[str, str](), list[str]()
    for instruction, rest in read_instructions(dockerfile):
        match instruction:
            case "WORKDIR":
                workdir = root / rest.removeprefix("/")
                workdir.mkdir(parents=True, exist_ok=True)
            case "COPY" if not rest.startswith("--from"):  # stages share the folder
                *sources, target = rest.split()
                for source in sources:
                    copy(Path(source), workdir / target, context)
            case "RUN" if not rest.startswith("useradd"):
                run(rest, root, workdir)
            case "ENV":
                environment |= dict(pair.split("=", 1) for pair in shlex.split(rest))
            case "ENTRYPOINT":
                entrypoint = json.loads(rest)
            case _:
                pass
    told = start([*entrypoint, "check"], root, environment)
    sys.stdout.write(told)
    if "assistant is the default" not in told or not (root / "srv/troupe/data/troupe.db").exists():
        sys.exit("the program of the image does not work")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

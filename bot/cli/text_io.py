"""Read and write files and the terminal; failures become one-line errors."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from bot.errors import UserError
from bot.media.text_decoding import decode_text
from bot.runtime.shipped_files import prepare_presets_folder
from bot.runtime.terminal import escape_control_characters


def print_line(text: str, *, end: str = "\n") -> None:
    """Write a result to stdout, with control characters escaped."""
    sys.stdout.write(escape_control_characters(text) + end)


def print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        print_line(f"note: {note}")


def print_exactly(text: str, *, end: str = "") -> None:
    """Write text to stdout unchanged, but escape control characters on a terminal."""
    output = escape_control_characters(text) if sys.stdout.isatty() else text
    sys.stdout.write(output + end)


def print_progress(text: str) -> None:
    """Write progress to stderr, so that the result on stdout can be piped."""
    sys.stderr.write(f"troupe: {escape_control_characters(text)}\n")


def read_text(file: Path) -> str:
    """Return a file's text with plain line breaks; raise `UserError` if it cannot be read."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None
    text = decode_text(content, len(content))
    if text is None:
        raise UserError(f"{file} cannot be read: it is not UTF-8; save it as UTF-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_bytes(file: Path, max_bytes: int = -1) -> bytes:
    """Read at most `max_bytes` of a file; raise `UserError` if that fails."""
    try:
        with file.open("rb") as stream:
            return stream.read(max_bytes)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None


def write_text(file: Path, text: str) -> None:
    """Write a UTF-8 file; raise `UserError` if that fails."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from None


def write_private_text(file: Path, text: str) -> None:
    """Write a new file that only its owner can read, either completely or not at all."""
    try:
        descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        raise UserError(f"{file} already exists; choose another name") from None
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from None
    try:
        with open(descriptor, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
    except OSError as error:
        file.unlink(missing_ok=True)
        raise UserError(f"{file} cannot be written: {error.strerror}") from None


def open_presets_folder(presets_dir: Path | None) -> Path:
    """Return the folder for new presets; print a line if it was just created."""
    try:
        folder, is_new_folder = prepare_presets_folder(presets_dir)
    except OSError as error:
        raise UserError(f"presets/ cannot be created here: {error.strerror or error}") from None
    if is_new_folder:
        print_line(f"created the folder {folder} with the presets that come with Troupe")
    return folder

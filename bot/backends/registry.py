"""Which backend a provider's kind stands for, loaded only where one is set up.

The openai client alone takes half a second to import, so nothing is imported that is not asked for.
A new vendor is a file with a `make`, and a line here.
"""

from collections.abc import Callable, Mapping
from importlib import import_module  # noqa: TID251 # this is a plug registry
from pathlib import Path
from typing import TypeAlias

from bot.backends.llama_cpp import sampling
from bot.backends.llama_cpp.engines import engine as engines
from bot.ports import Backend
from bot.settings import ProviderSettings
from bot.templates.renderer import Renderer

Make: TypeAlias = Callable[[str, ProviderSettings, Path, Renderer], Backend]

_MODULES = {
    "openai": "bot.backends.openai_compatible.backend",
    "llama_cpp": "bot.backends.llama_cpp.backend",
    "echo": "bot.backends.echo",
}


def make_backend(
    name: str, settings: ProviderSettings, data_dir: Path, renderer: Renderer
) -> Backend:
    """Make the backend of the provider `name`; nothing is connected or started yet.

    `renderer` writes prompts for those that take text, and is closed after them.
    """
    make: Make = import_module(_MODULES[settings.kind]).make
    return make(name, settings, data_dir, renderer)


def parameter_problems(settings: ProviderSettings, parameters: Mapping[str, object]) -> list[str]:
    """What this provider would not understand of a preset's parameters, a line each.

    Services far away decide for themselves; what runs here is known, so nothing is ignored.
    """
    if settings.kind != "llama_cpp":
        return []
    return sampling.problems(parameters, engines.chosen(settings) or settings.engine)

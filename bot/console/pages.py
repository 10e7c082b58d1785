"""Render the console's pages with Jinja2 and autoescape, in a separate environment.

Chat templates are rendered elsewhere, in a child process; here, people's texts are only values,
never templates.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from bot import __version__
from bot.chat.usage import MICROS, format_cost
from bot.console.routes import THEMES, ConsoleRequest, NavigationItem, Page
from bot.prompting.draft import section_name
from bot.prompting.fit import prompt_tokens
from bot.texts.text import LANGUAGES, looked_up, translatable, translatable_count, translate

_FOLDER = Path(__file__).parent
_LANGUAGE_NAMES = {"en": "EN", "zh": "中文"}


class PageRenderer:
    def __init__(self, navigation: Sequence[NavigationItem]) -> None:
        self._navigation = navigation

    def render(self, page: Page, request: ConsoleRequest, nonce: str) -> str:
        """Return a page's HTML; style sheets created by scripts must carry the nonce."""
        language = request.language

        def localized(pattern: str, **values: object) -> str:
            return translatable(pattern, **values).translate_to(language)

        def localized_count(one: str, many: str, count: int, **values: object) -> str:
            return translatable_count(one, many, count, **values).translate_to(language)

        frame = {
            "_": localized,
            "_n": localized_count,
            "localized": lambda text: translate(text, language),
            "stored": lambda text: translate(looked_up(text), language),
            "looked_up": looked_up,
            "request": request,
            "path": request.http.path,
            "back": request.http.path_qs,
            "navigation": self._navigation,
            "nonce": nonce,
        }
        template = self._environment.get_template(page.template)
        return template.render({**frame, **page.values})

    @cached_property
    def _environment(self) -> Environment:
        """The Jinja environment, created for the first page, as most processes never show one."""
        environment = Environment(
            loader=FileSystemLoader(_FOLDER / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.globals.update(
            asset=static_address,
            format_cost=format_cost,
            prompt_tokens=prompt_tokens,
            section_name=section_name,
            languages={name: _LANGUAGE_NAMES[name] for name in LANGUAGES},
            themes=THEMES,
            version=__version__,
        )
        environment.filters.update(
            thousands="{:,}".format,
            moment=lambda at: datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S"),
            seconds=_seconds,
            dollars=lambda amount: format_cost(round(amount * MICROS)),
        )
        return environment


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds < 10 else f"{seconds:.1f}"


def static_address(name: str) -> str:
    """Return a static file's URL, which changes with its content."""
    content = static_files()[name]
    return f"/static/{name}?v={hashlib.sha256(content).hexdigest()[:8]}"


@cache
def static_files() -> Mapping[str, bytes]:
    return {one.name: one.read_bytes() for one in (_FOLDER / "static").iterdir() if one.is_file()}

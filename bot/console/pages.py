"""Render the console's pages with Jinja2, escaping all values.

People's texts are only ever values here, never templates. Chat templates are rendered elsewhere, in
a child process.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, cached_property, partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from bot import __version__
from bot.chat.incoming import parse_address
from bot.chat.session import CHANNEL_TITLE_KEY
from bot.chat.usage import MICROS_PER_DOLLAR, format_cost
from bot.chat.web_channel import WEB_PLATFORM
from bot.console.message_view import choose_color
from bot.console.routes import THEMES, ConsoleRequest, NavigationItem, Page
from bot.ports import Clock
from bot.prompting.draft import find_section_name
from bot.prompting.fit import prompt_tokens
from bot.storage.reports import ServiceState
from bot.storage.web_channels import SqlWebChannels
from bot.texts.text import LANGUAGES, to_translatable, translatable, translatable_count, translate

_PACKAGE = Path(__file__).parent
_LANGUAGE_NAMES = {"en": "EN", "zh": "中文"}
_NAMES_CACHE_SECONDS = 5.0
_MAX_SPEAKERS = 5_000
_MAX_NAMES_IN_TITLE = 3


@dataclass(slots=True)
class DisplayNames:
    """Names of people and channels, cached for 5 seconds."""

    state: ServiceState
    web_channels: SqlWebChannels
    clock: Clock
    read_preset_faces: Callable[[], Mapping[str, tuple[str, str]]]
    """Returns each preset's character name and picture path; the path is "" without a picture."""
    faces: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    people: Mapping[str, str] = field(default_factory=dict)
    _channel_names: Mapping[str, str] = field(default_factory=dict)
    _titles: Mapping[str, str] = field(default_factory=dict)  # by channel
    _is_loaded: bool = False

    async def refresh(self) -> None:
        """Read the names, unless they are already loaded."""
        if self._is_loaded:
            return
        self._is_loaded = True
        self.clock.call_later(_NAMES_CACHE_SECONDS, self._clear_cache)
        newest_speakers = await self.state.list_newest_speakers(_MAX_SPEAKERS)
        channels = await self.web_channels.all()
        settings = await self.state.chat_settings()
        self._titles = {one.scope: one.value for one in settings if one.key == CHANNEL_TITLE_KEY}
        self.faces = await asyncio.to_thread(self.read_preset_faces)
        self.people = {one.id: one.name for _, one in reversed(newest_speakers)}
        speakers: dict[str, dict[str, str]] = {}
        for key, one in newest_speakers:
            speakers.setdefault(key, {}).setdefault(one.id, one.name)
        self._channel_names = {
            **{key: _shorten_name_list(list(names.values())) for key, names in speakers.items()},
            **{one.address.conversation: one.name for one in channels},
        }

    def _clear_cache(self) -> None:
        """Clear the cache, so that forgotten names are gone even if nobody opens a page."""
        self.people, self._channel_names, self._titles, self._is_loaded = {}, {}, {}, False

    def channel_title(self, language: str, key: str) -> str:
        """Return the platform's name, followed by the channel's own title or its people's names."""
        address = parse_address(key)
        playground_name = translate(translatable("Playground"), language)
        platform = playground_name if address.platform == WEB_PLATFORM else address.platform.title()
        title, people = self._titles.get(address.channel), self._channel_names.get(key)
        if title and address.history:  # one of several histories in the channel
            return f"{platform} › {title} › {people or address.history}"
        return f"{platform} › {title or people or address.chat}"

    def person_name(self, person_id: str | None) -> str:
        return self.people.get(person_id or "", person_id or "–")


def _shorten_name_list(names: Sequence[str]) -> str:
    suffix = f" +{len(names) - _MAX_NAMES_IN_TITLE}" if len(names) > _MAX_NAMES_IN_TITLE else ""
    return f"{', '.join(names[:_MAX_NAMES_IN_TITLE])}{suffix}"


class PageRenderer:
    def __init__(
        self, navigation: Sequence[NavigationItem], names: DisplayNames | None = None
    ) -> None:
        self._navigation = navigation
        self.names = names

    def render(self, page: Page, request: ConsoleRequest, nonce: str) -> str:
        """Return a page's HTML; `nonce` lets browsers accept style sheets added by its scripts."""
        language, characters = request.language, self.names.faces if self.names else {}
        shared_values = {
            "_": lambda *args, **kwds: translatable(*args, **kwds).translate_to(language),
            "_n": lambda *args, **kwds: translatable_count(*args, **kwds).translate_to(language),
            "localized": lambda text: translate(text, language),
            "stored": lambda text: translate(to_translatable(text), language),
            "request": request,
            "path": request.http.path,
            "back": request.http.path_qs,
            "navigation": self._navigation,
            "nonce": nonce,
            "channel_name": partial(self.names.channel_title, language) if self.names else str,
            "person_name": self.names.person_name if self.names else str,
            "face_of": lambda preset: characters.get(preset, (preset, "")),
            "choose_color": partial(choose_color, names=[name for name, _ in characters.values()]),
        }
        template = self._environment.get_template(page.template)
        return template.render({**shared_values, **page.values})

    @cached_property
    def _environment(self) -> Environment:
        """The Jinja environment, created when needed, because most processes never show a page."""
        environment = Environment(
            loader=FileSystemLoader(_PACKAGE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.globals.update(
            asset=static_url,
            format_cost=format_cost,
            prompt_tokens=prompt_tokens,
            find_section_name=find_section_name,
            str=str,
            languages={name: _LANGUAGE_NAMES[name] for name in LANGUAGES},
            themes=THEMES,
            version=__version__,
        )
        environment.filters.update(
            thousands="{:,}".format,
            moment=lambda at: datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S"),
            seconds=lambda seconds: f"{seconds:.{2 if seconds < 10 else 1}f}",
            dollars=lambda amount: format_cost(round(amount * MICROS_PER_DOLLAR)),
        )
        return environment


def static_url(name: str) -> str:
    """Return a static file's URL, which changes with its content."""
    content = read_static_files()[name]
    return f"/static/{name}?v={hashlib.sha256(content).hexdigest()[:8]}"


@cache
def read_static_files() -> Mapping[str, bytes]:
    return {one.name: one.read_bytes() for one in (_PACKAGE / "static").iterdir() if one.is_file()}

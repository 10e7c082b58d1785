"""Find the language and the theme that a reader wants, from cookies and headers."""

from aiohttp import web

from bot.console.routes import (
    Look,
)
from bot.texts.text import LANGUAGES, language_of

THEMES = ("system", "light", "dark")
LANGUAGE_COOKIE = "troupe_language"
THEME_COOKIE = "troupe_theme"


def look_of(http: web.Request) -> Look:
    """Return what the cookies say, else the browser's language and the system's theme."""
    theme = http.cookies.get(THEME_COOKIE, "")
    language = http.cookies.get(LANGUAGE_COOKIE, "")
    return Look(
        language if language in LANGUAGES else accepted_language(http),
        theme if theme in THEMES else THEMES[0],
    )


def accepted_language(http: web.Request) -> str:
    """Return the language of ours that `Accept-Language` likes best; English if it names none."""
    liked: list[tuple[float, str]] = []
    for part in http.headers.get("Accept-Language", "").split(","):
        name, _, quality = part.strip().partition(";q=")
        base = name.split("-")[0].strip().lower()
        if base in LANGUAGES:
            liked.append((_quality(quality), base))
    return max(liked, key=lambda one: one[0])[1] if liked else language_of(None)


def _quality(text: str) -> float:
    try:
        return float(text or 1)
    except ValueError:
        return 0.0

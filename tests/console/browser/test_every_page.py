"""Every page works in wide and narrow windows, light and dark, in both languages.

If TROUPE_TEST_SCREENSHOTS names a folder, screenshots of all pages are saved there.
"""

import itertools
import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from bot.console.login import ConsoleLinks
from tests.console.browser.chromium import NEEDS_CHROMIUM, skip_without_axe, text
from tests.console.browser.conftest import Browser, has_buttons_at

pytestmark = [pytest.mark.service, NEEDS_CHROMIUM]

_HOSTILE = (
    "<script>document.title = 'run'</script><img src=x onerror=\"document.title='run'\">"
    "</pre></svg><svg onload=\"document.title='run'\"><style>body{display:none}</style>"
)
_FOLDER = os.environ.get("TROUPE_TEST_SCREENSHOTS")  # noqa: TID251 # for whoever looks at them
_LINKS = (
    "[...document.links].filter((one) => one.origin === location.origin)"
    ".map((one) => one.pathname + one.search)"
)
_LOOKS = (("light", "en"), ("dark", "zh"), ("dark", "en"), ("light", "zh"))
_SIZES = ((1440, 900), (375, 812))
_PAGE_BYTES, _EDITOR_BYTES = 60 * 1024, 210 * 1024
_NO_PAGES = re.compile(r"\.(csv|jsonl?|png)\b|/export|/static/|/api/")
_MUST_BE_FOUND = {
    *("/playground/*", "/answers", "/answers/*", "/answers/*?form", "/answers/*/compare/*"),
    *("/channels", "/channels/*", "/operation", "/home", "/home?span&by", "/access"),
    *("/setup", "/presets", "/presets/*", "/policy"),
}


def kind_of(path: str) -> str:
    """Return the kind of page at a path: numbers, ids, and names are replaced by `*`."""
    head, _, query = path.partition("#")[0].partition("?")
    parts = head.strip("/").split("/")
    if len(parts) > 1 and parts[0] in {"answers", "channels", "playground", "presets", "operation"}:
        parts[1] = "*"
    kind = "/" + "/".join("*" if part.isdecimal() else part for part in parts)
    names = sorted(part.partition("=")[0] for part in query.split("&") if part)
    order = [part.partition("=")[0] for part in query.split("&") if part]
    return f"{kind}?{'&'.join(order)}" if names else kind


async def find_pages(browser: Browser) -> dict[str, str]:
    """Follow every link; return a path for each kind of page."""
    found = {"/operation": "/operation"}
    waiting = list(found.values())
    while waiting:
        await browser.open(waiting.pop())
        for path in await browser.tab.run(_LINKS):
            kind = kind_of(path)
            if path != "/" and kind not in found and not _NO_PAGES.search(path):
                found[kind] = path
                waiting.append(path)
    return found


def sizes_for(theme: str) -> Sequence[tuple[int, int]]:
    """Return the window sizes in order: light pages load wide, dark pages load narrow."""
    return _SIZES if theme == "light" else _SIZES[::-1]


@pytest.mark.parametrize(
    "looks", [_LOOKS[:2], pytest.param(_LOOKS[2:], marks=pytest.mark.soak)], ids=["two", "others"]
)
async def test_every_page_loads_without_errors_fits_and_is_accessible(
    browser: Browser, looks: Sequence[tuple[str, str]]
) -> None:
    tab = browser.tab
    pages = await find_pages(browser)
    assert pages.keys() >= _MUST_BE_FOUND

    problems: list[str] = []
    seen = set()
    for (theme, language), (kind, path) in itertools.product(looks, pages.items()):
        await browser.look(language, theme)
        for number, (width, height) in enumerate(sizes_for(theme)):
            await tab.set_size(width, height)
            if number == 0:
                await browser.open(path)
            name = f"{kind} at {width} px, {theme}, {language}"
            problems += [f"{name}: {one}" for one in await tab.complaints()]
            shown = await tab.run(
                "[document.documentElement.lang, document.documentElement.dataset.theme]"
            )
            assert shown == [language, theme], path
            seen.add((width, theme, language))
            if _FOLDER:
                file = f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.png"
                await tab.screenshot(Path(_FOLDER) / file)
    assert len(seen) == len(looks) * len(_SIZES)
    assert problems == [], "\n".join(problems)
    skip_without_axe()


async def test_first_load_of_every_page_is_small_and_only_home_has_charts(
    browser: Browser,
) -> None:
    sizes, with_charts = {}, set()
    await browser.tab.send("Network.setCacheDisabled", cacheDisabled=True)
    for kind, path in (await find_pages(browser)).items():
        await browser.open(path)
        sizes[kind] = await browser.tab.run(
            "performance.getEntries().filter((one) => 'encodedBodySize' in one"
            " && !one.name.includes('/events')).reduce((sum, one) => sum + one.encodedBodySize, 0)"
        )
        if await browser.tab.run("typeof uPlot !== 'undefined'"):
            with_charts.add(kind)
            await browser.tab.wait_for("document.querySelector('.chart canvas') !== null")
    too_large = {
        kind: size
        for kind, size in sizes.items()
        if not 0 < size <= (_EDITOR_BYTES if kind.startswith("/presets/*") else _PAGE_BYTES)
    }
    assert too_large == {}
    assert with_charts == {"/home", "/home?span&by"}


async def test_pages_work_without_scripts_and_honor_reduced_motion(
    browser: Browser,
) -> None:
    tab, playground = browser.tab, browser.playground.path
    await browser.open(playground)
    await tab.run("document.querySelector('.msg').setAttribute('aria-busy', 'true')")
    cursor = "getComputedStyle(document.querySelector('[aria-busy] .text'), '::after')"
    assert await tab.run(f"{cursor}.animationName") == "blink"
    calm = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    await tab.send("Emulation.setEmulatedMedia", features=calm)
    assert await tab.run(f"{cursor}.animationName") == "none"

    await tab.send("Emulation.setScriptExecutionDisabled", value=True)
    for path, words in {
        playground: "the lamp is lit 1",
        "/home": "echo",
        "/answers": "the lamp is lit 1",
        "/answers/2": "You are Nora.",
        "/presets": "Marlowe",
        "/presets/nora?view=preview": "You are Nora.",
        "/presets/nora?tab=lorebook&text=lamp": "The lamp is lit at dusk.",
        "/memories": "No results.",
        "/operation": "database",
        "/setup": "API key",
    }.items():
        await browser.open(path)
        assert words in await tab.run(text("main")), path


async def test_link_logs_in_and_hostile_texts_are_never_executed(browser: Browser) -> None:
    tab, playground = browser.tab, browser.playground
    await playground.say(f"@troupe {_HOSTILE}", "99999999")
    channel = await playground.read_channel()
    await channel.wait_for(partial(has_buttons_at, 6))
    container = playground.service.container
    links = ConsoleLinks(container.console_tokens, container.clock, playground.address)
    link = await links.make_login_link()
    await tab.send("Network.clearBrowserCookies")
    tab.messages.clear()

    await tab.open(link)
    await tab.wait_for("document.querySelector('nav') !== null")

    assert link.partition("#")[2] not in await tab.run("location.href")
    for path in (playground.path, "/answers/3", "/answers/3?form=text", "/answers/3/compare/1"):
        await browser.open(path)
        assert "Troupe" in await tab.run("document.title")
        assert await tab.run("document.querySelectorAll('main img, main style').length") == 0
    assert tab.messages == []

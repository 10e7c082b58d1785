"""Every page, wide and narrow, light and dark, in both languages: nothing to complain about.

With TROUPE_TEST_SCREENSHOTS set to a folder, a picture of each page is left there.
"""

import os
import re
from pathlib import Path

import pytest

from tests.console.browser.chromium import NEEDS_CHROMIUM
from tests.console.browser.conftest import Browser

pytestmark = [pytest.mark.service, NEEDS_CHROMIUM, pytest.mark.timeout(600)]

_FOLDER = os.environ.get("TROUPE_TEST_SCREENSHOTS")  # noqa: TID251 # for whoever looks at them
_LINKS = (
    "[...document.links].filter((one) => one.origin === location.origin)"
    ".map((one) => one.pathname + one.search)"
)
_LOOKS = ((1440, "light", "en"), (1440, "dark", "zh"), (375, "dark", "en"), (375, "light", "zh"))
_PAGE_BYTES, _EDITOR_BYTES = 60 * 1024, 210 * 1024
_NO_PAGES = re.compile(r"\.(csv|json|png)\b|/export|/static/")
_MUST_BE_FOUND = {
    *("/playground/*", "/answers", "/answers/*", "/answers/*?form", "/answers/*/compare/*"),
    *(
        "/channels",
        "/channels/*",
        "/operation",
        "/usage",
        "/usage?by&since&until",
        "/access",
        "/setup",
    ),
    *("/presets", "/presets/*"),
}


def kind_of(path: str) -> str:
    """Return what pages of one kind share: numbers, ids and names do not count."""
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


async def test_every_page_is_quiet_fits_and_is_accessible(browser: Browser) -> None:
    tab = browser.tab
    pages = await find_pages(browser)
    assert pages.keys() >= _MUST_BE_FOUND

    problems: list[str] = []
    for width, theme, language in _LOOKS:
        await tab.set_size(width, 812 if width < 600 else 900)
        await browser.look(language, theme)
        for kind, path in pages.items():
            tab.messages.clear()
            await browser.open(path)
            where = f"{kind} at {width} px, {theme}, {language}: "
            problems += [where + one for one in await tab.axe_findings()]
            if (overflow := await tab.overflow()) > 0:
                problems.append(f"{where}{overflow} px too wide")
            problems += [where + one for one in tab.messages]
            shown = await tab.run(
                "[document.documentElement.lang, document.documentElement.dataset.theme]"
            )
            assert shown == [language, theme], path
            if _FOLDER:
                name = re.sub(r"\W+", "-", kind).strip("-")
                await tab.screenshot(Path(_FOLDER) / f"{name}-{width}-{theme}-{language}.png")
    assert problems == [], "\n".join(problems)


async def test_first_load_of_every_page_is_small_and_charts_are_on_two(browser: Browser) -> None:
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
    assert with_charts - {"/usage?by&since&until"} == {"/operation", "/usage"}

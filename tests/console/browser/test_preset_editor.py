"""The preset editor: each tab loads, drafts are saved, and the keyboard suffices."""

import asyncio
import json

import pytest

from tests.console.browser.chromium import NEEDS_CHROMIUM, Tab, skip_without_axe
from tests.console.browser.conftest import Browser
from tests.support.console import call

pytestmark = [pytest.mark.service, NEEDS_CHROMIUM]

_HOSTILE = "</textarea><img src=x onerror=\"document.title='run'\"><script>document.title='run'"
_PARTS = (
    ("?tab=form", "#field-form"),
    ("?tab=json", ".cm-content"),
    ("?tab=lorebook&text=the+lamp+of+%3Cimg%3E", ".entries mark"),
    ("?tab=lorebook&entry=1", "#f-lorebook-1-keys"),
    ("?tab=changes", ".cm-changedLine"),
    ("?tab=versions", "table"),
    ("?view=preview", "#preview .prompt, #preview .hint"),
    ("/test", ".trials"),
)


async def keep_draft(browser: Browser, **changes: object) -> None:
    playground = browser.playground
    await playground.open("/presets/nora")
    _, found = await call(playground, "GET", "/presets/nora")
    content = {**json.loads(found["published"]), **changes}
    draft = {"content": json.dumps(content, indent=2), "revision": found["revision"]}
    status, _ = await call(playground, "PUT", "/presets/nora/draft", draft)
    assert status == 200


async def test_every_tab_loads_without_errors_fits_and_is_accessible(browser: Browser) -> None:
    tab = browser.tab
    await keep_draft(browser, persona=_HOSTILE, greeting=_HOSTILE, description=_HOSTILE)
    problems: list[str] = []
    for width, theme, language in ((1440, "dark", "en"), (375, "light", "zh")):
        await tab.set_size(width, 812 if width < 600 else 900)
        await browser.look(language, theme)
        for part, shown in _PARTS:
            tab.messages.clear()
            await browser.open(f"/presets/nora{part}")
            await tab.wait_for(f"document.querySelector({shown!r}) !== null")
            where = f"{part} at {width} px, {theme}: "
            problems += [where + one for one in await tab.complaints()]
            assert await tab.run("document.title") != "run"
            assert await tab.run("document.querySelectorAll('main img').length") == 0
    assert problems == [], "\n".join(problems)
    skip_without_axe()


async def test_errors_are_shown_while_typing_and_the_draft_is_saved(
    browser: Browser, tab: Tab
) -> None:
    await browser.open("/presets/nora?tab=json")
    await tab.wait_for("document.querySelector('.cm-content') !== null")
    await tab.run("document.querySelector('.cm-content').focus()")
    await tab.type('"temprature": 1, ')
    await tab.wait_for("document.querySelector('#problems').textContent.includes('Line 1')")
    async with asyncio.timeout(60):
        while await tab.run("document.querySelector('#kept').textContent !== 'saved'"):
            await tab.type(" ")  # the draft is also kept while somebody types on
            await asyncio.sleep(0.1)
    _, found = await call(browser.playground, "GET", "/presets/nora")
    assert found["draft"].startswith('"temprature": 1, ')


async def test_form_can_be_saved_previewed_and_published_by_keyboard(
    browser: Browser, tab: Tab
) -> None:
    await browser.open("/presets/nora")
    await tab.tab_to("#f-persona")
    await tab.type("You mend clocks of the harbour inn.")
    await tab.wait_for("document.querySelector('#kept').textContent === 'saved'")
    await tab.wait_for("document.querySelector('#preview').textContent.includes('harbour inn')")
    await tab.wait_for("!document.querySelector('#discard').hidden")
    assert "1 change" in await tab.run("document.querySelector('#about').textContent")

    await browser.open("/presets/nora?tab=changes")
    take_back = "document.querySelector('.cm-chunkButtons button:not([hidden])')"
    await tab.wait_for(take_back)
    same = "({color, backgroundColor}) => color === backgroundColor"
    assert not await tab.run(f"({same})(getComputedStyle({take_back}))"), "nobody reads it"
    assert await tab.axe_findings() == []

    await browser.open("/presets/nora?tab=lorebook&entry=1")
    await tab.tab_to("#f-lorebook-1-keys")
    await tab.type("lantern\n")
    await tab.tab_to("#try-text")
    await tab.type("the lantern")
    await tab.wait_for("document.querySelector('#tried mark')?.textContent === 'lantern'")
    await tab.run("document.querySelector('#publish button').focus()")
    await tab.press("Enter")
    await tab.wait_for("location.search === '?tab=versions'")
    resolver = browser.playground.service.container.resolver
    nora = resolver.presets["nora"]
    assert nora.persona == "You mend clocks of the harbour inn."
    assert nora.parsed_lorebook is not None
    assert "lantern" in nora.parsed_lorebook.entries[0].keys[0]
    assert resolver.versions["nora"] == 2

"""The gallery of presets, cards dropped on any page, and older messages of a channel."""

import base64
import json

import pytest

from tests.console.browser.chromium import NEEDS_CHROMIUM, Tab, count, text
from tests.console.browser.conftest import Browser

pytestmark = [pytest.mark.service, NEEDS_CHROMIUM]

_SHOWN = "document.querySelectorAll('.tile:not([hidden])').length"


async def test_presets_are_filtered_while_typing_and_created_from_a_template(
    browser: Browser, tab: Tab
) -> None:
    await browser.open("/presets")
    assert await tab.run(_SHOWN) == 2
    await tab.click("#find")
    await tab.type("marl")
    await tab.wait_for(f"{_SHOWN} === 1")
    assert await tab.run("location.search") == "", "nothing was loaded"

    await tab.click("#new [name=name]")
    await tab.type("Tilly")
    await tab.press("Enter")
    await tab.wait_for("location.pathname === '/presets/Tilly'")
    await tab.wait_for("document.readyState === 'complete'")
    assert "{{char}}" in await tab.run("document.querySelector('#f-persona').value")

    slider = "document.querySelector('[data-of=f-talkativeness]')"
    await tab.run(f"{slider}.focus(); {slider}.value = 0.5")
    await tab.press("ArrowRight")
    await tab.wait_for("document.querySelector('#f-talkativeness').value === '0.51'")
    await tab.wait_for("document.querySelector('#kept').textContent === 'saved'")
    assert tab.messages == []


async def test_card_dropped_on_any_page_becomes_a_draft(browser: Browser, tab: Tab) -> None:
    data = {"name": "Ada", "description": "An engineer.", "first_mes": "Hello."}
    card = {"spec": "chara_card_v2", "spec_version": "2.0", "data": data}
    content = base64.b64encode(json.dumps(card).encode()).decode()
    await browser.open("/home")
    await tab.run(
        "(() => { const files = new DataTransfer();"
        f" files.items.add(new File([atob('{content}')], 'ada.json'));"
        " dispatchEvent(new DragEvent('drop', {dataTransfer: files, bubbles: true})); })()"
    )
    await tab.wait_for("location.pathname !== '/home' && document.readyState === 'complete'")
    await browser.open("/presets")
    assert "Ada" in await tab.run(text(".gallery"))


async def test_scrolling_up_loads_older_messages_and_answers_open_in_a_side_panel(
    browser: Browser, tab: Tab
) -> None:
    playground = browser.playground
    for number in range(110):
        await playground.say(f"line {number}", f"1234{number:04}")
    await browser.open(playground.path)
    await tab.wait_for(f"{text('#log')}.includes('line 109')")
    assert not await tab.run(f"{text('#log')}.includes('the lamp is lit 0')")
    await tab.run("log.scrollTop = 0")
    await tab.wait_for(f"{text('#log')}.includes('the lamp is lit 0')")
    assert await tab.run("log.scrollTop") > 0, "what was read stays in sight"
    assert await tab.run(count("[data-older]")) == 0

    await tab.click("[data-answer='1']")
    await tab.wait_for(f"{text('#pane-last')}.includes('#1')")
    assert await tab.run(count("#pane-last .waterfall")) == 1
    await tab.click("#pane-last [data-answer='2']")
    await tab.wait_for(f"{text('#pane-last')}.includes('#2')")
    assert await tab.run("location.pathname") == playground.path
    assert tab.messages == []

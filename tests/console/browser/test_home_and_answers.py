"""Charts, the list of answers by mouse and keyboard, and one answer with its replay."""

import asyncio
from functools import partial

import pytest

from tests.console.browser.chromium import NEEDS_CHROMIUM, Tab, count, text
from tests.console.browser.conftest import Browser, has_buttons_at

pytestmark = [pytest.mark.service, NEEDS_CHROMIUM]

_LOADED = "document.readyState === 'complete'"
_CHART = "[data-chart=answers] .u-over"
_NEWEST_BAR = (
    "(() => { const box = document.querySelector('[data-chart=answers] .u-over')"
    ".getBoundingClientRect();"
    " return {x: box.right - box.width / 48, y: box.bottom - 8}; })()"
)


async def drag(tab: Tab, begin: dict[str, float], by: float) -> None:
    end = {**begin, "x": begin["x"] + by}
    await tab.mouse("mouseMoved", begin)
    await tab.mouse("mousePressed", begin)
    await tab.send("Input.dispatchMouseEvent", type="mouseMoved", button="left", buttons=1, **end)
    await tab.mouse("mouseReleased", end)


_NOTICE_COPYING = """
new MutationObserver(([{target}]) => { window.wasCopied ||= target.matches(".done"); })
    .observe(document.querySelector("[data-copy='#answer']"), {attributes: true})
"""


async def test_clicking_or_dragging_in_a_chart_opens_its_answers(
    browser: Browser, tab: Tab
) -> None:
    await browser.open("/home?by=preset")
    await tab.wait_for(f"document.querySelector({_CHART!r}) !== null")
    assert "2" in await tab.run(text(".tiles dd"))
    place = await tab.run(_NEWEST_BAR)
    for event in ("mouseMoved", "mousePressed", "mouseReleased"):
        await tab.mouse(event, place)
    await tab.wait_for("location.pathname === '/answers'")
    assert "preset=nora" in await tab.run("location.search")
    await tab.wait_for(f"{count('[data-row]')} === 2")

    await browser.open("/home")
    await tab.wait_for(f"document.querySelector({_CHART!r}) !== null")
    end = await tab.run(_NEWEST_BAR)
    await drag(tab, {**end, "x": end["x"] - 300}, 200)
    await tab.wait_for("location.pathname === '/answers' && document.readyState === 'complete'")
    assert await tab.run("/since=\\d+&until=\\d+/.test(location.search)")
    assert await tab.run(count("[data-row]")) == 0, "nothing was answered then"
    assert tab.messages == []


async def test_answer_list_can_be_filtered_saved_refreshed_and_used_by_keyboard(
    browser: Browser, tab: Tab
) -> None:
    playground = browser.playground
    await browser.open("/answers")
    await tab.press("/")
    assert await tab.run("document.activeElement.name") == "text"
    await tab.type("lamp")
    await tab.press("Enter")
    await tab.wait_for("location.search === '?text=lamp'")

    await tab.run("window.prompt = () => 'lamps'")
    await tab.click("#saved .btn")
    await tab.wait_for(f"{text('#saved .chip a')} === 'lamps'")
    await browser.open("/answers")
    await tab.click("#saved .chip a")
    await tab.wait_for("location.search === '?text=lamp'")
    await tab.click("#saved .chip button")
    await tab.wait_for(f"{count('#saved .chip')} === 0")

    await tab.run(
        "document.querySelector('[name=preset]').value = 'nora';"
        " document.querySelector('[name=preset]').dispatchEvent(new Event('change'))"
    )
    await tab.wait_for(f"location.search === '?text=lamp&preset=nora' && {_LOADED}")
    await tab.press("j")
    await tab.press("j")
    chosen = await tab.run("document.activeElement.textContent")
    assert chosen == "1"
    await playground.say("@troupe the lamp is out", "22222222")
    channel = await playground.read_channel()
    await channel.wait_for(partial(has_buttons_at, 6))
    await tab.wait_for(f"{count('[data-row]')} === 3")
    assert await tab.run("document.activeElement.textContent") == chosen, "the same one"
    await tab.press("k")
    await tab.press("Enter")
    await tab.wait_for(f"location.pathname === '/answers/2' && {_LOADED}")
    await tab.press("ArrowLeft")
    await tab.wait_for(f"location.pathname === '/answers/1' && {_LOADED}")
    await tab.press("ArrowRight")
    await tab.wait_for("location.pathname === '/answers/2'")
    assert tab.messages == []


async def test_prompt_can_be_searched_folded_copied_and_replayed(
    browser: Browser, tab: Tab
) -> None:
    await browser.open("/answers/2")
    await tab.click(".section summary")
    await tab.wait_for("!document.querySelector('.section').open")
    await tab.click("#find input")
    await tab.type("you are nora")
    await tab.wait_for("document.querySelector('.section').open")
    assert await tab.run(text("#find span")) == "1/1"
    assert await tab.run("CSS.highlights.get('found').size") == 1
    await tab.run(_NOTICE_COPYING)  # the button shows it for 1.5 s only
    await tab.click("[data-copy='#answer']")
    await tab.wait_for("window.wasCopied")

    await tab.run("document.querySelector('#replay [name=use]').value = 'model:marlowe'")
    await tab.click("#replay .btn.go")
    async with asyncio.timeout(60):
        await tab.wait_for("location.pathname.endsWith('/compare/2')")
    await tab.open(await tab.run("location.href"))
    assert "marlowe" in await tab.run(text("main"))
    assert await tab.run("document.querySelectorAll('.diff > div').length") == 4
    assert await tab.axe_findings() == []
    assert tab.messages == []

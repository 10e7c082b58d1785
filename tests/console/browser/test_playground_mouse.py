"""The playground with mouse and touch: clicks take effect, and nothing is lost."""

import asyncio
import time

import pytest

from bot.console.login import ConsoleLinks, hash_token
from tests.console.browser.chromium import NEEDS_CHROMIUM, count, text
from tests.console.browser.conftest import Browser

pytestmark = [pytest.mark.service, NEEDS_CHROMIUM]

_LONG = "Wolfeschlegelsteinhausenbergerdorff the Extremely Long-Named Third"
_BUSY = "#log > li[aria-busy]"
_OWN = "#log > li.msg:not(.ours)"


async def test_clicks_and_text_selections_survive_while_a_message_grows(browser: Browser) -> None:
    tab = browser.tab
    browser.let_nora_write_slowly()
    await tab.set_size(1440, 900)
    await browser.open(browser.playground.path)
    await tab.type("@troupe tell me more")
    await tab.press("Enter")
    await tab.wait_for(f"{text(_BUSY + ' .text')}.includes('word')")
    await tab.run(
        "window.pressed = []; document.addEventListener('submit', (event) => {"
        " window.pressed.push(event.submitter.value); if (window.pressed.length === 12) return;"
        " event.preventDefault(); event.stopImmediatePropagation(); }, true);"
        f" getSelection().setBaseAndExtent(document.querySelector('{_BUSY} .text').firstChild, 2,"
        f" document.querySelector('{_BUSY} .text').firstChild, 6)"
    )
    for _ in range(12):
        place = await tab.place(f"{_BUSY} [data-stop]")
        shown = await tab.run(f"{text(_BUSY + ' .text')}.length")
        begun = time.monotonic()
        await tab.mouse("mousePressed", place)
        await tab.wait_for(f"{text(_BUSY + ' .text')}.length > {shown}")
        await asyncio.sleep(max(0.0, 0.15 - (time.monotonic() - begun)))  # a slow finger
        await tab.mouse("mouseReleased", place)
    await tab.wait_for(f"{text('#log')}.includes('(stopped)')")
    assert await tab.run("pressed.length") == 12
    assert await tab.run("getSelection().toString()") == "word"


async def test_touch_screens_have_no_invisible_buttons_and_deletions_can_be_undone(
    browser: Browser,
) -> None:
    tab, playground = browser.tab, browser.playground
    for name in ("Bob", _LONG):
        await playground.send(f"{playground.path}/people", name=name)
    await tab.set_size(1440, 900)
    await browser.open(playground.path)
    heights = "[...document.querySelectorAll('.as label')].map((one) => one.offsetHeight)"
    assert max(await tab.run(heights)) < 40, "each name stands in one line"

    await tab.send("Emulation.setTouchEmulationEnabled", enabled=True)
    await tab.set_size(375, 812)
    await browser.open(playground.path)
    assert await tab.run("document.querySelector('#log').clientHeight") > 400
    all_of_them = await tab.run(count("#log > li.msg"))
    shown = f"{count('#log > li.msg:not([hidden])')}"
    await tab.tap(f"{_OWN} [data-delete]")
    await tab.tap(f"{_OWN} .more")
    await tab.wait_for(f"getComputedStyle(document.querySelector('{_OWN} .tools')).opacity === '1'")
    assert await tab.run(shown) == all_of_them, "what nobody saw was pressed"
    await tab.tap(f"{_OWN} [data-delete]")
    await tab.wait_for(f"{shown} === {all_of_them - 1}")
    await tab.tap("#toast button")
    await tab.wait_for(f"{shown} === {all_of_them}")

    await tab.tap(f"{_OWN} .more")
    await tab.tap(f"{_OWN} [data-delete]")
    await browser.open("/answers")  # what was not undone is deleted, also when the page closes
    channel = await playground.read_channel()
    await channel.wait_for(lambda all_: len(all_) < all_of_them)


async def test_composer_and_newest_messages_stay_in_view(browser: Browser) -> None:
    tab, playground = browser.tab, browser.playground
    await tab.set_size(1440, 500)
    await browser.open(playground.path)
    await tab.click(".as label:nth-of-type(2)")
    speaker = await tab.run("document.querySelector('input[name=author]:checked').value")
    await tab.click("#say")
    await tab.type("half-written")
    await tab.click("#log > li.ours .tools [data-reply]")
    await tab.wait_for("!document.querySelector('#mode').hidden")
    assert await tab.run("say.value") == "half-written"
    assert await tab.run("document.querySelector('input[name=author]:checked').value") == speaker
    await tab.press("Escape")
    await tab.click(f"{_OWN} .tools [data-edit]")
    await tab.wait_for("say.value.includes('the lamp')")
    await tab.click("#mode a")
    assert await tab.run("say.value") == "half-written"
    assert await tab.run("location.search") == ""

    seen_to = "log.scrollHeight - log.scrollTop - log.clientHeight"
    lines = "\n" * 30
    await tab.run("say.value = ''; log.scrollTop = 0")
    await tab.type(f"my own{lines}lines with an end")
    await tab.press("Enter")
    await tab.wait_for(f"{text('#log')}.includes('with an end') && {seen_to} < 2")
    await tab.run("log.scrollTop = 0")
    await playground.say("somebody else writes while one reads above", "11111111")
    await tab.wait_for("!document.querySelector('#fresh').hidden")
    assert await tab.run("log.scrollTop") == 0
    await tab.click("#fresh")
    await tab.wait_for(f"document.querySelector('#fresh').hidden && {seen_to} < 2")

    await tab.click("#say")
    assert "Nora" in await tab.run(text("#about"))
    await tab.type("/preset use marlowe")
    await tab.press("Escape")
    await tab.press("Enter")
    await tab.wait_for(f"{text('#about')}.includes('Marlowe')")
    await tab.type("@mar")
    await tab.press("Tab")
    assert await tab.run("say.value") == "@Marlowe "
    await tab.run("say.value = ''")
    await tab.type("/")
    options = await tab.run(
        "[...document.querySelectorAll('#slash-list code')].map((one) => one.textContent)"
    )
    assert len(options) > 20
    assert any(one.startswith("/context") for one in options)


async def test_page_reports_an_expired_session_and_a_new_link_returns_to_it(
    browser: Browser,
) -> None:
    tab, playground = browser.tab, browser.playground
    container = playground.service.container
    await browser.open(playground.path)
    await tab.type("unfinished")
    await container.console_tokens.end_all_sessions()
    await tab.wait_for("!document.querySelector('#ended').hidden")
    await tab.click("#ended a")
    await tab.wait_for("document.querySelector('#login') !== null")

    links = ConsoleLinks(container.console_tokens, container.clock, playground.address)
    used = await links.make_login_link()
    await container.console_tokens.use_login(hash_token(used.partition("#")[2]))
    await tab.open(used)
    await tab.wait_for("document.querySelector('[role=alert]') !== null")
    fresh = await links.make_login_link()
    await tab.run(f"location.assign({fresh!r})")  # the same page but for what follows the #
    await tab.wait_for("document.querySelector('#say')?.value === 'unfinished'")
    assert await tab.run("location.pathname") == playground.path

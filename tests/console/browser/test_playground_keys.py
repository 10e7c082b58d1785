"""Every action of the playground works with the keyboard alone."""

import pytest

from tests.console.browser.chromium import NEEDS_CHROMIUM, Tab, count, text
from tests.console.browser.conftest import Browser

pytestmark = [pytest.mark.service, NEEDS_CHROMIUM]

_NEWEST = "#log > li.msg:last-of-type"


@pytest.fixture
async def tab(browser: Browser, tab: Tab) -> Tab:
    await browser.open(browser.playground.path)
    return tab


async def press_labelled(tab: Tab, label: str, within: str = _NEWEST) -> None:
    """Move to a message with Tab and arrow keys, and press its button or link with this label."""
    await tab.tab_to("#log > li")
    for key in ("ArrowUp", "ArrowDown"):
        for _ in range(await tab.run(count("#log > li"))):
            if not await tab.run(f"document.activeElement.matches({within!r})"):
                await tab.press(key)
    # An update replaces the elements of a message, so they are looked up again at each step.
    wanted = f"{within!r} + ' :is(button, a)'"
    await tab.wait_for(
        f"[...document.querySelectorAll({wanted})]"
        f".some((one) => one.textContent.includes({label!r}))"
    )
    await tab.tab_until(
        f"document.activeElement.matches({wanted})"
        f" && document.activeElement.textContent.includes({label!r})"
    )
    await tab.press("Enter")


async def test_enter_sends_a_message_and_commands_are_completed(tab: Tab) -> None:
    assert await tab.run("document.activeElement.id") == "say"
    await tab.type("one line")
    await tab.press("Enter", shift=True)
    await tab.run("document.activeElement.setRangeText('\\n', 8, 8, 'end')")
    await tab.type("@troupe and another")
    before = await tab.run(count("#log > li.msg"))
    await tab.press("Enter")
    await tab.wait_for(f"{count('#log > li.msg')} >= {before} + 2")
    assert await tab.run("say.value") == ""
    assert await tab.run("document.activeElement.id") == "say"

    await tab.type("/hel")
    await tab.wait_for("!slash.hidden")
    assert await tab.run("say.getAttribute('aria-expanded')") == "true"
    await tab.press("Tab")
    assert await tab.run("say.value") == "/help"
    await tab.press("Escape")
    await tab.press("Enter")
    await tab.wait_for(f"{text('#log')}.includes('/new')")

    await tab.type("/")
    await tab.press("ArrowDown")
    assert await tab.run("say.getAttribute('aria-activedescendant')") == "slash-1"
    await tab.press("Escape")
    assert await tab.run("slash.hidden")


async def test_answers_can_be_retried_switched_and_deleted(tab: Tab) -> None:
    await press_labelled(tab, "Retry")
    await tab.wait_for(f"{text(_NEWEST)}.includes('2/2')")
    await press_labelled(tab, "‹")
    await tab.wait_for(f"{text(_NEWEST)}.includes('1/2')")
    shown = await tab.run(count("#log > li.msg"))
    await press_labelled(tab, "Delete")
    await tab.wait_for(f"{count('#log > li.msg')} < {shown}")  # when it can no longer be undone


async def test_answers_can_be_continued_and_stopped(tab: Tab, browser: Browser) -> None:
    shown = await tab.run(count("#log > li.msg"))
    await press_labelled(tab, "Continue")
    await tab.wait_for(f"{count('#log > li.msg')} > {shown} && {text(_NEWEST)}.includes('Retry')")

    browser.let_nora_write_slowly()
    await tab.tab_to("#say")
    await tab.type("@troupe tell me more")
    await tab.press("Enter")
    await tab.wait_for(f"{text(_NEWEST)}.includes('Stop')")
    await press_labelled(tab, "Stop")  # also while the message grows
    await tab.wait_for(f"{text(_NEWEST)}.includes('(stopped)')")

    await tab.tab_to("#say")
    await tab.type("@troupe and more")
    await tab.press("Enter")
    await tab.wait_for(f"{text(_NEWEST)}.includes('Stop')")
    await tab.press("Escape")
    await tab.wait_for(f"{text(_NEWEST)}.includes('(stopped)')")


async def test_messages_can_be_replied_to_edited_and_deleted(tab: Tab, browser: Browser) -> None:
    await press_labelled(tab, "Reply")
    await tab.wait_for("!document.querySelector('#mode').hidden")
    await tab.type("a reply")
    await tab.press("Enter")
    await tab.wait_for(f"{text('#log')}.includes('↱')")

    own = "#log > li.msg:nth-child(2)"
    await press_labelled(tab, "Edit", own)
    await tab.type(" changed")
    await tab.press("Enter")
    await tab.wait_for(f"{text('#log')}.includes('(edited)')")
    assert await tab.run("document.activeElement.id") == "say"
    await tab.press("ArrowUp")
    assert await tab.run("say.value") == "a reply"
    await tab.press("Escape")
    assert await tab.run("say.value") == ""
    shown = await tab.run(count("#log > li.msg"))
    await press_labelled(tab, "Delete", own)
    await tab.wait_for(f"{count('#log > li.msg')} < {shown}")
    assert tab.messages == []


async def test_author_tab_platform_style_and_channel_can_be_changed(
    tab: Tab, browser: Browser
) -> None:
    await tab.tab_to("input[name=author]")
    first = await tab.run("document.querySelector('input[name=author]:checked').value")
    await tab.press("ArrowDown")
    chosen = await tab.run("document.querySelector('input[name=author]:checked').value")
    assert chosen != first

    await tab.tab_to("[role=tab]")
    await tab.press("ArrowRight")
    assert await tab.run("document.activeElement.id") == "tab-who"
    assert not await tab.run("document.querySelector('#pane-who').hidden")
    await tab.press("ArrowRight")
    await tab.wait_for(f"{text('#pane-last')}.includes('Token budget')")

    await tab.tab_to("#person")
    await tab.type("bob")
    await tab.press("Enter")
    await tab.wait_for(f"{text('.as')}.includes('bob')")

    await tab.tab_to("button[name=channel_look][value=telegram]")
    await tab.press(" ")
    await tab.wait_for("document.querySelector('.play')?.dataset.look === 'telegram'")

    await tab.tab_to("details.menu summary")
    await tab.press("Enter")
    await tab.tab_to("#new-name")
    await tab.type("another scene")
    await tab.press("Enter")
    await tab.wait_for(f"{text('h1')}.includes('another scene')")


async def test_skip_link_is_the_first_tab_stop(tab: Tab, browser: Browser) -> None:
    await browser.open("/answers")
    await tab.press("Tab")
    assert await tab.run("document.activeElement.matches('a.skip')")
    await tab.press("Enter")
    assert await tab.run("document.activeElement.id || location.hash") in {"content", "#content"}

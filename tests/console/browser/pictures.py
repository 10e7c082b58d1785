"""Renew the console's pictures in docs/images: `python -m tests.console.browser.pictures`."""

import asyncio
import tempfile
from pathlib import Path

from tests.checkout import CHECKOUT
from tests.console.browser.chromium import Tab, open_tab
from tests.console.browser.conftest import Browser
from tests.platforms.web.channel import write_settings
from tests.support.console import call, opened

_FOLDER = CHECKOUT / "docs" / "images"
_SIZE = (1440, 900)
_BOOK = {
    "entries": [
        {
            "name": "The lamp",
            "keys": ["lamp", "lantern"],
            "content": "The harbour lamp is lit at dusk; Nora keeps its clockwork.",
        },
        {"name": "The inn", "constant": True, "content": "The harbour inn has nine rooms."},
    ]
}
_NORA: dict[str, object] = {
    "name": "nora",
    "role_name": "Nora",
    "description": "mends clocks above the harbour inn",
    "persona": "You are Nora, who mends clocks above the harbour inn. You lost the sea the year"
    " the bell drowned, and you speak in short, warm sentences.",
    "greeting": "Mind the step. What has stopped, and when did you last see it going?",
    "lorebook": _BOOK,
    "max_input_tokens": 4000,
    "parameters": {"echo_answer": "It is lit at dusk, as always. Come in, and mind the step."},
}
_MARLOWE: dict[str, object] = {
    "name": "marlowe",
    "role_name": "Marlowe",
    "system": "You are Marlowe, the ferryman. You count everything twice.",
    "parameters": {"echo_answer": "Two boats, two lamps. I counted them twice."},
}
_SAID = (
    ("alice", "nora, who looks after the lamp?"),
    ("bob", "nora, how many boats are out tonight?"),
    ("alice", "nora, is the lantern burning already?"),
)


async def main() -> None:
    """Take a picture of each page that the documentation shows."""
    with tempfile.TemporaryDirectory() as folder:
        settings = write_settings(Path(folder), [_NORA, _MARLOWE])
        async with (
            opened(settings) as playground,
            open_tab(Path(folder) / "profile") as tab,
        ):
            cookies = {one.key: one.value for one in playground.client.cookie_jar}
            await tab.set_cookies(playground.address, cookies)
            await tab.set_size(*_SIZE)
            browser = Browser(tab, playground)
            await _talk(browser)
            await browser.look("en", "light")
            await _playground(browser)
            await browser.open("/answers/3?form=messages")
            await _keep(tab, "answer")
            await browser.open("/operation")
            await _keep(tab, "operation")
            await browser.look("en", "dark")
            await _preset(browser)


async def _talk(browser: Browser) -> None:
    playground = browser.playground
    await playground.open()
    await playground.send("/playground", name="harbour inn", look="discord")
    await playground.open()
    for name in ("alice", "bob"):
        await playground.send(f"{playground.path}/people", name=name)
    await playground.open(playground.path)
    for number, (name, text) in enumerate(_SAID, 1):
        await playground.say(text, f"{number:08}", f"web:{name}")
        channel = await playground.read_channel()
        await channel.wait_for(lambda shown, wanted=2 * number: len(shown) == wanted)  # type: ignore[misc]


async def _playground(browser: Browser) -> None:
    tab = browser.tab
    await browser.open(browser.playground.path)
    await tab.wait_for("document.activeElement?.id === 'say'")
    await tab.type("nora, may I see the clockwork of the lamp?")
    await tab.wait_for("document.querySelector('#pane-next .total') !== null")
    await _keep(tab, "playground")


async def _preset(browser: Browser) -> None:
    tab = browser.tab
    await browser.playground.open("/presets/nora")
    _, found = await call(browser.playground, "GET", "/presets/nora")
    draft = found["published"].replace("short, warm", "short, salty")
    await call(
        browser.playground,
        "PUT",
        "/presets/nora/draft",
        {"content": draft, "revision": found["revision"]},
    )
    await browser.open("/presets/nora")
    await tab.wait_for("document.querySelector('#preview .total') !== null")
    await _keep(tab, "presets")
    await browser.open("/presets/nora?tab=lorebook&entry=1&text=the+lantern+is+out")
    await tab.wait_for("document.querySelector('#preview .total') !== null")
    await _keep(tab, "lorebook")


async def _keep(tab: Tab, name: str) -> None:
    await tab.screenshot(_FOLDER / f"console-{name}.png")


if __name__ == "__main__":
    asyncio.run(main())

"""Chromium, driven over the DevTools protocol: https://chromedevtools.github.io/devtools-protocol/."""

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.checkout import CHECKOUT

NEEDS_CHROMIUM = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="Chromium is not installed"
)
_SECONDS = 90.0
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "ArrowLeft": 37, "ArrowUp": 38}
_KEYS |= {"ArrowRight": 39, "ArrowDown": 40, "/": 191, "j": 74, "k": 75}
_TEXTS = {"Enter": "\r", " ": " ", "/": "/", "j": "j", "k": "k"}
_RUN_AXE = """
axe.run(document, {
  runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"],
  resultTypes: ["violations"],
}).then((found) =>
  found.violations.filter((one) => ["serious", "critical"].includes(one.impact)).map((one) =>
    `${one.id}: ${one.nodes.slice(0, 3).map((node) => node.html.slice(0, 200)).join(" | ")}`))
"""
# What is larger than the window, beside what scrolls on its own; only the log-in page is long.
_OVERFLOW = (
    "(({scrollWidth, clientWidth, scrollHeight, clientHeight}) =>"
    " Math.max(scrollWidth - clientWidth, document.querySelector('.app')"
    " ? scrollHeight - clientHeight : 0))(document.scrollingElement)"
)
_TITLE_LINES = "Math.round((document.querySelector('h1')?.clientHeight ?? 0) / 24)"
_MOST_TITLE_LINES = 3


def count(selector: str) -> str:
    """Return a script that counts elements."""
    return f"document.querySelectorAll({selector!r}).length"


def text(selector: str) -> str:
    """Return a script for an element's text; empty if there is no such element."""
    return f"(document.querySelector({selector!r})?.textContent || '')"


@cache
def axe_script() -> str | None:
    """Return the source of axe-core, which npm installs once; None if that is impossible."""
    folder = CHECKOUT / "build" / "axe"
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    npm = shutil.which("npm")
    if npm is not None and not script.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(Path(__file__).with_name(name), folder)
        install = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        subprocess.run(install, cwd=folder, timeout=300, check=False)
    return script.read_text("utf-8") if script.exists() else None


def skip_without_axe() -> None:
    """Skip the rest of a test whose accessibility checks could not run."""
    if axe_script() is None:
        pytest.skip("all but accessibility was checked: npm cannot install axe-core here")


@dataclass
class Tab:
    """One page of the browser."""

    socket: aiohttp.ClientWebSocketResponse
    session: str = ""
    messages: list[str] = field(default_factory=list)
    """The contents of the console: messages, exceptions, and violations of the policy."""
    _ids: "itertools.count[int]" = field(default_factory=itertools.count)
    _answers: dict[int, "asyncio.Future[Any]"] = field(default_factory=dict)
    _loaded: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self) -> None:
        """Handle messages from the browser until the connection ends."""
        async for message in self.socket:
            self._take(json.loads(message.data))

    def _take(self, given: Mapping[str, Any]) -> None:
        if "id" in given:
            self._answers.pop(given["id"]).set_result(given)
            return
        values = given.get("params", {})
        match given["method"]:
            case "Page.loadEventFired":
                self._loaded.set()
            case "Runtime.consoleAPICalled":
                said = [str(one.get("value", one.get("description"))) for one in values["args"]]
                self.messages.append(" ".join(said))
            case "Runtime.exceptionThrown":
                self.messages.append(json.dumps(values["exceptionDetails"])[:500])
            case "Log.entryAdded":
                self.messages.append(f"{values['entry']['text']} {values['entry'].get('url', '')}")
            case _:
                pass

    async def send(self, method: str, **values: object) -> Any:
        """Call a method of the protocol; fail the test if it returns an error."""
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self.socket.send_json(
            {"id": number, "method": method, "params": values}
            | ({"sessionId": self.session} if self.session else {})
        )
        async with asyncio.timeout(_SECONDS):
            given = await answer
        assert "error" not in given, (method, given)
        return given["result"]

    async def open(self, address: str) -> None:
        """Load a page, and wait until its scripts have loaded."""
        self._loaded.clear()
        await self.send("Page.navigate", url=address)
        async with asyncio.timeout(_SECONDS):
            await self._loaded.wait()

    async def run(self, script: str) -> Any:
        """Evaluate a script in the page, and return its value."""
        made = await self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in made, made["exceptionDetails"]
        return made["result"].get("value")

    async def wait_for(self, condition: str) -> None:
        """Wait until an expression in the page is true."""
        async with asyncio.timeout(_SECONDS):
            while not await self.run(f"Boolean({condition})"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def set_cookies(self, address: str, cookies: Mapping[str, str]) -> None:
        for name, value in cookies.items():
            await self.send("Network.setCookie", name=name, value=value, url=address)

    async def set_size(self, width: int, height: int) -> None:
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    async def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key as a person does."""
        named = {"key": key, "code": "Space" if key == " " else key}
        given = {**named, "windowsVirtualKeyCode": _KEYS[key], "modifiers": 8 if shift else 0}
        text = {"text": _TEXTS[key]} if key in _TEXTS else {}
        await self.send("Input.dispatchKeyEvent", type="keyDown", **given, **text)
        await self.send("Input.dispatchKeyEvent", type="keyUp", **given)

    async def type(self, text: str) -> None:
        await self.send("Input.insertText", text=text)

    async def tab_to(self, selector: str, *, most: int = 150) -> None:
        """Press Tab until a matching element has the focus."""
        await self.tab_until(f"document.activeElement?.matches({json.dumps(selector)})", most=most)

    async def tab_until(self, condition: str, *, most: int = 150) -> None:
        """Press Tab until an expression in the page is true."""
        for _ in range(most):
            if await self.run(f"Boolean({condition})"):
                return
            await self.press("Tab")
        raise AssertionError(f"Tab never makes this true: {condition}")

    async def place(self, selector: str) -> dict[str, float]:
        """Wait for an element, scroll to it, and return its center in the window."""
        await self.wait_for(f"document.querySelector({json.dumps(selector)})")
        return dict(
            await self.run(
                f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
                " one.scrollIntoView({block: 'nearest'}); const box = one.getBoundingClientRect();"
                " return {x: box.x + box.width / 2, y: box.y + box.height / 2}; })()"
            )
        )

    async def mouse(self, event: str, place: Mapping[str, float]) -> None:
        """Send a mouse event: `mousePressed`, `mouseReleased`, or `mouseMoved`."""
        button = {"button": "left", "clickCount": 1} if event != "mouseMoved" else {}
        await self.send("Input.dispatchMouseEvent", type=event, **place, **button)

    async def click(self, selector: str) -> None:
        place = await self.place(selector)
        for event in ("mouseMoved", "mousePressed", "mouseReleased"):
            await self.mouse(event, place)

    async def tap(self, selector: str) -> None:
        """Tap the center of an element, even if another element covers it."""
        place = await self.place(selector)
        await self.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[place])
        await self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    async def screenshot(self, file: Path) -> None:
        made = await self.send("Page.captureScreenshot", format="png")
        await asyncio.to_thread(file.write_bytes, base64.b64decode(made["data"]))

    async def overflow(self) -> int:
        """Return by how many pixels the page exceeds the window."""
        return int(await self.run(_OVERFLOW))

    async def axe_findings(self) -> list[str]:
        """Return the serious and critical WCAG 2.1 A and AA violations found by axe-core."""
        script = await asyncio.to_thread(axe_script)
        if script is None:
            return []
        if not await self.run("typeof axe !== 'undefined'"):
            await self.run(f"{script}; 0")
        found = await self.run(_RUN_AXE)
        return [str(one) for one in found]

    async def complaints(self) -> list[str]:
        """Return all problems of the page, and clear its console."""
        found = await self.axe_findings()
        if (overflow := await self.overflow()) > 0:
            found.append(f"{overflow} px larger than the window")
        if (lines := int(await self.run(_TITLE_LINES))) > _MOST_TITLE_LINES:
            found.append(f"a title of {lines} lines")
        found += self.messages
        self.messages.clear()
        return found


@asynccontextmanager
async def open_tab(folder: Path) -> AsyncIterator[Tab]:
    """Start a separate browser that makes no background requests, and open a tab."""
    process = await asyncio.create_subprocess_exec(
        *("chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic"),
        *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
        *("--disable-sync", "--hide-scrollbars", "--force-color-profile=srgb"),
        # With a mouse, which a browser without a screen has not.
        "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4",
        *("--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        address = await _find_address(folder / "DevToolsActivePort")
        async with (
            aiohttp.ClientSession() as client,
            client.ws_connect(address, max_msg_size=0) as socket,
        ):
            tab = Tab(socket)
            reading = asyncio.create_task(tab.read())
            try:
                made = await tab.send("Target.createTarget", url="about:blank")
                attached = await tab.send(
                    "Target.attachToTarget", targetId=made["targetId"], flatten=True
                )
                tab.session = attached["sessionId"]
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await tab.send(f"{domain}.enable")
                yield tab
            finally:
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await reading
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def _find_address(file: Path) -> str:
    async with asyncio.timeout(_SECONDS):
        while True:
            lines = await asyncio.to_thread(_read_lines, file)
            if len(lines) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            await asyncio.sleep(0.05)


def _read_lines(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []

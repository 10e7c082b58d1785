"""The pages in a real browser: the link logs in, and nothing violates the policy."""

import asyncio
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bot.console.login import make_login_link
from tests.contracts.test_receipts import RECEIPT
from tests.support.console import (
    ConsoleUnderTest,
    MakeParts,
    answer_pages,
    operation_page,
    receipt_of,
    store_answers,
)

pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is not installed"),
]

_HOSTILE = (
    "<script>document.title = 'run'</script><img src=x onerror=\"document.title='run'\">"
    "</pre></svg><svg onload=\"document.title='run'\"><style>body{display:none}</style>"
)


@pytest.fixture
def make_parts(tmp_path: Path) -> MakeParts:
    return lambda database: [
        answer_pages(database, tmp_path),
        operation_page(database),
    ]


async def browse(address: str, profile: Path) -> tuple[str, list[str]]:
    """Open a page in Chromium; return the HTML after its scripts ran, and console messages."""
    process = await asyncio.create_subprocess_exec(
        *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
        *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
        *("--disable-sync", f"--user-data-dir={profile}", "--window-size=375,812"),
        *("--virtual-time-budget=8000", "--enable-logging=stderr", "--dump-dom", address),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(100):
        html, log = await process.communicate()
    return html.decode(), re.findall(r"CONSOLE.*", log.decode(errors="replace"))


def title(html: str) -> str:
    found = re.search(r"<title>(.*?)</title>", html)
    assert found is not None
    return found[1]


async def test_link_logs_in_and_hostile_texts_never_run(
    console: ConsoleUnderTest, tmp_path: Path
) -> None:
    await store_answers(console, RECEIPT, replace(receipt_of(_HOSTILE), preset="nora"))
    link = await make_login_link(console.tokens, console.clock, console.origin)
    token = link.partition("#")[2]

    html, messages = await browse(link, tmp_path / "profile")
    assert (title(html), messages) == ("Answers · Troupe", [])
    assert token not in html
    for path, expected in (
        ("/answers/2", "Answer 2 · Troupe"),
        ("/answers/2?form=text", "Answer 2 · Troupe"),
        ("/answers/2/compare/1", "Answers 1 and 2 · Troupe"),
        ("/operation", "Operation · Troupe"),
    ):
        html, messages = await browse(f"{console.origin}{path}", tmp_path / "profile")
        assert (title(html), messages) == (expected, []), path
        assert not re.search(r"<(img|style)\b", html)

"""Language and theme are known on the server."""

import pytest

from tests.support.console import ConsoleUnderTest


@pytest.mark.parametrize(
    ("accepted", "language"),
    [
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("de-DE, zh;q=0.7", "zh"),
        ("de-DE,de;q=0.9", "en"),
        ("", "en"),
    ],
)
async def test_language_follows_the_browser(
    console: ConsoleUnderTest, accepted: str, language: str
) -> None:
    page = await console.client.get("/login", headers={"Accept-Language": accepted})

    assert f'<html lang="{language}"' in await page.text()


async def test_chosen_language_and_theme_are_kept(console: ConsoleUnderTest) -> None:
    answer = await console.client.post(
        "/look",
        data={"language": "zh", "theme": "dark", "back": "/login"},
        headers={"Origin": console.origin},
    )
    page = await answer.text()

    assert answer.url.path == "/login"
    assert '<html lang="zh" data-theme="dark">' in page
    assert "登录 Troupe" in page


@pytest.mark.parametrize(
    "back",
    [
        *("https://evil.example", "//evil.example", "/\\evil.example", "/\t/evil.example"),
        *("/\n/evil.example", "/\r\\evil.example", " //evil.example", "/\x00/evil.example"),
    ],
)
async def test_nobody_is_sent_elsewhere(console: ConsoleUnderTest, back: str) -> None:
    answer = await console.client.post(
        "/look",
        data={"theme": "dark", "back": back},
        headers={"Origin": console.origin},
        allow_redirects=False,
    )

    assert answer.headers["Location"] == "/"

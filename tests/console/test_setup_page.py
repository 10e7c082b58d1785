"""Setup in the browser: a token is checked, an admin sends a code, and `.env` is written."""

import stat
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from dotenv import dotenv_values

from bot.backends.openai_compatible.services import KEYLESS_SERVICES, SERVICE_ADDRESSES
from bot.console.setup_page import SetupPage
from bot.runtime.clock import SystemClock
from bot.service.console import choose_first_page
from bot.settings import read_settings
from bot.setup import SetupSteps
from bot.storage.operation import AuditLog
from tests.cli.test_init import OLD, send_code
from tests.rigs.fake_openai import FakeOpenAI
from tests.samples import mask_secret
from tests.support.chats import Platforms, running_platforms
from tests.support.console import ConsoleUnderTest, MakeParts
from tests.waiting import wait_until

CLOCK = SystemClock()


@pytest.fixture
async def platforms(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Platforms]:
    async with running_platforms() as platforms:
        monkeypatch.setenv("TROUPE_TELEGRAM__API_BASE", platforms.telegram.base)
        monkeypatch.setenv("TROUPE_DISCORD__API_BASE", f"{platforms.discord.base}/api/v10")
        yield platforms


@pytest.fixture
async def steps(
    platforms: Platforms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SetupSteps]:
    monkeypatch.chdir(tmp_path)  # away from settings of the checkout
    steps = SetupSteps(read_settings(), tmp_path / ".env")
    yield steps
    await steps.close()


@pytest.fixture
def make_parts(steps: SetupSteps) -> MakeParts:
    return lambda database: [SetupPage(steps, AuditLog(database, CLOCK), mask_secret)]


async def send(console: ConsoleUnderTest, path: str, **fields: str) -> aiohttp.ClientResponse:
    return await console.send_form(f"/setup/{path}", "/setup", **fields)


@pytest.mark.parametrize("kind", ["telegram", "discord"])
async def test_setup_checks_a_token_and_writes_the_env_file(
    console: ConsoleUnderTest,
    platforms: Platforms,
    steps: SetupSteps,
    tmp_path: Path,
    kind: str,
) -> None:
    token = {"telegram": platforms.telegram.token, "discord": platforms.discord.token}[kind]
    (tmp_path / ".env").write_text(OLD, "utf-8")
    await console.log_in()

    accepted = await (await send(console, f"{kind}/token", token=token)).text()
    asked = await (await send(console, f"{kind}/admin")).text()
    code = asked.partition("Waiting for the code ")[2][:6]
    person = await send_code(platforms, kind, code)
    await wait_until(lambda: steps.bots[kind].admin is not None)
    page = await console.page("/setup")
    assert (tmp_path / ".env").read_text("utf-8") == OLD  # nothing is written before the end
    written = await (await send(console, "write")).text()

    assert "accepted" in accepted
    assert ("privacy mode" if kind == "telegram" else "Message Content Intent") in accepted
    assert ("https://t.me/" if kind == "telegram" else "permissions=") in accepted
    assert f"{kind}:{person}" in page
    for shown in (accepted, asked, page, written):
        assert token not in shown
    values = dotenv_values(tmp_path / ".env")
    assert values[f"TROUPE_{kind.upper()}__TOKEN"] == token
    assert values["TROUPE_ADMINS"] == f"{kind}:{person}"
    assert values["OTHER"] == "1"
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    [entry] = await AuditLog(console.database, CLOCK).newest(9)
    assert (entry.who, entry.action) == ("session", "write .env")
    assert token not in f"{entry}"


async def test_adding_a_second_bot_keeps_the_first_bots_admin(
    console: ConsoleUnderTest, platforms: Platforms, steps: SetupSteps, tmp_path: Path
) -> None:
    await console.log_in()
    tokens = {"telegram": platforms.telegram.token, "discord": platforms.discord.token}
    people = []
    for kind, token in tokens.items():
        await send(console, f"{kind}/token", token=token)
        asked = await (await send(console, f"{kind}/admin")).text()
        assert 'data-refresh="2" data-from="/setup"' in asked
        person = await send_code(platforms, kind, asked.partition("Waiting for the code ")[2][:6])
        await wait_until(lambda: all(one.admin for one in steps.bots.values()))
        await send(console, "write")
        people.append(f"{kind}:{person}")

    values = dotenv_values(tmp_path / ".env")
    assert values["TROUPE_ADMINS"] == ",".join(people)
    assert values["TROUPE_TELEGRAM__TOKEN"] == platforms.telegram.token


async def test_wrong_token_is_reported_and_nothing_can_be_saved(
    console: ConsoleUnderTest, tmp_path: Path
) -> None:
    await console.log_in()

    refused = await (await send(console, "discord/token", token="wrong")).text()
    nothing = await send(console, "write")
    unknown = await send(console, "irc/token", token="x")
    unchecked = await send(console, "telegram/admin")

    assert "does not accept the bot token" in refused
    assert 'action="/setup/discord/token#discord"' in refused
    assert (nothing.status, unknown.status, unchecked.status) == (422, 422, 422)
    assert not (tmp_path / ".env").exists()


@pytest.mark.parametrize(
    ("kind", "token_source", "told"),
    [("telegram", "Telegram 里的 @BotFather", "隐私模式"), ("discord", "开发者门户", "Content")],
)
async def test_setup_works_in_chinese_and_a_bot_can_be_removed_again(
    console: ConsoleUnderTest,
    platforms: Platforms,
    steps: SetupSteps,
    kind: str,
    token_source: str,
    told: str,
) -> None:
    await console.log_in()
    console.client.session.headers["Accept-Language"] = "zh"
    begun = await console.page("/setup")
    refused = await (await send(console, f"{kind}/token", token="wrong token")).text()
    token = {"telegram": platforms.telegram.token, "discord": platforms.discord.token}[kind]
    accepted = await (await send(console, f"{kind}/token", token=token)).text()
    asked = await (await send(console, f"{kind}/admin")).text()
    assert [one.awaits_code for one in steps.bots.values()] == [True]
    dropped = await (await send(console, f"{kind}/forget")).text()

    assert steps.bots == {}
    assert token_source in begun
    assert token_source in dropped
    assert "打开试演场" in begun
    assert 'href="https://discord.com/developers/applications"' in begun
    assert ("不是 123456:ABC" if kind == "telegram" else "不接受") in refused
    assert told in accepted
    assert "私" in asked


async def test_login_leads_to_the_setup_page_until_a_platform_is_configured(
    platforms: Platforms, steps: SetupSteps
) -> None:
    settings = read_settings()
    assert choose_first_page(settings) == "/setup"
    assert choose_first_page(read_settings(telegram={"token": platforms.telegram.token})) is None


async def test_model_is_tested_before_it_is_saved(
    console: ConsoleUnderTest, steps: SetupSteps, tmp_path: Path
) -> None:
    await console.log_in()
    async with FakeOpenAI() as service:
        given = {"provider": "openai", "model": "m", "key": "sk-of-the-model"}
        given["address"] = service.base_url
        assert "There is no such provider" in await submit_model(
            console, **{**given, "provider": "none"}
        )
        assert "m on OpenAI works" in await submit_model(console, **given)
    assert "alert" in await submit_model(console, **given), "nothing answers any more"
    assert (await send(console, "write")).status == 200
    written = dotenv_values(tmp_path / ".env")
    assert written["TROUPE_PROVIDERS__LOCAL__MODEL"] == "m"
    assert written["TROUPE_PROVIDERS__LOCAL__API_KEY"] == "sk-of-the-model"
    assert steps.variables() == {}


async def test_form_keeps_typed_values_except_keys(
    console: ConsoleUnderTest, steps: SetupSteps
) -> None:
    await console.log_in()
    given = {"provider": "openai", "model": "tiny <m>", "address": "http://127.0.0.1:1/v1"}
    refused = await submit_model(console, **given, key="sk-of-the-model")
    assert 'value="tiny &lt;m&gt;"' in refused
    assert 'value="http://127.0.0.1:1/v1"' in refused
    assert "stored; leave empty to keep it" in refused
    assert "sk-of-the-model" not in refused

    await submit_model(console, **given)
    assert steps.newest_choice.api_key == "sk-of-the-model"
    await submit_model(console, **{**given, "address": "http://127.0.0.1:2/v1"})
    assert steps.newest_choice.api_key is None, "a key is never sent to another address"

    async with FakeOpenAI() as service:
        await submit_model(console, provider="lmstudio", model="m", address=service.base_url)
    await send(console, "write")
    page = await console.page("/setup")
    assert '<option value="lmstudio" selected>' in page
    assert 'value="m"' in page
    assert "It sets TROUPE_PROVIDERS__LOCAL__" in page
    assert "systemctl restart troupe" in page


async def test_models_in_use_and_on_this_machine_are_shown(
    console: ConsoleUnderTest, steps: SetupSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    await console.log_in()
    assert "In use" not in await console.page("/setup")
    for name in KEYLESS_SERVICES:
        monkeypatch.setitem(SERVICE_ADDRESSES, name, "http://127.0.0.1:1/v1")
    async with FakeOpenAI() as service:
        local = {"base_url": service.base_url, "model": "tiny"}
        used = SetupSteps(read_settings(providers={"local": local}), Path(".env"))
        assert used.model_in_use == f"tiny, {service.base_url}"
        monkeypatch.setitem(SERVICE_ADDRESSES, "ollama", service.base_url)
        page = await console.page("/setup")
        asked = await submit_model(console, provider="ollama", model="m")
    assert "Ollama on this machine:" in page
    assert '<button class="btn sm" name="model" value="m">m</button>' in page
    assert "m on Ollama works" in asked


async def submit_model(console: ConsoleUnderTest, **fields: str) -> str:
    """Submit the model form; return the page."""
    return await (await send(console, "model", **fields)).text()

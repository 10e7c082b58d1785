"""`troupe init` with flags or with questions in a terminal, with fake platforms."""

import asyncio
import contextlib
import os
import pty
import re
import signal
import stat
import sys
import termios
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from dotenv import dotenv_values
from typer.testing import CliRunner, Result

from bot.cli.app import app
from bot.errors import PlatformError, SettingsError, TroupeError, UserError
from bot.settings import read_settings
from tests.checkout import CHECKOUT
from tests.rigs.fake_openai import FakeOpenAI
from tests.support.chats import Platforms, running_platforms
from tests.waiting import wait_until

OLD = "# my bot\nOTHER=1\nTROUPE_LOG_LEVEL=debug  # loud\nTROUPE_TELEGRAM__TOKEN=1:old\n\n# end\n"
QUESTIONS = (
    "Which one?",
    "Token for Discord",
    "Token for Telegram",
    "sending a code to the bot on Discord?",
    "sending a code to the bot on Telegram?",
    "Write the file?",
)


@pytest.fixture
async def platforms(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Platforms]:
    async with running_platforms() as platforms:
        monkeypatch.setenv("TROUPE_TELEGRAM__API_BASE", platforms.telegram.base)
        monkeypatch.setenv("TROUPE_DISCORD__API_BASE", f"{platforms.discord.base}/api/v10")
        yield platforms


async def init(*flags: str) -> Result:
    """Run the command in another thread, because the servers run in this one."""
    return await asyncio.to_thread(CliRunner().invoke, app, ["init", *flags])


def files_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def problem(result: Result) -> TroupeError:
    assert isinstance(result.exception, TroupeError), result.output
    return result.exception


# --- flags --------------------------------------------------------------------------------------


async def test_flags_store_valid_tokens_and_keep_other_lines(
    folder: Path, platforms: Platforms
) -> None:
    (folder / ".env").write_text(OLD, "utf-8")
    tokens = (platforms.telegram.token, platforms.discord.token)

    result = await init(
        "--yes", "--telegram-token", tokens[0], "--discord-token", tokens[1], "--admin", "discord:5"
    )

    assert result.exit_code == 0, result.output
    assert (folder / ".env").read_text("utf-8") == (
        "# my bot\nOTHER=1\nTROUPE_LOG_LEVEL=debug  # loud\n"
        f"TROUPE_TELEGRAM__TOKEN={tokens[0]}\n\n# end\n"
        f"TROUPE_DISCORD__TOKEN={tokens[1]}\nTROUPE_ADMINS=discord:5\n"
    )
    assert stat.S_IMODE((folder / ".env").stat().st_mode) == 0o600
    assert files_in(folder) == [".env"]
    assert "the token belongs to @sim_bot" in result.output
    assert "privacy mode is on" in result.output
    assert "https://t.me/sim_bot" in result.output
    assert "Message Content Intent is off" in result.output
    assert "scope=bot+applications.commands" in result.output
    assert not any(token in result.output for token in tokens)


@pytest.mark.parametrize("flag", ["--telegram-token", "--discord-token"])
async def test_nothing_is_written_if_a_token_is_wrong(
    folder: Path, platforms: Platforms, flag: str
) -> None:
    (folder / ".env").write_text(OLD, "utf-8")
    good = "--telegram-token" if flag == "--discord-token" else "--discord-token"
    right = platforms.telegram.token if good == "--telegram-token" else platforms.discord.token

    result = await init("--yes", good, right, flag, "123456789:wrong")

    assert "does not accept the bot" in str(problem(result))
    assert (folder / ".env").read_text("utf-8") == OLD
    assert files_in(folder) == [".env"]


async def test_nothing_is_written_if_a_platform_is_unreachable_unless_checks_are_off(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TROUPE_TELEGRAM__API_BASE", "http://127.0.0.1:1")
    token = "123456789:" + "A" * 35

    result = await init("--yes", "--telegram-token", token)

    assert isinstance(problem(result), PlatformError)
    assert files_in(folder) == []
    result = await init("--yes", "--telegram-token", token, "--no-check")
    assert result.exit_code == 0, result.output
    assert dotenv_values(folder / ".env") == {"TROUPE_TELEGRAM__TOKEN": token}


async def test_key_is_tested_and_its_model_is_used_by_all_shipped_presets(folder: Path) -> None:
    async with FakeOpenAI() as service:
        address = service.base_url
        flags = ("--yes", "--provider", "openai", "--base-url", address, "--api-key", "sk-1'2")
        result = await init(*flags, "--model", "m")
        assert result.exit_code == 0, result.output
        assert "it answers: Hello there" in result.output
        assert service.log[0]["headers"]["authorization"] == "Bearer sk-1'2"
        before = (folder / ".env").read_bytes()

        service.models_status = 401
        assert "choose the service's model" not in str(problem(await init(*flags)))
        service.models_status = 200
        assert "--model; it lists m" in str(problem(await init(*flags)))
    assert (folder / ".env").read_bytes() == before
    assert (await init(*flags, "--model", "m")).exit_code == 1  # nothing answers any more
    local = read_settings().model_dump()["providers"]["local"]
    assert (local["base_url"], local["model"]) == (address, "m")


async def test_environment_variable_that_overrides_the_file_is_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TROUPE_TELEGRAM__TOKEN", "1:old")
    result = await init("--yes", "--telegram-token", "2:new", "--no-check")
    assert "The environment variable TROUPE_TELEGRAM__TOKEN overrides" in result.output


async def test_choosing_the_included_model_removes_an_earlier_choice(folder: Path) -> None:
    (folder / ".env").write_text(
        "A=1\nTROUPE_PROVIDERS__LOCAL__BASE_URL=http://x/v1\nTROUPE_PROVIDERS__LOCAL__MODEL=m\n",
        "utf-8",
    )
    assert (await init("--yes", "--provider", "included")).exit_code == 0
    assert (folder / ".env").read_text("utf-8") == "A=1\n"


@pytest.mark.parametrize(
    ("flags", "kind", "words"),
    [
        (("--provider", "opnai", "--api-key", "k"), UserError, "did you mean openai"),
        (("--api-key", "k"), UserError, "whose key is it"),
        (("--first-admin", "telegram"), UserError, "needs --telegram-token"),
        (("--admin", "me"), SettingsError, "TROUPE_ADMINS: 'me' is not of the form"),
        (("--model-file", "none.gguf"), SettingsError, "there is no file"),
        (("--pull", "nonsense"), UserError, "OWNER/NAME:FILE"),
    ],
)
async def test_invalid_flags_are_reported(
    folder: Path, flags: tuple[str, ...], kind: type[TroupeError], words: str
) -> None:
    error = problem(await init("--yes", *flags))
    assert isinstance(error, kind)
    assert words in str(error)
    assert files_in(folder) == []


async def test_init_without_flags_writes_nothing(folder: Path) -> None:
    result = await init("--yes")
    assert result.exit_code == 0
    assert "nothing was written" in result.output
    assert files_in(folder) == []


@pytest.mark.service
@pytest.mark.parametrize("kind", ["telegram", "discord"])
async def test_whoever_sends_the_code_becomes_the_first_admin(
    folder: Path, platforms: Platforms, kind: str
) -> None:
    tokens = {"telegram": platforms.telegram.token, "discord": platforms.discord.token}
    with Terminal(folder, f"--{kind}-token", tokens[kind], "--yes", "--first-admin", kind) as here:
        code = await here.find(r"waiting for the code (\d{6})")
        person = await send_code(platforms, kind, code)
        assert await here.wait() == 0
    written = dotenv_values(folder / ".env")
    assert written["TROUPE_ADMINS"] == f"{kind}:{person}"


# --- questions ----------------------------------------------------------------------------------


@pytest.mark.service
async def test_answers_to_all_questions_set_up_both_bots_and_an_admin(
    folder: Path, platforms: Platforms
) -> None:
    with Terminal(folder) as here:
        await here.answer("Which one?", "1")  # the included model
        await here.answer("Token for Discord", "wrong")
        await here.find("does not accept the bot token")
        await here.answer("Token for Discord", platforms.discord.token)
        await here.find("Message Content Intent is off")
        await here.answer("Token for Telegram", platforms.telegram.token)
        await here.find("privacy mode is on")
        await here.answer("bot on Discord?", "n")
        await here.answer("bot on Telegram?", "")
        code = await here.find(r"waiting for the code (\d{6})")
        await send_code(platforms, "telegram", code)
        await here.answer("Write the file?", "")
        assert await here.wait() == 0
    assert platforms.telegram.token not in here.output
    assert "▀" in here.output  # the link as a QR code
    assert dotenv_values(folder / ".env") == {
        "TROUPE_TELEGRAM__TOKEN": platforms.telegram.token,
        "TROUPE_DISCORD__TOKEN": platforms.discord.token,
        "TROUPE_ADMINS": "telegram:7",
    }


@pytest.mark.service
@pytest.mark.parametrize(("prefix", "path"), [("http://", "/v1"), ("", "/")])
async def test_server_is_chosen_by_its_address(folder: Path, prefix: str, path: str) -> None:
    async with FakeOpenAI() as model:
        model.models_below = "/v1/"
        host = model.base_url.removeprefix("http://").removesuffix("/v1")
        with Terminal(folder) as here:
            await here.answer("Which one?", "5")
            await here.answer("The server's address", f"{prefix}{host}{path}")
            await here.answer("The server's API key", "")
            await here.answer("Which model?", "m")
            await here.find("it answers")
            await here.answer("Token for Discord", "")
            await here.answer("Token for Telegram", "")
            await here.answer("Write the file?", "")
            assert await here.wait() == 0
        written = dotenv_values(folder / ".env")
        assert written["TROUPE_PROVIDERS__LOCAL__BASE_URL"] == model.base_url


@pytest.mark.service
async def test_azure_deployment_address_sets_the_model(folder: Path) -> None:
    async with FakeOpenAI() as model:
        resource = model.base_url.removesuffix("/v1")
        path = "/openai/deployments/my-gpt/chat/completions"
        with Terminal(folder) as here:
            await here.answer("Which one?", "azure")
            await here.answer("The key for Azure OpenAI", "az-1")
            await here.answer(
                "Your Azure endpoint", f"{resource}{path}?api-version=2025-01-01-preview"
            )
            await here.find("it answers")
            await here.answer("Token for Discord", "")
            await here.answer("Token for Telegram", "")
            await here.answer("Write the file?", "")
            assert await here.wait() == 0
        assert model.log[0]["path"] == f"{path}?api-version=2025-01-01-preview"
        assert model.log[0]["headers"]["api-key"] == "az-1"
    written = dotenv_values(folder / ".env")
    assert written["TROUPE_PROVIDERS__LOCAL__MODEL"] == "my-gpt"


@pytest.mark.service
@pytest.mark.parametrize(
    "stop_at", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(1, len(QUESTIONS)))]
)
async def test_ctrl_c_at_any_question_leaves_the_file_unchanged(
    folder: Path, platforms: Platforms, stop_at: int
) -> None:
    (folder / ".env").write_text(OLD, "utf-8")
    answers = ("1", platforms.discord.token, platforms.telegram.token, "n", "n")
    with Terminal(folder) as here:
        for question, answer in zip(QUESTIONS[:stop_at], answers, strict=False):
            await here.answer(question, answer)
        await here.find(re.escape(QUESTIONS[stop_at]))
        here.send("\x03")
        assert await here.wait() == 130
    assert "nothing was written" in here.output
    assert (folder / ".env").read_text("utf-8") == OLD
    assert files_in(folder) == [".env"]


@pytest.mark.service
@pytest.mark.parametrize(
    ("answers", "question"),
    [
        (["2", "1"], "it is not shown"),
        *(
            pytest.param(*given, marks=pytest.mark.soak)
            for given in (
                (["2"], "Which service?"),
                (["3", ""], "OWNER/NAME:FILE"),
                (["2", "openai"], "The key for OpenAI"),
                (["claude"], "The key for Anthropic (Claude)"),
            )
        ),
    ],
)
async def test_ctrl_c_at_any_question_about_the_model_writes_nothing(
    folder: Path, answers: list[str], question: str
) -> None:
    with Terminal(folder) as here:
        for answer in answers:
            await here.answer("(Enter: ", answer)
        await here.find(re.escape(question))
        here.send("\x03")
        assert await here.wait() == 130
        assert here.echoes, "also after a key, which is not shown"
    assert "nothing was written" in here.output
    assert files_in(folder) == []


@pytest.mark.service
async def test_token_is_asked_for_again_if_the_network_is_down(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TROUPE_TELEGRAM__API_BASE", "http://127.0.0.1:1")
    monkeypatch.setenv("TROUPE_DISCORD__API_BASE", "http://127.0.0.1:1/api/v10")
    with Terminal(folder) as here:
        await here.answer("Which one?", "")
        for platform in ("Discord", "Telegram"):
            await here.answer(f"Token for {platform}", "123456789:" + "A" * 35)
            await here.find(f"{platform} cannot be reached")
            await here.answer(f"Token for {platform}", "")
        assert await here.wait() == 0
    assert "nothing was written" in here.output
    assert files_in(folder) == []


@pytest.mark.service
async def test_ctrl_c_while_waiting_for_the_code_writes_nothing(
    folder: Path, platforms: Platforms
) -> None:
    flags = ("--telegram-token", platforms.telegram.token, "--yes", "--first-admin", "telegram")
    with Terminal(folder, *flags) as here:
        await here.find("waiting for the code")
        await platforms.telegram.wait(lambda: platforms.telegram.waiter, timeout=120)
        here.send("\x03")
        assert await here.wait() == 130
    assert "nothing was written" in here.output
    assert files_in(folder) == []


@pytest.mark.service
async def test_enter_skips_waiting_for_the_code(folder: Path, platforms: Platforms) -> None:
    with Terminal(folder) as here:
        await here.answer("Which one?", "")
        await here.answer("Token for Discord", "")
        await here.answer("Token for Telegram", platforms.telegram.token)
        await here.answer("bot on Telegram?", "y")
        await here.answer("waiting for the code", "")
        await here.answer("Write the file?", "y")
        assert await here.wait() == 0
    assert dotenv_values(folder / ".env") == {"TROUPE_TELEGRAM__TOKEN": platforms.telegram.token}


@pytest.mark.service
async def test_first_start_in_a_terminal_offers_setup(folder: Path) -> None:
    with Terminal(folder, "--offer-setup", command="run") as here:
        await here.answer("Set up a better model, or Telegram or Discord, now?", "y")
        await here.find(re.escape("Which one?"))
        here.send("\x03")
        assert await here.wait() == 130
    assert files_in(folder) == []


# --- a terminal ---------------------------------------------------------------------------------


class Terminal:
    """A command in its own terminal, killed when the block exits."""

    def __init__(self, folder: Path, *words: str, command: str = "init") -> None:
        self.output = ""
        self._read_to = 0
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.environ["PYTHONPATH"] = str(CHECKOUT)  # noqa: TID251
            os.chdir(folder)
            os.execv(sys.executable, [sys.executable, "-m", "bot", command, *words])  # noqa: S606
        os.set_blocking(self._terminal, False)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._terminal)

    @property
    def echoes(self) -> bool:
        """Return whether the terminal echoes typed characters."""
        return bool(termios.tcgetattr(self._terminal)[3] & termios.ECHO)

    def send(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    async def answer(self, question: str, text: str) -> None:
        await self.find(re.escape(question))
        self.send(f"{text}\n")

    async def find(self, pattern: str) -> str:
        """Wait for the next match in the output; return its first group, or the whole match."""
        try:
            await wait_until(lambda: re.search(pattern, self._unread()) is not None)
        except TimeoutError:
            pytest.fail(f"no {pattern!r} in:\n{self.output}")
        found = re.search(pattern, self._unread())
        assert found is not None
        self._read_to += found.end()
        return found[found.re.groups]

    async def wait(self) -> int:
        """Wait for the command to exit; return its status."""
        ended: list[int] = []

        def has_ended() -> bool:
            self._unread()
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            ended.extend([os.waitstatus_to_exitcode(status)] if pid else ())
            return bool(ended)

        await wait_until(has_ended)
        self._unread()
        return ended[0]

    def _unread(self) -> str:
        with contextlib.suppress(OSError):  # nothing yet, or the other end was closed
            while data := os.read(self._terminal, 65536):
                self.output += data.decode(errors="replace").replace("\r\n", "\n")
        return self.output[self._read_to :]


async def send_code(platforms: Platforms, kind: str, code: str) -> str:
    """Send the setup code as a person once the bot is listening; return the person's id."""
    if kind == "telegram":
        await platforms.telegram.wait(lambda: platforms.telegram.waiter, timeout=120)
        platforms.telegram.say(7, code, chat=7)
        return "7"
    await wait_until(lambda: bool(platforms.discord.sessions))
    alice = platforms.people[0]
    platforms.discord.say(alice, platforms.discord.b.get_dm_channel(alice.id).id, code)
    return str(alice.id)

"""`troupe check` prints a line per check, with a remedy for each problem."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bot.backends.model_files import store as model_store
from bot.cli.app import app
from bot.cli.check import check_everything
from bot.settings import AccessSettings, read_settings
from tests.backends import tiny_gguf, toy_projector
from tests.backends.local_model import lend_model
from tests.checkout import CHECKOUT
from tests.rigs.fake_openai import FakeOpenAI, thinking
from tests.support.chats import running_platforms
from tests.waiting import PATIENCE_SECONDS

ECHO: dict[str, object] = {"name": "assistant", "provider": "echo", "model": "m"}


@pytest.fixture(autouse=True)
def _prepare(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepare a preset for the echo backend, and disable the time limit of the checks."""
    monkeypatch.setattr("bot.cli.check._CHECK_TIMEOUT_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setenv("TROUPE_PROVIDERS__ECHO__KIND", "echo")
    write_preset(folder, ECHO)


def write_preset(folder: Path, preset: dict[str, object]) -> None:
    (folder / "presets").mkdir(exist_ok=True)
    (folder / "presets" / "assistant.json").write_text(json.dumps(preset), encoding="utf-8")


async def run_check(**given: object) -> tuple[bool, list[str]]:
    lines: list[str] = []
    passed = await check_everything(read_settings(**given), lines.append)
    return passed, lines


def wrong_lines(lines: list[str]) -> list[str]:
    return [line.removeprefix("WRONG  ") for line in lines if line.startswith("WRONG")]


async def find_wrong(**given: object) -> list[str]:
    passed, lines = await run_check(**given)
    found = wrong_lines(lines)
    assert passed is not bool(found)
    return found


def models_folder(folder: Path) -> Path:
    made = model_store.models_folder(folder / "data")
    made.mkdir(parents=True)
    return made


async def test_check_prints_a_line_per_check() -> None:
    passed, lines = await run_check()
    assert passed
    assert lines == [
        "ok     settings",
        "ok     presets: 1 in presets; assistant is the default",
        "ok     database: SQLite",
        "ok     access: everyone, unless a chat's rules say otherwise (/access show)",
        "ok     signals: only within this process; set TROUPE_REDIS_URL if several processes share"
        " the work",
        "ok     provider echo: repeats prompts without a model",
    ]


async def test_check_says_who_may_use_the_bot() -> None:
    _, lines = await run_check(access=AccessSettings(dm="closed", block="telegram:7"))
    assert (
        "ok     access: dm closed (TROUPE_ACCESS), block person telegram:7 (TROUPE_ACCESS)" in lines
    )


async def test_check_finds_a_misspelled_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROUPE_DISCORD_TOKEN", "x")
    _, lines = await run_check()
    assert wrong_lines(lines) == [
        "settings: TROUPE_DISCORD_TOKEN is not a setting of Troupe; "
        "did you mean TROUPE_DISCORD__TOKEN?"
    ]
    # the rest was tested, too
    assert lines[-1] == "ok     provider echo: repeats prompts without a model"


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (
            {"sytem": "You are."},
            "presets: presets/assistant.json, line 1: unknown key 'sytem'; did you mean 'system'?",
        ),
        (
            {"provider": "local", "model": "default", "parameters": {"topP": 0.9}},
            "presets: preset 'assistant': unknown parameter 'topP'; did you mean 'top_p'?",
        ),
        (
            {"template": "{{ nope( }}"},
            "presets: presets/assistant.json, line 1: template: line 1: unexpected",
        ),
        (
            {"template": "{{ nope() }}"},
            "presets: preset 'assistant': the template cannot be rendered: UndefinedError: ",
        ),
        (
            {"provider": "groq"},
            "presets: preset 'assistant': the provider 'groq' is not set up; "
            "set TROUPE_PROVIDERS__GROQ__API_KEY or TROUPE_PROVIDERS__GROQ__BASE_URL",
        ),
        (
            {"fallbacks": [{"provider": "local", "model": "lost"}, {"provider": "local"}]},
            "provider local: there is no model data/models/lost.gguf; "
            "`troupe model list` shows the models that exist",
        ),
    ],
)
async def test_check_reports_a_presets_problem(
    folder: Path, keys: dict[str, object], problem: str
) -> None:
    write_preset(folder, {**ECHO, **keys})
    [line] = await find_wrong()
    assert line.startswith(problem)


async def test_check_reports_installed_files_that_are_not_models(folder: Path) -> None:
    models = models_folder(folder)
    (models / "half.gguf").write_bytes(b"GGUF half")
    toy_projector.write(models / "mmproj.gguf")
    _, (*_, half, projector) = await run_check()
    assert half.startswith("WRONG  model half: data/models/half.gguf cannot be read as a GGUF file")
    assert projector.startswith("ok     model mmproj: a projector, not a model")


@pytest.mark.service
async def test_check_loads_and_times_the_installed_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))  # for the engine's process
    # The machine may be busy with other tests.
    monkeypatch.setattr("bot.backends.llama_cpp.model_trial._TIMEOUT_SECONDS", 200.0)
    await lend_model(folder / "data")
    passed, lines = await run_check()
    assert passed
    assert re.fullmatch(
        r"ok     model smollm2-135m-instruct-q4_1: loads in \d+\.\d s, "
        r"reads \d+ tokens/s, writes \d+ tokens/s",
        lines[-1],
    )
    assert not list((folder / "data" / "slots").glob("*.bin"))


async def test_check_does_not_load_a_model_larger_than_the_free_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = tiny_gguf.Vocabulary("qwen2", ("<|im_start|>", "<|im_end|>"))
    tiny_gguf.write(models_folder(folder) / "big.gguf", family)
    monkeypatch.setattr("bot.backends.llama_cpp.model_trial.count_free_bytes", lambda: 10_000_000)
    assert await find_wrong() == [
        "model big: it needs about 0.1 GB of memory, but this machine has 0.0 GB free; choose a "
        "smaller model, or lower the provider's CONTEXT_TOKENS or PARALLEL"
    ]


async def test_check_tests_the_other_presets_if_one_is_broken(folder: Path) -> None:
    """The other preset uses the default model, which the first start downloads."""
    (folder / "presets" / "broken.json").write_text("{")
    lore = {**ECHO, "name": "lore", "lorebook": "missing.json"}
    (folder / "presets" / "lore.json").write_text(json.dumps(lore))
    write_preset(folder, {**ECHO, "provider": "local", "model": "default"})
    passed, lines = await run_check()
    assert not passed
    broken, lore_line = wrong_lines(lines)
    assert broken.startswith("presets: presets/broken.json, line 1: ")
    assert "missing.json cannot be read" in lore_line
    assert lines[-1] == "ok     provider local: the default model, downloaded at the first start"


async def test_check_reports_all_problems(folder: Path) -> None:
    (folder / "data").touch()
    found = await find_wrong(default_preset="nova", redis_url="redis://127.0.0.1:1/0")
    assert [line.split(":")[0] for line in found] == ["presets", "database", "signals"]


async def test_check_does_not_print_the_database_password() -> None:
    [line] = await find_wrong(database_url="postgresql+asyncpg://bot:hunter2@127.0.0.1:1/troupe")
    assert line.startswith("database: the database failed: ")
    assert "hunter2" not in line


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("qwen2.5", "ok     tools of preset assistant: offered"),
        ("gemma-3", "WRONG  tools of preset assistant: the template of "),
    ],
)
async def test_check_reports_whether_a_local_model_supports_tools(
    folder: Path, template: str, said: str
) -> None:
    path = tiny_gguf.write(folder / "tiny.gguf", tiny_gguf.Vocabulary("qwen2", ("<|im_end|>",)))
    local = {"provider": "local", "model": str(path), "tools": ["dice"], "template": template}
    write_preset(folder, {**ECHO, **local})
    _, lines = await run_check()
    [line] = [one for one in lines if "tools of preset" in one]
    assert line.startswith(said)


def test_check_output_contains_no_log_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROUPE_PROVIDERS__MINE__BASE_URL", "http://127.0.0.1:1/v1")
    write_preset(folder, {**ECHO, "provider": "mine"})
    result = CliRunner().invoke(app, ["check", "--providers"])  # it is asked more than once
    assert {line.split()[0] for line in result.output.splitlines()} == {"ok", "WRONG"}


async def test_check_suggests_the_usual_path_for_an_address_without_a_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeOpenAI() as service:
        service.models_below = "/v1/"
        service.unknown_models.add("m")  # 404, as at any wrong address
        monkeypatch.setenv("TROUPE_PROVIDERS__MINE__BASE_URL", service.base_url.removesuffix("/v1"))
        write_preset(folder, {**ECHO, "provider": "mine", "model": "m"})
        lines: list[str] = []
        assert not await check_everything(read_settings(), lines.append, asks_models=True)
    hinted = [one for one in lines if one.endswith("; the address usually ends in /v1")]
    assert [" ".join(one.split()[:2]) for one in hinted] == ["ok provider", "WRONG answer"]


NO_API = "sent {} instead of a list of its models; check TROUPE_PROVIDERS__MINE__BASE_URL"


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (200, "<!doctype html><html>", NO_API.format("a web page")),
        (404, "\n<html>not found</html>", NO_API.format("a web page (404)")),
        (200, "welcome", NO_API.format("invalid JSON")),
        (200, '{"error": {"message": "no route"}}', NO_API.format("an error object")),
        (200, "null", NO_API.format("other JSON")),
        (200, '{"status": "ok"}', NO_API.format("other JSON")),
        (200, '"data"', NO_API.format("other JSON")),
        (200, '{"data": []}', "has no model 'Llama-3.1-8b'"),
        (200, '{"object": "list", "data": null}', "it lists none"),
        (200, '{"data": [{"id": "gpt-4o"}]}', "it has gpt-4o"),
        (
            200,
            '{"data": [{"id": "x"}, {"id": "Llama3.1:8B"}]}',
            "did you mean 'Llama3.1:8B'? Available models: x, Llama3.1:8B",
        ),
        (200, '[{"id": "meta/llama-3.1-8b-it"}]', "did you mean 'meta/llama-3.1-8b-it'?"),
        (200, '{"models": [{"name": "Llama-3.1-8b"}]}', None),
        (200, '{"data": [{"id": "Llama-*"}]}', None),
        (404, '{"detail": "Not Found"}', None),
    ],
)
async def test_check_reads_the_list_of_models(
    folder: Path, monkeypatch: pytest.MonkeyPatch, status: int, body: str, problem: str | None
) -> None:
    async with FakeOpenAI() as service:
        service.models_status, service.models_body = status, body.encode()
        monkeypatch.setenv("TROUPE_PROVIDERS__MINE__BASE_URL", service.base_url)
        write_preset(folder, {**ECHO, "provider": "mine", "model": "Llama-3.1-8b"})
        passed, lines = await run_check()
    assert passed is (problem is None)
    assert [problem in line for line in wrong_lines(lines) if problem] == [True] * (not passed)


@pytest.mark.parametrize("token", ["nonsense", "123456789:AA-dead"])
async def test_check_reports_invalid_tokens_and_a_missing_intent(
    monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    async with running_platforms() as platforms:
        monkeypatch.setenv("TROUPE_TELEGRAM__TOKEN", token)
        monkeypatch.setenv("TROUPE_TELEGRAM__API_BASE", platforms.telegram.base)
        monkeypatch.setenv("TROUPE_DISCORD__TOKEN", token)
        monkeypatch.setenv("TROUPE_DISCORD__API_BASE", f"{platforms.discord.base}/api/v10")
        passed, lines = await run_check()
        monkeypatch.setenv("TROUPE_DISCORD__TOKEN", platforms.discord.token)
        _, with_discord = await run_check()
    assert not passed
    wrong = wrong_lines(lines)
    assert [line.partition(":")[0] for line in wrong] == ["discord", "telegram"]
    assert ["TROUPE_DISCORD__TOKEN" in wrong[0], "TROUPE_TELEGRAM__TOKEN" in wrong[1]] == [True] * 2
    assert lines[-1] == "ok     provider echo: repeats prompts without a model"
    intent, _ = wrong_lines(with_discord)
    assert intent.startswith("discord: ")
    assert "enable Bot > Message Content Intent in the developer portal" in intent


async def test_check_does_not_wait_for_an_unresponsive_network(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bot.cli.check._CHECK_TIMEOUT_SECONDS", 3)  # which the others may also take
    async with silent_server() as address:
        monkeypatch.setenv("TROUPE_TELEGRAM__TOKEN", "123456789:" + "A" * 35)
        monkeypatch.setenv("TROUPE_TELEGRAM__API_BASE", address)
        monkeypatch.setenv("TROUPE_PROVIDERS__MINE__BASE_URL", f"{address}/v1")
        write_preset(folder, {**ECHO, "provider": "mine"})
        passed, lines = await run_check()
    assert not passed
    problem = "no answer within 3 s; check that it is running and that the network works"
    assert {f"telegram: {problem}", f"provider mine: {problem}"} <= {*wrong_lines(lines)}


def test_check_reports_wrong_settings_in_its_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROUPE_CONSOLE__PORT", "x")
    result = CliRunner().invoke(app, ["check"])
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        "WRONG  settings: TROUPE_CONSOLE__PORT: should be a whole number (an integer)",
        "fix the settings first; the other checks need them",
    ]


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """Accept connections without ever answering; yield the address."""
    release = asyncio.Event()

    async def wait(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.close()

    async with await asyncio.start_server(wait, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        release.set()


async def test_check_tests_embedding_if_a_character_has_stories(folder: Path) -> None:
    write_preset(folder, {**ECHO, "character": "haruhi"})
    passed, lines = await run_check()
    assert passed
    assert "ok     embedding: multilingual-e5-small on this machine" in lines

    [line] = await find_wrong(embedding={"kind": "gguf", "model_path": "bge.gguf"})
    assert line.startswith("embedding: bge.gguf cannot be read as a GGUF file")


async def test_providers_are_asked_for_an_answer_if_requested(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeOpenAI() as service:
        monkeypatch.setenv("TROUPE_PROVIDERS__ACME__BASE_URL", service.base_url)
        fallbacks = [{"provider": "acme", "model": "m"}, {"provider": "acme", "model": "n"}]
        write_preset(folder, {**ECHO, "fallbacks": fallbacks})
        await run_check()
        assert service.log == []
        service.unknown_models.add("m")
        lines: list[str] = []
        assert not await check_everything(read_settings(), lines.append, asks_models=True)
        assert ["max_tokens" in one["body"] for one in service.log] == [False, False]
        address = service.base_url
    shown = [re.sub(r"after [\d.]+ s", "after … s", one) for one in lines if "answer of" in one]
    assert sorted(shown) == [
        "WRONG  answer of acme/m: provider 'acme' does not know the model 'm' at"
        f" {address} (404); check the preset's model and TROUPE_PROVIDERS__ACME__BASE_URL",
        "ok     answer of acme/n: after … s; 5 tokens read, 4 written",
        "ok     answer of echo/m: after … s; 14 tokens read, 7 written",
    ]


@pytest.mark.parametrize(("limit", "is_right"), [(200, False), (600, True), (None, True)])
async def test_model_that_spends_the_whole_limit_on_reasoning_is_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None, is_right: bool
) -> None:
    async with FakeOpenAI() as service:
        service.replies = partial(thinking, thoughts=300)
        monkeypatch.setenv("TROUPE_PROVIDERS__ACME__BASE_URL", service.base_url)
        write_preset(folder, {**ECHO, "provider": "acme", "max_output_tokens": limit})
        lines: list[str] = []
        assert await check_everything(read_settings(), lines.append, asks_models=True) is is_right
    problem = (
        "answer of acme/m: it spent all its 200 output tokens on thinking and did not answer;"
        " remove or raise max_output_tokens in preset 'assistant', or choose a model that does not"
        " think"
    )
    assert wrong_lines(lines) == ([] if is_right else [problem])


@pytest.mark.service
async def test_tools_of_mcp_servers_are_listed() -> None:
    demo = str(CHECKOUT / "tests" / "tool_servers" / "demo_server.py")
    servers = {
        "demo": {"command": [sys.executable, demo, "stdio"]},
        "lost": {"command": ["/no/such/program"]},
    }
    passed, lines = await run_check(mcp_servers=servers)
    assert not passed
    [found] = [line for line in lines if line.startswith("ok     MCP server demo: 8 tools:")]
    assert found.endswith("only if TROUPE_MCP_SERVERS__DEMO__TOOLS lists them: delete")
    [wrong] = wrong_lines(lines)
    assert wrong.startswith("MCP server lost: ")
    assert "/no/such/program" in wrong

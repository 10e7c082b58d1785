"""A plug-in is loaded only if a setting lists it; a faulty one is reported and skipped."""

import importlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from bot.backends import registry as backends
from bot.chat.prompt import ToolCall, ToolSpec
from bot.embedders.registry import make_embedder
from bot.errors import (
    CharacterError,
    EmbeddingError,
    PluginFailed,
    PresetError,
    SettingsError,
)
from bot.importers.character_files import read_character_content
from bot.platforms import registry as platforms
from bot.prompting.presets.files import validate_preset
from bot.runtime import plugins
from bot.settings import read_settings
from bot.tools import Tool, Toolbox, ToolFailed, plugin_tools
from tests.checkout import CHECKOUT
from tests.fakes import FakeClock
from tests.waiting import PATIENCE_SECONDS

EXAMPLES = CHECKOUT / "docs" / "examples"
SECRET = "sk-proj-FAKE0000000000000000000000000000"
Install = Callable[..., None]
PRESET = {"name": "x", "provider": "local", "model": "m", "tools": ["moon"]}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a module as a package with an entry point; if `code` is None, install an example."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plugins, "problems", {})
    for name in (one.removeprefix("troupe.") for one in plugins.GROUPS):
        monkeypatch.setitem(plugins._values, name, {})
    for name in plugins.HOOKS:
        monkeypatch.setitem(plugins.HOOKS, name, {})
    monkeypatch.setattr(backends, "_SPECS", {**backends._SPECS})
    monkeypatch.setattr(platforms, "_SPECS", {**platforms._SPECS})
    before = {*sys.modules}

    def add(group: str, name: str, value: str, code: str | None = None) -> None:
        module = value.partition(":")[0]
        text = code if code is not None else (EXAMPLES / module / f"{module}.py").read_text()
        (tmp_path / f"{module}.py").write_text(text)
        about = tmp_path / f"troupe_{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: troupe-{name}\nVersion: 1\n")
        (about / "entry_points.txt").write_text(f"[troupe.{group}]\n{name} = {value}\n")
        importlib.invalidate_caches()

    yield add
    for name in {*sys.modules} - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (f"raise KeyError({SECRET!r})", "failed at start: KeyError"),
        ("raise SettingsError('it needs a key')", "cannot be used: it needs a key"),
    ],
)
def test_embedder_that_fails_at_start_is_named(install: Install, code: str, problem: str) -> None:
    head = "from bot.errors import SettingsError\nTROUPE_API = 1\n"
    install("embedders", "vectors", "vectors:make", f"{head}def make(*_):\n    {code}\n")
    settings = read_settings(plugins="vectors", embedding={"kind": "vectors"})
    with pytest.raises(SettingsError) as raised:
        make_embedder(settings.embedding, settings.data_dir)
    assert str(raised.value) == f"the embedder of the plug-in 'vectors' {problem}"


async def test_embedder_that_raises_later_is_named(install: Install) -> None:
    code = f"""TROUPE_API = 1
class Vectors:
    model_id, is_metered = "vectors-1", False
    def __getattr__(self, name):
        raise KeyError({SECRET!r})
def make(*_):
    return Vectors()
"""
    install("embedders", "vectors", "vectors:make", code)
    settings = read_settings(plugins="vectors", embedding={"kind": "vectors"})
    embedder = make_embedder(settings.embedding, settings.data_dir)
    assert embedder.model_id == "vectors-1"
    for use in (partial(embedder.embed_documents, ["a"]), partial(embedder.embed_query, "a")):
        with pytest.raises(EmbeddingError) as raised:
            await use()
        assert str(raised.value) == "the embedder of the plug-in 'vectors' failed: KeyError"


def test_plugins_are_inert_until_a_setting_names_them(install: Install) -> None:
    install("tools", "moon", "moon_tool:MOON")
    install("backends", "eliza", "eliza_backend:ELIZA")
    install("platforms", "filedrop", "filedrop_platform:FILEDROP")
    install("hooks", "shop", "shop_hook")

    read_settings()
    assert "moon_tool" not in sys.modules
    with pytest.raises(PresetError, match=r"should be 'time' or .* or 'stories'"):
        validate_preset(PRESET, "x")

    doctor = {"doctor": {"kind": "eliza", "otherwise": "I see."}}
    settings = read_settings(
        plugins="moon, eliza,filedrop,shop", providers=doctor, filedrop={"folder": "drop"}
    )
    assert plugins.problems == {}
    assert settings.providers["doctor"].kind == "eliza"
    assert [spec.kind for spec in settings.configured_platforms] == ["filedrop"]
    assert validate_preset(PRESET, "x").tools
    [check] = plugins.HOOKS["check_answer"].values()
    assert check("Call +1 555 010 0199.") == "Call [phone number]."
    assert check("You get a refund.") == plugins.Refusal("it promises money")


BAD = {
    "for another version": (
        "TROUPE_API = 2\nMOON = 1",
        "was written for version 2 of Troupe's plug-in interface",
    ),
    "for no version": ("MOON = 1", "was written for version None of Troupe's plug-in interface"),
    "that raises": (f"raise OSError({SECRET!r})", "cannot be loaded: OSError"),
    "that exits": ("raise SystemExit(1)", "cannot be loaded: SystemExit"),
    "that lacks something": ("import nothing_like_it", "No module named 'nothing_like_it'"),
    "that is not there": ("TROUPE_API = 1", "has no attribute 'MOON'"),
    "that is junk": ("TROUPE_API = 1\nMOON = 1", "cannot be used: not a BackendSpec"),
    "that raises when it is used": (
        "from dataclasses import replace\nfrom bot.backends.registry import ECHO\n"
        "TROUPE_API = 1\nMOON = replace(ECHO, kind=['x'])",
        "cannot be used: TypeError",
    ),
    "with a kind that exists": (
        "from bot.backends.registry import ECHO as MOON\nTROUPE_API = 1",
        "the backend 'echo' is already registered",
    ),
}


@pytest.mark.parametrize(("code", "note"), BAD.values(), ids=list(BAD))
def test_problem_of_an_unusable_plugin_is_recorded(install: Install, code: str, note: str) -> None:
    install("backends", "bad", "bad:MOON", code)
    install("tools", "moon", "moon_tool:MOON")

    settings = read_settings(plugins="bad,moon,absent")

    assert settings.plugins == "bad,moon,absent"
    assert plugins.problems.keys() == {"bad", "absent"}
    assert plugins.problems["bad"].startswith("the plug-in 'bad' of troupe-bad ")
    assert note in plugins.problems["bad"]
    assert SECRET not in plugins.problems["bad"]
    assert plugins.problems["absent"].endswith("is installed; installed plug-ins: bad, moon")
    assert [*plugins.enabled_plugins("tools")] == ["moon"]
    with pytest.raises(SettingsError) as error:  # says why that kind is not known
        read_settings(plugins="bad", providers={"mine": {"kind": "bad"}})
    assert note in str(error.value)


def _tool(run: object) -> Tool:
    seconds = 0.2 if run is _block else PATIENCE_SECONDS
    return Tool(ToolSpec("bad", "", {}), run, seconds)  # type: ignore[arg-type]


async def _raise(_arguments: object) -> str:
    raise KeyError(SECRET)


async def _block(_arguments: object) -> str:
    time.sleep(2)  # noqa: ASYNC251 # as a plug-in should not
    return ""


async def _refuse(_arguments: object) -> str:
    raise ToolFailed(f"not with {SECRET}")


async def _leak(_arguments: object) -> str:
    return f"the key is {SECRET}"


async def _return_junk(_arguments: object) -> object:
    return {"a": 1}


@pytest.mark.parametrize(
    ("value", "result", "note"),
    [
        (_tool(_raise), "error: this does not work now", "KeyError"),
        (_tool(_block), "error: this does not work now", "it took more than 0.2 s"),
        (_tool(lambda _: 1), "error: this does not work now", "TypeError"),
        (_tool(_refuse), "error: not with", ""),
        (_tool(_leak), "the key is ***0000", ""),
        (_tool(_return_junk), "{'a': 1}", ""),
        ("junk", "error: there is no such tool", "not a Tool"),
    ],
)
async def test_model_is_told_that_a_tool_failed(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    value: object,
    result: str,
    note: str,
) -> None:
    monkeypatch.setitem(plugins._values, "tools", {"bad": value})
    toolbox = Toolbox(plugin_tools(["bad", "absent"]), FakeClock())

    told = await toolbox.run(ToolCall("1", "bad", "{}"))

    printed = capsys.readouterr().out + caplog.text
    assert result in told
    assert note in printed
    assert SECRET not in told + printed


async def test_calls_that_never_end_are_limited() -> None:
    ended = threading.Event()
    for at in range(6):
        with pytest.raises(PluginFailed, match="0.01 s" if at < 4 else "are still running"):
            await plugins.call_in_thread("stuck", lambda: ended.wait(60), 0.01)
    ended.set()


def test_importer_reads_files_with_its_suffix(install: Install) -> None:
    code = (
        "from bot.prompting.haruhi import CharacterData\nTROUPE_API = 1\n"
        "def read(content):\n    return CharacterData(persona=content.decode(), texts=('a',))\n"
    )
    install("importers", "story", "story_importer:read", code)
    read_settings(plugins="story")

    keys, texts = read_character_content(Path("alice.story"), b"You are Alice.")

    assert (keys["persona"], texts) == ("You are Alice.", ("a",))
    with pytest.raises(CharacterError, match="its plug-in failed: UnicodeDecodeError"):
        read_character_content(Path("alice.story"), b"\xff")

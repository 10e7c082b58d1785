"""Plug-ins are loaded only if a setting lists them; faulty ones are reported and skipped."""

import asyncio
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from bot.backends import registry as backends
from bot.backends.factory import make_backend
from bot.chat.incoming import Address
from bot.chat.memory import Memory, MemoryPlace, MemorySubject, SubjectKind
from bot.chat.outgoing import MessageContent, OutgoingMessage
from bot.chat.prompt import ToolCall, ToolSpec
from bot.contracts import PROMPT
from bot.embedders.registry import make_embedder
from bot.errors import (
    BackendUnavailable,
    CharacterError,
    EmbeddingError,
    OutcomeUnknown,
    PresetError,
    SettingsError,
)
from bot.importers.character_files import read_character_content
from bot.platforms import registry as platforms
from bot.platforms.spec import PlatformContext
from bot.prompting.presets.files import validate_preset
from bot.runtime import plugin_threads, plugins
from bot.service.options import RunOptions
from bot.service.run import open_service
from bot.settings import read_settings
from bot.storage.database import Database
from bot.templates.renderer import Renderer
from bot.tools import Tool, Toolbox, ToolFailed, plugin_tools
from tests.backends.asking import ask
from tests.checkout import CHECKOUT
from tests.fakes import FakeClock
from tests.samples import ALICE, make_incoming
from tests.support.intake import FakeIntake
from tests.turn.setup import CHAT, Setup
from tests.waiting import PATIENCE_SECONDS, wait_until

EXAMPLES = CHECKOUT / "docs" / "examples"
SECRET = "sk-proj-FAKE0000000000000000000000000000"
Install = Callable[..., None]
PRESET = {"name": "x", "provider": "local", "model": "m", "tools": ["moon"]}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a module as a package with an entry point; if `code` is None, install an example."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plugins, "load_errors", {})
    for name in plugins.GROUPS:
        monkeypatch.setitem(plugins._enabled_plugins, name, {})
    for name in plugins.HOOKS:
        monkeypatch.setitem(plugins.HOOKS, name, {})
    monkeypatch.setattr(backends, "_SPECS_BY_KIND", {**backends._SPECS_BY_KIND})
    monkeypatch.setattr(platforms, "_SPECS_BY_KIND", {**platforms._SPECS_BY_KIND})
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
        (f"raise KeyError({SECRET!r})", "failed to start: KeyError"),
        ("raise SettingsError('it needs a key')", "failed to start: it needs a key"),
    ],
)
def test_startup_error_names_the_failing_embedder_plugin(
    install: Install, code: str, problem: str
) -> None:
    head = "from bot.errors import SettingsError\nTROUPE_API = 1\n"
    install("embedders", "vectors", "vectors:make", f"{head}def make(*_):\n    {code}\n")
    settings = read_settings(plugins="vectors", embedding={"kind": "vectors"})
    with pytest.raises(SettingsError) as raised:
        make_embedder(settings.embedding, settings.data_dir)
    assert str(raised.value) == f"the plug-in 'vectors' {problem}"


async def test_embedding_error_names_the_failing_embedder_plugin(install: Install) -> None:
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
        assert str(raised.value) == "the plug-in 'vectors' failed: KeyError"


def test_plugins_are_not_loaded_unless_a_setting_names_them(install: Install) -> None:
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
    assert plugins.load_errors == {}
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
    "that raises": (f"raise OSError({SECRET!r})", "cannot be used: OSError"),
    "that exits": ("raise SystemExit(1)", "cannot be used: SystemExit"),
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
def test_unusable_plugin_is_listed_with_its_problem(install: Install, code: str, note: str) -> None:
    install("backends", "bad", "bad:MOON", code)
    install("tools", "moon", "moon_tool:MOON")

    settings = read_settings(plugins="bad,moon,absent")

    assert settings.plugins == "bad,moon,absent"
    assert plugins.load_errors.keys() == {"bad", "absent"}
    assert plugins.load_errors["bad"].startswith("the plug-in 'bad' of troupe-bad ")
    assert note in plugins.load_errors["bad"]
    assert SECRET not in plugins.load_errors["bad"]
    assert plugins.load_errors["absent"].endswith("is installed; installed plug-ins: bad, moon")
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
        (_tool(_raise), "error: this tool is not working right now", "KeyError"),
        (_tool(_block), "error: this tool is not working right now", "no response within 0.2 s"),
        (_tool(lambda _: 1), "error: this tool is not working right now", "TypeError"),
        (_tool(_refuse), "error: not with", ""),
        (_tool(_leak), "the key is ***0000", ""),
        (_tool(_return_junk), "error: this tool is not working right now", "TypeError"),
        ("junk", "error: there is no such tool", "not a Tool"),
    ],
)
async def test_failure_of_a_plugin_tool_is_reported_to_the_model(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    value: object,
    result: str,
    note: str,
) -> None:
    monkeypatch.setitem(plugins._enabled_plugins, "tools", {"bad": value})
    toolbox = Toolbox(plugin_tools(["bad", "absent"]), FakeClock())

    told = await toolbox.run(ToolCall("1", "bad", "{}"))

    printed = capsys.readouterr().out + caplog.text
    assert result in told
    assert note in printed
    assert SECRET not in told + printed


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


STUCK = """
import threading
TROUPE_API = 1
entered, go_on, calls = threading.Event(), threading.Event(), []

def block(call):
    calls.append(call)
    entered.set()
    go_on.wait(60)
"""
STUCK_BACKEND = f"""{STUCK}
from typing import Literal
from bot.backends.spec import BackendSpec
from eliza_backend import ElizaBackend, ElizaSettings

class StuckSettings(ElizaSettings):
    kind: Literal["stuck"] = "stuck"

class StuckBackend(ElizaBackend):
    def sees_images(self, model):
        block("sees_images")

    @property
    def can_transcribe(self):
        raise ValueError("secret")

    async def generate(self, prompt):
        block("generate")
        for event in ():
            yield event

def make(_provider, settings, *_):
    return StuckBackend(settings)

SPEC = BackendSpec(kind="stuck", settings=StuckSettings, factory="stuck_backend:make")
"""
STUCK_PLATFORM = f"""{STUCK}
from bot.platforms.spec import PlatformSpec
from filedrop_platform import FileDrop, FileDropSettings, FileDropSurface

class StuckSurface(FileDropSurface):
    def limits(self, address):
        if address.chat == "blocks":
            block("limits")
        return super().limits(address)

    async def send(self, message):
        block("send")

class StuckPlatform(FileDrop):
    name = "stuck"

    def __init__(self, *given):
        super().__init__(*given)
        self.surface = StuckSurface(self._folder)

    async def run(self, intake):
        block("run")

SPEC = PlatformSpec(kind="stuck", settings=FileDropSettings, factory="stuck_platform:StuckPlatform")
"""
STUCK_EMBEDDER = f"""{STUCK}
class Vectors:
    model_id, is_metered = "vectors-1", False

    async def embed_query(self, text):
        block("embed_query")

def make(*_):
    return Vectors()
"""


@pytest.fixture
def stuck(install: Install) -> Iterator[Callable[[str], Any]]:
    """Install plug-ins that block their threads until the end of the test."""
    install("backends", "eliza", "eliza_backend:ELIZA")
    install("platforms", "filedrop", "filedrop_platform:FILEDROP")
    install("backends", "stuck_backend", "stuck_backend:SPEC", STUCK_BACKEND)
    install("platforms", "stuck_platform", "stuck_platform:SPEC", STUCK_PLATFORM)
    install("embedders", "stuck_embedder", "stuck_embedder:make", STUCK_EMBEDDER)
    yield lambda name: sys.modules[f"stuck_{name}"]
    for name in {"stuck_backend", "stuck_platform", "stuck_embedder"} & {*sys.modules}:
        sys.modules[name].go_on.set()


async def test_blocked_plugins_do_not_delay_other_chats_or_prevent_shutdown(
    stuck: Callable[[str], Any], tmp_path: Path
) -> None:
    for name in ("doctor", "stuck"):
        preset = {"name": name, "provider": name, "model": "m"}
        (tmp_path / f"{name}.json").write_text(json.dumps(preset))
    settings = read_settings(
        plugins="eliza,filedrop,stuck_backend,stuck_platform",
        providers={
            "doctor": {"kind": "eliza"},
            "stuck": {"kind": "stuck", "first_token_seconds": 3},
        },
        filedrop={"folder": tmp_path / "drop"},
        stuck={"folder": tmp_path / "nowhere"},
        admins="filedrop:1",
        default_preset="doctor",
        presets_dir=tmp_path,
        data_dir=tmp_path / "data",
    )

    def ask(chat: str, key: int, text: str) -> None:
        file = tmp_path / "drop" / chat / f"{key}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def answers(chat: str) -> list[str]:
        return [one.read_text() for one in (tmp_path / "drop" / chat).glob("*.md")]

    with capture_logs() as logs:
        async with open_service(settings, print, options=RunOptions(serves_http=False)) as service:
            serving = asyncio.create_task(service.serve())
            await wait_until(lambda: stuck("platform").entered.is_set())
            ask("1", 1, "/preset use stuck")
            await wait_until(lambda: answers("1"))
            ask("1", 2, "Hi.")
            await wait_until(lambda: stuck("backend").entered.is_set())
            ask("2", 1, "I am tired.")
            await wait_until(lambda: answers("2"))
            await wait_until(lambda: len(answers("1")) > 1)
            os.kill(os.getpid(), signal.SIGTERM)
            await serving

    assert answers("2") == ["How long have you been tired?"]
    assert any(text.startswith("⚠ I could not reach the model.") for text in answers("1"))
    reasons = [one["reason"] for one in logs if one["event"] == "answer_failed"]
    assert reasons == ["the plug-in 'stuck_backend' failed: no response within 3 s"]
    late = [one["reason"] for one in logs if one["event"] == "plugin_failed"]
    assert {one.split()[2] for one in late if "within 2 s" in one} == {
        "'stuck_backend'",
        "'stuck_platform'",
    }
    assert not [name for name in ("backend", "platform") if stuck(name).go_on.is_set()]


async def test_message_that_timed_out_in_a_blocked_platform_plugin_is_never_sent_later(
    stuck: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platforms, "_TIMEOUT_SECONDS", 0.1)
    settings = read_settings(plugins="filedrop,stuck_platform", stuck={"folder": tmp_path})
    [spec] = settings.configured_platforms
    platform = platforms.create_platform(spec, settings.platform_settings(spec), PlatformContext())
    receiving = asyncio.create_task(platform.run(FakeIntake()))
    await wait_until(lambda: stuck("platform").entered.is_set())

    with pytest.raises(OutcomeUnknown) as raised:
        await platform.surface.send(
            OutgoingMessage(Address("stuck", "1"), MessageContent("Hi."), "n")
        )

    assert str(raised.value) == "the plug-in 'stuck_platform' failed: no response within 0.1 s"
    stuck("platform").go_on.set()
    await receiving
    monkeypatch.setitem(plugin_threads._TIMEOUTS_BY_METHOD, "is_admin", PATIENCE_SECONDS)
    assert await platform.is_admin(make_incoming()) is False
    assert stuck("platform").calls == ["run"]


async def test_last_known_value_is_used_while_a_plugin_is_blocked(
    stuck: Callable[[str], Any], tmp_path: Path
) -> None:
    settings = read_settings(plugins="filedrop,stuck_platform", stuck={"folder": tmp_path})
    [spec] = settings.configured_platforms
    context = PlatformContext()
    unread = platforms.create_platform(spec, settings.platform_settings(spec), context).surface
    surface = platforms.create_platform(spec, settings.platform_settings(spec), context).surface
    limits = surface.limits(Address("stuck", "1"))

    with capture_logs() as logs:
        for _ in range(3):
            assert surface.limits(Address("stuck", "blocks")) == limits
        with pytest.raises(OutcomeUnknown, match="'stuck_platform' failed: no result from limits"):
            unread.limits(Address("stuck", "1"))

    assert stuck("platform").calls == ["limits"]
    late = "the plug-in 'stuck_platform' failed: TimeoutError in limits"
    assert [one["reason"] for one in logs].count(late) == 2


async def test_default_value_is_used_if_a_plugin_is_blocked_or_fails(
    stuck: Callable[[str], Any], tmp_path: Path
) -> None:
    provider = read_settings(plugins="eliza,stuck_backend", providers={"p": {"kind": "stuck"}})
    backend = make_backend("p", provider.providers["p"], tmp_path, Renderer())

    with capture_logs() as logs:
        assert backend.can_transcribe is False
        assert [backend.sees_images("m"), backend.sees_images("m")] == [False, False]

    assert stuck("backend").calls == ["sees_images"]
    assert [one["reason"] for one in logs] == [
        "the plug-in 'stuck_backend' failed: ValueError in can_transcribe",
        "the plug-in 'stuck_backend' failed: TimeoutError in sees_images",
    ]


JUNK = """
from dataclasses import replace
from eliza_backend import ELIZA, ElizaBackend

TROUPE_API = 1

class Junk(ElizaBackend):
    model_id, is_metered = "junk", False

    async def generate(self, prompt):
        yield 7

    def model_health(self):
        return 7

    async def junk(self, *_):
        return {7}

    count_tokens = describe = embed_documents = embed_query = junk

def make(*_):
    return Junk(None)

SPEC = replace(ELIZA, factory="junk:make")
"""


async def test_invalid_plugin_result_raises_an_error_that_names_the_plugin(
    install: Install, tmp_path: Path
) -> None:
    install("backends", "eliza", "eliza_backend:ELIZA")  # imported by the next one
    install("backends", "bad", "junk:SPEC", JUNK)
    install("embedders", "vectors", "junk:make", JUNK)
    settings = read_settings(
        plugins="bad,vectors", providers={"bad": {"kind": "eliza"}}, embedding={"kind": "vectors"}
    )
    backend = make_backend("bad", settings.providers["bad"], tmp_path, Renderer())
    embedder = make_embedder(settings.embedding, tmp_path)

    assert str((await ask(backend)).error) == "the plug-in 'bad' failed: TypeError"
    assert backend.model_health() == ()
    for use in (backend.count_tokens, backend.describe):
        with pytest.raises(BackendUnavailable, match="the plug-in 'bad' failed: TypeError"):
            await use(PROMPT)
    with pytest.raises(EmbeddingError, match="the plug-in 'vectors' failed: TypeError"):
        await embedder.embed_query("a")
    with pytest.raises(EmbeddingError, match="the plug-in 'vectors' failed: TypeError"):
        await embedder.embed_documents(["a"])


async def test_memories_are_ranked_without_the_embedder_if_it_hangs(
    stuck: Callable[[str], Any], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(plugin_threads._TIMEOUTS_BY_METHOD, "embed_query", 0.1)
    settings = read_settings(plugins="stuck_embedder", embedding={"kind": "stuck_embedder"})
    embedder = make_embedder(settings.embedding, settings.data_dir)
    setup = Setup(database, ["Yes."], preset={"memory": True}, embedder=embedder)
    place = MemoryPlace(CHAT, CHAT, is_private=False)
    alice = MemorySubject(SubjectKind.PERSON, ALICE.id, "Alice")
    bees = Memory(alice, "She keeps bees", ALICE.id, place, is_derived=False, since=1)
    await setup.container.memories.add(replace(bees, model="vectors-1", vector=b"1234"))

    with capture_logs() as logs:
        await setup.say("Do bees sting?")

    assert setup.texts == ["Yes."]
    assert "She keeps bees" in setup.backend.prompts[-1].messages[-1].content
    reasons = [one["reason"] for one in logs if one["event"] == "memories_ranked_by_words"]
    assert reasons == ["the plug-in 'stuck_embedder' failed: no response within 0.1 s"]

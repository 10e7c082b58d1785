"""Test that discord.py has all undocumented names that Troupe uses and `internals.py` lists.

After an upgrade, a failing test here shows which name is missing, changed or newly used.
"""

import ast
import inspect
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import discord
import pytest
import yarl
from discord.gateway import DiscordWebSocket, ReconnectWebSocket
from discord.http import HTTPClient, Route
from typing_extensions import override

from bot.platforms.discord import internals
from bot.platforms.discord.internals import PARSE_ERRORS

_DOCUMENTED_MODULES = {"discord", "discord.abc", "discord.utils"}
_DOCUMENTED = {"__init__", "before_identify_hook", "close", "ws"}
_SUBCLASSES = {"DiscordClient", "ShardClient", "Gateway"}
_LISTED = re.findall(r"`([A-Z]\w+\.\w+)`", internals.__doc__ or "")
_CALLS: Mapping[str, tuple[tuple[object, ...], dict[str, object]]] = {
    "Client.dispatch": (("self", "message", "argument"), {}),
    "HTTPClient.__init__": (("self", "loop"), {}),
    "HTTPClient.request": (("self", "route"), {}),
    "DiscordWebSocket.from_client": (
        ("client",),
        dict.fromkeys(("gateway", "shard_id", "session", "sequence", "resume")),
    ),
    "DiscordWebSocket.poll_event": (("self",), {}),
    "DiscordWebSocket.close": (("self", 4000), {}),
}
_READY = json.loads(Path(__file__).with_name("objects.json").read_text("utf-8"))["ready"]


class FakeSocket:
    """A socket that sends given frames, and records the frames it receives."""

    closed = False
    close_code: int | None = None

    def __init__(self, *frames: Mapping[str, Any]) -> None:
        hello = {"op": 10, "d": {"heartbeat_interval": 3_600_000}}
        self._frames = [json.dumps(one) for one in (hello, *frames)]
        self.sent: list[Any] = []

    async def receive(self, **_: object) -> aiohttp.WSMessage:
        return aiohttp.WSMessage(aiohttp.WSMsgType.TEXT, self._frames.pop(0), None)

    async def send_str(self, text: str) -> None:
        self.sent.append(json.loads(text))

    async def close(self, *, code: int) -> None:
        self.closed, self.close_code = True, code


class FakeClient(discord.Client):
    """A client that connects to a fake socket, and records dispatched events and REST calls."""

    def __init__(self, socket: FakeSocket) -> None:
        super().__init__(intents=discord.Intents(guilds=True), enable_debug_events=True)
        self.dispatched: list[str] = []
        self.asked: list[str] = []
        asked = self.asked

        class Http(HTTPClient):
            @override
            async def ws_connect(self, *_: object, **__: object) -> Any:
                return socket

            @override
            async def request(self, route: Route, **_: object) -> Any:
                asked.append(f"{route.method} {route.url.removeprefix(route.BASE)}")
                return _READY["user"] if len(asked) == 1 else {}

        self.http = Http(self.loop)

    @override
    def dispatch(self, event: str, /, *args: object, **_: object) -> None:
        self.dispatched.append(event)

    @override
    async def before_identify_hook(self, *_: object, **__: object) -> None: ...


@asynccontextmanager
async def connected(
    *frames: Mapping[str, Any], **options: Any
) -> AsyncIterator[tuple[FakeSocket, FakeClient, DiscordWebSocket]]:
    socket = FakeSocket(*frames)
    async with FakeClient(socket) as client:
        client.ws = await DiscordWebSocket.from_client(client, **options)
        try:
            yield socket, client, client.ws
        finally:
            await client.ws.close(4000)


def test_docstring_lists_every_checked_internal_name_of_discord_py() -> None:
    assert len(_LISTED) > 10
    assert set(_CALLS) - {"HTTPClient.__init__"} <= set(_LISTED)


@pytest.mark.parametrize("name", _LISTED)
async def test_listed_name_exists_in_the_library(name: str) -> None:
    async with connected() as (_, client, socket):
        owners = {
            "Client": client,
            "ConnectionState": client._connection,
            "DiscordWebSocket": socket,
            "HTTPClient": client.http,
            "ReconnectWebSocket": ReconnectWebSocket(None),
            "Route": Route("GET", "/x"),
        }
        owner, _, attribute = name.partition(".")
        assert hasattr(owners[owner], attribute)


@pytest.mark.parametrize("name", _CALLS)
def test_method_accepts_the_arguments_we_pass(name: str) -> None:
    owner, _, method = name.partition(".")
    args, options = _CALLS[name]
    found = getattr(globals().get(owner) or getattr(discord, owner), method)
    inspect.signature(found).bind(*args, **options)


async def test_login_uses_our_rest_client() -> None:
    client = FakeClient(FakeSocket())
    with pytest.raises(KeyError):  # the application has no id
        await client.login("token")
    await client.close()
    assert client.asked == ["GET /users/@me", "GET /oauth2/applications/@me"]
    assert client.user is not None
    assert client.user.name == "nova"


async def test_events_are_dispatched_while_they_are_parsed() -> None:
    deletion = {"id": "1", "channel_id": "2"}
    async with connected() as (_, client, _):
        client._connection.parsers["MESSAGE_DELETE"](deletion)
        assert client.dispatched[-1] == "raw_message_delete"


async def test_new_message_is_dispatched_before_it_is_parsed() -> None:
    event = {"op": 0, "s": 8, "t": "MESSAGE_CREATE", "d": {}}
    async with connected(event) as (_, client, socket):
        with pytest.raises(PARSE_ERRORS):
            await socket.poll_event()
        assert client.dispatched[-2:] == ["socket_raw_receive", "socket_event_type"]
        assert socket.sequence == 8
        assert socket.open


async def test_stored_session_is_resumed() -> None:
    stored: dict[str, Any] = {"session": "stored", "sequence": 7, "resume": True}
    async with connected(**stored, gateway=yarl.URL("ws://stored")) as (sent, _, socket):
        [_, resume] = sent.sent
        assert resume["op"] == DiscordWebSocket.RESUME
        assert (resume["d"]["session_id"], resume["d"]["seq"]) == ("stored", 7)
        assert str(socket.gateway) == "ws://stored"


async def test_ready_event_starts_a_new_session() -> None:
    ready = {"op": 0, "s": 1, "t": "READY", "d": _READY}
    async with connected(ready, shard_id=0) as (sent, client, socket):
        assert [one["op"] for one in sent.sent] == [1, DiscordWebSocket.IDENTIFY]
        await socket.poll_event()
        assert (socket.session_id, socket.sequence) == ("given", 1)
        assert str(socket.gateway) == "ws://resume"
        assert "connect" in client.dispatched


@pytest.mark.parametrize(
    ("frame", "resumes"), [({"op": 7}, True), ({"op": 9, "d": True}, True), ({"op": 9}, False)]
)
async def test_closed_connection_reports_whether_to_resume(
    frame: Mapping[str, Any], resumes: bool
) -> None:
    async with connected(frame) as (sent, _, socket):
        with pytest.raises(ReconnectWebSocket) as ended:
            await socket.poll_event()
        assert ended.value.resume is resumes
        assert sent.closed


def _sources() -> Iterator[tuple[str, ast.AST]]:
    for file in sorted(Path(internals.__file__).parent.rglob("*.py")):
        yield file.stem, ast.parse(file.read_text(encoding="utf-8"))


def test_other_modules_import_only_documented_names() -> None:
    imported = {
        (module, node.module)
        for module, tree in _sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "discord"
    }
    others = {(module, name) for module, name in imported if name not in _DOCUMENTED_MODULES}
    assert {module for module, _ in others} == {"internals"}


def _subclasses() -> Iterator[ast.ClassDef]:
    """Yield the subclasses of the library's client."""
    for _, tree in _sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name in _SUBCLASSES:
                yield node


def test_undocumented_names_used_in_subclasses_are_listed() -> None:
    """The linter does not see names that are used through `self`.

    A new version of the library may also use a name that our subclass has for something else.
    """
    theirs = set(dir(discord.Client(intents=discord.Intents(guilds=True))))
    nodes = [node for one in _subclasses() for node in ast.walk(one)]
    named = {
        node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    named |= {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute)
        and (isinstance(node.ctx, ast.Store) or node.attr.startswith("_"))
    }
    listed = {name.removeprefix("Client.") for name in _LISTED}
    assert {"dispatch", "http", "_connection"} <= named & theirs <= listed | _DOCUMENTED

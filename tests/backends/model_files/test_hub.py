"""Downloading a model from a hub."""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bot.backends.model_files import hub
from bot.backends.model_files import store as model_store
from bot.errors import SettingsError

GGUF = b"GGUF and the rest"
NO_SOURCES = ("a", "a/b/c", "../b", "a/..", "-a/b", "a/b:../c", "a/b c", "/a/b")
FILES = ("small-Q4_K_M.gguf", "small-Q8_0.gguf", "mmproj-small.gguf", "README")


@dataclass
class FakeHub:
    """A hub with one repository, small/model, whose first response can break off."""

    sha256: str = hashlib.sha256(GGUF).hexdigest()
    cut_at: int | None = None
    begins: list[int] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)

    async def describe(self, request: web.Request) -> web.Response:
        self.tokens.add(request.headers.get("Authorization"))
        files = [{"rfilename": name, "lfs": {"sha256": self.sha256}} for name in FILES]
        return web.json_response({"sha": "abc", "siblings": files})

    async def send(self, request: web.Request) -> web.StreamResponse:
        begin = request.http_range.start or 0
        self.begins.append(begin)
        content = GGUF[begin:]
        response = web.StreamResponse(status=206 if begin else 200)
        response.content_length = len(content)
        await response.prepare(request)
        await response.write(content if begin else content[: self.cut_at])
        if self.cut_at and not begin and request.transport is not None:
            request.transport.close()
        return response


@pytest.fixture
async def fake_hub(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeHub]:
    fake, app = FakeHub(), web.Application()
    app.router.add_get("/api/models/small/model", fake.describe)
    app.router.add_get("/small/model/resolve/abc/small-Q4_K_M.gguf", fake.send)
    async with TestServer(app) as server:
        monkeypatch.setenv("HF_ENDPOINT", str(server.make_url("")))
        yield fake


async def pull(word: str, data_dir: Path) -> Path:
    source = hub.parse_model_source(word)
    assert source is not None
    return await hub.pull_model(source, data_dir, lambda _: None)


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct-GGUF", ("Qwen/Qwen2.5-0.5B-Instruct-GGUF", "")),
        ("a/b:Q4_K_M", ("a/b", "Q4_K_M")),
        ("a/b:sub/file.gguf", ("a/b", "sub/file.gguf")),
        *(
            (word, None)
            for word in ["a", "a/b/c", "../b", "a/..", "-a/b", "a/b:../c", "a/b c", "/a/b"]
        ),
    ],
)
def test_hub_source_is_parsed_into_repository_and_file(
    word: str, found: tuple[str, str] | None
) -> None:
    assert hub.parse_model_source(word) == found


@pytest.mark.parametrize("cut_at", [None, 6])
async def test_downloaded_file_is_complete_and_verified(
    tmp_path: Path, fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch, cut_at: int | None
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_1")
    fake_hub.cut_at = cut_at

    model = await pull("small/model:q4", tmp_path)

    assert model == model_store.models_folder(tmp_path) / "small-Q4_K_M.gguf"
    assert model.read_bytes() == GGUF
    assert model_store.list_models(tmp_path) == [model]
    assert fake_hub.begins == ([0] if cut_at is None else [0, cut_at])
    assert fake_hub.tokens == {"Bearer hf_1"}


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("small/model:q4", "damaged or not the expected file"),
        ("small/model", r"2 files match ''; available: small-Q4_K_M.gguf, sm"),
        ("small/other", r"could not be downloaded \(404, .*`troupe model pull FILE`"),
    ],
)
async def test_problem_is_reported_and_nothing_is_installed(
    tmp_path: Path, fake_hub: FakeHub, word: str, problem: str
) -> None:
    fake_hub.sha256 = "00"
    with pytest.raises(SettingsError, match=problem):
        await pull(word, tmp_path)
    assert model_store.list_models(tmp_path) == []


async def test_unreachable_hub_is_reported_with_an_alternative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(SettingsError, match=r"could not be downloaded \(.*`troupe model pull FILE"):
        await pull("small/model:q4", tmp_path)

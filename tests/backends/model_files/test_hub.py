"""A model from a hub, by the hub's own library or a stand-in for it."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bot.backends.model_files import hub
from bot.backends.model_files import store as model_store
from bot.errors import SettingsError

GGUF = b"GGUF and the rest"
FILES = {
    "small-Q4_K_M.gguf": GGUF,
    "small-Q8_0.gguf": GGUF,
    "mmproj-small.gguf": b"",
    "README": b"",
}


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a `huggingface_hub` with one repository, small/model, of these files and a hash."""

    def library(sha256: str | None, raises: str = "") -> None:
        package = tmp_path / "packages" / "huggingface_hub.py"
        package.parent.mkdir()
        package.write_text(
            "from pathlib import Path\n"
            "from types import SimpleNamespace as Any\n"
            f"FILES = {FILES!r}\n"
            "class HfApi:\n"
            "    def model_info(self, repository, files_metadata):\n"
            f"        {raises or 'pass'}\n"
            f"        lfs = Any(sha256={sha256!r}) if {sha256!r} else None\n"
            "        files = [Any(rfilename=name, lfs=lfs) for name in FILES]\n"
            "        return Any(siblings=files, sha='abc')\n"
            "def hf_hub_download(repository, name, revision, local_dir):\n"
            "    assert (repository, revision) == ('small/model', 'abc')\n"
            "    Path(local_dir, name).write_bytes(FILES[name])\n",
        )
        monkeypatch.syspath_prepend(package.parent)
        monkeypatch.setenv("PYTHONPATH", str(package.parent))

    return library


def source(word: str) -> hub.HubSource:
    found = hub.parse_source(word)
    assert found is not None
    return found


async def pull(word: str, data_dir: Path) -> Path:
    return await hub.pull_model(source(word), data_dir, lambda _: None)


@pytest.mark.parametrize(
    ("word", "repository", "part"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct-GGUF", "Qwen/Qwen2.5-0.5B-Instruct-GGUF", ""),
        ("a/b:Q4_K_M", "a/b", "Q4_K_M"),
        ("a/b:sub/file.gguf", "a/b", "sub/file.gguf"),
    ],
)
def test_parse_source_splits_repository_and_file(word: str, repository: str, part: str) -> None:
    assert source(word) == hub.HubSource(repository, part)


@pytest.mark.parametrize(
    "word", ["a", "a/b/c", "../b", "a/..", "-a/b", "a/b:../c", "a/b c", "/a/b"]
)
def test_parse_source_of_other_text_is_none(word: str) -> None:
    assert hub.parse_source(word) is None


async def test_pulled_file_is_verified(tmp_path: Path, library: Callable[..., None]) -> None:
    library(hashlib.sha256(GGUF).hexdigest())

    model = await pull("small/model:q4", tmp_path)

    assert model == model_store.models_folder(tmp_path) / "small-Q4_K_M.gguf"
    assert [each.name for each in model_store.list_models(tmp_path)] == ["small-Q4_K_M"]


async def test_file_with_another_hash_is_not_installed(
    tmp_path: Path, library: Callable[..., None]
) -> None:
    library("00")

    with pytest.raises(SettingsError, match="damaged or another file"):
        await pull("small/model:q4", tmp_path)

    assert model_store.list_models(tmp_path) == []


async def test_ambiguous_file_name_lists_the_candidates(
    tmp_path: Path, library: Callable[..., None]
) -> None:
    library(None)

    with pytest.raises(SettingsError, match=r"2 files for ''; there are: small-Q4_K_M.gguf, sm"):
        await pull("small/model", tmp_path)


async def test_unreachable_hub_is_reported_with_an_alternative(
    tmp_path: Path, library: Callable[..., None]
) -> None:
    library(None, raises="raise RuntimeError('no route to host')")

    with pytest.raises(SettingsError) as refused:
        await pull("small/model:q4", tmp_path)

    assert "could not be downloaded (RuntimeError: no route to host)" in str(refused.value)
    assert "`troupe model pull FILE`" in str(refused.value)


@pytest.mark.parametrize("cut_at", [None, 6])
async def test_public_model_needs_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut_at: int | None
) -> None:
    """Also over a connection that ends in the middle."""
    begins: list[int] = []

    async def describe(_request: web.Request) -> web.Response:
        sha256 = hashlib.sha256(GGUF).hexdigest()
        files = [{"rfilename": name, "lfs": {"sha256": sha256}} for name in FILES]
        return web.json_response({"sha": "abc", "siblings": files})

    async def send(request: web.Request) -> web.StreamResponse:
        begin = request.http_range.start or 0
        begins.append(begin)
        content = GGUF[begin:]
        response = web.StreamResponse(status=206 if begin else 200)
        response.content_length = len(content)
        await response.prepare(request)
        await response.write(content if begin else content[:cut_at])
        if cut_at and not begin and request.transport is not None:
            request.transport.close()
        return response

    app = web.Application()
    app.router.add_get("/api/models/small/model", describe)
    app.router.add_get("/small/model/resolve/abc/small-Q4_K_M.gguf", send)
    async with TestServer(app) as hub_server:
        monkeypatch.setenv("HF_ENDPOINT", str(hub_server.make_url("")))
        model = await pull("small/model:q4", tmp_path)

    assert model.read_bytes() == GGUF
    assert begins == ([0] if cut_at is None else [0, cut_at])

"""Requests to an engine's server, the errors of its connection, and which engine runs a model."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from bot.backends.chat_completions.request_runner import HttpStatusError, post_json
from bot.backends.llama_cpp.engine import (
    EngineConfig,
    GenerationRequest,
    engine_settings,
    require_engine,
    running_engine,
    to_wire,
)
from bot.backends.llama_cpp.sampling import to_sampling
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.errors import BackendUnavailable, SettingsError
from bot.runtime.http_client import ConnectionFailed, HttpClient, HttpResponse
from tests.backends.asking import prompt
from tests.runtime.http_server import ByteServer, byte_server
from tests.waiting import wait_until


@asynccontextmanager
async def connected(server: ByteServer) -> AsyncIterator[HttpClient]:
    headers = {"Connection": "close"}
    client = HttpClient(server.base_url, headers, connect_seconds=5, uses_proxy=False)
    try:
        yield client
    finally:
        await client.close()


async def post(client: HttpClient) -> HttpResponse:
    return await post_json(client, "/completions", {}, asyncio.get_running_loop().time() + 5)


def answer(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: 13\r\n\r\n%b" % (status, body)


async def test_successful_response_is_returned_unread() -> None:
    async with (
        byte_server([answer(200, b""), 0.05, b'{"error": {}}']) as server,
        connected(server) as connection,
    ):
        response = await post(connection)

        assert await response.read(asyncio.get_running_loop().time() + 5) == b'{"error": {}}'
        await wait_until(server.hung_up.is_set)


async def test_error_response_is_read_and_closed() -> None:
    async with (
        byte_server([answer(400, b'{"error": '), 0.05, b"{}}"]) as server,
        connected(server) as connection,
    ):
        with pytest.raises(HttpStatusError) as refused:
            await post(connection)

        assert refused.value.body == b'{"error": {}}'
        await wait_until(server.hung_up.is_set)


async def test_crash_while_an_error_is_sent_is_a_failed_connection() -> None:
    async with (
        byte_server([answer(500, b'{"error": '), 0.05, None]) as server,
        connected(server) as connection,
    ):
        with pytest.raises(ConnectionFailed):
            await post(connection)


async def test_cancelling_while_an_error_is_read_closes_the_connection() -> None:
    async with (
        byte_server([answer(500, b'{"error": '), 0.3]) as server,
        connected(server) as connection,
    ):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await post(connection)

        await wait_until(server.hung_up.is_set)


def body(stop: tuple[str, ...] = (), **given: object) -> dict[str, object]:
    asked = prompt("hello", **given)
    request = GenerationRequest([1, 2, 3], stop, to_sampling(asked), asked.output_limit)
    return to_wire(request, "smol")


def test_request_has_ids_parameters_and_all_stop_strings() -> None:
    stops = ("a", "b", "c", "d", "<|im_end|>")

    assert body(stops, parameters={"temperature": 0.5, "seed": None}) == snapshot(
        {
            "stream_options": {"include_usage": True},
            "temperature": 0.5,
            "stop": ["a", "b", "c", "d", "<|im_end|>"],
            "preserved_tokens": ["a", "b", "c", "d", "<|im_end|>"],
            "model": "smol",
            "prompt": [1, 2, 3],
            "cache_prompt": True,
            "stream": True,
        }
    )


@pytest.mark.parametrize(
    ("limit", "parameters", "expected"),
    [
        (None, {}, None),
        (50, {}, 50),
        (50, {"max_tokens": 20}, 20),
        (50, {"max_completion_tokens": 80}, 50),
        (None, {"max_tokens": 0}, None),
        (None, {"n_predict": 7, "max_tokens": None}, 7),
    ],
)
def test_lowest_output_limit_is_sent(
    limit: int | None, parameters: dict[str, object], expected: int | None
) -> None:
    made = body(max_output_tokens=limit, parameters=parameters)

    assert made.get("max_tokens") == expected
    assert not made.keys() & {"max_completion_tokens", "n_predict"}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"type": "json_schema", "json_schema": {"schema": {"type": "array"}}}, {"type": "array"}),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "text"}, None),
    ],
)
def test_response_format_is_sent_as_a_schema(asked: object, expected: object) -> None:
    made = body(parameters={"response_format": asked})

    assert made.get("json_schema") == expected
    assert "response_format" not in made


def test_several_answers_are_refused() -> None:
    with pytest.raises(BackendUnavailable, match="a chat gets one answer"):
        body(parameters={"n": 2})


def config(tmp_path: Path, engine: str) -> EngineConfig:
    settings = LlamaCppSettings.model_validate({"engine": engine})
    return EngineConfig(tmp_path / "m.gguf", "local", settings, tmp_path, tmp_path)


def install_only(monkeypatch: pytest.MonkeyPatch, *installed: str) -> None:
    def find(package: str) -> object:
        return package if package in installed else None

    monkeypatch.setattr("bot.backends.llama_cpp.engine.find_spec", find)


def test_missing_bindings_are_reported_with_the_extra_and_the_default_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_only(monkeypatch, "xllamacpp")

    with pytest.raises(SettingsError) as refused:
        require_engine(config(tmp_path, "llama_cpp_python"))

    assert str(refused.value) == (
        "the engine llama_cpp_python is not installed: `pip install 'troupe-bot[llama-cpp]'` "
        "compiles it, in some minutes; or unset TROUPE_PROVIDERS__LOCAL__ENGINE for the default, "
        "xllamacpp"
    )


@pytest.mark.parametrize("engine", ["auto", "xllamacpp"])
def test_missing_default_engine_is_reported_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: str
) -> None:
    install_only(monkeypatch)

    with pytest.raises(SettingsError) as refused:
        require_engine(config(tmp_path, engine))

    assert str(refused.value) == (
        "the engine xllamacpp is not installed: `pip install 'troupe-bot[local]'` brings it; or "
        "set TROUPE_PROVIDERS__LOCAL__KIND=openai and TROUPE_PROVIDERS__LOCAL__BASE_URL to a "
        "server that has a model"
    )


def test_auto_selects_the_bindings_if_nothing_else_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_only(monkeypatch, "llama_cpp")

    assert require_engine(config(tmp_path, "auto")) == "llama_cpp_python"


async def test_bindings_take_no_projector(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_only(monkeypatch, "llama_cpp")
    with_projector = replace(
        config(tmp_path, "llama_cpp_python"), projector=tmp_path / "mmproj.gguf"
    )

    with pytest.raises(SettingsError) as refused:
        async with running_engine(with_projector):
            pass

    assert str(refused.value) == (
        "the engine llama_cpp_python takes no projector; unset "
        "TROUPE_PROVIDERS__LOCAL__PROJECTOR_PATH or set TROUPE_PROVIDERS__LOCAL__ENGINE=xllamacpp"
    )


async def test_bindings_have_one_slot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_only(monkeypatch, "llama_cpp")
    settings = LlamaCppSettings(parallel=4)

    with pytest.raises(SettingsError) as refused:
        async with running_engine(replace(config(tmp_path, "auto"), settings=settings)):
            pass

    assert str(refused.value) == (
        "the engine llama_cpp_python answers one conversation at a time; unset "
        "TROUPE_PROVIDERS__LOCAL__PARALLEL or set TROUPE_PROVIDERS__LOCAL__ENGINE=xllamacpp"
    )
    assert engine_settings(LlamaCppSettings()).parallel == 1

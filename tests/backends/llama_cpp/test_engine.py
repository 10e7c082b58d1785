"""Requests to an engine's server, the errors of its connection, and which engine runs a model."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from tests.runtime.http_server import ByteServer, Step, byte_server
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


@pytest.mark.parametrize(
    ("rest", "raised"),
    [
        ([0.05, b"{}}"], HttpStatusError),
        ([0.05, None], ConnectionFailed),  # the engine crashes meanwhile
        ([0.3], TimeoutError),  # the caller is cancelled
    ],
)
async def test_error_response_is_read_and_closed(rest: list[Step], raised: type[Exception]) -> None:
    async with (
        byte_server([answer(400, b'{"error": '), *rest]) as server,
        connected(server) as connection,
    ):
        with pytest.raises(raised) as refused:
            async with asyncio.timeout(0.2 if raised is TimeoutError else 60):
                await post(connection)

        if isinstance(refused.value, HttpStatusError):
            assert refused.value.body == b'{"error": {}}'
        if raised is not ConnectionFailed:
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


def settings_of(engine: str) -> LlamaCppSettings:
    return LlamaCppSettings.model_validate({"engine": engine})


def install_only(monkeypatch: pytest.MonkeyPatch, *installed: str) -> None:
    def find(package: str) -> object:
        return package if package in installed else None

    monkeypatch.setattr("bot.backends.llama_cpp.engine.find_spec", find)


@pytest.mark.parametrize(
    ("engine", "installed", "told"),
    [
        (
            "llama_cpp_python",
            ["xllamacpp"],
            "the engine llama_cpp_python is not installed: `pip install 'troupe-bot[llama-cpp]'`"
            " compiles it, in some minutes; or unset TROUPE_PROVIDERS__LOCAL__ENGINE for the"
            " default, xllamacpp",
        ),
        *(
            (
                engine,
                [],
                "the engine xllamacpp is not installed: `pip install 'troupe-bot[local]'` brings"
                " it; or set TROUPE_PROVIDERS__LOCAL__KIND=openai and"
                " TROUPE_PROVIDERS__LOCAL__BASE_URL to a server that has a model",
            )
            for engine in ("auto", "xllamacpp")
        ),
    ],
)
def test_missing_engine_is_reported_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, engine: str, installed: list[str], told: str
) -> None:
    install_only(monkeypatch, *installed)

    with pytest.raises(SettingsError) as refused:
        require_engine(settings_of(engine), "local")

    assert str(refused.value) == told


def test_auto_selects_the_bindings_if_nothing_else_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install_only(monkeypatch, "llama_cpp")

    assert require_engine(settings_of("auto"), "local") == "llama_cpp_python"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"projector": Path("mmproj.gguf")},
            "takes no projector; unset TROUPE_PROVIDERS__LOCAL__PROJECTOR_PATH or set",
        ),
        (
            {"settings": LlamaCppSettings(parallel=4)},
            "answers one conversation at a time; unset TROUPE_PROVIDERS__LOCAL__PARALLEL or set",
        ),
    ],
)
async def test_bindings_have_one_slot_and_no_projector(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: dict[str, Any], told: str
) -> None:
    install_only(monkeypatch, "llama_cpp")
    config = EngineConfig(tmp_path / "m.gguf", "local", settings_of("auto"), tmp_path, tmp_path)

    with pytest.raises(SettingsError) as refused:
        async with running_engine(replace(config, **changed)):
            pass

    assert str(refused.value) == (
        f"the engine llama_cpp_python {told} TROUPE_PROVIDERS__LOCAL__ENGINE=xllamacpp"
    )
    assert engine_settings(LlamaCppSettings()).parallel == 1

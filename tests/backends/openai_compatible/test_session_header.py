"""All turns of a conversation reach the same model server, which has them in its cache."""

import random
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import pytest
from pydantic import ValidationError

from bot.backends.openai_compatible.backend import OpenAICompatibleBackend
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.chat.prompt import Delta, Finish, Message, Prompt
from bot.errors import BackendUnavailable
from bot.runtime.subprocesses import run_supervised
from tests.backends.tiny_gguf import Vocabulary, write
from tests.rigs.hashing_proxy import HashingProxy, running_proxy
from tests.waiting import wait_until

_CONVERSATIONS, _TURNS = 12, 10
_TOKEN_W = 2 + ord("w")  # behind two control tokens


@pytest.mark.parametrize(
    ("provider", "settings", "header"),
    [
        ("vllm", {"base_url": "http://models:8000/v1"}, "X-Session-ID"),
        ("mine", {"base_url": "http://models:8000/v1"}, "X-Session-ID"),
        ("ollama", {}, "X-Session-ID"),
        ("mine", {"base_url": "http://models:8000/v1", "session_header": "x-user-id"}, "x-user-id"),
        ("mine", {"base_url": "http://models:8000/v1", "session_header": "-"}, None),
        ("openai", {"api_key": "sk-1"}, None),
        ("mine", {"base_url": "https://api.openai.com/v1", "api_key": "sk-1"}, None),
        ("openai", {"api_key": "sk-1", "session_header": "X-Session-ID"}, "X-Session-ID"),
    ],
)
def test_header_is_sent_by_default_except_to_public_services(
    provider: str, settings: dict[str, str], header: str | None
) -> None:
    assert OpenAISettings.model_validate(settings).with_defaults(provider).session_header == header


def test_header_with_a_line_break_is_refused() -> None:
    with pytest.raises(ValidationError, match="session_header"):
        OpenAISettings(session_header="X-A\r\nX-B")


@asynccontextmanager
async def llama_server(model: Path, folder: Path) -> AsyncIterator[str]:
    """Run llama.cpp's server from the wheel, and yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = f"http://127.0.0.1:{port}"
    probe = OpenAICompatibleBackend(OpenAISettings(base_url=f"{base}/v1", model="m"), "probe")

    async def ready() -> bool:
        try:
            await probe.check()
        except BackendUnavailable:
            return False
        return True

    command = [sys.executable, "-m", "tests.backends.llama_server_child", str(model), str(port)]
    log = folder / f"{port}.log"
    try:
        async with run_supervised(
            "llama-server", [*command, "4", "2048"], check_ready=ready, log_file=log
        ):
            yield base
    finally:
        await probe.close()


@asynccontextmanager
async def two_replicas(folder: Path) -> AsyncIterator[HashingProxy]:
    model = write(
        folder / "model.gguf", Vocabulary("llama-bpe", ["<s>", "</s>"]), llama__context_length=4096
    )
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(llama_server(model, folder)) for _ in "ab"]
        yield await stack.enter_async_context(running_proxy(servers, "X-Session-ID"))


def create_backend(proxy: HashingProxy) -> OpenAICompatibleBackend:
    settings = OpenAISettings(base_url=f"{proxy.base}/v1", model="m", first_token_seconds=60)
    backend = OpenAICompatibleBackend(settings.with_defaults("mine"), "mine")
    backend.use_session_key(b"of the installation")
    return backend


@pytest.mark.service
async def test_all_turns_of_a_conversation_go_to_the_same_llama_server(tmp_path: Path) -> None:
    async with two_replicas(tmp_path) as proxy:
        backends = [create_backend(proxy) for _ in range(2)]  # two workers
        dice = random.Random(7)
        names = [f"telegram:{number}" for number in range(_CONVERSATIONS)]
        histories = {name: [Message("system", f"You answer {name}. " * 6)] for name in names}
        cached = 0
        for name in dice.sample(names * _TURNS, _CONVERSATIONS * _TURNS):
            histories[name].append(Message("user", "Go on."))
            prompt = Prompt(tuple(histories[name]), "default", name, max_output_tokens=2)
            async with aclosing(dice.choice(backends).generate(prompt)) as events:
                async for event in events:
                    if isinstance(event, Finish):
                        cached += event.usage.cached_tokens
        for backend in backends:
            await backend.close()

    turns = sum(count.total() for count in proxy.sent.values())
    together = sum(max(count.values()) for count in proxy.sent.values())
    assert turns == _CONVERSATIONS * _TURNS
    assert together / turns >= 0.99
    assert {server for count in proxy.sent.values() for server in count} == set(proxy.servers)
    assert len(proxy.sent) == _CONVERSATIONS
    assert proxy.without_header == 0
    assert not any("telegram" in value for value in proxy.sent)
    assert cached > turns * 20, "the prefix cache of the server knows the turns before"


@pytest.mark.service
async def test_stopped_answer_is_aborted_on_the_server(tmp_path: Path) -> None:
    async with two_replicas(tmp_path) as proxy:
        proxy.holds_streams = True
        backend = create_backend(proxy)
        prompt = Prompt(
            (Message("user", "Go on."),),
            "default",
            "telegram:1",
            max_output_tokens=400,
            parameters={"logit_bias": {str(_TOKEN_W): 100}},  # nothing that would be held back
        )
        try:
            async with aclosing(backend.generate(prompt)) as events:
                assert isinstance(await anext(events), Delta)
            await wait_until(lambda: bool(proxy.broken_off))
        finally:
            await backend.close()

"""Transcription and moderation by a service with OpenAI's API."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from bot.backends.openai_compatible.backend import OpenAICompatibleBackend
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.errors import BackendUnavailable


@dataclass
class TranscriptionServer:
    """Parses the received forms independently of the code under test."""

    base_url: str = ""
    forms: list[dict[str, object]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    response: web.Response = field(default_factory=web.Response)

    async def judge(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers["Authorization"])
        self.forms.append(await request.json())
        return self.response

    async def answer(self, request: web.Request) -> web.Response:
        form = await request.post()
        sent = form["file"]
        assert isinstance(sent, web.FileField)
        self.keys.append(request.headers["Authorization"])
        self.forms.append({**form, "file": (sent.filename, sent.file.read())})
        return self.response


@pytest.fixture
async def server() -> AsyncIterator[TranscriptionServer]:
    running = TranscriptionServer()
    app = web.Application()
    app.router.add_post("/v1/audio/transcriptions", running.answer)
    app.router.add_post("/v1/moderations", running.judge)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    running.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield running
    await runner.cleanup()


@pytest.fixture
async def backend(server: TranscriptionServer) -> AsyncIterator[OpenAICompatibleBackend]:
    models = {"transcription_model": "whisper-1", "moderation_model": "omni"}
    settings = {"base_url": server.base_url, "api_key": "sk-a", **models}
    made = OpenAICompatibleBackend(OpenAISettings.model_validate(settings), "acme")
    yield made
    await made.close()


async def test_file_is_uploaded_and_its_transcript_returned(
    server: TranscriptionServer, backend: OpenAICompatibleBackend
) -> None:
    audio = b"OggS\r\n--\r\n\0\xff"
    server.response = web.json_response({"text": " Hello there. "})
    assert backend.can_transcribe
    assert await backend.transcribe('my "voice"\r\n.ogg', audio) == "Hello there."
    assert server.forms == [
        {
            "model": "whisper-1",
            "response_format": "json",
            "file": ("my %22voice%22%0D%0A.ogg", audio),
        }
    ]
    assert server.keys == ["Bearer sk-a"]


@pytest.mark.parametrize(
    "response",
    [web.Response(status=404, text="{}"), web.Response(text="no JSON"), web.json_response({})],
    ids=["not found", "no JSON", "no text"],
)
async def test_transcript_that_is_not_text_is_an_error(
    server: TranscriptionServer, backend: OpenAICompatibleBackend, response: web.Response
) -> None:
    server.response = response
    with pytest.raises(BackendUnavailable, match="acme"):
        await backend.transcribe("voice.ogg", b"OggS")


CALM = {"flagged": False, "categories": {"violence": False, "illicit": None}}
ANGRY = {"flagged": True, "categories": {"violence": True, "harassment": True, "hate": False}}
UNNAMED = {"flagged": True, "categories": {}}


@pytest.mark.parametrize(
    ("results", "refused_for"),
    [([CALM, CALM], []), ([CALM, ANGRY], ["harassment", "violence"]), ([UNNAMED], ["flagged"])],
)
async def test_moderation_returns_the_flagged_categories(
    server: TranscriptionServer,
    backend: OpenAICompatibleBackend,
    results: list[dict[str, object]],
    refused_for: list[str],
) -> None:
    server.response = web.json_response({"id": "modr-1", "model": "omni", "results": results})
    assert backend.can_moderate
    assert await backend.moderate(["Hello.", "Go away!"]) == refused_for
    assert server.forms == [{"model": "omni", "input": ["Hello.", "Go away!"]}]
    assert server.keys == ["Bearer sk-a"]


@pytest.mark.parametrize("text", ["no JSON", "{}", '{"results": []}', '{"results": [{}]}'])
async def test_moderation_without_a_verdict_is_an_error(
    server: TranscriptionServer, backend: OpenAICompatibleBackend, text: str
) -> None:
    server.response = web.Response(text=text)
    with pytest.raises(BackendUnavailable, match="acme"):
        await backend.moderate(["Hello."])


async def test_service_without_special_models_cannot_transcribe_or_moderate() -> None:
    settings = OpenAISettings.model_validate({"base_url": "http://127.0.0.1:9/v1"})
    backend = OpenAICompatibleBackend(settings, "acme")
    assert not backend.can_transcribe
    assert not backend.can_moderate
    await backend.close()

"""The HTTP API of llama.cpp's server: the connection, the request body, and the responses."""

from collections.abc import Mapping

import msgspec
from typing_extensions import override

from bot.backends.chat_completions.request import HttpConnection, raise_for_status
from bot.backends.llama_cpp.engines.engine import IMAGE_PLACEHOLDER, GenerationRequest
from bot.runtime.http.client import HttpClient, HttpResponse
from bot.templates.control_tokens import break_control_tokens

_MIN_SHIFT_TOKENS = 32  # in one run


class ServerConnection(HttpConnection):
    """Requests to a server on this machine."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    @override
    async def post(
        self,
        path: str,
        body: Mapping[str, object],
        deadline: float,
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        data = msgspec.json.encode(body)
        response = await self._client.request("POST", path, data, deadline, headers=headers)
        await raise_for_status(response, deadline)
        return response


def to_wire(request: GenerationRequest, model: str, media_marker: str = "") -> dict[str, object]:
    """Make the body for `/completions`: the prompt as token ids.

    A prompt with images is sent as text, in which the server's `media_marker` stands for each.
    """
    body: dict[str, object] = {
        "stream_options": {"include_usage": True},
        **request.sampling,
        "stop": list(request.stop),
        # The server renders a control token as text only on request, and finds no stop without it.
        "preserved_tokens": list(dict.fromkeys([*request.stop, *request.preserved_tokens])),
        "model": model,
        "prompt": _multimodal_prompt(request, media_marker)
        if request.images
        else list(request.prompt_ids),
        "cache_prompt": True,
        "stream": True,
    }
    if request.max_output_tokens is not None:
        body["max_tokens"] = request.max_output_tokens
    if request.slot is not None:
        body["id_slot"] = request.slot
        # Where the oldest turns were dropped, the tokens after them are shifted instead of decoded
        # again. Their keys and values still depend on the dropped turns, so that nobody but their
        # own conversation may use them.
        body["n_cache_reuse"] = _MIN_SHIFT_TOKENS if request.can_shift else 0
    return body


def _multimodal_prompt(request: GenerationRequest, media_marker: str) -> dict[str, object]:
    text = break_control_tokens(request.text, [media_marker]).replace(
        IMAGE_PLACEHOLDER, media_marker
    )
    return {"prompt_string": text, "multimodal_data": list(request.images)}


class TokenizeResponse(msgspec.Struct):
    """Of `/tokenize`."""

    tokens: list[int]


class DetokenizeResponse(msgspec.Struct):
    """Of `/detokenize`."""

    content: str


class SlotInfo(msgspec.Struct):
    """An item of `/slots`."""

    n_ctx: int


class ServerProps(msgspec.Struct):
    """Of `/props`."""

    media_marker: str


class SaveSlotResponse(msgspec.Struct):
    """Of `/slots/N?action=save`."""

    n_saved: int


class RestoreSlotResponse(msgspec.Struct):
    """Of `/slots/N?action=restore`."""

    n_restored: int

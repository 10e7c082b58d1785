"""Turn speech into text with a service that has OpenAI's transcriptions API."""

import re
import secrets
from functools import partial

import msgspec

from bot.backends.chat_completions import errors
from bot.backends.chat_completions.connections.key_rotation import KeyRotation
from bot.backends.chat_completions.connections.pooled_connection import post_and_read
from bot.backends.chat_completions.errors import Endpoint, RequestFailed
from bot.backends.openai_compatible.connection import OpenAIConnection
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.errors import BackendUnavailable
from bot.ports import Clock

_TIMEOUT_SECONDS = 60.0
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_DEFAULT_NAME = "voice.ogg"


class _Transcription(msgspec.Struct):
    text: str


class TranscriptionService:
    """A client with connections of its own: what it sends is no JSON."""

    def __init__(self, settings: OpenAISettings, endpoint: Endpoint, clock: Clock) -> None:
        self._path = settings.request_path("/audio/transcriptions", settings.transcription_model)
        self._model = settings.transcription_model or ""
        self._endpoint = endpoint
        self._boundary = secrets.token_hex(16)  # nobody can have it in a file
        content_type = f"multipart/form-data; boundary={self._boundary}"
        self._connection = KeyRotation(
            partial(OpenAIConnection, settings, content_type=content_type), settings, clock
        )

    async def transcribe(self, name: str, audio: bytes) -> str:
        """Return what is said in an audio file; raises `BackendUnavailable`."""
        try:
            body = await self._post(self._form(name, audio))
            return msgspec.json.decode(body, type=_Transcription).text.strip()
        except RequestFailed as error:
            raise BackendUnavailable(str(error)) from None
        except TimeoutError:
            reason = f"{self._endpoint} took over {_TIMEOUT_SECONDS:.0f} s"
            raise BackendUnavailable(reason) from None
        except msgspec.DecodeError:
            raise BackendUnavailable(str(errors.malformed(self._endpoint, "no text"))) from None

    async def close(self) -> None:
        """Close all connections."""
        await self._connection.close()

    def _form(self, name: str, audio: bytes) -> bytes:
        file_name = _UNSAFE.sub("_", name)[-60:] or _DEFAULT_NAME
        parts = [
            (b'name="model"', self._model.encode()),
            (b'name="response_format"', b"json"),
            (f'name="file"; filename="{file_name}"'.encode(), audio),
        ]
        mark = b"--" + self._boundary.encode()
        lines = [
            mark + b"\r\nContent-Disposition: form-data; " + head + b"\r\n\r\n" + value + b"\r\n"
            for head, value in parts
        ]
        return b"".join(lines) + mark + b"--\r\n"

    async def _post(self, body: bytes) -> bytes:
        return await post_and_read(
            self._connection,
            self._path,
            body,
            _TIMEOUT_SECONDS,
            self._endpoint,
            self._model,
        )

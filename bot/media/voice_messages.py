"""Transcribe voice messages with a provider that supports it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

import structlog

from bot.chat.incoming import IncomingMessage, MediaItem, MediaKind, to_storable_text
from bot.errors import BackendUnavailable, PlatformError
from bot.media.attachment_reader import Download
from bot.ports import Backend
from bot.telemetry.secret_masker import mask_pasted_tokens

_log = structlog.get_logger(__name__)
_MAX_AUDIO_BYTES = 10 * 1024 * 1024
_MAX_TRANSCRIPTS = 3


class VoiceTranscriber:
    """Transcribes voice messages; `is_admitted` returns False if the author is over the limit."""

    def __init__(
        self,
        download: Download,
        backends: Mapping[str, Backend],
        is_admitted: Callable[[IncomingMessage], Awaitable[bool]] | None = None,
    ) -> None:
        self._download = download
        self._backends = backends
        self._is_admitted = is_admitted

    async def transcribe(self, message: IncomingMessage, provider: str) -> IncomingMessage:
        """Replace a message's voice attachments with their text, preferably using `provider`."""
        kinds = {item.kind for item in message.attachments}
        if message.wake is None or MediaKind.VOICE not in kinds:
            return message
        backends = filter(None, [self._backends.get(provider), *self._backends.values()])
        backend = next((backend for backend in backends if backend.can_transcribe), None)
        if backend is None or not (self._is_admitted is None or await self._is_admitted(message)):
            return message
        transcripts: list[str] = []
        other_attachments: list[MediaItem] = []
        for item in message.attachments:
            is_transcribable = (
                item.kind is MediaKind.VOICE and item.source and len(transcripts) < _MAX_TRANSCRIPTS
            )
            transcript = await self._transcribe(backend, message, item) if is_transcribable else ""
            if transcript:
                transcripts.append(transcript)
            else:
                other_attachments.append(item)
        texts = [message.text, *transcripts] if message.text else transcripts
        return replace(message, text="\n".join(texts), attachments=tuple(other_attachments))

    async def _transcribe(self, backend: Backend, message: IncomingMessage, item: MediaItem) -> str:
        if item.size is not None and item.size > _MAX_AUDIO_BYTES:
            return ""
        try:
            audio = await self._download(message.address, item, _MAX_AUDIO_BYTES + 1)
            if len(audio) > _MAX_AUDIO_BYTES:
                return ""
            transcript = await backend.transcribe(item.name or "voice.ogg", audio)
        except (PlatformError, BackendUnavailable, TimeoutError) as error:
            _log.warning("voice_not_transcribed", reason=str(error) or "it took too long")
            return ""
        return mask_pasted_tokens(to_storable_text(transcript))

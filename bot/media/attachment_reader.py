"""Read attachments: download, convert in a child process, and decode."""

import asyncio
import base64
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import structlog

from bot.chat.incoming import Address, IncomingMessage, MediaItem, MediaKind, to_storable_text
from bot.chat.prompt import Image
from bot.chat.session import (
    MAX_TEXT_FILE_BYTES,
    NO_FILES,
    READABLE_KINDS,
    AttachedFiles,
    AttachedText,
    UnreadFile,
    clean_file_name,
)
from bot.errors import PlatformError, TroupeError
from bot.extras import is_missing
from bot.media.fetching import FetchFailed, FetchRefused
from bot.media.text_decoding import decode_text
from bot.runtime.operating_system import OWN_SESSION_OPTIONS, minimal_environment
from bot.telemetry.secret_masker import mask_pasted_tokens
from bot.texts.text import Text, translatable

_log = structlog.get_logger(__name__)
_MAX_FILE_BYTES = 10 * 1024 * 1024
_MAX_FILES = 10
_TIMEOUT_SECONDS = 30.0  # for all files of a message together, because its answer waits
_PICTURE_SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"BM")

_TOO_LARGE_REASON = translatable("it is larger than 10 MiB")
_TOO_MANY_FILES_REASON = translatable("I read at most 10 files per message")
_DOWNLOAD_FAILED_REASON = translatable("it could not be downloaded")
_DAMAGED_REASON = translatable("it is damaged, or too large when unpacked")
_UNKNOWN_KIND_REASON = translatable("I can only read pictures, text files and PDFs")
_UNKNOWN_ENCODING_REASON = translatable("please save it as UTF-8")
_NO_TEXT_REASON = translatable("it contains no text")
_NOT_INSTALLED_REASON = translatable("I'm not set up to read this kind of file")
_NOT_PUBLIC_ADDRESS_REASON = translatable("I'm not allowed to download files from its address")
_PICTURE_URL_PATTERN = re.compile(
    r"https?://[^\s<>\"|]+\.(?:png|jpe?g|gif|webp|bmp)(?:\?[^\s<>\"|)]*)?(?![\w/])", re.IGNORECASE
)

Download: TypeAlias = Callable[[Address, MediaItem, int], Awaitable[bytes]]
"""Downloads an attachment, up to a number of bytes; raises `PlatformError`."""

Fetch: TypeAlias = Callable[[str, int], Awaitable[bytes]]
"""Downloads the file at a URL, up to a number of bytes; raises `FetchFailed`."""

_Loader: TypeAlias = Callable[[MediaItem, int], Awaitable[bytes]]
ConversionKind: TypeAlias = Literal["picture", "pdf", "card"]
_CONVERSION_TIMEOUT_SECONDS = 20.0  # wall-clock time; the child limits its own CPU time
_CARD_TIMEOUT_SECONDS = 60.0  # longer, because no answer waits for a card
_conversion_slots = asyncio.Semaphore(2)


class AttachmentReader:
    """Reads the files of messages: `download` gets attachments, `fetch` gets linked pictures."""

    def __init__(self, download: Download, fetch: Fetch | None = None) -> None:
        self._download = download
        self._fetch = fetch

    async def read(self, message: IncomingMessage, *, reads_images: bool) -> AttachedFiles:
        """Read the files of a message and of its quote; read pictures only if `reads_images`."""
        message_files = (*message.earlier_files, *message.repeated_files, *message.attachments)
        pictures: list[MediaItem] = []
        if reads_images and self._fetch is not None and "://" in message.text:
            picture_urls = dict.fromkeys(_PICTURE_URL_PATTERN.findall(message.text))
            pictures = [MediaItem(MediaKind.IMAGE, url, source=url) for url in picture_urls]
        if not message_files and not pictures and not (message.quote and message.quote.attachments):
            return NO_FILES
        files = _FileCollector(partial(self._download, message.address), reads_images=reads_images)
        deadline = asyncio.get_running_loop().time() + _TIMEOUT_SECONDS
        await files.read(message_files, deadline)
        if (fetch := self._fetch) is not None:
            await files.read(pictures, deadline, lambda item, limit: fetch(item.source, limit))
        unread_files = tuple(files.unread_files)
        if message.quote:
            await files.read(message.quote.attachments, deadline)
        return AttachedFiles(tuple(files.images), tuple(files.texts), unread_files)


class _FileCollector:
    def __init__(self, download: _Loader, *, reads_images: bool) -> None:
        self.images: list[Image] = []
        self.texts: list[AttachedText] = []
        self.unread_files: list[UnreadFile] = []
        self._download = download
        self._reads_images = reads_images
        self._remaining_file_count = _MAX_FILES

    async def read(
        self, items: Sequence[MediaItem], deadline: float, load_item: _Loader | None = None
    ) -> None:
        """Load files, with `load_item` if given, and collect their contents."""
        for item in items:
            is_skipped_picture = item.kind is MediaKind.IMAGE and not self._reads_images
            if item.kind not in READABLE_KINDS or is_skipped_picture or not item.source:
                self.unread_files.append(UnreadFile(item, None))
            elif reason := await self._read_item(item, deadline, load_item or self._download):
                self.unread_files.append(UnreadFile(item, reason))

    async def _read_item(self, item: MediaItem, deadline: float, load_item: _Loader) -> Text | None:
        if self._remaining_file_count == 0:
            return _TOO_MANY_FILES_REASON
        self._remaining_file_count -= 1
        if item.size is not None and item.size > _MAX_FILE_BYTES:
            return _TOO_LARGE_REASON
        try:
            async with asyncio.timeout_at(deadline):
                data = await load_item(item, _MAX_FILE_BYTES + 1)
                if len(data) > _MAX_FILE_BYTES:
                    return _TOO_LARGE_REASON
                return await self._add_content(item, data)
        except ConversionFailed as error:
            _log.info("file_not_read", reason=str(error))
            return _DAMAGED_REASON
        except FetchRefused:
            return _NOT_PUBLIC_ADDRESS_REASON
        except (PlatformError, FetchFailed, TimeoutError) as error:
            _log.warning("file_not_downloaded", reason=str(error) or "it took too long")
            return _DOWNLOAD_FAILED_REASON

    async def _add_content(self, item: MediaItem, data: bytes) -> Text | None:
        if data.startswith(_PICTURE_SIGNATURES) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP"):
            if self._reads_images:
                if is_missing("PIL"):
                    return _NOT_INSTALLED_REASON
                encoded_jpeg = base64.b64encode(await convert_in_child("picture", data)).decode()
                self.images.append(Image(f"data:image/jpeg;base64,{encoded_jpeg}"))
                return None
            return _UNKNOWN_KIND_REASON
        if data.startswith(b"%PDF-"):
            if is_missing("pypdf"):
                return _NOT_INSTALLED_REASON
            data = await convert_in_child("pdf", data)
        elif item.kind is MediaKind.IMAGE:
            return _DAMAGED_REASON
        text = decode_text(data, MAX_TEXT_FILE_BYTES)
        if text is None:
            return _UNKNOWN_KIND_REASON if b"\0" in data else _UNKNOWN_ENCODING_REASON
        if not text.strip():
            return _NO_TEXT_REASON
        is_cut = len(data) > MAX_TEXT_FILE_BYTES
        safe_text, name = mask_pasted_tokens(to_storable_text(text)), clean_file_name(item.name)
        self.texts.append(AttachedText(name, safe_text, is_cut))
        return None


_PACKAGE_PARENT_FOLDER = Path(__file__).resolve().parents[2]


class ConversionFailed(TroupeError):
    """A file is damaged, too large when unpacked, or not of the kind that it claims to be."""


async def convert_in_child(kind: ConversionKind, data: bytes) -> bytes:
    """Convert a file to JPEG, text or preset JSON in a child process; raises `ConversionFailed`."""
    module, max_seconds = "bot.media.conversion_child", _CONVERSION_TIMEOUT_SECONDS
    if kind == "card":
        module, max_seconds = "bot.media.card_child", _CARD_TIMEOUT_SECONDS
    async with _conversion_slots:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-s", "-m", module, kind),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=minimal_environment(_PACKAGE_PARENT_FOLDER),
            **OWN_SESSION_OPTIONS,
        )
        try:
            async with asyncio.timeout(max_seconds):
                output, _ = await child.communicate(data)
        except TimeoutError:
            raise ConversionFailed(f"reading a {kind} took more than {max_seconds:.0f} s") from None
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
    if child.returncode != 0:
        _log.info("file_not_converted", kind=kind, exit_code=child.returncode)
        raise ConversionFailed(f"cannot read a {kind} (exit code {child.returncode})")
    return output

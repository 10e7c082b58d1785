"""A platform for Troupe: write FOLDER/alice/1.txt; the answer is a .md file beside it.

Set TROUPE_PLUGINS=filedrop and TROUPE_FILEDROP__FOLDER=/srv/drop.
"""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field

from bot.chat.incoming import Address, IncomingMessage, Person, WakeReason
from bot.chat.outgoing import Limits, MessageContent, MessageSearch, OutgoingMessage
from bot.errors import MessageNotFound
from bot.platforms.local_platform import LocalPlatform
from bot.platforms.spec import PlatformContext, PlatformSettings, PlatformSpec
from bot.ports import Intake, Surface

TROUPE_API = 1


class FileDropSettings(PlatformSettings):
    folder: Path | None = Field(None, description="The folder that contains each person's folder.")
    is_configured = property(lambda self: self.folder is not None)


class FileDropSurface(Surface):
    """Each message is a file named after its nonce, so a repeated send changes nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def limits(self, address: Address) -> Limits:
        return Limits(1_000_000, "characters", seconds_between_edits=1, typing_seconds=0)

    async def send(self, message: OutgoingMessage) -> str:
        self._path(message.address, message.nonce).write_text(message.content.text, "utf-8")
        return message.nonce

    async def edit(
        self, address: Address, message_id: str, content: MessageContent, **_given: object
    ) -> None:
        if not (file := self._path(address, message_id)).exists():
            raise MessageNotFound(message_id)
        file.write_text(content.text, "utf-8")

    async def delete(self, address: Address, message_id: str) -> None:
        self._path(address, message_id).unlink(missing_ok=True)

    async def find(self, message: OutgoingMessage, search: MessageSearch) -> str | None:
        return message.nonce if self._path(message.address, message.nonce).exists() else None

    def _path(self, address: Address, message_id: str) -> Path:
        return self._folder / address.chat / f"{message_id}.md"


class FileDrop(LocalPlatform):
    name, account, is_operators = "filedrop", "a folder", False

    def __init__(self, settings: FileDropSettings, _context: PlatformContext) -> None:
        self._folder = settings.folder or Path()
        self.surface = FileDropSurface(self._folder)

    async def run(self, intake: Intake) -> None:
        while True:
            for file in sorted(self._folder.glob("*/*.txt")):
                chat, text, now = file.parent.name, file.read_text("utf-8"), datetime.now(UTC)
                where, who = Address("filedrop", chat), Person(f"filedrop:{chat}", chat)
                key = f"{chat}/{file.name}:{file.stat().st_mtime_ns}"
                message = IncomingMessage(
                    where, key, None, who, text, now, WakeReason.DM, (where.lane,)
                )
                await intake.receive([message], {})  # the intake ignores files it already knows
                file.rename(file.with_suffix(".read"))
            await asyncio.sleep(0.2)


_FACTORY = "filedrop_platform:FileDrop"
FILEDROP = PlatformSpec(kind="filedrop", settings=FileDropSettings, factory=_FACTORY)

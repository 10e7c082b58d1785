"""Test the line-based terminal platform: its input, its output, and several people."""

import asyncio
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bot.chat.incoming import Address, WakeReason
from bot.chat.outgoing import Attachment, MessageContent, OutgoingMessage
from bot.errors import Refused
from bot.platforms.terminal.platform import TerminalPlatform, TerminalSurface, read_lines
from tests.support.intake import FakeIntake
from tests.waiting import PATIENCE_SECONDS

CHANNEL = Address("terminal", "local")


class FakeService(FakeIntake):
    """A service that stores messages, and answers them once the platform waits for answers."""

    async def run(self, source: int | None) -> str:
        answered, screen = len(self.received), io.StringIO()

        async def wait_until_idle() -> None:
            nonlocal answered
            for one in self.received[answered:]:
                await send(platform.surface, f"You said {one.text}.", one.external_key[-8:])
            answered = len(self.received)

        platform = TerminalPlatform(wait_until_idle=wait_until_idle, input_fd=source, output=screen)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await platform.run(self)
        return screen.getvalue()


async def send(surface: object, text: str, nonce: str) -> str:
    assert isinstance(surface, TerminalSurface)
    return await surface.send(OutgoingMessage(CHANNEL, MessageContent(text), nonce=nonce))


def piped(text: bytes) -> int:
    source, sink = os.pipe()
    os.write(sink, text)
    os.close(sink)
    return source


def surface() -> tuple[TerminalSurface, io.StringIO]:
    screen = io.StringIO()
    return TerminalSurface(screen, "run"), screen


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (b"hello\n", "You said hello.\n"),
        (b"one\r\n\n  \ntwo", "You said one.\nYou said two.\n"),
        (b"/preset use nova\n/quit\nnever read\n", "You said /preset use nova.\n"),
    ],
)
async def test_piped_lines_are_answered_before_the_input_ends(given: bytes, shown: str) -> None:
    service = FakeService()
    assert await service.run(piped(given)) == shown
    is_command = service.received[0].wake is WakeReason.COMMAND
    assert is_command == given.startswith(b"/")


async def test_files_and_closed_input_are_read_to_the_end(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("from a file\n")
    for path, expected in ((str(file), "You said from a file.\n"), (os.devnull, "")):
        source = os.open(path, os.O_RDONLY)
        assert await FakeService().run(source) == expected
        os.close(source)
    assert [line async for line in read_lines(None)] == []


async def test_as_command_changes_the_author() -> None:
    service = FakeService()

    shown = await service.run(piped("/as Alice\nhi\n/as 王小明\n你好\n/as\n".encode()))

    assert [(one.author.id, one.author.name) for one in service.received] == [
        ("terminal:alice", "Alice"),
        ("terminal:王小明", "王小明"),
    ]
    assert all(one.wake is WakeReason.DM and one.author_is_admin for one in service.received)
    assert shown.splitlines()[0] == "Your name is 王小明. To change it, send /as NAME."


async def test_external_keys_differ_between_runs() -> None:
    service = FakeService()
    for _ in range(2):
        await service.run(piped(b"hello\nhello\n"))
    assert len({one.external_key for one in service.received}) == 4


async def test_long_lines_and_invalid_bytes_are_read(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"x" * 1_000_000 + b"\n\xff\xfe\n")
    with file.open("rb") as lines:
        lines_read = [line async for line in read_lines(lines.fileno())]

    assert [len(line) for line in lines_read] == [1_000_000, 2]
    assert lines_read[1] == "\ufffd\ufffd"


async def test_edit_prints_the_added_text_or_the_changed_message() -> None:
    surface_, screen = surface()
    first = await send(surface_, "Once", "n1")
    assert await send(surface_, "Once", "n1") == first, "the same nonce"
    for text in ("Once upon", "Once upon", "Once upon a time."):
        await surface_.edit(CHANNEL, first, MessageContent(text), interaction=None)
    assert screen.getvalue() == "Once upon a time."

    await surface_.edit(CHANNEL, first, MessageContent("Never"), interaction=None)
    await send(surface_, "Next", "n2")
    await surface_.edit(CHANNEL, first, MessageContent("Never"), interaction=None)
    await surface_.edit(CHANNEL, "of-an-earlier-run:1", MessageContent("Old"), interaction=None)
    surface_.end_line()
    assert screen.getvalue() == "Once upon a time.\nNever\nNext\nOld\n"


async def test_control_characters_are_removed() -> None:
    surface_, screen = surface()
    await send(surface_, "\x1b]0;title\x07\x1b[2Jred\ttab\r\nline\x9b1m", "n1")
    assert screen.getvalue() == "]0;title[2Jred\ttab\nline1m"


async def test_file_is_printed_once_after_its_text() -> None:
    surface_, screen = surface()
    file = Attachment("prompt-17.txt", "You are Nora.\x1b[2J\n")
    for _ in range(2):
        await surface_.send(OutgoingMessage(CHANNEL, MessageContent("Here."), "n1", file=file))
    assert screen.getvalue() == (
        "Here.\n--- prompt-17.txt ---\nYou are Nora.[2J\n--- end of prompt-17.txt ---"
    )


async def test_unencodable_characters_become_question_marks() -> None:
    raw = io.BytesIO()
    screen = io.TextIOWrapper(raw, encoding="latin-1")

    await send(TerminalSurface(screen, "run"), "Grüße, 王", "n1")

    assert raw.getvalue() == "Grüße, ?".encode("latin-1")


async def test_closed_output_is_refused() -> None:
    source, sink = os.pipe()
    os.close(source)
    screen = os.fdopen(sink, "w")

    with pytest.raises(Refused, match="cannot write to the output"):
        await send(TerminalSurface(screen, "run"), "Hello", "n1")
    with pytest.raises(BrokenPipeError):
        screen.close()


def test_process_exits_while_a_read_is_waiting() -> None:
    program = (
        "import asyncio; from bot.platforms.terminal.platform import read_lines\n"
        "async def main():\n"
        "    lines = asyncio.ensure_future(anext(read_lines(0)))\n"
        "    await asyncio.sleep(0.2)\n"
        "    lines.cancel()\n"
        "asyncio.run(main())\n"
    )
    source, sink = os.pipe()

    command = [sys.executable, "-c", program]
    done = subprocess.run(command, stdin=source, timeout=PATIENCE_SECONDS, check=False)

    os.close(source)
    os.close(sink)
    assert done.returncode == 0

"""Test the screen and the keys of the chat client in a terminal."""

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.output.vt100 import Vt100_Output
from typing_extensions import override

from bot.chat.incoming import Incoming, IncomingMessage
from bot.chat.outgoing import Attachment, MessageContent, OutgoingMessage
from bot.commands.handlers import COMMANDS
from bot.platforms.spec import PlatformContext
from bot.platforms.terminal.screen_platform import HISTORY_FILE, ScreenPlatform, create_platform
from tests.platforms.terminal.screen import (
    ALT_ENTER,
    CTRL_C,
    CTRL_D,
    TAB,
    UP,
    Terminal,
    open_terminal,
)
from tests.support.intake import FakeIntake
from tests.waiting import wait_until

STORY = "[Nora]\nOnce upon a time."


class FakeService(FakeIntake):
    """A service that answers messages from `answers` once `go_on` is set."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        super().__init__()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.growing = ""
        """The part of an answer that is shown while it waits for `go_on`."""
        self.platform: ScreenPlatform | None = None
        self._answers = answers
        self._open: list[IncomingMessage] = []
        self._stopped = False

    @override
    async def receive(self, messages: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        await super().receive(messages, cursors)
        for one in messages:
            if isinstance(one, IncomingMessage) and one.text == "/stop":
                self._stopped = True
                self.go_on.set()
            elif isinstance(one, IncomingMessage):
                self._open.append(one)

    async def wait_until_idle(self) -> None:
        while self._open:
            await self._answer(self._open.pop(0))

    async def _answer(self, message: IncomingMessage) -> None:
        text = self._answers.get(message.text, f"[Nora]\nYou said {message.text}.")
        self._stopped = False
        if self.growing and not self.go_on.is_set():
            sent = await self.send(self.growing, message.external_key)
            await self.go_on.wait()
            await self.edit(sent, self.growing if self._stopped else text)
            return
        await self.go_on.wait()
        await self.send(text, message.external_key)

    async def send(self, text: str, nonce: str, file: Attachment | None = None) -> str:
        assert self.platform is not None
        message = OutgoingMessage(
            self.received[-1].address, MessageContent(text), nonce=nonce, file=file
        )
        return await self.platform.surface.send(message)

    async def edit(self, message_id: str, text: str) -> None:
        assert self.platform is not None
        await self.platform.surface.edit(
            self.received[-1].address, message_id, MessageContent(text), interaction=None
        )


@asynccontextmanager
async def chatting(
    service: FakeService,
    terminal: Terminal,
    folder: Path | None = None,
    *,
    locale: str | None = None,
    renamed: str = "Your name is now alice.",
) -> AsyncIterator[asyncio.Task[None]]:
    """Chat as alice in a terminal; yield the platform's task."""
    context = PlatformContext(
        commands=COMMANDS,
        suggest_presets=lambda typed: [one for one in ("nora", "luna") if one.startswith(typed)],
        wait_until_idle=service.wait_until_idle,
        data_dir=folder,
        locale=locale,
    )
    with (
        os.fdopen(os.dup(terminal.theirs)) as keys,
        os.fdopen(os.dup(terminal.theirs), "w") as screen,
    ):
        output = Vt100_Output.from_pty(screen, term="xterm-256color")
        output.enable_cpr = False
        service.platform = ScreenPlatform(context, input_=Vt100Input(keys), output=output)
        task = asyncio.create_task(service.platform.run(service))
        terminal.enter("/as alice")
        await terminal.shows(renamed, "alice>")
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])


@pytest.fixture
def service() -> FakeService:
    return FakeService({"story": STORY})


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with open_terminal(60) as opened:
        yield opened


async def test_spinner_is_shown_before_the_answer(service: FakeService, terminal: Terminal) -> None:
    service.go_on.clear()
    async with chatting(service, terminal):
        terminal.enter("story")
        await terminal.shows_text(" s (Ctrl-C to stop)")
        service.go_on.set()
        await terminal.shows("alice> story", "Nora", "Once upon a time.", "alice>")
        assert "waiting for the answer" not in "\n".join(terminal.lines)


async def test_typed_text_stays_at_the_prompt_while_answers_are_printed(
    service: FakeService, terminal: Terminal
) -> None:
    service.go_on.clear()
    service.growing = "[Nora]\nOnce upon"
    async with chatting(service, terminal):
        terminal.enter("story")
        await terminal.shows("Nora", "Once upon", "alice>")
        terminal.press("and then?")
        await terminal.shows("Nora", "Once upon", "alice> and then?")
        terminal.enter("")
        await terminal.shows("Nora", "Once upon", "⏎ and then?", "alice>")
        service.go_on.set()
        await terminal.shows(
            *("alice> story", "Nora", "Once upon a time."),
            *("alice> and then?", "Nora", "You said and then?.", "alice>"),
        )


async def test_ctrl_c_stops_the_answer_and_a_second_one_ends_the_chat(
    service: FakeService, terminal: Terminal
) -> None:
    service.go_on.clear()
    service.growing = "[Nora]\nOnce upon"
    async with chatting(service, terminal) as task:
        terminal.enter("story")
        await terminal.shows("Nora", "Once upon", "alice>")
        terminal.press(CTRL_C)
        await wait_until(lambda: service.received[-1].text == "/stop")
        await terminal.shows("Once upon", "Press Ctrl-C again to end the chat.", "alice>")
        terminal.press(CTRL_C)
        await wait_until(task.done)
        task.result()


async def test_ctrl_c_clears_the_prompt(service: FakeService, terminal: Terminal) -> None:
    async with chatting(service, terminal) as task:
        terminal.press("half a")
        await terminal.shows("alice> half a")
        terminal.press(CTRL_C)
        await terminal.shows("Press Ctrl-C again to end the chat.", "alice>")
        terminal.enter("story")
        await terminal.shows("Once upon a time.", "alice>")
        terminal.press(CTRL_C)
        await terminal.shows("Press Ctrl-C again to end the chat.", "alice>")
        assert not task.done()
        assert service.texts == ["story"]


async def test_stop_command_takes_effect_immediately(
    service: FakeService, terminal: Terminal
) -> None:
    service.go_on.clear()
    service.growing = "[Nora]\nOnce upon"
    async with chatting(service, terminal):
        terminal.enter("story")
        await terminal.shows("Nora", "Once upon", "alice>")
        terminal.enter("next")
        terminal.enter("/stop")
        await terminal.shows("Once upon", "alice> next", "Nora", "You said next.", "alice>")
        assert service.texts == ["story", "/stop", "next"]


@pytest.mark.parametrize("end", ["/quit\r", CTRL_D])
async def test_chat_ends_after_all_questions_are_answered(
    service: FakeService, terminal: Terminal, end: str
) -> None:
    async with chatting(service, terminal) as task:
        terminal.press(f"one\rtwo\r{end}")
        await wait_until(task.done)
        task.result()
        assert terminal.lines[-3:] == ["alice> two", "Nora", "You said two."]


@pytest.mark.parametrize("growing", ["", "[Nora]\nOnce upon"])
async def test_closing_the_terminal_ends_the_chat(
    service: FakeService, terminal: Terminal, growing: str
) -> None:
    service.growing = growing
    with contextlib.suppress(OSError):  # of the test's own files, which cannot be flushed
        async with chatting(service, terminal) as task:
            if growing:
                service.go_on.clear()
                terminal.enter("story")
                await terminal.shows_text("Once upon")
            terminal.close()
            service.go_on.set()
            await wait_until(task.done)
    task.result()


async def test_message_can_have_several_lines(service: FakeService, terminal: Terminal) -> None:
    async with chatting(service, terminal):
        terminal.enter(f"one{ALT_ENTER}two")
        await terminal.shows_text("alice> one\ntwo\n")
        terminal.press("\x1b[200~three\r\nfour\x1b[201~")
        await terminal.shows_text("alice> three\n")
        terminal.enter("")
        await wait_until(lambda: len(service.received) == 2)
        assert service.texts == ["one\ntwo", "three\nfour"]


async def test_commands_and_presets_are_completed(service: FakeService, terminal: Terminal) -> None:
    async with chatting(service, terminal):
        terminal.press("/pre")
        await terminal.shows_text("choose who answers here")
        terminal.press(f"{TAB} us")
        await terminal.shows_text("make this preset answer")
        terminal.press(f"{TAB} lu")
        await wait_until(lambda: terminal.lines[-1].strip() == "luna")
        terminal.press(TAB)
        terminal.enter("")
        await wait_until(lambda: len(service.received) == 1)
        assert service.received[0].text == "/preset use luna"
        terminal.press("/qu")
        await terminal.shows_text("end this chat")


async def test_history_file_is_private(
    service: FakeService, terminal: Terminal, tmp_path: Path
) -> None:
    file = tmp_path / HISTORY_FILE
    async with chatting(service, terminal, tmp_path):
        terminal.enter("story")
        await terminal.shows("Once upon a time.", "alice>")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    async with chatting(service, terminal, tmp_path):
        terminal.press(UP)
        await terminal.shows("alice> /as alice")
        terminal.press(UP)
        await terminal.shows("alice> story")
        terminal.press(CTRL_C)
        terminal.enter("/forget")
        await terminal.shows_text("You said /forget.")
        terminal.press(UP)
        await terminal.shows("alice>")
    assert "story" not in file.read_text(encoding="utf-8")


async def test_control_characters_never_reach_the_terminal(
    service: FakeService, terminal: Terminal
) -> None:
    evil = "\x1b]0;CANARY\x07\x1b[2J\x9b31mred\x08\x7f"
    async with chatting(service, terminal):
        terminal.enter("story")
        await terminal.shows("Once upon a time.", "alice>")
        await service.send(f"[{evil}]\n{evil}\n\n```\n{evil}\n```\n", "n1")
        await service.send("a file", "n2", Attachment("prompt.txt", evil))
        await service.edit("earlier:1", f"{evil} edited")
        await terminal.shows_text("edited")
        for sequence in (b"\x1b]0;", b"\x1b[2J", b"\x9b", b"\x07", b"\x08", b"\x7f"):
            assert sequence not in terminal.raw


async def test_changed_message_is_printed_again(service: FakeService, terminal: Terminal) -> None:
    async with chatting(service, terminal):
        terminal.enter("story")
        await terminal.shows("Once upon a time.", "alice>")
        sent = await service.send("One.\n\nTwo.", "n1")
        assert await service.send("One.\n\nTwo.", "n1") == sent
        await service.edit(sent, "One.\n\nTwo.\n\nThree.\n")
        await service.send("Four.", "n2")
        await service.edit(sent, "ONE.\n\nTwo.")
        await terminal.shows("One.", "Two.", "Three.", "Four.", "ONE.", "Two.", "alice>")


async def test_chinese_fits_the_screen() -> None:
    said = "“你今天来得**很早**，”她说，hello world 给两个人各倒了一杯茶。港口的灯塔在夜里亮着。"
    service = FakeService({"你好": f"[诺拉]\n{said}"})
    with open_terminal(40) as terminal:
        async with chatting(service, terminal):
            terminal.enter("你好")
            await terminal.shows(
                *("alice> 你好", "诺拉", "“你今天来得很早，”她说，hello world"),
                *("给两个人各倒了一杯茶。港口的灯塔在夜里", "亮着。", "alice>"),
            )


async def test_chinese_texts_fit_into_sixty_columns() -> None:
    service = FakeService({"你好": "[诺拉]\n好。"})
    service.go_on.clear()
    renamed = "您现在的名字是alice。"
    with open_terminal(60) as terminal:
        async with chatting(service, terminal, locale="zh_CN.UTF-8", renamed=renamed):
            await terminal.shows_text(
                "请写消息。/help 列出命令，/as 名字 更改您的名字，/quit\n"
                "结束聊天。Alt-Enter 换行，Tab 补全命令，Ctrl-C 停止回答。\n"
            )
            terminal.enter("你好")
            await terminal.shows_text(" 秒（Ctrl-C 停止）")
            terminal.enter("再来一杯碧螺春，" * 9)
            await terminal.shows_text("⏎ 再来一杯碧螺春，再来一杯碧螺 …")
            service.go_on.set()
            await terminal.shows_text("You said\n再来一杯碧螺春")
            assert {one.locale for one in service.received} == {"zh_CN.UTF-8"}
            terminal.press("/qu")
            await terminal.shows_text("结束聊天")
            terminal.press(CTRL_C)
            await terminal.shows("再按一次 Ctrl-C 结束聊天。", "alice>")
            terminal.enter("/as")
            await terminal.shows("您的名字是alice；用 /as 名字 可以更改。", "alice>")
            await service.send("a file", "n1", Attachment("prompt.txt", "text"))
            await terminal.shows("--- prompt.txt ---", "text", "--- prompt.txt 结束 ---", "alice>")


async def test_end_of_an_answer_longer_than_the_screen_is_shown(service: FakeService) -> None:
    words = " ".join(f"word{number}" for number in range(500))
    with open_terminal(60, rows=10) as terminal:
        service.go_on.clear()
        service.growing = f"[Nora]\n{words}"
        async with chatting(service, terminal):
            terminal.enter("story")
            await terminal.shows_text("word499")
            assert "word1 " not in " ".join(terminal.lines)
            terminal.enter("/stop")
            await terminal.shows_text("word1 ")
            shown = " ".join(terminal.lines)
            assert all(shown.count(f"word{number} ") == 1 for number in range(499))


def test_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert create_platform(PlatformContext()) is None

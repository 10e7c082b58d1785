"""Forgotten words are nowhere in the process: all objects that the collector knows are searched."""

import gc
import secrets
from collections.abc import AsyncGenerator
from pathlib import Path

from typing_extensions import override

from bot.chat.prompt import Delta, Finish, FinishReason, GenerationEvent, Prompt
from bot.markup.styled_text import style_markdown
from bot.platforms.discord.markup import to_dialect
from bot.prompting.speakers import clean_name
from bot.prompting.text.confusables import skeleton
from tests.fakes import FakeBackend
from tests.turn.counted_service import RunningParts, running_parts


class EchoBackend(FakeBackend):
    """Answers with the newest message, and keeps nothing."""

    @override
    async def generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        yield Delta(f"You said {prompt.messages[-1].content}")
        yield Finish(FinishReason.STOP)


def holders_of(backwards: str) -> list[str]:
    """Describe what holds texts with a word, which is given backwards: nobody here has it."""
    gc.collect()
    word, found = backwards[::-1], []
    seen: set[int] = set()
    waiting = gc.get_objects()
    while waiting:
        one = waiting.pop()
        for each in gc.get_referents(one):
            if isinstance(each, str):
                if each is not word and word in each:
                    found.append(f"{type(one).__name__}: {str(one)[:200]}")
            elif isinstance(each, bytes):
                if word.encode() in each:
                    found.append(f"{type(one).__name__}: bytes")
            elif not gc.is_tracked(each) and id(each) not in seen:
                seen.add(id(each))
                waiting.append(each)
    return found


def forget_calls(service: RunningParts) -> None:
    """Clear what the chat and its calls show: that is the platform's, not ours."""
    surface = service.surface
    for kept in (surface.messages, surface.calls, surface.contents):
        kept.clear()


def render_everywhere(text: str) -> None:
    """Do with a text what platforms do."""
    style_markdown(f"**{text}**")
    to_dialect(f"| {text} |\n|---|\n| {text} |")
    clean_name(text)
    skeleton(text)


async def test_forgotten_words_are_in_no_object_of_the_process(tmp_path: Path) -> None:
    backwards = f"canary{secrets.token_hex(4)}"[::-1]
    async with running_parts(tmp_path, EchoBackend()) as service:
        for number in range(4):
            text = f"{number}: ä {backwards[::-1]}"
            await service.answer(f"5:{number}", None, text=text)
            del text
            render_everywhere(f"{backwards[::-1]} {number}")
        forget_calls(service)
        assert holders_of(backwards) != []
        await service.answer("5:9", None, text="/forget")
        forget_calls(service)
        assert holders_of(backwards) == []

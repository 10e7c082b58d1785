"""A busy machine makes rendering slower, but never changes a prompt."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from bot.chat.prompt import Message, TemplateChoice
from bot.errors import TemplateError
from bot.templates.renderer import ModelTemplate, RenderedPrompt, Renderer
from tests.templates.published_templates import published_templates

TEMPLATES = 40
BUSY_LOOPS = 4
LONG_CHAT = [
    Message("system", "You are Nora."),
    *(
        Message(("user", "assistant")[turn % 2 == 0], f"{turn} " + "word " * 200)
        for turn in range(100)
    ),
]


@contextmanager
def busy_machine() -> Iterator[None]:
    """Pin busy loops, and all processes started from here, to a single CPU."""
    with ExitStack() as stack:
        if sys.platform == "linux":
            stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        for _ in range(BUSY_LOOPS):
            loop = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
            stack.callback(loop.wait)
            stack.callback(loop.kill)
        yield


async def render_all() -> list[RenderedPrompt | str]:
    """Render all templates with a new pool, so that they are compiled and probed again."""
    results: list[RenderedPrompt | str] = []
    templates = sorted(
        # those of vision models loop over the characters of a text, which takes seconds here
        (each for name, each in published_templates().items() if "Vision" not in name),
        key=lambda template: len(template.source),
    )
    async with Renderer() as renderer:
        for template in templates[-TEMPLATES:]:  # the longest ones are the slowest
            choice = TemplateChoice(source=template.source)
            tokens = ModelTemplate(None, template.bos_token, template.eos_token)
            try:
                results.append(await renderer.render(LONG_CHAT, choice, tokens))
            except TemplateError as error:
                results.append(str(error))
    return results


@pytest.mark.service
async def test_prompts_render_the_same_under_cpu_load() -> None:
    quiet = await render_all()
    with busy_machine():
        loaded = await render_all()

    assert loaded == quiet
    assert sum(isinstance(result, RenderedPrompt) for result in quiet) >= TEMPLATES - 5

"""The render worker: hostile templates stop, everything else goes on."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bot.errors import TemplateError
from bot.templates import JinjaTemplate
from bot.templates.capabilities import ALL_CAPABILITIES
from bot.templates.render_process.pool import RenderProcessPool
from bot.templates.text_spans import pieces
from tests.attacks import attacks, expanded

HI = [{"role": "user", "content": "Hi"}]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FOR_EVER = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
async def worker() -> AsyncIterator[RenderProcessPool]:
    async with RenderProcessPool(processes=1) as running:
        yield running


async def test_it_renders_what_the_template_itself_would(worker: RenderProcessPool) -> None:
    source = CHATML + "{{ bos_token }}{{ strftime_now('%Y') }}{{ mood }}{{ tools[0].name }}"
    source += "{{ 'a b' | wordwrap(1) | striptags }}{% set ä = [1, 2] | join %}{{ ä }}"
    options: dict[str, Any] = {
        "add_generation_prompt": True,
        "now": datetime(2026, 1, 15, tzinfo=UTC),
        "mood": "glad \ud83d",
        "tools": [{"name": "clock"}],
    }

    prompt = await worker.render(source, HI, bos_token="<s>", **options)

    assert prompt == JinjaTemplate(source, bos_token="<s>").render(HI, **options)


async def test_a_refusal_keeps_the_template_s_words(worker: RenderProcessPool) -> None:
    with pytest.raises(TemplateError) as caught:
        await worker.render("{{ raise_exception('System role not supported') }}", HI)

    assert str(caught.value) == "System role not supported"


async def test_after_a_template_was_stopped_the_next_one_is_rendered(
    worker: RenderProcessPool,
) -> None:
    with pytest.raises(TemplateError, match="stopped: it took more than 250 ms"):
        await worker.render(FOR_EVER, HI)

    assert await worker.render("{{ messages[0].content }}", HI) == "Hi"


async def test_a_template_that_was_stopped_three_times_is_not_tried_again(
    worker: RenderProcessPool,
) -> None:
    for _ in range(3):
        with pytest.raises(TemplateError, match="took more than"):
            await worker.render(FOR_EVER, HI)

    with pytest.raises(TemplateError, match="was stopped 3 times"):
        await worker.render(FOR_EVER, HI)


async def test_a_cancelled_request_does_not_answer_the_next(worker: RenderProcessPool) -> None:
    abandoned = asyncio.create_task(worker.render(FOR_EVER, HI))
    await asyncio.sleep(0.02)
    abandoned.cancel()
    with pytest.raises(asyncio.CancelledError):
        await abandoned

    assert await worker.render("next", HI) == "next"


async def test_it_cuts_out_what_people_wrote(worker: RenderProcessPool) -> None:
    messages = [{"role": "user", "content": "<|im_end|>"}]

    assert await worker.pieces(CHATML, messages) == pieces(JinjaTemplate(CHATML), messages)


async def test_it_finds_out_what_a_template_accepts(worker: RenderProcessPool) -> None:
    without_system = CHATML.replace("%}<|im", "if m.role != 'system' %}<|im", 1)

    assert await worker.capabilities(CHATML) == ALL_CAPABILITIES
    assert not (await worker.capabilities(without_system)).system


async def test_many_at_once_get_their_own_answers(worker: RenderProcessPool) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(worker.render(f"{{{{ {n} }}}}", HI)) for n in range(50)]

    assert [task.result() for task in tasks] == [str(n) for n in range(50)]


async def test_too_much_source_and_too_much_output_are_refused(worker: RenderProcessPool) -> None:
    with pytest.raises(TemplateError, match="longer than 64 KiB"):
        await worker.render("x" * 65_537, HI)
    with pytest.raises(TemplateError, match="it may make 1,048,576"):
        await worker.render("{{ 'x' * 1048577 }}", HI)


async def test_the_process_has_no_files_little_memory_and_none_of_our_secrets(
    worker: RenderProcessPool,
) -> None:
    assert await worker.render("{{ 1 | pprint }}", HI) == "1"

    limits, environment = limits_and_environment(worker.process_ids[0])
    assert re.search(r"Max open files +3 +3 ", limits)
    assert re.search(r"Max address space +201326592 +201326592 ", limits)
    assert environment == ["PYTHONPATH"]


def limits_and_environment(pid: int) -> tuple[str, list[str]]:
    limits = Path(f"/proc/{pid}/limits").read_text(encoding="utf-8")
    environment = Path(f"/proc/{pid}/environ").read_text(encoding="utf-8")
    return limits, [entry.partition("=")[0] for entry in environment.split("\0") if entry]


def test_the_process_dies_with_its_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)

    deadline = time.monotonic() + 5
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(child)


PARENT = """
import asyncio
from bot.templates.render_process.pool import RenderProcessPool

async def main():
    async with RenderProcessPool(processes=1) as worker:
        print(worker.process_ids[0], flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return " Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.parametrize(
    "expression",
    [
        "range",
        "[dict]",
        "self",
        "messages | map('upper')",
        "dict | string",
        "'' ~ dict",
        "'%s' % dict",
        "'%s' | format(dict)",
        "'{a}'.format(a=dict)",
        "'{0.get}'.format(messages[0])",
        "[dict] | map('string') | join",
        "messages | join(attribute='get')",
        "raise_exception(namespace)",
    ],
)
async def test_a_template_prints_data_and_nothing_of_the_engine(
    worker: RenderProcessPool, expression: str
) -> None:
    with pytest.raises(TemplateError, match="prints texts and data"):
        await worker.render("{{ " + expression + " }}", HI)


async def test_an_error_tells_nothing_of_the_engine(worker: RenderProcessPool) -> None:
    with pytest.raises(TemplateError, match=r"^ValueError: an object is not in list$"):
        await worker.render("{{ messages.index(range) }}", HI)


async def test_every_hostile_template_is_contained(worker: RenderProcessPool) -> None:
    messages = [{"role": "user", "content": "my secret BOT_TOKE"}] * 20
    for attack in attacks("ssti", "template_dos"):
        text = await outcome(worker, expanded(attack["input"]), messages)

        forbidden = attack["oracle"].get("output_must_not_match", [])
        assert not [p for p in forbidden if re.search(p, text)], attack["id"]
        assert messages == [{"role": "user", "content": "my secret BOT_TOKE"}] * 20, attack["id"]
    assert await worker.render("alive", HI) == "alive"


async def outcome(worker: RenderProcessPool, source: str, messages: list[dict[str, str]]) -> str:
    async with asyncio.timeout(1):  # the promise is 0.3 s for a render; a new process is on top
        try:
            return await worker.render(source, messages)
        except TemplateError as error:
            return str(error)


@pytest.mark.soak  # a figure, not a behaviour: it wants a quiet machine
async def test_one_message_costs_less_than_a_millisecond_and_two_hundred_less_than_fifteen(
    worker: RenderProcessPool,
) -> None:
    many = [{"role": "user", "content": "x" * 480}] * 200
    for messages, limit_seconds in ((HI, 0.001), (many, 0.015)):
        times = []
        for _ in range(30):
            began = time.perf_counter()
            await worker.pieces(CHATML, messages)
            times.append(time.perf_counter() - began)
        assert sorted(times)[len(times) // 2] < limit_seconds

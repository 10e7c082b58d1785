"""Hostile templates are stopped, while all others keep rendering."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bot.errors import RenderUnavailable, TemplateError, TemplateLimitExceeded
from bot.templates import JinjaTemplate
from bot.templates.capabilities import detect_capabilities
from bot.templates.control_tokens import render_spans
from bot.templates.render_pool import RenderProcessPool
from tests.attacks import attacks, expanded
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.slow

HI = [{"role": "user", "content": "Hi"}]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FUNCTIONS = Path(__file__).with_name("functions.txt").read_text("utf-8")
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
async def pool() -> AsyncIterator[RenderProcessPool]:
    async with RenderProcessPool(process_count=1) as running:
        yield running


async def test_pool_renders_the_same_prompt_as_the_template(pool: RenderProcessPool) -> None:
    source = CHATML + "{{ bos_token }}{{ strftime_now('%Y') }}{{ mood }}{{ tools[0].name }}"
    source += "{{ 'a b' | wordwrap(1) | striptags }}{% set ä = [1, 2] | join %}{{ ä }}"
    options: dict[str, Any] = {
        "add_generation_prompt": True,
        "now": datetime(2026, 1, 15, tzinfo=UTC),
        "mood": "glad \ud83d",
        "tools": [{"name": "clock"}],
    }

    prompt = await pool.render(source, HI, bos_token="<s>", **options)

    assert prompt == JinjaTemplate(source, bos_token="<s>").render(HI, **options)


TOO_MUCH = {
    ENDLESS: "stopped: it used more than 250 ms of CPU time",
    "{{ ('x' * 300000000) | length }}": "needs more than 192 MiB of memory",
}


@pytest.mark.parametrize("costly", TOO_MUCH)
async def test_template_stopped_three_times_is_rejected(
    pool: RenderProcessPool, costly: str
) -> None:
    for _ in range(3):
        with pytest.raises(TemplateLimitExceeded, match=TOO_MUCH[costly]):
            await pool.render(costly, HI)
        assert await pool.render("{{ messages[0].content }}", HI) == "Hi"

    with pytest.raises(TemplateError, match="was stopped 3 times"):
        await pool.render(costly, HI)


async def test_successful_render_resets_the_count_of_stopped_renders(
    pool: RenderProcessPool,
) -> None:
    source = "{% if messages[0].content == 'Loop' %}" + ENDLESS + "{% endif %}done"
    for _ in range(2):
        for _ in range(2):
            with pytest.raises(TemplateLimitExceeded, match="used more than"):
                await pool.render(source, [{"role": "user", "content": "Loop"}])
        assert await pool.render(source, HI) == "done"


async def test_waiting_for_the_cpu_does_not_count_against_the_limit(
    pool: RenderProcessPool,
) -> None:
    [pid] = pool.process_ids
    os.kill(pid, signal.SIGSTOP)
    rendering = asyncio.create_task(pool.render(CHATML, HI))
    await asyncio.sleep(1)
    assert not rendering.done()
    os.kill(pid, signal.SIGCONT)

    assert await rendering == JinjaTemplate(CHATML).render(HI)
    assert pool.process_ids == (pid,)


async def test_request_is_repeated_when_its_process_is_killed(pool: RenderProcessPool) -> None:
    for _ in range(4):  # one more than the strikes of a template
        [pid] = pool.process_ids
        os.kill(pid, signal.SIGSTOP)
        rendering = asyncio.create_task(pool.render(CHATML, HI))
        await asyncio.sleep(0.05)
        os.kill(pid, signal.SIGKILL)

        assert await rendering == JinjaTemplate(CHATML).render(HI)


async def test_unresponsive_render_process_is_replaced(
    pool: RenderProcessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bot.templates.render_pool.ANSWER_TIMEOUT_SECONDS", 0.0)
    with pytest.raises(RenderUnavailable, match="did not respond for 0 s; try again"):
        await pool.render(CHATML, HI)
    monkeypatch.undo()

    assert await pool.render(CHATML, HI) == JinjaTemplate(CHATML).render(HI)


@pytest.mark.parametrize("costly", TOO_MUCH)
async def test_probe_that_exceeds_a_limit_raises_an_error(
    pool: RenderProcessPool, costly: str
) -> None:
    source = "{% if messages[0].role == 'system' %}" + costly + "{% endif %}" + CHATML

    with pytest.raises(TemplateLimitExceeded):
        await detect_capabilities(partial(pool.render, source))


async def test_result_of_a_cancelled_request_is_discarded(pool: RenderProcessPool) -> None:
    abandoned = asyncio.create_task(pool.render(ENDLESS, HI))
    await asyncio.sleep(0.02)
    abandoned.cancel()
    with pytest.raises(asyncio.CancelledError):
        await abandoned

    assert await pool.render("next", HI) == "next"


async def test_pool_renders_the_same_spans_as_the_template(pool: RenderProcessPool) -> None:
    messages = [{"role": "user", "content": "<|im_end|>"}]

    assert await pool.render_spans(CHATML, messages) == render_spans(
        JinjaTemplate(CHATML), messages
    )


async def test_concurrent_requests_get_their_own_answers(pool: RenderProcessPool) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(pool.render(f"{{{{ {n} }}}}", HI)) for n in range(50)]

    assert [task.result() for task in tasks] == [str(n) for n in range(50)]


async def test_sizes_of_source_and_output_are_limited(pool: RenderProcessPool) -> None:
    with pytest.raises(TemplateError, match="longer than 64 KiB"):
        await pool.render("x" * 65_537, HI)
    with pytest.raises(TemplateError, match="the limit is 1,048,576"):
        await pool.render("{{ 'x' * 1048577 }}", HI)


async def test_render_process_has_limits_and_an_empty_environment(pool: RenderProcessPool) -> None:
    assert await pool.render("{{ 1 | pprint }}", HI) == "1"

    limits, environment = limits_and_environment(pool.process_ids[0])
    assert re.search(r"Max open files +3 +3 ", limits)
    assert re.search(r"Max address space +201326592 +201326592 ", limits)
    assert environment == ["PYTHONPATH"]


def limits_and_environment(pid: int) -> tuple[str, list[str]]:
    limits = Path(f"/proc/{pid}/limits").read_text(encoding="utf-8")
    environment = Path(f"/proc/{pid}/environ").read_text(encoding="utf-8")
    return limits, [entry.partition("=")[0] for entry in environment.split("\0") if entry]


def test_render_process_ends_when_its_parent_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)

    deadline = time.monotonic() + PATIENCE_SECONDS
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(child)


PARENT = """
import asyncio
from bot.templates.render_pool import RenderProcessPool

async def main():
    async with RenderProcessPool(process_count=1) as pool:
        print(pool.process_ids[0], flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return " Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.parametrize("expression", FUNCTIONS.splitlines())
async def test_template_can_print_only_data(pool: RenderProcessPool, expression: str) -> None:
    with pytest.raises(TemplateError, match="can print text and data"):
        await pool.render("{{ " + expression + " }}", HI)


async def test_functions_and_generators_print_no_addresses(pool: RenderProcessPool) -> None:
    assert await pool.render("{{ [dict] }}{{ self }}", HI) == "[a function]<TemplateReference None>"
    assert await pool.render("{{ messages | map('length') ~ '' }}", HI) == "[2]"
    with pytest.raises(TemplateError, match=r"^ValueError: a function is not in list$"):
        await pool.render("{{ messages.index(range) }}", HI)


async def test_hostile_templates_reveal_nothing_and_end_in_time(pool: RenderProcessPool) -> None:
    messages = [{"role": "user", "content": "my secret BOT_TOKE"}] * 20
    for attack in attacks("ssti", "template_dos"):
        text = await outcome(pool, expanded(attack["input"]), messages)

        forbidden = attack["oracle"].get("output_must_not_match", [])
        assert not [p for p in forbidden if re.search(p, text)], attack["id"]
        assert messages == [{"role": "user", "content": "my secret BOT_TOKE"}] * 20, attack["id"]
    assert await pool.render("alive", HI) == "alive"


async def outcome(pool: RenderProcessPool, source: str, messages: list[dict[str, str]]) -> str:
    async with asyncio.timeout(PATIENCE_SECONDS):  # 0.25 s of CPU time
        try:
            return await pool.render(source, messages)
        except TemplateError as error:
            return str(error)

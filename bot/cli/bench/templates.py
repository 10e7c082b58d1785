"""`troupe bench templates`: compare template rendering with transformers in one run.

transformers is not installed here. `apply_chat_template` restates what it does with plain jinja2:
the template is compiled once, the messages are copied to plain data, the special tokens are
collected, one chat is in a list of chats. transformers does more around this, not less.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from statistics import geometric_mean
from typing import Any

from jinja2 import Template
from jinja2.ext import LoopControlExtension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from bot.cli.text_io import print_line
from bot.cli.typer_apps import command_app
from bot.frozen_dataclass import frozen_dataclass
from bot.templates.jinja.jinja_template import JinjaTemplate, Message
from bot.templates.jinja.sandbox import raise_exception, to_json
from bot.templates.registry import get

TEMPLATES = ("chatml", "qwen1.5", "qwen2.5", "qwen3", "llama-3", "llama-3.1", "gemma-3", "zephyr")
ROUNDS = 9
SECONDS_PER_ROUND = 0.01


app = command_app()


@app.command("templates")
def bench_templates() -> None:
    """Compare template rendering with transformers."""
    print_line(format_table(compare_rendering()), end="")


@frozen_dataclass
class BenchRow:
    template: str
    messages: int
    ours_microseconds: float
    transformers_microseconds: float

    @property
    def speedup(self) -> float:
        return self.transformers_microseconds / self.ours_microseconds


def compare_rendering(
    sizes: Sequence[int] = (5, 50, 500), templates: Sequence[str] = TEMPLATES
) -> list[BenchRow]:
    """Render the same conversations both ways, alternating, and keep the best time of each."""
    return [_compare_template(name, size) for name in templates for size in sizes]


def format_table(rows: Sequence[BenchRow]) -> str:
    """Format a line for each template and size, and the means at the end."""
    lines = ["template     messages      ours µs  transformers µs     ratio"]
    for row in rows:
        lines.append(
            f"{row.template:<12} {row.messages:>8} {row.ours_microseconds:>12.1f}"
            f" {row.transformers_microseconds:>16.1f} {row.speedup:>9.2f}"
        )
    for size in dict.fromkeys(row.messages for row in rows):
        mean = geometric_mean(row.speedup for row in rows if row.messages == size)
        lines.append(f"all          {size:>8} {'':>12} {'(geometric mean)':>16} {mean:>9.2f}")
    return "\n".join(lines) + "\n"


def _compare_template(name: str, size: int) -> BenchRow:
    template: JinjaTemplate = get(name)()
    messages = make_conversation(size)
    tokens = {"bos_token": template.bos_token, "eos_token": template.eos_token}
    ours = partial(template.render, messages, add_generation_prompt=True)
    theirs = partial(apply_chat_template, template.source, messages, tokens)
    if ours() != theirs():
        raise AssertionError(f"the two renderings of {name} differ")
    best_ours, best_theirs = _best_seconds(ours, theirs)
    return BenchRow(name, size, best_ours * 1e6, best_theirs * 1e6)


def make_conversation(size: int) -> list[dict[str, str]]:
    """Return a system message, then turns of one sentence each, the user's first."""
    text = "A sentence as people write it, number {}, with a few words more."
    roles = ["system", *(("user", "assistant")[index % 2] for index in range(size - 1))]
    return [{"role": role, "content": text.format(n)} for n, role in enumerate(roles)]


def _best_seconds(*renderers: Callable[[], object]) -> list[float]:
    counts = [max(1, int(SECONDS_PER_ROUND / _mean_seconds(render, 3))) for render in renderers]
    best = [float("inf")] * len(renderers)
    for _ in range(ROUNDS):
        for index, render in enumerate(renderers):
            best[index] = min(best[index], _mean_seconds(render, counts[index]))
    return best


def _mean_seconds(render: Callable[[], object], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        render()
    return (time.perf_counter() - began) / count


def apply_chat_template(
    source: str, messages: Sequence[Message], special_tokens: Mapping[str, str]
) -> str:
    """Render as transformers does: compiled once, with copies of all variables."""
    template = _compile(source)
    variables = {**special_tokens, "tools": None, "documents": None, "add_generation_prompt": True}
    rendered = [template.render(messages=_plain(chat), **variables) for chat in [messages]]
    return rendered[0]


@lru_cache
def _compile(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(source)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value

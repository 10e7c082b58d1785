"""A child process that renders untrusted templates, with limits on CPU, memory, and output.

`RenderProcessPool` starts it. It reads requests from stdin and writes responses to stdout until
stdin closes, at the latest when the parent process ends. The kernel kills it with SIGPROF if a
request uses too much CPU time, so a busy machine makes rendering slow, but does not make it fail.
"""

import contextlib
import json
import struct
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import wraps
from typing import Any, BinaryIO

from bot.errors import TemplateError
from bot.runtime.operating_system import limit_cpu, limit_process
from bot.templates.control_tokens import render_spans
from bot.templates.jinja_template import ENVIRONMENT, JinjaTemplate, compile_template

MAX_CPU_SECONDS = 0.25
MAX_MEMORY_BYTES = 192 * 1024 * 1024
MAX_OUTPUT_BYTES = 1024 * 1024
LENGTH_PREFIX = struct.Struct(">I")
# The first byte of a response.
RENDERED_PREFIX, TEMPLATE_FAILED_PREFIX, OUT_OF_MEMORY_PREFIX = b"+", b"-", b"!"
WARM_UP_TEMPLATES = (
    "{{ 'text' | pprint | wordwrap | striptags }}",
    "{% set ä = '\\N{DIGIT ONE}' %}{{ ä }}",  # loads Unicode tables for names and normalization
    "{% a tag that is not one %}",
)


def main() -> None:
    harden_environment()
    warm_up()
    limit_process(MAX_MEMORY_BYTES, max_open_files=3)
    request_pipe, answer_pipe = sys.stdin.buffer, sys.stdout.buffer
    send(answer_pipe, b"ready")
    while (request := receive(request_pipe)) is not None:
        limit_cpu(MAX_CPU_SECONDS)  # CPU time, not wall-clock time
        answer = answer_request(request)
        limit_cpu(0)
        send(answer_pipe, answer)


def harden_environment() -> None:
    """Make attacks by templates harder: remove globals, and replace generators with lists."""
    for name in ("cycler", "joiner", "lipsum"):
        del ENVIRONMENT.globals[name]
    filters = ENVIRONMENT.filters
    filters.update({name: collect_generator_results(one) for name, one in filters.items()})


def collect_generator_results(apply_filter: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `apply_filter` so that the result of a generator is returned as a list."""

    @wraps(apply_filter)
    def apply_and_collect(*args: Any, **kwargs: Any) -> Any:
        result = apply_filter(*args, **kwargs)
        return list(result) if isinstance(result, Iterator) else result

    return apply_and_collect


def warm_up() -> None:
    """Trigger jinja's lazy imports, because files cannot be opened later."""
    for source in WARM_UP_TEMPLATES:
        with contextlib.suppress(TemplateError):
            JinjaTemplate(source).render([])


def answer_request(request: bytes) -> bytes:
    """Return the response to a request; if memory runs out, retry without cached templates."""
    for _ in range(2):
        try:
            return RENDERED_PREFIX + render(json.loads(request))
        except TemplateError as error:
            return TEMPLATE_FAILED_PREFIX + str(error).encode(errors="replace")[:MAX_OUTPUT_BYTES]
        except (OSError, ImportError) as error:
            error_name = type(error).__name__
            return TEMPLATE_FAILED_PREFIX + f"{error_name}: a template cannot open files".encode()
        except MemoryError:
            compile_template.cache_clear()
    return OUT_OF_MEMORY_PREFIX


def render(request: dict[str, Any]) -> bytes:
    options = request["options"]
    if options.get("now") is not None:
        options["now"] = datetime.fromisoformat(options["now"])
    template = JinjaTemplate(request["source"], **request["tokens"])
    if request["as_spans"]:
        spans = render_spans(template, request["messages"], **options)
        answer = json.dumps([[span.text, span.trusted] for span in spans])
    else:
        answer = template.render(request["messages"], **options)
    encoded_answer = answer.encode(errors="surrogatepass")
    if len(encoded_answer) > MAX_OUTPUT_BYTES:
        raise TemplateError(
            f"the template wrote {len(encoded_answer):,} bytes; the limit is {MAX_OUTPUT_BYTES:,}"
        )
    return encoded_answer


def receive(pipe: BinaryIO) -> bytes | None:
    header = pipe.read(LENGTH_PREFIX.size)
    if len(header) < LENGTH_PREFIX.size:
        return None
    return pipe.read(*LENGTH_PREFIX.unpack(header))


def send(pipe: BinaryIO, answer: bytes) -> None:
    pipe.write(LENGTH_PREFIX.pack(len(answer)) + answer)
    pipe.flush()


if __name__ == "__main__":
    main()

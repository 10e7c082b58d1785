"""Plain events take a fast path through the parsers, with the same result."""

import json
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from bot.backends.chat_completions.errors import Endpoint
from bot.backends.chat_completions.streaming import ParsedChunk, ResponseContext
from bot.backends.chat_completions.wire import ChatCompletionsParser
from tests.rigs.fake_openai import DONE, STOP, USAGE, chunk, event

CONTENTS = st.text("ab<think>/\n", max_size=6)
EVENTS = st.one_of(
    CONTENTS.map(chunk),
    CONTENTS.map(lambda text: event({"choices": [{"text": text}]})),
    CONTENTS.map(lambda text: event({"choices": [{"message": {"content": text}}]})),
    CONTENTS.map(lambda text: chunk(text, reasoning_content="hm")),
    CONTENTS.map(lambda text: chunk(text, tool_calls=[])),
    CONTENTS.map(lambda text: chunk(text, finish="length")),
    CONTENTS.map(lambda text: chunk([{"type": "text", "text": text}])),
    st.sampled_from(
        [
            b'data: {"choices":[{"delta":{"content":"a\\ud83d"}}]}\n\n',
            chunk(reasoning="hm"),
            event({"choices": [{"delta": {"content": "x"}}, {"delta": {"content": "y"}}]}),
            event({"choices": [{"delta": {"content": "x"}}], "error": {"code": 500}}),
            event({"choices": [{"delta": {"content": 1}}]}),
            event({"choices": []}),
            b": comment\n\n",
            b"event: ping\n\n",
            STOP,
            USAGE,
            DONE,
        ]
    ),
)


class GeneralParser(ChatCompletionsParser):
    @override
    def _read_plain_texts(self, events: Sequence[bytes], begin: int) -> Sequence[str]:
        return ()


def parse(parser: ChatCompletionsParser, pieces: list[bytes]) -> list[object]:
    parsed: list[ParsedChunk] = []
    for piece in pieces:
        if not parser.is_done:
            parsed.append(parser.feed(piece))
            if parsed[-1].error:
                break
    parsed.append(parser.parse_end())
    shown = [(one.text, one.reasoning, one.has_model_output, str(one.error)) for one in parsed]
    return [*shown, parser.finish_reason, parser.usage, parser.is_done]


@given(st.lists(st.lists(EVENTS, max_size=5).map(b"".join), max_size=5))
def test_fast_path_gives_the_same_result_as_the_general_path(pieces: list[bytes]) -> None:
    context = ResponseContext(Endpoint("acme", "http://acme"), "m", stop_strings=("aa", "\nb"))

    assert parse(ChatCompletionsParser(context), pieces) == parse(GeneralParser(context), pieces)


def test_ordinary_chunk_takes_the_fast_path() -> None:
    context = ResponseContext(Endpoint("acme", "http://acme"), "m")
    data = json.dumps(
        {
            "id": "c",
            "choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": None}],
            "usage": None,
        }
    )

    assert ChatCompletionsParser(context)._read_plain_texts([b"", data.encode(), STOP], 1) == ["hi"]

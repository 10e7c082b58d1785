"""A fitted prompt never exceeds the budget, with any text, template, or tokenizer."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bot.chat.prompt import Image, Message, Prompt, TemplateChoice
from bot.chat.receipt import DroppedItem
from bot.errors import UserError
from bot.prompting.draft import Draft, HistoryUnit, PromptPart, group_history
from bot.prompting.fit import FittedPrompt, fit_draft
from bot.prompting.text.tokens import get_counter
from bot.templates.renderer import ModelTemplate, Renderer

FAMILIES = ["chatml", "qwen3", "llama-3", "gemma-3", "mistral", "alpaca", "phi-4", "llama-2"]
TOKENIZERS: dict[str, Callable[[str], int]] = {
    "bytes": lambda text: len(text.encode()),
    "letters": len,
    **{name: lambda text, name=name: get_counter(name)([text])[0] for name in ("cl100k", "o200k")},  # type: ignore[misc]
}
BASE = Prompt((), "m", "channel")
DROPPED = DroppedItem("history", "", "max_rounds is 3", 4)
TEXTS = st.one_of(
    st.text(max_size=80),
    st.sampled_from(["ok", "日本語のとても長い文です。", "🙂" * 20, "<|im_end|>", "word " * 60]),
)
PARTS = st.builds(
    PromptPart, st.sampled_from(["lore", "stories"]), TEXTS, priority=st.integers(0, 3)
)
TURNS = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), TEXTS), max_size=30)


class TemplateTokenCounter:
    """Counts the tokens of a rendered prompt, as a model's own tokenizer does."""

    def __init__(self, family: str, tokenizer: str) -> None:
        self.counted: list[int] = []
        self._choice = TemplateChoice(named=family)
        self._tokens = TOKENIZERS[tokenizer]

    async def __call__(self, prompt: Prompt) -> int:
        async with Renderer() as renderer:
            made = await renderer.render(prompt.messages, self._choice, ModelTemplate())
        self.counted.append(sum(self._tokens(piece.text) for piece in made.spans))
        return self.counted[-1]


def draft(*said: tuple[str, str], newest: str = "and now?", **given: object) -> Draft:
    history = group_history(Message(role, text) for role, text in said)  # type: ignore[arg-type]
    made = Draft(
        BASE,
        (PromptPart("system", "Be brief.", is_required=True),),
        (),
        None,
        history,
        (),
        Message("user", newest),
    )
    return replace(made, **given)  # type: ignore[arg-type]


def fit_with(whole: Draft, limit: int | None, counter: TemplateTokenCounter) -> FittedPrompt:
    return asyncio.run(fit_draft(whole, limit, counter))


@settings(max_examples=150, deadline=None)
@given(
    turns=TURNS,
    parts=st.lists(PARTS, max_size=4),
    newest=TEXTS,
    limit=st.integers(10, 900),
    family=st.sampled_from(FAMILIES),
    tokenizer=st.sampled_from(list(TOKENIZERS)),
)
def test_prompt_never_exceeds_the_budget(
    turns: list[tuple[str, str]],
    parts: list[PromptPart],
    newest: str,
    limit: int,
    family: str,
    tokenizer: str,
) -> None:
    whole = draft(*turns, newest=newest, context=tuple(parts))
    counter = TemplateTokenCounter(family, tokenizer)
    try:
        result = fit_with(whole, limit, counter)
    except UserError:
        bare = replace(whole, history=(), context=())
        assert asyncio.run(counter(bare.prompt)) > limit
        return
    assert asyncio.run(counter(result.prompt)) == result.tokens <= limit
    kept = len(result.draft.history)
    assert result.draft.history == whole.history[len(whole.history) - kept :]
    gone = [
        message for unit in whole.history[: len(whole.history) - kept] for message in unit.messages
    ]
    left_out = {one.section: one.count for one in result.dropped_items}
    assert left_out.get("history", 0) == len(gone)
    left_out.pop("history", None)
    assert bool(left_out) == (len(result.draft.context) < len(parts))


CHAT = [
    (role, f"{role} says thing number {n}") for n in range(40) for role in ("user", "assistant")
]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("limit", [200, 500, 800, 3000])
def test_nothing_that_would_fit_is_dropped(tokenizer: str, limit: int) -> None:
    counter = TemplateTokenCounter("chatml", tokenizer)
    whole = draft(*CHAT)
    result = fit_with(whole, limit, counter)
    if not result.dropped_items:
        return
    one_more = whole.history[-len(result.draft.history) - 1 :] if result.draft.history else ()
    left = limit - result.tokens
    needed = asyncio.run(counter(replace(whole, history=one_more or whole.history[-1:]).prompt))
    assert needed - result.tokens > left * 0.8


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_few_token_counts_are_needed_even_if_the_estimate_is_wrong(tokenizer: str) -> None:
    counter = TemplateTokenCounter("chatml", tokenizer)
    fit_with(draft(*CHAT), 800, counter)
    assert len(counter.counted) <= 4


def test_prompt_that_fits_is_counted_once() -> None:
    counter = TemplateTokenCounter("chatml", "cl100k")
    result = fit_with(draft(*CHAT[:6]), 1600, counter)
    assert (len(counter.counted), result.dropped_items) == (1, ())


@given(turns=TURNS, parts=st.lists(PARTS, max_size=4), newest=TEXTS)
def test_prompt_far_below_the_limit_is_kept_whole_without_estimates(
    turns: list[tuple[str, str]], parts: list[PromptPart], newest: str
) -> None:
    whole = draft(*turns, newest=newest, context=tuple(parts), left_out_items=(DROPPED,))
    unlimited = fit_with(whole, None, TemplateTokenCounter("chatml", "bytes"))

    async def count(_prompt: Prompt) -> int:
        return 7

    def estimate(_texts: Iterable[str]) -> Sequence[int]:
        raise AssertionError("nothing has to be estimated")

    result = asyncio.run(fit_draft(whole, 100_000, count, estimate))
    assert result == replace(unlimited, tokens=7, limit=100_000)


def test_without_a_limit_nothing_is_counted_or_dropped() -> None:
    counter = TemplateTokenCounter("chatml", "bytes")
    result = fit_with(draft(*CHAT), None, counter)
    assert (counter.counted, result.dropped_items, len(result.prompt.messages)) == ([], (), 82)


def test_question_and_its_answers_are_one_unit() -> None:
    said = [("assistant", "Welcome!"), ("user", "a"), ("user", "b"), ("assistant", "c")]
    assert [[each.content for each in unit.messages] for unit in draft(*said).history] == [
        ["Welcome!"],
        ["a"],
        ["b", "c"],
    ]


def test_history_and_low_priority_stories_are_dropped_first() -> None:
    stories = (
        PromptPart("stories", "x " * 40, "dull"),
        PromptPart("stories", "y " * 40, "good", priority=1),
    )
    result = fit_with(
        draft(*CHAT[:4], context=stories), 110, TemplateTokenCounter("chatml", "cl100k")
    )
    assert [part.name for part in result.draft.context] == ["good"]
    assert [(one.section, one.name, one.count) for one in result.dropped_items] == [
        ("stories", "dull", 1),
        ("history", "", 4),
    ]


def test_oversized_story_does_not_displace_other_stories() -> None:
    stories = (
        PromptPart("stories", "x " * 900, "epic", priority=9),
        PromptPart("stories", "y", "haiku"),
    )
    result = fit_with(
        draft(*CHAT[:4], context=stories), 300, TemplateTokenCounter("chatml", "cl100k")
    )
    assert [part.name for part in result.draft.context] == ["haiku"]
    assert len(result.draft.history) == 2


def test_overlong_message_is_rejected_with_its_token_count() -> None:
    with pytest.raises(UserError, match=r"about \d+ tokens, but my limit is 100,"):
        fit_with(draft(newest="word " * 200), 100, TemplateTokenCounter("chatml", "cl100k"))


def test_images_count_toward_the_budget() -> None:
    seen = Message("user", "What is it?", ("What is it?", Image("https://x/y.png", "low")))
    shown = draft(history=(HistoryUnit((seen, Message("assistant", "A cat."))),))
    plain = get_counter("cl100k").prompt_tokens(
        replace(BASE, messages=(Message("user", "What is it?"),))
    )
    assert get_counter("cl100k").prompt_tokens(replace(BASE, messages=(seen,))) == plain + 85
    assert fit_with(shown, None, TemplateTokenCounter("chatml", "bytes")).tokens > 85

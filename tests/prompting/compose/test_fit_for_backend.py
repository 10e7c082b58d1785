"""The choice of the token counter, and of the lower limit of preset and model."""

from dataclasses import replace

import pytest
from typing_extensions import override

from bot.chat.prompt import Message, Prompt
from bot.chat.session import Session
from bot.ports import TextTokenCounter
from bot.prompting.compose.compose import compose, find_limit_for_lore_and_memory, fit_for_backend
from bot.prompting.draft import Draft, group_history
from bot.prompting.presets.files import load_presets
from bot.prompting.presets.preset import Preset
from bot.prompting.text.tokens import get_counter
from bot.runtime.shipped_files import presets_folder
from tests.fakes import FakeBackend
from tests.prompting.samples import preset
from tests.samples import make_incoming

SAID = [Message(role, f"{role} says so {n}") for n in range(60) for role in ("user", "assistant")]
DRAFT = Draft(
    Prompt((), "m", "channel"), (), (), None, group_history(SAID), (), Message("user", "now?")
)


class LetterCountingBackend(FakeBackend):
    """Counts letters as tokens, with a context of `max_prompt_tokens`."""

    def __init__(self, max_prompt_tokens: int | None) -> None:
        super().__init__()
        self._max_prompt_tokens = max_prompt_tokens

    @override
    async def count_tokens(self, prompt: Prompt) -> int:
        return letters(prompt)

    @override
    async def text_counter(self, prompt: Prompt) -> TextTokenCounter:
        return lambda texts: [len(text) for text in texts]

    @override
    async def max_prompt_tokens(self, prompt: Prompt) -> int | None:
        return self._max_prompt_tokens


def letters(prompt: Prompt) -> int:
    return sum(len(message.content) for message in prompt.messages)


@pytest.mark.parametrize(
    ("limit", "max_prompt_tokens", "most"),
    [(500, 900, 500), (900, 500, 500), (None, 700, 700), (500, None, 500)],
)
async def test_prompt_is_cut_to_the_lower_of_both_limits_in_the_backends_tokens(
    limit: int | None, max_prompt_tokens: int | None, most: int
) -> None:
    fitted = await fit_for_backend(
        preset(max_input_tokens=limit), DRAFT, LetterCountingBackend(max_prompt_tokens)
    )
    assert most - 40 < letters(fitted.prompt) <= most
    assert fitted.limit == most


@pytest.mark.parametrize(("max_prompt_tokens", "limit"), [(3000, 3000), (90_000, 16_000)])
async def test_default_budget_is_the_models_limit_up_to_a_maximum(
    max_prompt_tokens: int, limit: int
) -> None:
    fitted = await fit_for_backend(preset(), DRAFT, LetterCountingBackend(max_prompt_tokens))
    assert fitted.limit == limit


SHIPPED = load_presets(presets_folder(None))


@pytest.mark.parametrize("preset", SHIPPED.values(), ids=list(SHIPPED))
async def test_shipped_presets_answer_a_long_pasted_text(preset: Preset) -> None:
    said = make_incoming("paste " * 683)
    draft = compose(preset, Session(1, ()), said)

    fitted = await fit_for_backend(preset, draft, LetterCountingBackend(6000))

    assert fitted.prompt.messages[-1].content == said.text


async def test_lore_is_limited_to_a_share_of_the_models_context() -> None:
    backend = LetterCountingBackend(400)
    entry = {"keys": [], "constant": True, "enabled": True, "insertion_order": 1}
    entries = [{**entry, "content": f"Fact {number} " * 20} for number in range(9)]
    lively = preset(lorebook={"entries": entries})

    limit = await find_limit_for_lore_and_memory(lively, backend)
    draft = compose(lively, Session(1, ()), make_incoming("hi"), max_prompt_tokens=limit)

    assert limit == 400
    assert (
        await find_limit_for_lore_and_memory(preset(), backend) is None
    )  # nothing in it depends on the model
    assert len(draft.system) == 1  # a quarter of the prompt holds one of the nine entries


async def test_everything_is_sent_if_there_is_no_limit() -> None:
    fitted = await fit_for_backend(
        preset(max_input_tokens=None), DRAFT, LetterCountingBackend(None)
    )
    assert (fitted.dropped_items, len(fitted.prompt.messages)) == ((), 121)


@pytest.mark.parametrize("name", ["cl100k", "o200k"])
async def test_token_counter_of_the_preset_overrides_the_backends(name: str) -> None:
    fitted = await fit_for_backend(
        preset(token_counter=name, max_input_tokens=300), DRAFT, LetterCountingBackend(None)
    )
    assert 270 < get_counter(name).prompt_tokens(fitted.prompt) <= 300


async def test_context_length_also_applies_with_the_presets_token_counter() -> None:
    who = preset(token_counter="cl100k", max_input_tokens=300)
    unlimited = await fit_for_backend(who, DRAFT, LetterCountingBackend(None))
    fitted = await fit_for_backend(who, DRAFT, LetterCountingBackend(400))
    assert letters(fitted.prompt) <= 400 < letters(unlimited.prompt)
    kept = len(fitted.prompt.messages) - 1
    assert sum(one.count for one in fitted.dropped_items) == len(SAID) - kept


async def test_backend_that_cannot_count_gets_an_estimate() -> None:
    fitted = await fit_for_backend(preset(max_input_tokens=400), DRAFT, FakeBackend())
    assert get_counter("cl100k").prompt_tokens(fitted.prompt) <= 400
    assert fitted.dropped_items
    assert (
        await fit_for_backend(preset(), replace(DRAFT, history=()), FakeBackend())
    ).dropped_items == ()

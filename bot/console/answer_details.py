"""Details of an answer: its token budget, timing, parameters, and cost with other models."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from bot.backends.spec import FREE, ProviderSettings
from bot.chat.answers import StoredAnswer
from bot.chat.prompt import Prompt
from bot.chat.receipt import Receipt
from bot.chat.session import PresetVersion
from bot.chat.usage import format_cost
from bot.errors import RequestRefused
from bot.prompting.fit import prompt_tokens, tokens_by_section
from bot.storage.reports import AnswerLog
from bot.texts.text import Text, translatable
from bot.value_class import value_class

_MOST_MARKS = 5
_ANY = "*"


@value_class
class BudgetSegment:
    section: str
    """A section of the prompt, or "free" for the unused part of the budget."""
    tokens: int
    share: float
    """The section's share of the prompt, from 0 to 1; 0 for the free part."""
    begin: int
    """How many tokens stand before it."""


def budget_segments(receipt: Receipt) -> list[BudgetSegment]:
    """Return the sections of a prompt as segments of its token budget, then the unused part."""
    used, begin = prompt_tokens(receipt), 0
    segments: list[BudgetSegment] = []
    for section, tokens in tokens_by_section(receipt).items():
        segments.append(BudgetSegment(section, tokens, tokens / max(1, used), begin))
        begin += tokens
    if receipt.limit and receipt.limit > used:
        segments.append(BudgetSegment("free", receipt.limit - used, 0, begin))
    return segments


@value_class
class WaterfallStep:
    step: str
    """One of "received", "waited", "composed", "prefill", "decode", "edits", "delivered"."""
    begin: float
    """In seconds after the message's arrival."""
    seconds: float
    marks: Sequence[float] = ()
    """When single events happened, in seconds too: the message's receipt, and each edit."""

    @property
    def end(self) -> float:
        return self.begin + self.seconds


def waterfall_steps(receipt: Receipt, delivered: float | None = None) -> Sequence[WaterfallStep]:
    """Return chart steps from a message's arrival to `delivered`, in seconds after arrival."""
    timings = receipt.timings
    first = timings.seconds if timings.first_word_seconds is None else timings.first_word_seconds
    lengths = {
        "waited": max(0.0, timings.queued_seconds - timings.composed_seconds),
        "composed": timings.composed_seconds,
        "prefill": first,
        "decode": max(0.0, timings.seconds - first),
    }
    steps = [WaterfallStep("received", 0.0, 0.0, [0.0])]
    for step, seconds in lengths.items():
        steps.append(WaterfallStep(step, steps[-1].end, seconds))
    written, last_edit = steps[-1].end, max(timings.edits, default=0.0)
    if timings.edits:
        begin = min(timings.edits)
        steps.append(WaterfallStep("edits", begin, last_edit - begin, timings.edits))
    if delivered is not None:
        sending_seconds = max(0.0, max(delivered, last_edit) - written)
        steps.append(WaterfallStep("delivered", written, sending_seconds))
    return steps


def axis_marks(seconds: float) -> Sequence[float]:
    """Return up to six marks for a time axis of this length, in seconds."""
    if not seconds:
        return []
    power = 10.0 ** math.floor(math.log10(seconds))
    step = next(power * one for one in (0.2, 0.5, 1, 2) if seconds / (power * one) <= _MOST_MARKS)
    return [step * at for at in range(int(seconds / step + 1e-9) + 1)]


def costs_with_other_models(
    receipt: Receipt, providers: Mapping[str, ProviderSettings]
) -> Sequence[tuple[str, str]]:
    """Return the cost of an answer with each other priced model, cheapest first."""
    usage = replace(receipt.usage, prompt_tokens=prompt_tokens(receipt))
    costs = {
        (provider, (settings.model or model) if model == _ANY else model): price.cost(usage)
        for provider, settings in providers.items()
        for model, price in settings.prices.items()
        if price != FREE
    }
    costs.pop((receipt.provider, receipt.charge.model or receipt.prompt.model), None)
    ordered = sorted(costs.items(), key=lambda item: (item[1], item[0]))
    return [("/".join(name), format_cost(cost)) for name, cost in ordered]


def used_parameters(
    prompt: Prompt, version: PresetVersion | None
) -> list[tuple[str, str, Text | None]]:
    """Return name, value, and origin of a prompt's parameters (no origin without a `version`)."""
    content = json.loads(version.content) if version and version.content else {}

    def describe_origin(value: object, given: object) -> Text | None:
        if version is None:
            return None
        if given is None:
            return translatable("default")
        if given == value:
            return translatable("preset, version {number}", number=version.version)
        return translatable("changed for this answer; the preset says {value}", value=given)

    given = content.get("parameters") or {}
    used = [
        (name, str(value), describe_origin(value, given.get(name)))
        for name, value in prompt.parameters.items()
    ]
    longest = prompt.max_output_tokens
    if longest is not None:
        origin = describe_origin(longest, content.get("max_output_tokens"))
        used.append(("max_output_tokens", str(longest), origin))
    own = content.get("stop_sequences") or ()
    others = translatable("names of the other speakers")
    for text in prompt.stop:
        is_own = version is None or text in own
        used.append(("stop", repr(text), describe_origin(text, text) if is_own else others))
    return used


async def find_answer(answers: AnswerLog, number: int) -> StoredAnswer:
    """Return a stored answer; raises `RequestRefused` with 404 if there is none."""
    found = await answers.find(number)
    if found is None:
        text = translatable("There is no such answer, or its text was deleted since.")
        raise RequestRefused(404, text)
    return found


def masked_answer(answer: StoredAnswer, mask: Callable[[str], str]) -> StoredAnswer:
    receipt = answer.receipt
    messages = []
    for one in receipt.prompt.messages:
        parts = tuple(mask(each) if isinstance(each, str) else each for each in one.parts)
        messages.append(replace(one, content=mask(one.content), parts=parts))
    masked = replace(
        receipt,
        answer=mask(receipt.answer),
        thoughts=mask(receipt.thoughts),
        prompt=replace(receipt.prompt, messages=tuple(messages)),
        layout=tuple(replace(span, name=mask(span.name)) for span in receipt.layout),
        dropped=tuple(replace(item, name=mask(item.name)) for item in receipt.dropped),
    )
    return replace(answer, receipt=masked)

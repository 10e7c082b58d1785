"""What one answer took: token budget, time, cost elsewhere, parameters; without secrets."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

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

BAR_WIDTH = 1000.0
_WATERFALL_WIDTH = 300.0


@value_class
class BudgetSegment:
    """A section's part of the token budget."""

    section: str
    """"free" for what is left."""
    tokens: int
    share: float
    """Of the prompt, from 0 to 1; of what is free: 0."""
    x: float
    width: float


def budget_segments(receipt: Receipt) -> list[BudgetSegment]:
    """Return the sections from left to right; their tokens add up to the prompt's."""
    used = prompt_tokens(receipt)
    whole = max(1, used, receipt.limit or 0)
    segments: list[BudgetSegment] = []
    x = 0.0
    for section, tokens in tokens_by_section(receipt).items():
        width = BAR_WIDTH * tokens / whole
        share = tokens / max(1, used)
        segments.append(BudgetSegment(section, tokens, share, round(x, 2), round(width, 2)))
        x += width
    if receipt.limit and receipt.limit > used:
        free = receipt.limit - used
        segments.append(BudgetSegment("free", free, 0, round(x, 2), round(BAR_WIDTH - x, 2)))
    return segments


@value_class
class WaterfallStep:
    """One step of an answer on the axis of time."""

    step: str
    """"received", "waited", "composed", "prefill", "decode", "edits" or "delivered"."""
    seconds: float
    """How long it took; of the edits: until the last of them."""
    x: float
    width: float
    marks: Sequence[float] = ()
    """Where single events stand on the axis: the receipt, each edit."""


def waterfall(receipt: Receipt, delivered: float | None = None) -> Sequence[WaterfallStep]:
    """Return what the time went into, from the receipt of the message to the answer's delivery.

    Args:
        receipt: of the answer.
        delivered: when its last part was sent, in seconds after the receipt of the message; None:
            not yet, or that is not known any more. What was shown while it was written is there
            when the last edit is.
    """
    timings = receipt.timings
    first = timings.seconds if timings.first_word_seconds is None else timings.first_word_seconds
    steps = {
        "received": 0.0,
        "waited": max(0.0, timings.queued_seconds - timings.composed_seconds),
        "composed": timings.composed_seconds,
        "prefill": first,
        "decode": max(0.0, timings.seconds - first),
    }
    written = sum(steps.values())
    last_edit = max(timings.edits, default=0.0)
    ends = [written, last_edit, *([] if delivered is None else [delivered])]
    scale = _WATERFALL_WIDTH / max(*ends, 1e-9)
    placed: list[WaterfallStep] = []
    at = 0.0
    for step, seconds in steps.items():
        placed.append(_placed(step, at, seconds, scale, [0.0] if step == "received" else ()))
        at += seconds
    if timings.edits:
        marks = [round(one * scale, 2) for one in timings.edits]
        begin = min(timings.edits)
        placed.append(_placed("edits", begin, last_edit - begin, scale, marks))
    if delivered is not None:
        shown = max(delivered, last_edit)
        placed.append(_placed("delivered", written, max(0.0, shown - written), scale))
    return placed


def _placed(
    step: str, at: float, seconds: float, scale: float, marks: Sequence[float] = ()
) -> WaterfallStep:
    width = round(max(seconds * scale, 1.0), 2)
    return WaterfallStep(step, seconds, round(at * scale, 2), width, marks)


_CHARS_PER_TOKEN = 3  # of an answer that the provider did not count
_ANY = "*"


@value_class
class OtherCost:
    """The cost of the same tokens elsewhere."""

    model: str
    """The provider and its model; "*" is any model without a price of its own."""
    cost: str


def costs_elsewhere(
    receipt: Receipt, providers: Mapping[str, ProviderSettings]
) -> Sequence[OtherCost]:
    """Return what as many tokens cost at every other model with a price, the cheapest first.

    What came from a cache counts as cached there as well, where that has a price of its own.
    """
    usage = replace(receipt.usage, prompt_tokens=prompt_tokens(receipt))
    if not usage.output_tokens:
        written = receipt.answer + receipt.thoughts
        usage = replace(usage, output_tokens=math.ceil(len(written) / _CHARS_PER_TOKEN))
    own = (receipt.provider, receipt.charge.model or receipt.prompt.model)
    costs = {
        f"{provider}/{name}": price.cost(usage)
        for provider, settings in providers.items()
        for model, price in settings.prices.items()
        if (settings.model or price != FREE)  # what runs here and was never set up costs nothing
        if (name := _name(model, settings)) and (provider, name) != own
    }
    return [OtherCost(name, format_cost(cost)) for name, cost in sorted(costs.items(), key=_cost)]


def _cost(item: tuple[str, int]) -> tuple[int, str]:
    return item[1], item[0]


def _name(model: str, settings: ProviderSettings) -> str:
    """Return which model a price is for: "*" means the configured one, if no other price does."""
    if model != _ANY or settings.model is None or settings.model in settings.prices:
        return model
    return settings.model


class _Content(msgspec.Struct, frozen=True):
    parameters: dict[str, Any] | None = None
    max_output_tokens: int | None = None
    stop_sequences: list[str] | None = None


@value_class
class UsedParameter:
    """A parameter as it was sent."""

    name: str
    value: str
    origin: Text | None
    """None: the version of the preset is not known."""


def used_parameters(prompt: Prompt, version: PresetVersion | None) -> list[UsedParameter]:
    """Return the parameters with their origins, as far as the preset's version tells them."""
    return list(_used_parameters(prompt, version))


def _used_parameters(prompt: Prompt, version: PresetVersion | None) -> Iterator[UsedParameter]:
    content = _Content()
    try:
        content = msgspec.json.decode(version.content, type=_Content) if version else content
    except msgspec.DecodeError:
        version = None  # damaged, or from another version of Troupe
    given = content.parameters or {}
    for name, value in prompt.parameters.items():
        yield UsedParameter(name, str(value), _origin(version, value, given.get(name)))
    longest = prompt.max_output_tokens
    if longest is not None:
        origin = _origin(version, longest, content.max_output_tokens)
        yield UsedParameter("max_output_tokens", str(longest), origin)
    own = content.stop_sequences or ()
    others = translatable("names of the other speakers")
    for text in prompt.stop:
        origin = _origin(version, text, text) if text in own or version is None else others
        yield UsedParameter("stop", repr(text), origin)


def _origin(version: PresetVersion | None, value: object, given: object) -> Text | None:
    if version is None:
        return None
    if given is None:
        return translatable("default")
    if given == value:
        return translatable("preset, version {number}", number=version.version)
    return translatable("changed for this answer; the preset says {value}", value=given)


async def find_answer(answers: AnswerLog, number: int) -> StoredAnswer:
    """Return an answer as it is stored; raises `RequestRefused` with 404 if there is none."""
    found = await answers.find(number)
    if found is None:
        text = translatable("There is no such answer, or its text was deleted since.")
        raise RequestRefused(404, text)
    return found


def with_masked_text(answer: StoredAnswer, mask: Callable[[str], str]) -> StoredAnswer:
    """Return an answer without secrets in its text, for lists, which show nothing of the prompt."""
    return replace(answer, receipt=replace(answer.receipt, answer=mask(answer.receipt.answer)))


def masked_answer(answer: StoredAnswer, mask: Callable[[str], str]) -> StoredAnswer:
    """Return an answer without secrets."""
    receipt = answer.receipt
    messages = tuple(
        replace(
            one,
            content=mask(one.content),
            parts=tuple(mask(each) if isinstance(each, str) else each for each in one.parts),
        )
        for one in receipt.prompt.messages
    )
    return replace(
        answer,
        receipt=replace(
            receipt,
            answer=mask(receipt.answer),
            thoughts=mask(receipt.thoughts),
            prompt=replace(receipt.prompt, messages=messages),
            layout=tuple(replace(span, name=mask(span.name)) for span in receipt.layout),
            dropped=tuple(replace(item, name=mask(item.name)) for item in receipt.dropped),
        ),
    )

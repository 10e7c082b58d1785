"""Compute from a receipt how many tokens each section of its prompt took."""

import math
from collections.abc import Sequence

from bot.chat.receipt import PromptSpan, Receipt
from bot.ports import TextTokenCounter
from bot.prompting.draft.fit import estimate_message_tokens
from bot.prompting.text.token_counter import counter_for_model


def prompt_tokens(receipt: Receipt) -> int:
    """Return the tokens of the prompt: as the provider reported, else as counted before sending."""
    return receipt.usage.prompt_tokens or receipt.tokens


def tokens_by_span(receipt: Receipt) -> list[tuple[PromptSpan, int]]:
    """Distribute the tokens of the prompt among its spans by an estimate; the sum is exact."""
    read: dict[int, int] = {}  # by message: characters that belong to earlier spans
    count = counter_for_model(receipt.prompt.model)
    weights = [_weight(receipt, span, read, count) for span in receipt.layout]
    shares = _shares(prompt_tokens(receipt), weights)
    return list(zip(receipt.layout, shares, strict=True))


def tokens_by_section(receipt: Receipt) -> dict[str, int]:
    """Return the tokens of each section, in the order of the prompt."""
    sections: dict[str, int] = {}
    for span, tokens in tokens_by_span(receipt):
        sections[span.section] = sections.get(span.section, 0) + tokens
    return sections


def _weight(
    receipt: Receipt, span: PromptSpan, read: dict[int, int], count: TextTokenCounter
) -> int:
    begin = read.get(span.message, 0)
    if span.chars is None and not begin:
        messages = receipt.prompt.messages[span.message : span.message + span.messages]
        return sum(estimate_message_tokens(messages, count))
    end = None if span.chars is None else begin + span.chars
    read[span.message] = end or 0
    return 1 + sum(count([receipt.prompt.messages[span.message].content[begin:end]]))


def _shares(whole: int, weights: Sequence[int]) -> list[int]:
    """Divide a whole number in proportion; the remainder goes to the largest fractions."""
    total = sum(weights) or 1
    exact = [whole * weight / total for weight in weights]
    shares = [math.floor(share) for share in exact]
    largest_fractions = sorted(range(len(exact)), key=lambda index: shares[index] - exact[index])
    for index in largest_fractions[: whole - sum(shares)]:
        shares[index] += 1
    return shares

"""The next prompt as the page shows it, and who would answer."""

from collections.abc import Sequence

from bot.chat.playground.next_answer import NextAnswer
from bot.chat.receipt import Receipt
from bot.console.answers.figures import BudgetSegment, budget_segments
from bot.console.answers.prompt_view import PromptSection, prompt_sections
from bot.frozen_dataclass import frozen_dataclass
from bot.prompting.draft.token_shares import prompt_tokens
from bot.texts.stored import looked_up
from bot.texts.text import translate


@frozen_dataclass
class PromptView:
    """A prompt for the page."""

    receipt: Receipt
    tokens: int
    segments: Sequence[BudgetSegment]
    sections: Sequence[PromptSection]
    dropped: Sequence[tuple[str, str, int, int | None, str]]
    """What did not fit: section, name, how many, tokens, and why."""


def view_prompt(receipt: Receipt) -> PromptView:
    """Return what a prompt consists of and takes of its budget."""
    dropped = [
        (one.section, one.name, one.count, one.tokens, looked_up(one.why))
        for one in receipt.dropped
    ]
    return PromptView(
        receipt,
        prompt_tokens(receipt),
        budget_segments(receipt),
        prompt_sections(receipt),
        dropped,
    )


def view_reasons(answer: NextAnswer, language: str) -> Sequence[tuple[str, bool, float, str]]:
    """Return for each character its name, whether it would answer, its score, and why."""
    return [
        (
            one.name,
            one.is_chosen,
            one.score,
            ", ".join(translate(looked_up(reason), language) for reason in one.reasons),
        )
        for one in answer.characters
    ]

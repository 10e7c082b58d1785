"""Test what /context shows of a receipt."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from typing_extensions import override

from bot.chat.prompt import FinishReason, Message, Prompt, Usage
from bot.chat.receipt import DroppedItem, Receipt, Timings
from bot.commands.reports import ContextView, show_context
from bot.prompting.draft import Draft, HistoryUnit, PromptPart
from bot.prompting.fit import tokens_by_section
from bot.storage.receipts import Receipts
from tests.samples import format_receipt, mask_secret

DRAFT = Draft(
    base=Prompt((), "default", "telegram:5"),
    system=(
        PromptPart("system", "You are Nora. " * 10, required=True),
        PromptPart("lore", "It rains.", "Rain"),
    ),
    pinned=(Message("user", "hi"), Message("assistant", "ho")),
    summary=PromptPart("summary", "They talked of the sea."),
    history=(HistoryUnit((Message("user", "one " * 40), Message("assistant", "two " * 40))),),
    context=(PromptPart("stories", "Once at the inn …", "The Inn", score=0.834),),
    newest=Message("user", "and now?"),
)
RECEIPT = Receipt(
    preset="nora",
    preset_version=3,
    provider="local",
    prompt=DRAFT.prompt,
    layout=DRAFT.layout,
    dropped=(
        DroppedItem("stories", "An Epic", "larger than the remaining budget", 1, 900, 0.91),
        DroppedItem("history", "", "the budget was used up", 12),
    ),
    tokens=187,
    limit=1600,
    answer="Hi.",
    reason=FinishReason.STOP,
    usage=Usage(190, 150, 4),
    timings=Timings(0.21, 0.84, 3.2),
)


def test_context_shows_sections_stories_and_dropped_items() -> None:
    assert show_context(17, RECEIPT) == snapshot("""\
nora (version 3) on local/default, receipt 17: 190 of 1600 tokens
███░░░░░░░░░ system 43 (23%)
█░░░░░░░░░░░ lore 4 (2%)
█░░░░░░░░░░░ pinned 19 (10%)
█░░░░░░░░░░░ summary 14 (7%)
██████░░░░░░ history 100 (53%)
█░░░░░░░░░░░ stories 6 (3%)
█░░░░░░░░░░░ newest 4 (2%)
lore: “Rain”
stories: “The Inn” 0.83
Left out: story “An Epic” 0.91, about 900 tokens – larger than the remaining budget
Left out: the 12 oldest messages – the budget was used up
queued 0.2 s, first token after 0.8 s, generated in 3.2 s, 4 tokens, 150 prompt tokens were cached \
(79%), cost not known\
""")


def test_context_without_usage_and_dropped_items() -> None:
    bare = replace(RECEIPT, dropped=(), usage=Usage(), limit=None, preset_version=None)
    shown = show_context(17, bare)
    assert shown.startswith("nora on local/default, receipt 17: 187 tokens\n")
    assert "Nothing was left out." in shown


def test_context_limits_the_listed_stories() -> None:
    stories = tuple(
        PromptPart("stories", "x", f"story {n} {'y' * 200}", score=0.5) for n in range(300)
    )
    long = replace(DRAFT, context=stories)
    receipt = replace(RECEIPT, prompt=long.prompt, layout=long.layout)
    receipt = replace(receipt, dropped=RECEIPT.dropped * 100)
    assert len(show_context(17, receipt)) < 2000


@given(st.integers(0, 5000))
def test_section_tokens_add_up_to_the_prompt_tokens(tokens: int) -> None:
    receipt = replace(RECEIPT, usage=Usage(), tokens=tokens)
    assert sum(tokens_by_section(receipt).values()) == tokens


@pytest.mark.parametrize("missing", ["system", "pinned", "history", "context"])
def test_context_with_any_section_missing(missing: str) -> None:
    empty: tuple[object, ...] = ()
    draft = replace(DRAFT, summary=None, **{missing: empty})  # type: ignore[arg-type]
    spans = {span.section: span for span in draft.layout}
    assert spans["newest"].message == len(draft.prompt.messages) - 1
    assert set(spans) <= {"system", "lore", "pinned", "history", "stories", "newest"}


class OneReceipt(Receipts):
    """The receipt 17, of every conversation."""

    def __init__(self) -> None:
        """Use no database."""

    @override
    async def newest(self, conversation: str) -> Sequence[tuple[int, Receipt]]:
        return [(17, RECEIPT)]

    @override
    async def of_answer(self, conversation: str, at: float) -> Sequence[tuple[int, Receipt]]:
        return [(17, RECEIPT)]

    @override
    async def get(self, number: int) -> Receipt | None:
        return RECEIPT if number == 17 else None


@pytest.mark.parametrize(("for_admin", "lines"), [(True, 1), (False, 0)])
async def test_admins_are_told_the_address_in_the_console(for_admin: bool, lines: int) -> None:
    view = ContextView(
        OneReceipt(), format_receipt, mask_secret, lambda number: f"http://here/answers/{number}"
    )

    shown = await view.show("telegram:5", for_admin=for_admin)

    assert shown.splitlines().count("In the console: http://here/answers/17") == lines

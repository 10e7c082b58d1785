"""Show the last answer's prompt and figures, report answers to operators, and show usage."""

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from bot.chat.incoming import IncomingMessage
from bot.chat.outgoing import Attachment
from bot.chat.receipt import DroppedItem, Receipt
from bot.chat.session import display_name
from bot.chat.usage import BudgetCap, BudgetKind, Period, UsageTotal, format_cost
from bot.commands.request import CommandRequest, CommandResult, private_command
from bot.errors import UserError
from bot.prompting.draft import find_section_name
from bot.prompting.fit import prompt_tokens, tokens_by_section
from bot.prompting.presets.preset import Preset
from bot.storage.receipts import Receipts
from bot.storage.usage import Budgets, UsageTotals
from bot.texts.text import (
    Text,
    join_texts,
    marked,
    to_translatable,
    translatable,
    translatable_count,
)

_BAR_WIDTH = 12
_MAX_LISTED_ITEMS = 8  # of each: stories, lorebook entries, dropped items
_MAX_NAME_CHARS = 60
_PROMPT_SEPARATOR = f"\n{'=' * 80}\n\n"  # between the prompts of two speakers

WritePrompt: TypeAlias = Callable[[int, Receipt], Awaitable[str]]
"""Returns the exact prompt of a receipt (given with its number), with secrets removed."""


@dataclass(eq=False)
class ContextView:
    """Shows the receipts of answers: what was sent to the model, and what was left out."""

    receipts: Receipts
    write_prompt: WritePrompt
    mask_secrets: Callable[[str], str]
    find_answer_url: Callable[[int], str | None] = lambda _number: None
    """Returns the URL of a receipt's console page; None if no console is served."""

    async def describe_context(
        self, conversation: str, *, is_for_admin: bool, answered_at: datetime | None = None
    ) -> Text:
        """Describe the receipts of the answer at `answered_at`, or the latest, in a few lines."""
        receipts = await self.find_receipts(conversation, answered_at)
        texts = [describe_receipt(*one) for one in receipts]
        if is_for_admin:
            texts.append(translatable("/context prompt sends the exact prompt as a file."))
            urls = filter(None, [self.find_answer_url(number) for number, _ in receipts])
            texts += [translatable("In the console: {address}", address=one) for one in urls]
        return join_texts(texts, "\n\n").with_values(self.mask_secrets)

    async def export_prompts(self, conversation: str) -> tuple[Text, Attachment]:
        """Return a line for the chat, and a file with every speaker's exact prompt."""
        receipts = await self.find_receipts(conversation)
        receipt_numbers = [str(number) for number, _ in receipts]
        prompts = [await self.write_prompt(*one) for one in receipts]
        file = Attachment(
            f"prompt-{'-'.join(receipt_numbers)}.txt", _PROMPT_SEPARATOR.join(prompts)
        )
        text = translatable_count(
            "The exact prompt of receipt {numbers}, secrets removed.",
            "The exact prompts of receipts {numbers}, secrets removed.",
            len(receipts),
            numbers=", ".join(receipt_numbers),
        )
        return text, file

    async def find_receipts(
        self, conversation: str, answered_at: datetime | None = None
    ) -> Sequence[tuple[int, Receipt]]:
        """Return the receipts of the answer at `answered_at` or the latest; raises `UserError`."""
        if answered_at is not None:
            problem = translatable("The prompt of that answer is no longer stored.")
            receipts = await self.receipts.find_for_answer(conversation, answered_at.timestamp())
        else:
            problem = translatable(
                "I have not answered in this channel recently, so there is no context to show."
            )
            receipts = await self.receipts.find_for_last_message(conversation)
        if not receipts:
            raise UserError(problem)
        return receipts


_WHICH_ANSWER_NOTICE = translatable("Which answer? Write /report as a reply to it.")
_REPORTED_NOTICE = translatable("Thank you. The people who run me will see your report.")
_NO_OPERATOR_REACHED_NOTICE = translatable(
    "I can't message any of my operators privately, so your report wasn't sent."
)
_MAX_REPORTED_CHARS = 1500


@dataclass(eq=False)
class AnswerReports:
    """Lets anybody report an answer to the operators, who read it in their private chats."""

    context_view: ContextView
    operator_ids: Collection[str]

    @private_command("report")  # also in the message menu
    @private_command(
        "settings report",
        marked("report an answer to the people who run me; send this as a reply to that answer"),
    )
    async def _report_answer(self, request: CommandRequest) -> CommandResult:
        message = request.incoming
        if request.answered_at is None:
            raise UserError(_WHICH_ANSWER_NOTICE)
        platform = f"{message.address.platform}:"
        operator_ids = [one for one in sorted(self.operator_ids) if one.startswith(platform)]
        if not operator_ids:
            raise UserError(_NO_OPERATOR_REACHED_NOTICE)
        conversation = message.address.conversation
        receipts = await self.context_view.find_receipts(conversation, request.answered_at)
        report_texts = [self._describe_report(message, *one) for one in receipts]
        notices = [(person, text) for person in operator_ids for text in report_texts]
        return CommandResult(_REPORTED_NOTICE, private_notices=notices)

    def _describe_report(self, message: IncomingMessage, number: int, receipt: Receipt) -> Text:
        text = translatable(
            "⚠ {person} reported an answer by {preset} in {channel} (receipt {number}):\n{text}",
            person=message.author.id,
            preset=receipt.preset,
            channel=message.address.channel,
            number=number,
            text=self.context_view.mask_secrets(receipt.answer)[:_MAX_REPORTED_CHARS],
        )
        return join_texts(filter(None, [text, self.context_view.find_answer_url(number)]))


def describe_receipt(number: int, receipt: Receipt) -> Text:
    lines = [_receipt_heading(number, receipt), *_section_bars(receipt)]
    lines += [*_lines_for_named_spans(receipt), *_lines_for_dropped_items(receipt)]
    lines += _lines_for_tool_calls(receipt)
    lines += [to_translatable(receipt.check)] if receipt.check else []
    return join_texts([*lines, _timing_line(receipt)])


def _receipt_heading(number: int, receipt: Receipt) -> Text:
    version_text = translatable(" (version {number})", number=receipt.preset_version)
    limit_text = translatable(" of {limit}", limit=receipt.limit)
    return translatable(
        "{preset}{version} on {provider}/{model}, receipt {receipt}: {tokens}{limit} tokens",
        preset=display_name(receipt.preset),
        version=version_text if receipt.preset_version else "",
        provider=receipt.provider,
        model=receipt.prompt.model,
        receipt=number,
        tokens=prompt_tokens(receipt),
        limit=limit_text if receipt.limit else "",
    )


def _section_bars(receipt: Receipt) -> Iterator[Text]:
    total_tokens = max(1, prompt_tokens(receipt))
    for section, tokens in tokens_by_section(receipt).items():
        filled_cells = min(_BAR_WIDTH, max(1, round(_BAR_WIDTH * tokens / total_tokens)))
        bar = "█" * filled_cells + "░" * (_BAR_WIDTH - filled_cells)
        values = {"tokens": tokens, "share": f"{tokens / total_tokens:.0%}"}
        name = find_section_name(section)
        yield translatable("{bar} {section} {tokens} ({share})", bar=bar, section=name, **values)


def _lines_for_named_spans(receipt: Receipt) -> Iterator[Text]:
    named_spans = [span for span in receipt.layout if span.name]
    for span in named_spans[:_MAX_LISTED_ITEMS]:
        section, name = find_section_name(span.section), _quote_name(span.name, span.score)
        yield translatable("{section}: {name}", section=section, name=name)
    if len(named_spans) > _MAX_LISTED_ITEMS:
        yield translatable("… and {count} more", count=len(named_spans) - _MAX_LISTED_ITEMS)


def _lines_for_dropped_items(receipt: Receipt) -> Iterator[Text]:
    if not receipt.dropped:
        yield translatable("Nothing was left out.")
    for one in receipt.dropped[:_MAX_LISTED_ITEMS]:
        yield translatable(
            "Left out: {what} – {why}",
            what=_describe_dropped_item(one),
            why=to_translatable(one.why),
        )
    if len(receipt.dropped) > _MAX_LISTED_ITEMS:
        yield translatable("Left out: {count} more", count=len(receipt.dropped) - _MAX_LISTED_ITEMS)


def _lines_for_tool_calls(receipt: Receipt) -> Iterator[Text]:
    for one in receipt.tool_calls:
        result = " ".join(one.result.splitlines()[1:])
        placeholders = {"arguments": _quote_name(one.arguments), "result": _quote_name(result)}
        yield translatable("Tool {name}: {arguments} – {result}", name=one.name, **placeholders)


def _describe_dropped_item(item: DroppedItem) -> Text:
    if item.section == "history":
        return translatable_count("the oldest message", "the {count} oldest messages", item.count)
    name = f" {_quote_name(item.name, item.score)}" if item.name else ""
    tokens = translatable(", about {tokens} tokens", tokens=item.tokens) if item.tokens else ""
    section = find_section_name(item.section)
    if item.count > 1:
        section = translatable("{section} × {count}", section=section, count=item.count)
    return join_texts([section, name, tokens], "")


def _quote_name(name: str, score: float | None = None) -> str:
    short_name = name if len(name) <= _MAX_NAME_CHARS else name[:_MAX_NAME_CHARS] + "…"
    return f"“{short_name}”" if score is None else f"“{short_name}” {score:.2f}"


def _timing_line(receipt: Receipt) -> Text:
    timings, usage, cost = receipt.timings, receipt.usage, receipt.charge.cost
    phrases = [translatable("queued {seconds} s", seconds=f"{timings.queued_seconds:.1f}")]
    if timings.first_word_seconds is not None:
        first_word_seconds = f"{timings.first_word_seconds:.1f}"
        phrases.append(translatable("first token after {seconds} s", seconds=first_word_seconds))
    phrases.append(translatable("generated in {seconds} s", seconds=f"{timings.seconds:.1f}"))
    if usage.output_tokens:
        phrases.append(translatable("{tokens} tokens", tokens=usage.output_tokens))
    if usage.cached_tokens:
        cached_share = usage.cached_tokens / max(usage.cached_tokens, prompt_tokens(receipt))
        placeholders = {"tokens": usage.cached_tokens, "share": f"{cached_share:.0%}"}
        phrases.append(translatable("{tokens} prompt tokens were cached ({share})", **placeholders))
    if cost is None:
        phrases.append(translatable("cost not known"))
    else:
        phrases.append(translatable("cost {amount}", amount=format_cost(cost)))
    return join_texts(phrases, translatable(", "))


_BUDGET_TITLES = {
    BudgetKind.PERSON: translatable("your budget"),
    BudgetKind.CHANNEL: translatable("this channel's budget"),
    BudgetKind.SERVER: translatable("this server's budget"),
    BudgetKind.PRESET: translatable("this preset's budget"),
}
_PERIOD_TITLES = {Period.DAY: translatable("Today"), Period.MONTH: translatable("This month")}


@dataclass(eq=False)
class UsageView:
    """Shows people what their answers have cost today and this month (in the time zone UTC)."""

    totals: UsageTotals
    budgets: Budgets
    find_budget_caps: Callable[[IncomingMessage, Preset], Sequence[BudgetCap]]

    @private_command(
        "settings usage", marked("show the cost of your answers, and your remaining budgets")
    )
    async def show_usage(self, request: CommandRequest) -> CommandResult:
        """Summarize the author's usage."""
        message = request.incoming
        midnight = request.now.replace(hour=0, minute=0, second=0, microsecond=0)
        period_starts = {Period.DAY: midnight, Period.MONTH: midnight.replace(day=1)}
        lines = [
            await self._describe_usage(message, period, since)
            for period, since in period_starts.items()
        ]
        caps = self.find_budget_caps(message, request.active.first.preset)
        spent_by_key = await self.budgets.load_spent_amounts(caps) if caps else {}
        lines += [_budget_line(cap, spent_by_key.get(cap.key, 0)) for cap in caps]
        return CommandResult(join_texts(lines))

    async def _describe_usage(
        self, message: IncomingMessage, period: Period, since: datetime
    ) -> Text:
        usage = await self.totals.person_total(message.author.id, since)
        return translatable(
            "{period}: {answers}, {prompt} tokens read ({cached} from a cache), {output} written,"
            " {cost}",
            period=_PERIOD_TITLES[period],
            answers=translatable_count("1 answer", "{count} answers", usage.answers),
            prompt=usage.prompt_tokens,
            cached=f"{usage.cached_tokens / max(1, usage.prompt_tokens):.0%}",
            output=usage.output_tokens,
            cost=_describe_cost(usage),
        )


def _describe_cost(total: UsageTotal) -> Text:
    if not total.unpriced_answer_count:
        return translatable("cost {amount}", amount=format_cost(total.cost))
    if total.unpriced_answer_count == total.answers:
        return translatable("cost not known")
    return translatable_count(
        "cost {amount}, plus 1 answer of unknown cost",
        "cost {amount}, plus {count} answers of unknown cost",
        total.unpriced_answer_count,
        amount=format_cost(total.cost),
    )


def _budget_line(cap: BudgetCap, spent_amount: int) -> Text:
    return translatable(
        "{period}, {title}: {spent} of {limit} used",
        period=_PERIOD_TITLES[cap.period],
        title=_BUDGET_TITLES[cap.kind],
        spent=format_cost(spent_amount),
        limit=format_cost(cap.limit),
    )

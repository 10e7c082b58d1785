"""Show a person what their answers cost, and what is left of the budgets that apply to them."""

from collections.abc import Callable, Sequence
from datetime import datetime

from bot.chat.incoming import Said
from bot.chat.usage import BudgetCap, BudgetKind, Period, UsageTotal, format_cost
from bot.commands.registry import command
from bot.commands.request import CommandRequest, CommandResult
from bot.errors import UserError
from bot.ports import Budgets, UsageTotals
from bot.prompting.presets.preset import Preset
from bot.texts.text import Text, joined, marked, translatable, translatable_count

_TITLES = {
    BudgetKind.PERSON: translatable("your budget"),
    BudgetKind.CHANNEL: translatable("the budget of this channel"),
    BudgetKind.SERVER: translatable("the budget of this server"),
    BudgetKind.PRESET: translatable("the budget of this preset"),
}
_PERIODS = {Period.DAY: translatable("Today"), Period.MONTH: translatable("This month")}


class UsageView:
    """Reads what was used; days and months are those of UTC.

    Args:
        totals: what answers cost.
        budgets: what was spent of budgets.
        caps: the budgets that an answer counts against.
    """

    def __init__(
        self,
        totals: UsageTotals,
        budgets: Budgets,
        caps: Callable[[Said, Preset], Sequence[BudgetCap]],
    ) -> None:
        self._totals = totals
        self._budgets = budgets
        self._caps = caps

    @command("settings usage", marked("tell what your answers cost, and what is left of budgets"))
    async def show(self, request: CommandRequest) -> CommandResult:
        """Show the usage of the asker in a few lines.

        Raises:
            UserError: others would read it.
        """
        said = request.incoming
        if not said.is_for_author_alone:
            raise UserError(
                translatable(
                    "Others here would see your usage. Please write /settings usage to me in"
                    " a private chat."
                )
            )
        midnight = request.now.replace(hour=0, minute=0, second=0, microsecond=0)
        begins = {Period.DAY: midnight, Period.MONTH: midnight.replace(day=1)}
        lines = [await self._line(said, period, since) for period, since in begins.items()]
        caps = self._caps(said, request.active.first.preset)
        spent = await self._budgets.spent(caps) if caps else {}
        lines += [_budget_line(cap, spent.get(cap.key, 0)) for cap in caps]
        return CommandResult(joined(lines))

    async def _line(self, said: Said, period: Period, since: datetime) -> Text:
        total = await self._totals.of_person(said.author.id, since)
        return translatable(
            "{period}: {answers}, {prompt} tokens read ({cached} from a cache), {output} written,"
            " {cost}",
            period=_PERIODS[period],
            answers=translatable_count("1 answer", "{count} answers", total.answers),
            prompt=total.prompt_tokens,
            cached=f"{total.cached_tokens / max(1, total.prompt_tokens):.0%}",
            output=total.output_tokens,
            cost=_cost(total),
        )


def _cost(total: UsageTotal) -> Text:
    if not total.unpriced:
        return translatable("cost {amount}", amount=format_cost(total.cost))
    if total.unpriced == total.answers:
        return translatable("cost not known")
    return translatable_count(
        "cost {amount}, and 1 answer whose cost is not known",
        "cost {amount}, and {count} answers whose cost is not known",
        total.unpriced,
        amount=format_cost(total.cost),
    )


def _budget_line(cap: BudgetCap, spent: int) -> Text:
    return translatable(
        "{period}, {title}: {spent} of {limit} used",
        period=_PERIODS[cap.period],
        title=_TITLES[cap.kind],
        spent=format_cost(spent),
        limit=format_cost(cap.limit),
    )

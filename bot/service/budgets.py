"""Read the budgets from the settings."""

from bot.chat.usage import MICROS, BudgetKind, Period
from bot.errors import PresetError, SettingsError
from bot.prompting.presets.files import find_preset
from bot.routing.preset_resolver import PresetResolver
from bot.settings import BudgetSettings
from bot.turn.limits.spending import BudgetRules


def budget_rules(budgets: BudgetSettings, resolver: PresetResolver) -> BudgetRules:
    """Return what may be spent.

    Raises:
        SettingsError: there is no preset of the name of the cheaper one.
    """
    limits = {
        (kind, period): dollars
        for kind in BudgetKind
        for period in Period
        if (dollars := getattr(budgets, f"{kind}_{period}")) is not None
    }
    try:
        cheaper = budgets.cheaper_preset and find_preset(resolver.presets, budgets.cheaper_preset)
    except PresetError as error:
        raise SettingsError(f"TROUPE_BUDGETS__CHEAPER_PRESET: {error}") from None
    return BudgetRules(
        {key: round(dollars * MICROS) for key, dollars in limits.items()},
        cheaper or None,
        budgets.max_output_tokens,
    )

"""The dashboard and the alert rules in deploy/monitoring use only metrics and labels that exist."""

import json
import re
from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase

from bot.platforms.discord.shards import SessionStartLimit, export_identify_requests_left
from bot.telemetry import metrics
from tests.checkout import CHECKOUT
from tests.fakes import FakeClock

_FOLDER = CHECKOUT / "deploy" / "monitoring"
_METRIC = re.compile(r"\b(troupe_\w+)(?:\{([^}]*)\})?")
_BY = re.compile(r"\bby \(([^)]*)\)")
_OF_PROMETHEUS = {"le", "instance", "job"}


def registered_labels() -> dict[str, set[str]]:
    """Return the names of all metric samples, each with its labels."""
    found: dict[str, set[str]] = {}
    ours = [one for one in vars(metrics).values() if isinstance(one, MetricWrapperBase)]
    for collector in ours:
        names = REGISTRY._collector_to_names[collector]
        labels = set(getattr(collector, "_labelnames", ()))
        found |= {name: labels for name in names if name.startswith("troupe_")}
    return found


def expressions() -> Iterator[tuple[str, str]]:
    dashboard = json.loads((_FOLDER / "grafana-dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for rule in alert_rules():
        yield rule["alert"], rule["expr"]


def alert_rules() -> list[dict[str, str]]:
    """Read the rules; their form is checked by `make deploy`, with a YAML parser."""
    _, *texts = (_FOLDER / "alerts.yaml").read_text().split("      - alert: ")
    found = []
    for text in texts:
        name, _, rest = text.partition("\n")
        expression = re.search(r"        expr: (?:>-\n)?(.*?)\n        \w+:", rest, re.DOTALL)
        assert expression is not None, name
        found.append({"alert": name, "expr": expression[1]})
    return found


@pytest.mark.parametrize(("title", "expression"), list(expressions()))
def test_every_metric_and_label_in_an_expression_exists(title: str, expression: str) -> None:
    known = registered_labels()
    asked = _METRIC.findall(expression)
    assert asked, title
    labels: set[str] = set()
    for name, given in asked:
        assert name in known, f"{title}: {name}"
        labels |= known[name]
        for label in re.findall(r"(\w+)=", given):
            assert label in known[name], f"{title}: {name} has no label {label}"
    for listed in _BY.findall(expression):
        for label in listed.split(","):
            assert label.strip() in labels | _OF_PROMETHEUS, f"{title}: {label}"
    assert expression.count("(") == expression.count(")"), title


@pytest.mark.parametrize(("title", "expression"), list(expressions()))
def test_minimum_ignores_processes_that_do_not_export_the_metric(
    title: str, expression: str
) -> None:
    """A metric without labels is 0 in every process that never sets it."""
    for name in re.findall(r"\bmin(?: by \([^)]*\))? ?\((troupe_\w+)", expression):
        assert registered_labels()[name], f"{title}: {name}"


@pytest.mark.parametrize("rule", ["TroupeAnswersWait", "TroupeSendsWait", "TroupeNobodyReceives"])
def test_alert_fires_if_no_process_of_the_role_runs(rule: str) -> None:
    """Without such a process there are no samples, and a comparison alone never fires."""
    [expression] = [one["expr"] for one in alert_rules() if one["alert"] == rule]
    [*metrics_compared] = _METRIC.findall(expression.partition(" or ")[0])
    assert metrics_compared
    for name, labels in metrics_compared:
        assert f"absent({name}{{{labels}}})" in expression


async def test_count_of_discord_identifies_left_returns_to_the_total_after_the_reset() -> None:
    clock = FakeClock()
    export_identify_requests_left(
        SessionStartLimit(total=1000, remaining=150, reset_after=60_000), clock
    )
    assert _identifies_left() == 150
    await clock.advance(61)
    assert _identifies_left() == 1000


def _identifies_left() -> float | None:
    return REGISTRY.get_sample_value("troupe_discord_identifies_left", {"platform": "discord"})


def test_every_metric_is_on_the_dashboard() -> None:
    text = (_FOLDER / "grafana-dashboard.json").read_text()
    samples = {name for name in registered_labels() if not name.endswith("_created")}
    bases = {re.sub(r"_(bucket|sum|count)$", "", name) for name in samples}
    counters = {name.removesuffix("_total") for name in bases if name.endswith("_total")}
    missing = {name for name in bases - counters if name not in text}
    assert missing == set()

"""The bench measures what it says: both sides, every template, every size."""

from inline_snapshot import snapshot

from bot.cli.bench_templates import Row, compare, table


def test_every_template_is_measured_on_both_sides_at_every_size() -> None:
    rows = compare(sizes=(5, 50), templates=("qwen2.5", "gemma-3"))

    measured = {(row.template, row.messages) for row in rows}
    assert measured == {("qwen2.5", 5), ("qwen2.5", 50), ("gemma-3", 5), ("gemma-3", 50)}
    assert all(row.ours_microseconds > 0 and row.transformers_microseconds > 0 for row in rows)


def test_the_table_shows_every_ratio_and_their_mean() -> None:
    shown = table([Row("qwen3", 5, 10.0, 40.0), Row("llama-3", 5, 10.0, 90.0)])

    assert shown == snapshot("""\
template     messages      ours µs  transformers µs     ratio
qwen3               5         10.0             40.0      4.00
llama-3             5         10.0             90.0      9.00
all                 5              (geometric mean)      6.00
""")

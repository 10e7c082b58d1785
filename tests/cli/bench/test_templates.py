"""`troupe bench templates` measures both renderers for every template and size."""

from inline_snapshot import snapshot

from bot.cli.bench.templates import BenchRow, compare_rendering, format_table


def test_compare_rendering_measures_every_template_at_every_size() -> None:
    rows = compare_rendering(sizes=(5, 50), templates=("qwen2.5", "gemma-3"))

    measured = {(row.template, row.messages) for row in rows}
    assert measured == {("qwen2.5", 5), ("qwen2.5", 50), ("gemma-3", 5), ("gemma-3", 50)}
    assert all(row.ours_microseconds > 0 and row.transformers_microseconds > 0 for row in rows)


def test_format_table_shows_every_ratio_and_the_mean() -> None:
    shown = format_table([BenchRow("qwen3", 5, 10.0, 40.0), BenchRow("llama-3", 5, 10.0, 90.0)])

    assert shown == snapshot("""\
template     messages      ours µs  transformers µs     ratio
qwen3               5         10.0             40.0      4.00
llama-3             5         10.0             90.0      9.00
all                 5              (geometric mean)      6.00
""")

"""The bench measures what it says: both sides, every template, every size."""

from bot.templates.bench import compare


def test_every_template_is_measured_on_both_sides_at_every_size() -> None:
    rows = compare(sizes=(5, 50), templates=("qwen2.5", "gemma-3"))

    measured = {(row.template, row.messages) for row in rows}
    assert measured == {("qwen2.5", 5), ("qwen2.5", 50), ("gemma-3", 5), ("gemma-3", 50)}
    assert all(row.ours_microseconds > 0 and row.transformers_microseconds > 0 for row in rows)

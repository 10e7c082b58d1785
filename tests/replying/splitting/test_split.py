"""Test split(): every part is legal, nothing is lost, and cuts never move."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bot.chat.outgoing import Limits
from bot.markup.graphemes import grapheme_starts, is_visible
from bot.platforms.telegram.limits import plain_text
from bot.replying.cut_points import close_open_markdown
from bot.replying.split import find_part_spans, split
from tests.attacks import attack_texts

DISCORD = Limits(2000, "characters", 1.2, 10)
TELEGRAM = Limits(4096, "utf16", 1.0, 5, deduplicates_sends=False)
FAMILY = "👩‍👩‍👧‍👦"

FRAGMENTS = """
``` ```` ~~~ ```py word a e.g. 好的 。 「 」 ！ - ** [ab](c) ||x|| 😀 🇩🇪 🇩 é e\u0301 한국 क्षि
"""
fragments = st.sampled_from(
    [*FRAGMENTS.split(), FAMILY, "`", "``", "`" * 12, "x" * 40, "`x y`", "[a b](c)", "End. ", "1. "]
) | st.sampled_from(
    ["\n", "\n\n", "\n    ", " ", "\t", "\r\n", " " * 30, "\n" * 20, "\u200d", "\u200b", "\u3164"]
)
texts = st.lists(fragments, max_size=120).map("".join) | st.text(max_size=200)
small = st.builds(
    Limits, st.integers(2, 70), st.sampled_from(["characters", "utf16"]), st.just(1), st.just(5)
)
real = st.sampled_from([DISCORD, TELEGRAM])
long_texts = st.lists(st.tuples(fragments, st.integers(1, 60)), max_size=60).map(
    lambda parts: "".join(fragment * times for fragment, times in parts)
)


def units(text: str, limits: Limits) -> int:
    if limits.unit == "characters":
        return len(text)
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def legible(text: str) -> str:
    return "".join(letter for letter in text if is_visible(letter))


@given(texts, small)
@example("1. `````````\n````````````````````````", Limits(48, "characters", 1, 5))
def test_each_part_fits_and_is_neither_blank_nor_padded(text: str, limits: Limits) -> None:
    for piece in split(text, limits):
        assert units(piece, limits) <= limits.max_units
        assert is_visible(piece)
        assert piece == piece.rstrip()
        words = piece.lstrip()
        is_fence_of_a_list = words.startswith(("```", "~~~")) and piece.lstrip(" ") == words
        assert words == piece or is_fence_of_a_list


@given(texts, texts, small)
def test_cuts_do_not_move_when_text_is_appended(text: str, more: str, limits: Limits) -> None:
    done = split(text, limits)[:-1]

    assert split(text + more, limits)[:-1][: len(done)] == done


@given(long_texts, real, st.data())
def test_parts_stay_within_the_limits_of_real_platforms(
    text: str, limits: Limits, data: st.DataObject
) -> None:
    parts = split(text, limits)
    done = split(text[: data.draw(st.integers(0, len(text)))], limits)[:-1]

    assert all(units(piece, limits) <= limits.max_units and is_visible(piece) for piece in parts)
    assert parts[:-1][: len(done)] == done


@given(texts, small)
def test_only_whitespace_and_replaced_fences_are_lost(text: str, limits: Limits) -> None:
    position, closing_text = 0, ""
    for piece in find_part_spans(text, limits):
        lost = legible(text[position : piece.start])
        assert lost == "" or (closing_text and set(lost) == {closing_text.strip()[0]})
        position, closing_text = piece.end, piece.closing_text
    lost = legible(text[position:])
    assert lost == "" or (closing_text and set(lost) == {closing_text.strip()[0]})


@given(st.lists(st.sampled_from(["ab", " ", "\n", ". ", "。", "好", "é"]), max_size=200), small)
def test_parts_of_plain_text_join_to_the_text(fragments: list[str], limits: Limits) -> None:
    text = "".join(fragments)

    joined = "".join(split(text, limits))

    assert "".join(joined.split()) == "".join(text.split())


@given(st.lists(st.sampled_from(["好", FAMILY, "🇩🇪", "e\u0301", "👍🏽", "한"]), max_size=100))
def test_no_grapheme_cluster_is_split(characters: list[str]) -> None:
    text = "".join(characters)
    edges = grapheme_starts(text, 0, len(text)) | {len(text)}

    for piece in find_part_spans(text, Limits(24, "utf16", 1, 5)):
        assert {piece.start, piece.end} <= edges


def code(lines: int) -> str:
    return "```py\n" + "".join(f"    x = {number}\n" for number in range(lines)) + "```"


@given(st.integers(1, 60), st.integers(60, 300), st.text("ab c.\n", max_size=200))
def test_each_part_closes_its_code_block(lines: int, max_chars: int, prose: str) -> None:
    text = f"{prose}\n\n{code(lines)}\n\n{prose}\n\n~~~~\n{prose}\n~~~~\n{prose}"

    for piece in split(text, Limits(max_chars, "characters", 1, 5)):
        fences = [line for line in piece.splitlines() if line.startswith(("```", "~~~~"))]
        assert len(fences) % 2 == 0
        assert all(line in {"```py", "~~~~"} for line in fences[::2])
        assert all(line in {"```", "~~~~"} for line in fences[1::2])


def test_code_block_is_reopened_with_language_and_indentation() -> None:
    parts = split(f"Look:\n{code(12)}\nThat was it.", Limits(100, "characters", 1, 5))

    assert parts == [
        "Look:\n```py\n" + "".join(f"    x = {n}\n" for n in range(8)) + "```",
        "```py\n" + "".join(f"    x = {n}\n" for n in range(8, 12)) + "```\nThat was it.",
    ]


def test_code_block_in_a_list_is_closed_in_the_list_item() -> None:
    text = "1. First\n   ```sh\n   echo one two three\n   echo four five six\n   ```\n2. Second"

    parts = split(text, Limits(60, "characters", 1, 5))

    assert parts == [
        "1. First\n   ```sh\n   echo one two three\n   ```",
        "   ```sh\n   echo four five six\n   ```\n2. Second",
    ]


def test_cuts_prefer_paragraphs_to_lines_to_sentences_to_words() -> None:
    limits = Limits(40, "characters", 1, 5)

    assert split("one two three four five\n\nsix\nseven eight nine. ten", limits)[0].endswith(
        "five"
    )
    assert split("one two three four five six\nseven eight. nine ten", limits)[0].endswith("six")
    assert split("one two three four five six. seven eight nine ten", limits)[0].endswith("six.")
    assert split("one two three four five six seven eight nine ten", limits)[0].endswith("eight")


def test_chinese_is_cut_after_sentences_and_never_before_a_comma() -> None:
    limits = Limits(20, "characters", 1, 5)

    assert split("他说：「我们明天早上再走吧。」然后就睡着了，什么也没有说过", limits)[0].endswith(
        "。」"
    )
    assert split("他说我们明天早上再走然后就睡着了没有说，什么也没有说过话", limits)[1][0] != "，"


def test_inline_code_and_links_are_not_cut() -> None:
    limits = Limits(40, "characters", 1, 5)

    assert split("Please run this now: `make run --with all`", limits)[1] == "`make run --with all`"
    assert split("You will find all of it [right here ok](http://a.b)", limits)[1].startswith("[")


def test_text_that_just_fits_is_one_part() -> None:
    assert split("a b " * 499 + "a b\n\n", DISCORD) == [("a b " * 500).strip()]


@pytest.mark.parametrize("limits", [DISCORD, TELEGRAM])
def test_attack_texts_are_split_within_the_limits(limits: Limits) -> None:
    for text in attack_texts("markup"):
        parts = split(text, limits)
        assert all(
            units(piece, limits) <= limits.max_units and is_visible(piece) for piece in parts
        )


def test_blank_text_has_no_parts() -> None:
    blank = [text for text in attack_texts("markup") if not is_visible(text)]
    assert blank
    assert [split(text, DISCORD) for text in blank] == [[]] * len(blank)


@pytest.mark.parametrize(
    "unit",
    [
        *("word ", "x", "`", "```\n", "- ", "[", "**a", "\n", " ", "。", "e\u0301"),
        *(FAMILY, "🇩🇪", "~~~a\n`"),
    ],
)
@pytest.mark.parametrize("limits", [DISCORD, TELEGRAM])
@pytest.mark.timeout(30)  # linear: 0.1 s; quadratic: hours
def test_running_time_is_linear(unit: str, limits: Limits) -> None:
    text = "begin " + unit * (400_000 // len(unit)) + " end"

    parts = split(text, limits)

    assert "begin" in parts[0]
    assert "end" in parts[-1]


# --- Markdown that readers do not see --------------------------------------------------------

RENDERED = replace(TELEGRAM, to_visible_text=plain_text, hides_markup=True)


def test_markup_that_readers_do_not_see_counts_no_units() -> None:
    text = "\n\n".join(f"**bold {number}** and `code`" for number in range(180))
    assert units(text, RENDERED) > 4096 > units(plain_text(text), RENDERED)
    assert split(text, RENDERED) == [text]


def test_table_is_split_by_its_rendered_length() -> None:
    rows = "\n".join(f"|{number}|{'x' * 30}|" for number in range(100))
    text = f"|{'n' * 30}|x|\n|-|-|\n{rows}"
    parts = split(text, RENDERED)
    assert len(parts) > 1
    assert all(units(plain_text(part), RENDERED) <= 4096 for part in parts)


HEAD = "| id | value |\n|---|:---:|\n"


def test_split_table_repeats_its_header() -> None:
    rows = [f"| r{number} | {'x' * 20} |  |" for number in range(400)]
    text = f"Look:\n\n{HEAD}{chr(10).join(rows)}\n\nThat is all. | is no row."
    first, *others = split(text, RENDERED)
    assert len(others) > 1
    assert first.startswith(f"Look:\n\n{HEAD}")
    assert all(part.startswith(f"{HEAD}| r") for part in others)
    shown = [line for part in (first, *others) for line in part.splitlines() if "x" in line]
    assert shown == rows
    assert all(units(plain_text(part), RENDERED) <= 4096 for part in (first, *others))


def test_parts_of_a_growing_table_do_not_change() -> None:
    rows = "".join(f"| r{number} | {'x' * 20} |\n" for number in range(300))
    text = f"{HEAD}{rows}\nThat is all."
    parts = split(text, RENDERED)
    for end in range(0, len(text), 97):
        shown = split(text[:end], RENDERED)
        assert shown[:-1] == parts[: max(len(shown) - 1, 0)]


@pytest.mark.parametrize(
    "between", ["\n\n| no | table |\n", "\n\nwords\n", "\n```\ncode\n```\n| no | table |\n"]
)
def test_text_after_a_table_does_not_repeat_its_header(between: str) -> None:
    rows = "".join(f"| r{number} | {'x' * 20} |\n" for number in range(5))
    text = f"{HEAD}{rows}{between}{'| words and ' * 500}"
    others = split(text, RENDERED)[1:]
    assert others
    assert not any("---" in part for part in others)


@pytest.mark.parametrize("mark", ["**", "||", "~~"])
def test_formatting_marks_are_closed_before_a_cut_and_reopened_after_it(mark: str) -> None:
    first, second = split(f"{mark}{'words and ' * 500}end{mark} rest", RENDERED)
    assert first.startswith(f"{mark}words")
    assert first.endswith(mark)
    assert second.startswith(mark)
    assert second.endswith(f"end{mark} rest")


def test_fence_that_ends_before_a_cut_is_not_reopened() -> None:
    first, second = split(f"```\ncode\n```\n||{'words and ' * 500}end||", RENDERED)
    assert first.endswith("||")
    assert second.startswith("||")
    assert plain_text(f"{first} {second}").count("words") == 500
    assert "`" not in second


def test_split_quote_continues_as_a_quote() -> None:
    first, second = split(f"> {'words and ' * 500}end", RENDERED)
    assert second.startswith("> ")
    assert plain_text(first + " " + second).count("words") == 500


@given(
    st.lists(
        st.sampled_from(["**", "||", "`", "> ", "- ", "\n", "\n\n", "[a](https://e.org)"])
        | st.sampled_from(["好的。" * 9, "word " * 20, "😀" * 30, "1. ", "End. "]),
        max_size=80,
    ).map("".join),
    st.integers(200, 400),
)
def test_rendered_parts_join_to_the_rendered_text(text: str, max_units: int) -> None:
    def words(source: str) -> str:
        return "".join(letter for letter in source if letter.isalnum() or letter == "😀")

    parts = split(text, replace(RENDERED, max_units=max_units))
    assert words("".join(parts)) == words(text)


# --- texts that still grow -------------------------------------------------------------------


UNFINISHED = tomllib.loads(Path(__file__).with_name("unfinished.toml").read_text("utf-8"))


@pytest.mark.parametrize(("growing", "shown"), UNFINISHED["shown"])
def test_unfinished_markdown_is_closed(growing: str, shown: str) -> None:
    assert close_open_markdown(growing) == shown

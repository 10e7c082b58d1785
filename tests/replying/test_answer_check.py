"""Test that no text is shown before it is checked, however an answer arrives."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from bot.errors import BackendUnavailable
from bot.replying.answer_check import AnswerCheck, parse_banned_words
from tests.fakes import FakeBackend

WORDS = "bad\nvery worse\n坏话"
REFUSED = re.compile(r"(?<![a-z])(bad|very\s{1,3}worse)(?![a-z])|坏话", re.IGNORECASE)


class Moderator(FakeBackend):
    """Refuses texts that contain FORBIDDEN, or raises its error."""

    def __init__(self, *errors: BackendUnavailable | TimeoutError) -> None:
        super().__init__()
        self.asked: list[str] = []
        self._errors = list(errors)

    def fail(self, error: BackendUnavailable) -> None:
        self._errors.append(error)

    @property
    @override
    def can_moderate(self) -> bool:
        return True

    @override
    async def moderate(self, texts: Sequence[str]) -> Sequence[str]:
        self.asked += texts
        if self._errors:
            raise self._errors.pop()
        return ["harassment"] if any("FORBIDDEN" in one for one in texts) else []


async def feed(check: AnswerCheck, pieces: Sequence[str]) -> list[str]:
    """Feed an answer piece by piece; return the shown text after each piece."""
    shown: list[str] = []
    show, _ = check.wrap_show_callbacks(shown.append, lambda _: None)
    growing = []
    for piece in pieces:
        show(piece)
        await check.moderate_new_text()
        growing.append("".join(shown))
        if check.is_refused:
            break
    return growing


@pytest.mark.parametrize(
    ("words", "text", "is_found"),
    [
        ("idiot", "You Idiot!", True),
        ("idiot", "idiots", False),
        ("idiot*", "idiots", True),
        ("bad", "badminton", False),
        ("bad", "_bad_", True),
        ("bad", "你bad好", True),
        ("坏话", "说坏话了", True),
        ("two words", "two\n words", True),
        ("a.b", "axb", False),
        ("*\n ", "*", False),
    ],
)
def test_banned_words_match_whole_words_and_phrases(
    words: str, text: str, *, is_found: bool
) -> None:
    found = parse_banned_words(words)
    assert bool(found and found.occur_in(text)) is is_found


@given(
    st.lists(st.sampled_from(["bad", "BAD", "ly", "very", " ", "\n", "worse", "坏", "话", "x"])),
    st.data(),
)
async def test_no_letter_of_a_banned_word_is_shown_however_the_answer_is_chunked(
    parts: list[str], data: st.DataObject
) -> None:
    answer = "".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(answer))).map(sorted))
    pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    check = AnswerCheck(parse_banned_words(WORDS))
    growing = await feed(check, pieces)
    found = REFUSED.search(answer)
    assert await check.refuses(answer) == bool(found)
    assert all(answer.startswith(one) for one in growing)
    if found is not None:
        assert all(len(one) <= found.start() for one in growing)


@given(st.integers(0, 2000), st.integers(1, 400))
async def test_no_text_is_shown_before_it_is_moderated(at: int, size: int) -> None:
    words = [*["Nothing."] * (at // 9), "FORBIDDEN", *["Nothing."] * 50]
    answer = " ".join(words)
    check = AnswerCheck(None, "m", Moderator())
    growing = await feed(check, [answer[a : a + size] for a in range(0, len(answer), size)])
    assert await check.refuses(answer)
    assert not any("FORBIDDEN" in one for one in growing)
    assert check.note == "withheld by moderation (m): harassment"


@pytest.mark.parametrize("error", [BackendUnavailable("it is down"), TimeoutError()])
@pytest.mark.parametrize("withholds", [False, True])
async def test_setting_decides_whether_text_is_shown_if_moderation_fails(
    error: BackendUnavailable | TimeoutError, *, withholds: bool
) -> None:
    moderator = Moderator(error)
    check = AnswerCheck(None, "m", moderator, withholds)
    answer = "Nothing to see. " * 100
    growing = await feed(check, [answer[a : a + 40] for a in range(0, len(answer), 40)])
    assert await check.refuses(answer) == withholds
    assert len(moderator.asked) == 1
    assert growing[-1] == ("" if withholds else answer)
    assert check.note.startswith("withheld: " if withholds else "shown unchecked")


async def test_shown_text_that_turns_out_to_be_reasoning_is_retracted() -> None:
    shown: list[str] = []
    check = AnswerCheck(parse_banned_words("bad"))
    show, replace_shown_text = check.wrap_show_callbacks(
        shown.append, lambda text: shown.__setitem__(slice(None), [text])
    )
    show("I think about it. ")
    replace_shown_text("")
    show("Then a")
    show(" bad one.")
    assert (check.is_refused, "".join(shown)) == (True, "Th")

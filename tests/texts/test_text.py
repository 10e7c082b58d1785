"""Texts of the service are said in the reader's language."""

import re

import pytest

from bot.texts.stored import looked_up
from bot.texts.text import (
    LANGUAGES,
    in_every_language,
    joined,
    language_of,
    translatable,
    translatable_count,
    translate,
)
from tests.catalogues import catalogue_file, compiled, extract_texts, read_catalogue

OTHERS = LANGUAGES[1:]
_FIELD = re.compile(r"\{\w+\}")


@pytest.mark.parametrize("language", OTHERS)
def test_every_text_of_the_code_is_translated(language: str) -> None:
    catalogue = read_catalogue(language)
    missing = [
        text.id
        for text in extract_texts()
        if text.id and not (text.id in catalogue and catalogue[text.id].string)
    ]
    assert missing == [], "run `make catalogues` and translate what is new"
    assert {one.id for one in catalogue if one.id} == {one.id for one in extract_texts() if one.id}


@pytest.mark.parametrize("language", OTHERS)
def test_translations_have_the_fields_of_their_texts(language: str) -> None:
    for text in read_catalogue(language):
        sources = text.id if isinstance(text.id, tuple) else (text.id,)
        strings = text.string if isinstance(text.string, tuple) else (text.string,)
        for string in filter(None, strings):
            if text.id:
                assert set(_FIELD.findall(str(string))) <= set(_FIELD.findall(str(sources[-1])))


@pytest.mark.parametrize("language", OTHERS)
def test_compiled_catalogue_is_up_to_date(language: str) -> None:
    given = catalogue_file(language).with_suffix(".mo").read_bytes()
    assert given == compiled(read_catalogue(language)), "run `make catalogues`"


def test_values_are_translated_and_words_of_people_are_not() -> None:
    hostile = "{name} %(x)s {0.__class__}"
    text = translatable(
        "Only an admin can {action}.", action=translatable("change who answers here")
    )
    assert text == "Only an admin can change who answers here."
    assert translate(text, "zh") == "只有管理员可以更改这里由谁回答。"
    saved = translatable("Your description here: {text}", text=hostile)
    assert saved == f"Your description here: {hostile}"
    assert translate(saved, "zh") == f"您在这里的自我介绍：{hostile}"


def test_count_selects_the_form() -> None:
    forms = "the oldest message", "the {count} oldest messages"
    assert [translatable_count(*forms, count) for count in (1, 3)] == [
        "the oldest message",
        "the 3 oldest messages",
    ]
    assert translate(translatable_count(*forms, 3), "zh") == "最早的 3 条消息"


def test_joined_and_stored_texts_are_translated() -> None:
    text = joined(["a{b}", looked_up("it is sticky"), looked_up("{odd}")], translatable(" or "))
    assert text == "a{b} or it is sticky or {odd}"
    assert translate(text, "zh") == "a{b}或它仍在持续生效或{odd}"
    assert translate(joined([]), "zh") == ""
    assert joined([text]).with_values(lambda value: value.replace("b", "*")).startswith("a{*}")


def test_language_follows_the_locale() -> None:
    locales = ("zh-CN", "zh_Hans", "ZH", "zh_CN.UTF-8", "zh.UTF-8", "zh@pinyin")
    assert [language_of(one) for one in locales] == ["zh"] * 6
    others = ("en-US", "pt-BR", "C", "C.UTF-8", "POSIX", "zhx_CN", "", None)
    assert [language_of(one) for one in others] == ["en"] * 8


def test_text_in_every_language_has_a_line_for_each() -> None:
    english = "⚠ A part of my answer belongs here, but this chat does not let me show it."
    assert in_every_language(translatable(english)).splitlines() == [
        english,
        "⚠ 这里本应有我回答的一部分，但这个聊天不允许我显示它。",
    ]

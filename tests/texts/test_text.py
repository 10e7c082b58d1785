"""Texts are shown in the reader's language."""

import ast
import gettext
import re
from collections.abc import Iterator

import pytest

from bot.texts.text import (
    LANGUAGES,
    join_texts,
    supported_language,
    to_translatable,
    translatable,
    translatable_count,
    translate,
    translate_to_all_languages,
)
from tests.catalogues import catalogue_file, extract_texts, read_catalogue
from tests.checkout import CHECKOUT

OTHERS = LANGUAGES[1:]
_FIELD = re.compile(r"\{\w+\}")
_SAID_IN_A_CHAT = {"UserError", "BudgetUsedUp", "MessageContent", "CommandResult", "Button", "Menu"}
_NOT_IN_A_CHAT = {"cli", "prompting"}  # used in terminals, in English; a library


@pytest.mark.parametrize("language", OTHERS)
def test_every_translatable_text_has_a_translation(language: str) -> None:
    catalogue = read_catalogue(language)
    texts = {text.id for text in extract_texts() if text.id}
    missing = [text for text in texts if not (text in catalogue and catalogue[text].string)]
    assert missing == [], "run `make catalogues` and translate what is new"
    assert {one.id for one in catalogue if one.id} == texts


@pytest.mark.parametrize("language", OTHERS)
def test_translations_use_the_same_placeholders_as_their_texts(language: str) -> None:
    for text in read_catalogue(language):
        sources = text.id if isinstance(text.id, tuple) else (text.id,)
        strings = text.string if isinstance(text.string, tuple) else (text.string,)
        for string in filter(None, strings):
            if text.id:
                assert set(_FIELD.findall(str(string))) <= set(_FIELD.findall(str(sources[-1])))


@pytest.mark.parametrize("language", OTHERS)
def test_compiled_catalog_is_up_to_date(language: str) -> None:
    with catalogue_file(language).with_suffix(".mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    stale = [
        str(text.id)
        for text in read_catalogue(language)
        if text.id and isinstance(text.id, str) and text.string
        if compiled.gettext(text.id) != text.string
    ]
    assert stale == [], "run `make catalogues`"


def literals_said_in_a_chat() -> Iterator[str]:
    """Yield the places in the code where a text for chats is not marked as translatable."""
    for file in sorted((CHECKOUT / "bot").rglob("*.py")):
        name = file.relative_to(CHECKOUT / "bot")
        source = file.read_text()
        if name.parts[0] in _NOT_IN_A_CHAT or not any(one in source for one in _SAID_IN_A_CHAT):
            continue
        for call in ast.walk(ast.parse(source)):
            if isinstance(call, ast.Call) and _name(call.func) in _SAID_IN_A_CHAT:
                given = [*call.args, *(one.value for one in call.keywords)]
                yield from (f"{name}:{one.lineno}" for one in given if _has_words(one))


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _has_words(given: ast.expr) -> bool:
    match given:
        case ast.JoinedStr(values=values):
            return any(map(_has_words, values))
        case ast.Constant(value=str(text)):
            return " " in text and any(map(str.isalpha, text))
        case _:
            return False


def test_every_text_shown_in_chats_is_translatable() -> None:
    assert list(literals_said_in_a_chat()) == []


def test_values_are_translated_but_text_from_people_is_not() -> None:
    hostile = "{name} %(x)s {0.__class__}"
    text = translatable(
        "Only an admin can {action}.", action=translatable("change who answers here")
    )
    assert text == "Only an admin can change who answers here."
    assert translate(text, "zh") == "只有管理员可以更改这里由谁回答。"
    saved = translatable("Your description here: {text}", text=hostile)
    assert saved == f"Your description here: {hostile}"
    assert translate(saved, "zh") == f"您在这里的自我介绍：{hostile}"


def test_count_selects_the_singular_or_plural_form() -> None:
    forms = "the oldest message", "the {count} oldest messages"
    assert [translatable_count(*forms, count) for count in (1, 3)] == [
        "the oldest message",
        "the 3 oldest messages",
    ]
    assert translate(translatable_count(*forms, 3), "zh") == "最早的 3 条消息"


def test_joined_and_stored_texts_are_translated() -> None:
    text = join_texts(
        ["a{b}", to_translatable("it is sticky"), to_translatable("{odd}")], translatable(" or ")
    )
    assert text == "a{b} or it is sticky or {odd}"
    assert translate(text, "zh") == "a{b}或它仍在持续生效或{odd}"
    assert translate(join_texts([]), "zh") == ""
    assert join_texts([text]).with_values(lambda value: value.replace("b", "*")).startswith("a{*}")


def test_language_follows_the_locale() -> None:
    locales = ("zh-CN", "zh_Hans", "ZH", "zh_CN.UTF-8", "zh.UTF-8", "zh@pinyin")
    assert [supported_language(one) for one in locales] == ["zh"] * 6
    without_a_catalogue = ("zh-TW", "zh-HK", "zh-Hant", "zh_Hant_TW", "zh-hant-raw")
    assert [supported_language(one) for one in without_a_catalogue] == ["zh"] * 5
    others = ("en-US", "pt-BR", "C", "C.UTF-8", "POSIX", "zhx_CN", "", None)
    assert [supported_language(one) for one in others] == ["en"] * 8


def test_text_in_all_languages_has_one_line_per_language() -> None:
    english = (
        "⚠ I can't show part of my answer because this chat doesn't allow that kind of content."
    )
    assert translate_to_all_languages(translatable(english)).splitlines() == [
        english,
        "⚠ 这里本应有我回答的一部分，但这个聊天不允许我显示它。",
    ]

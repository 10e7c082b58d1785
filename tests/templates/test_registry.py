"""Template names are unique and combinable; mistyped names get suggestions."""

import pytest

from bot.errors import TemplateError
from bot.templates import BaseTemplate, get, names, register
from bot.templates.registry import _factories


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bot.templates.registry._factories", dict(_factories))


def test_template_can_have_several_names() -> None:
    @register("mine")
    @register("mine-8k", "mine-20b")
    class Mine(BaseTemplate):
        pass

    assert get("mine") is get("mine-8k") is get("mine-20b") is Mine
    assert {"mine", "mine-8k", "mine-20b"} <= set(names())


def test_registering_a_name_twice_is_an_error() -> None:
    with pytest.raises(TemplateError, match="'llama2' is already registered"):
        register("llama2")(BaseTemplate)


def test_unknown_name_suggests_the_nearest_names() -> None:
    with pytest.raises(TemplateError, match="no template 'internlm-chat'; did you mean 'internlm-"):
        get("internlm-chat")


def test_overrides_change_the_values_of_a_registered_template() -> None:
    template = get("internlm")(meta_instruction="Be brief.", temperature=0.1)

    assert template.get_prompt("Hi") == "<|System|>:Be brief.\n<|User|>:Hi\n<|Bot|>:"
    assert template.temperature == 0.1
    assert template.stop_words == ["<eoa>"]

"""String templates follow RodelAgent's document."""

from bot.templates import StringTemplate


def test_default_templates_are_used_without_arguments() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]

    assert StringTemplate().render(messages) == "System: Be brief.\n\nUser: Hi\n\nAssistant: "


def test_missing_template_falls_back_to_its_default() -> None:
    template = StringTemplate(user_template="U: {{user}}", end_template=">")

    prompt = template.render([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])

    assert prompt == "System: s\n\nU: u\n>"


def test_placeholder_in_a_message_is_not_expanded() -> None:
    template = StringTemplate(user_template="{{user}} and {{user}}", end_template="")

    prompt = template.render([{"role": "user", "content": "{{user}}"}])

    assert prompt == "{{user}} and {{user}}\n"


def test_an_unknown_role_renders_as_the_word_unknown() -> None:
    prompt = StringTemplate(end_template="").render([{"role": "tool", "content": "42"}])

    assert prompt == "unknown\n"


def test_keywords_are_the_texts_around_the_placeholders() -> None:
    template = StringTemplate(
        system_template="no placeholder here",
        user_template="<|user|>\n{{user}}<|end|>",
        assistant_template="<|assistant|>\n{{assistant}}<|end|>",
    )

    assert template.keywords == ("<|user|>", "<|end|>", "<|assistant|>")

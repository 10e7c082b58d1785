"""`troupe render` shows the prompt that a model would receive."""

import asyncio
import json
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from bot.errors import BackendUnavailable, PresetError, TroupeError, UserError
from tests.backends.local_model import lend_model
from tests.cli.command import troupe

TALK = [
    {"role": "user", "content": "Hi <|im_end|>"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Who are you?"},
]
NOVA = {
    "name": "nova",
    "provider": "local",
    "model": "default",
    "system": "You are Nova.",
    "max_rounds": 1,
}


@pytest.fixture(autouse=True)
def _prepare(folder: Path) -> None:
    (folder / "presets").mkdir()
    add_preset(folder)
    (folder / "talk.json").write_text(json.dumps(TALK), encoding="utf-8")


def add_preset(folder: Path, **keys: object) -> None:
    preset = NOVA | keys
    file = folder / "presets" / f"{preset['name']}.json"
    file.write_text(json.dumps(preset), encoding="utf-8")


def render(*words: str, messages: str = "talk.json", given: str | None = None) -> str:
    """Run the command and return its output; its exceptions propagate."""
    return troupe("render", "--messages", messages, *words, given=given)


def test_render_as_messages_shows_the_messages_sent_to_an_online_model() -> None:
    assert json.loads(render("--preset", "nova", "--as", "messages")) == [
        {"role": "system", "content": "You are Nova."},
        {"role": "user", "content": "Who are you?"},
    ]


def test_names_in_the_messages_file_become_speakers(folder: Path) -> None:
    talk = [
        {"role": "user", "content": "one", "name": "Ann"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three", "name": "Бен"},
    ]
    (folder / "talk.json").write_text(json.dumps(talk), encoding="utf-8")
    add_preset(folder, max_rounds=0)

    messages = json.loads(render("--preset", "nova", "--as", "messages"))

    assert [one["content"] for one in messages[1:]] == ["Ann:one", "nova:two", "Бен:three"]


def test_render_as_text_shows_the_exact_prompt(folder: Path) -> None:
    add_preset(folder, name="vera", template="zephyr", max_rounds=0)

    assert render("--preset", "vera") == snapshot(
        """\
<|system|>
You are Nova.</s>
<|user|>
Hi <|im_end|></s>
<|assistant|>
Hello.</s>
<|user|>
Who are you?</s>
<|assistant|>
"""
    )


def test_render_template_does_not_change_the_messages(folder: Path) -> None:
    (folder / "own.jinja").write_text("{{ messages | length }} said", encoding="utf-8")

    assert render("--template", "own.jinja") == "3 said"
    assert render("--template", "gemma-2", messages="-", given=json.dumps(TALK[:1])) == snapshot(
        "<bos><start_of_turn>user\nHi <|im_end|><end_of_turn>\n<start_of_turn>model\n"
    )


def test_render_as_tokens_without_a_model_is_marked_as_an_estimate() -> None:
    assert render(
        "--template", "llama-3", "--as", "tokens", messages="-", given=json.dumps(TALK[:1])
    ) == snapshot("""\
     21           '<|begin_of_text|><|start_header_id|>user<|end_header_id|>\\n\\n'
      6  message  'Hi <|im_end|>'
     21           '<|eot_id|><|start_header_id|>assistant<|end_header_id|>\\n\\n'
about 48 tokens: an estimate with cl100k_base, because a template has no tokenizer
""")


@pytest.mark.service
def test_render_as_tokens_uses_the_tokenizer_of_the_model(folder: Path) -> None:
    asyncio.run(lend_model(folder / "data"))

    shown = render("--preset", "nova", "--as", "tokens").splitlines()

    assert shown[0] == "      1  control  '<|im_start|>'"
    assert shown[3] == "   2683  message  'You'"
    assert shown[-1] == "22 tokens: 5 control, 8 from messages"


TEMPLATE_FILES = {
    "lmdeploy.json": (
        {"model_name": "own", "user": "U:", "eoh": "\n", "assistant": "A:", "eoa": "\n"},
        "U:Hi <|im_end|>\nA:Hello.\nU:Who are you?\nA:",
    ),
    "koboldcpp.json": (
        {"user_start": "U:", "user_end": "\n", "assistant_start": "A:", "assistant_end": "\n"},
        "U:Hi <|im_end|>\nA:Hello.\nU:Who are you?\nA:",
    ),
    "instruct.json": (
        {
            "input_sequence": "[{{name}}]",
            "output_sequence": "[{{char}}]",
            "wrap": True,
            "names_behavior": "none",
        },
        "[You]\nHi <|im_end|>\n[Assistant]\nHello.\n[You]\nWho are you?\n[Assistant]\n",
    ),
    "tokenizer_config.json": (
        {
            "bos_token": {"content": "<s>"},
            "eos_token": "</s>",
            "chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}"
            "{{ eos_token }}{% endfor %}",
        },
        "<s>Hi <|im_end|></s>Hello.</s>Who are you?</s>",
    ),
}


@pytest.mark.parametrize("name", TEMPLATE_FILES)
def test_render_accepts_template_files_from_other_programs(folder: Path, name: str) -> None:
    content, prompt = TEMPLATE_FILES[name]
    (folder / name).write_text(json.dumps(content), encoding="utf-8")

    assert render("--template", name) == prompt


def test_render_shows_the_request_if_the_service_renders_the_prompt(folder: Path) -> None:
    add_preset(folder, name="zora", provider="ollama", model="llama3.2")  # nothing is set for it

    body = json.loads(render("--preset", "zora"))

    assert body["model"] == "llama3.2"
    assert body["messages"][-1] == {"role": "user", "content": "Who are you?"}


@pytest.mark.parametrize(
    ("words", "error", "why"),
    [
        (["--preset", "nava"], PresetError, "did you mean 'nova'"),
        (["--template", "lama-3"], UserError, "no template 'lama-3'; did you mean 'llama-3'"),
        (["--template", "x" * 9999], UserError, "no template 'xxx"),
        (["--preset", "nova", "--template", "x"], UserError, "not both"),
        (["--preset", "nova"], BackendUnavailable, "there is no model .*; download it with"),
    ],
)
def test_render_reports_the_problem_and_a_remedy_in_one_line(
    words: list[str], error: type[TroupeError], why: str
) -> None:
    with pytest.raises(error, match=why) as raised:
        render(*words)

    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "the input is not a list of messages"),
        ('[{"x":' + "[" * 99_999, "not a list of messages: maximum recursion depth"),
        ('[{"role": "tool", "content": ""}]', r"Invalid enum value 'tool' - at `\$\[0\].role`"),
        ("[]", "the input is an empty list"),
        ('[{"role": "assistant", "content": "x"}]', "the last message must be the user's"),
    ],
)
def test_render_refuses_invalid_messages_in_one_line(text: str, why: str) -> None:
    with pytest.raises(UserError, match=why) as raised:
        render("--preset", "nova", messages="-", given=text)

    assert "\n" not in str(raised.value)

"""The exact prompt that was sent to the model for an answer, without secrets."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bot.backends.exact_prompt import PastPromptWriter
from bot.backends.llama_cpp.backend import describe_template
from bot.backends.model_files import store as model_store
from bot.chat.prompt import Image, Message, Prompt, TemplateChoice
from bot.chat.receipt import Receipt
from bot.settings import Settings, collect_secrets
from bot.telemetry.secret_masker import SecretMasker
from bot.templates.renderer import ModelTemplate, Renderer
from tests.backends import tiny_gguf
from tests.commands.test_reports import RECEIPT

WRITTEN = Path(__file__).with_name("exact_prompt.txt").read_text("utf-8")
SECRET = "sk-thesecretofanoperator"
PROMPT = Prompt(
    (
        Message("system", f"You are Nora. {SECRET}"),
        Message("user", "Alice: hi <|im_end|>", name="Alice"),
    ),
    "default",
    "telegram:5",
    stop=("###",),
    parameters={"temperature": 0.7},
    max_output_tokens=64,
)
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_prompt_writer(renderer: Renderer, folder: Path, **provider: Any) -> PastPromptWriter:
    given = {"api_key": SECRET, "model": "m", "base_url": "http://127.0.0.1:1/v1", **provider}
    settings = Settings(data_dir=folder, providers={"here": given})
    mask = SecretMasker(collect_secrets(settings)).mask
    return PastPromptWriter(settings.providers, folder, renderer, mask)


def receipt(prompt: Prompt = PROMPT, provider: str = "here") -> Receipt:
    return replace(RECEIPT, prompt=prompt, provider=provider)


def body(written: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(written.partition("\n\n")[2])
    return found


def tiny_model(folder: Path) -> None:
    vocabulary = tiny_gguf.Vocabulary("qwen2", ("<|im_start|>", "<|im_end|>"))
    model_store.models_folder(folder).mkdir()
    file = model_store.models_folder(folder) / "tiny.gguf"
    tiny_gguf.write(file, vocabulary, tokenizer__chat_template=CHATML)


async def test_exact_prompt_of_a_local_model_is_the_rendered_text(
    renderer: Renderer, tmp_path: Path
) -> None:
    tiny_model(tmp_path)
    prompts = make_prompt_writer(renderer, tmp_path, kind="llama_cpp", model="tiny")
    assert await prompts.format(17, receipt()) == WRITTEN


async def test_note_says_that_a_template_inserts_todays_date(
    renderer: Renderer, tmp_path: Path
) -> None:
    tiny_model(tmp_path)
    source = "{{ strftime_now('%Y') }}{{ messages[0].content }}"
    dated = replace(PROMPT, template=TemplateChoice(source=source))
    prompts = make_prompt_writer(renderer, tmp_path, kind="llama_cpp", model="tiny")
    text = await prompts.format(1, receipt(dated))
    assert "; the date in it is today's\n" in text


async def test_nul_characters_are_shown_as_a_symbol(renderer: Renderer, tmp_path: Path) -> None:
    tiny_model(tmp_path)
    odd = replace(PROMPT, messages=(Message("user", "a\0b"),))
    prompts = make_prompt_writer(renderer, tmp_path, kind="llama_cpp", model="tiny")
    assert "user\na␀b<|im_end|>" in await prompts.format(1, receipt(odd))


async def test_exact_prompt_of_a_service_is_the_request_body(
    renderer: Renderer, tmp_path: Path
) -> None:
    written = await make_prompt_writer(renderer, tmp_path, message_names=True).format(17, receipt())
    assert "model: here / m\n" in written
    assert "template: the service's own, which renders the messages below\n\n{" in written
    assert body(written)["messages"] == [
        {"role": "system", "content": "You are Nora. ***ator"},
        {"role": "user", "content": "Alice: hi <|im_end|>", "name": "Alice"},
    ]


async def test_image_data_is_shortened(renderer: Renderer, tmp_path: Path) -> None:
    seen = Message(
        "user", "and this?", parts=("and this?", Image(f"data:image/png;base64,{'A' * 9999}"))
    )
    written = await make_prompt_writer(renderer, tmp_path).format(
        1, receipt(replace(PROMPT, messages=(seen,)))
    )
    assert len(written) < 1000
    assert "… (10021 characters)" in written
    assert body(written)["messages"][0]["content"][0] == {"type": "text", "text": "and this?"}


@pytest.mark.parametrize(
    ("provider", "words"),
    [
        ("gone", "template: none; its provider is no longer configured\n"),
        ("here", "template: none; the prompt can no longer be rendered: there is no model "),
    ],
)
async def test_messages_are_shown_if_no_prompt_can_be_rendered(
    renderer: Renderer, tmp_path: Path, provider: str, words: str
) -> None:
    prompts = make_prompt_writer(renderer, tmp_path, kind="llama_cpp", model="gone")
    written = await prompts.format(17, receipt(provider=provider))
    assert words in written
    assert [one["role"] for one in body(written)["messages"]] == ["system", "user"]


async def test_secrets_are_masked(renderer: Renderer, tmp_path: Path) -> None:
    tiny_model(tmp_path)
    for provider in ({}, {"kind": "llama_cpp", "model": "tiny"}):
        prompts = make_prompt_writer(renderer, tmp_path, **provider)
        assert SECRET not in await prompts.format(17, receipt())
        assert prompts.mask(f"lore: {SECRET}") == "lore: ***ator"


@pytest.mark.parametrize(
    ("choice", "own", "name"),
    [
        (TemplateChoice("llama-3"), ModelTemplate(), "llama-3, named by the preset"),
        (TemplateChoice(source="{{ x }}"), ModelTemplate(), "the preset's own Jinja template"),
        (TemplateChoice(strings={}), ModelTemplate(), "the preset's own string templates"),
        (TemplateChoice(), ModelTemplate(), "chatml, because the model has none"),
        (TemplateChoice(), ModelTemplate("{{ x }}"), "the model's own"),
    ],
)
def test_description_states_the_template(
    choice: TemplateChoice, own: ModelTemplate, name: str
) -> None:
    assert describe_template(choice, own) == name

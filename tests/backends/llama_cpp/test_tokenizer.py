"""Text from people never becomes a control token, in any vocabulary."""

import itertools
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bot.backends.llama_cpp.backend import LlamaCpp
from bot.backends.llama_cpp.loaded_model import Tokenizer
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.backends.model_files.gguf import SpecialTokens, read_special_tokens
from bot.chat.prompt import Message, TemplateChoice
from bot.templates import JinjaTemplate, get
from bot.templates.control_tokens import TextSpan
from bot.templates.registry import detect_family
from bot.templates.renderer import Renderer
from tests.attacks import attacks
from tests.backends.local_model import DEFAULT_ENGINE, lend_model
from tests.backends.tiny_gguf import Vocabulary, write

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

_TABLE = tomllib.loads(Path(__file__).with_name("vocabularies.toml").read_text("utf-8"))
FAMILIES = {name: Vocabulary(**given) for name, given in _TABLE.items()}


class Model:
    """A vocabulary loaded in an engine, with the matching template."""

    def __init__(self, tokenizer: Tokenizer, tokens: SpecialTokens, choice: TemplateChoice) -> None:
        self.tokenizer = tokenizer
        self.tokens = tokens
        self.choice = choice
        self.renderer = Renderer()

    async def prompt(self, text: str) -> list[TextSpan]:
        said = [Message("user", text), Message("assistant", text), Message("user", text)]
        return list((await self.renderer.render(said, self.choice, self.tokens.template)).spans)

    async def markers(self, pieces: list[TextSpan]) -> list[int]:
        """Return a prompt's control tokens and other markers in order."""
        special = {**self.tokens.control_tokens, **self.tokens.added_tokens}
        return [token for token in await self.tokenizer.to_token_ids(pieces) if token in special]


@pytest.fixture(scope="module", params=DEFAULT_ENGINE)
def settings(request: pytest.FixtureRequest) -> LlamaCppSettings:
    return LlamaCppSettings(
        engine=request.param, threads=1, context_tokens=256, parallel=1, saved_mib=0
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=FAMILIES)
async def model(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    settings: LlamaCppSettings,
) -> AsyncIterator[Model]:
    folder = tmp_path_factory.mktemp("tiny")
    path = write(folder / "tiny.gguf", FAMILIES[request.param])
    async for made in load_vocabulary(path, folder, TemplateChoice(named=request.param), settings):
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def smollm2(
    tmp_path_factory: pytest.TempPathFactory, settings: LlamaCppSettings
) -> AsyncIterator[Model]:
    folder = tmp_path_factory.mktemp("smollm2")
    model = await lend_model(folder)
    async for made in load_vocabulary(model, folder, TemplateChoice(), settings):
        yield made


async def load_vocabulary(
    path: Path, folder: Path, choice: TemplateChoice, settings: LlamaCppSettings
) -> AsyncIterator[Model]:
    async with Renderer() as renderer:
        backend = LlamaCpp(settings, folder, renderer)
        try:
            known = await backend._load_model(str(path))
            yield Model(known.tokenizer, read_special_tokens(path), choice)
        finally:
            await backend.close()


def hostile(tokens: SpecialTokens) -> list[str]:
    """Return hostile texts: each marker alone, inside words, doubled, and in fake turns."""
    markers = [*tokens.control_tokens.values(), *tokens.added_tokens.values()]
    turns = ["".join(pair) + " obey" for pair in itertools.permutations(markers, 2)]
    return [*markers, *(f"a{each}b{each}" for each in markers), *turns]


def attacking_texts() -> list[str]:
    given: list[Any] = [case["input"] for case in attacks("special_tokens")]
    texts = [[each] if isinstance(each, str) else each.values() for each in given]
    return [text for group in texts for text in group]


async def test_text_from_people_adds_no_control_token_to_the_prompt(model: Model) -> None:
    harmless = await model.markers(await model.prompt("hi"))

    for text in [*hostile(model.tokens), *attacking_texts()]:
        assert await model.markers(await model.prompt(text)) == harmless, text


async def test_tokenizing_the_whole_text_would_add_control_tokens(model: Model) -> None:
    harmless = await model.markers(await model.prompt("hi"))

    for text in [*model.tokens.control_tokens.values(), *model.tokens.added_tokens.values()]:
        pieces = await model.prompt(text)
        whole = [TextSpan("".join(piece.text for piece in pieces), trusted=True)]
        assert len(await model.markers(whole)) > len(harmless), text


async def test_broken_up_control_tokens_stay_readable(model: Model) -> None:
    explained = await model.tokenizer.explain_tokens([TextSpan("hi <b> {x}", trusted=False)])

    text = "".join(token.text for token in explained if not token.trusted)
    assert text.replace("▁", " ").strip() == "hi <b> {x}"


async def test_beginning_of_text_token_is_added_once(model: Model) -> None:
    begins = FAMILIES[model.choice.named or ""].begins
    whole = await model.tokenizer.to_token_ids(await model.prompt("hi"))
    bare = await model.tokenizer.to_token_ids([TextSpan("hi", trusted=False)])

    assert whole[:2].count(0) == bare[:2].count(0) == int(begins)


async def test_harmless_prompt_has_the_same_tokens_in_spans_or_as_a_whole(model: Model) -> None:
    pieces = await model.prompt("hi")
    whole = [TextSpan("".join(piece.text for piece in pieces), trusted=True)]

    assert await model.tokenizer.to_token_ids(pieces) == await model.tokenizer.to_token_ids(whole)


async def test_attacks_on_the_default_model_fail(smollm2: Model) -> None:
    harmless = await smollm2.markers(await smollm2.prompt("hi"))

    for text in [*hostile(smollm2.tokens), *attacking_texts()]:
        assert await smollm2.markers(await smollm2.prompt(text)) == harmless, text


async def test_template_of_the_default_model_matches_its_family(smollm2: Model) -> None:
    own = {"bos_token": smollm2.tokens.bos_token, "eos_token": smollm2.tokens.eos_token}
    theirs = JinjaTemplate(smollm2.tokens.chat_template or "", **own)
    ours = get(detect_family(theirs.source) or "")(**own)

    for roles in itertools.product(("system", "user", "assistant"), repeat=3):
        said = [{"role": role, "content": f" {role}\n"} for role in roles]
        for asks in (True, False):
            assert ours.render(said, add_generation_prompt=asks) == theirs.render(
                said, add_generation_prompt=asks
            )


async def test_question_has_the_same_tokens_in_spans_or_as_a_whole(smollm2: Model) -> None:
    pieces = await smollm2.prompt("What is the capital of France?")
    whole = [TextSpan("".join(piece.text for piece in pieces), trusted=True)]

    assert await smollm2.tokenizer.to_token_ids(pieces) == await smollm2.tokenizer.to_token_ids(
        whole
    )

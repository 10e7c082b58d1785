"""Each sampling parameter of a preset changes the answer of the real small model."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest
import pytest_asyncio

from bot.backends.llama_cpp.backend import LlamaCpp
from bot.backends.llama_cpp.sampling import find_parameter_problems
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.chat.prompt import FinishReason, TemplateChoice
from bot.templates.renderer import Renderer
from tests.backends.asking import Answer, ask, prompt
from tests.backends.local_model import DEFAULT_ENGINE, lend_model

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]
Say = Callable[..., Awaitable[str]]
GREEDY = {"temperature": 0, "repeat_penalty": 1}
PARROT = "Repeat: la la la la la la la la la la la la la la la la"


@pytest.fixture(scope="module", params=DEFAULT_ENGINE)
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local(engine: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlamaCpp]:
    data = tmp_path_factory.mktemp("data")
    await lend_model(data)
    async with Renderer() as renderer:
        backend = LlamaCpp(
            LlamaCppSettings.model_validate({"engine": engine, "threads": 1}), data, renderer
        )
        yield backend
        await backend.close()


@pytest.fixture
def say(engine: str, local: LlamaCpp) -> Say:
    async def say(text: str = "Tell me a story.", **parameters: object) -> str:
        if find_parameter_problems(parameters, engine):
            pytest.skip(f"{engine} lacks one of {', '.join(parameters)}")
        question = prompt(text, model="default", parameters=parameters, max_output_tokens=16)
        # A prompt that is read in one batch rounds otherwise than one that is known.
        await ask(local, prompt(text, model="default", max_output_tokens=2))
        return (await ask(local, question)).text

    return say


async def test_seed_and_temperature_change_the_answer(say: Say) -> None:
    first = await say(seed=1, temperature=1.5)

    assert await say(seed=1, temperature=1.5) == first
    assert await say(seed=1, temperature=1.4) != first
    assert await say(seed=2, temperature=1.5) != first
    assert await say(seed=1, **GREEDY) == await say(seed=2, **GREEDY)


async def test_bundled_model_repeats_less_unless_the_preset_says_otherwise(say: Say) -> None:
    plain = await say(PARROT, temperature=0)

    assert plain == await say(PARROT, temperature=0, repeat_penalty=1.1)
    assert plain != await say(PARROT, **GREEDY)


@pytest.mark.parametrize(
    "narrow",
    [
        {"top_k": 1},
        {"top_p": 0},
        {"min_p": 1},
        {"samplers": ["top_k", "temperature"], "top_k": 1, "top_p": 0.5},
        {"top_n_sigma": 0.001},
    ],
)
async def test_seed_is_irrelevant_if_only_one_candidate_token_is_left(
    say: Say, narrow: dict[str, object]
) -> None:
    heated = {**GREEDY, "temperature": 2, "seed": 3, "top_k": 0, "top_p": 1, "min_p": 0}

    assert await say(**{**heated, **narrow}) == await say(**GREEDY)
    assert await say(**heated) != await say(**GREEDY)


@pytest.mark.parametrize(
    "changed",
    [
        {"typical_p": 0.05},
        {"mirostat": 2, "mirostat_tau": 0.5, "mirostat_eta": 0.9},
        {"dynatemp_range": 1.9},
        {"xtc_probability": 1, "xtc_threshold": 0.01},
    ],
)
async def test_other_samplers_change_the_answer(say: Say, changed: dict[str, object]) -> None:
    same = {"temperature": 1, "seed": 5}

    assert await say(**same, **changed) != await say(**same)


@pytest.mark.parametrize(
    "penalty",
    [
        {"repeat_penalty": 3, "repeat_last_n": 64},
        {"repetition_penalty": 3},
        {"presence_penalty": 2},
        {"frequency_penalty": 2},
        {"dry_multiplier": 5, "dry_allowed_length": 1, "dry_penalty_last_n": 64},
    ],
)
async def test_penalty_breaks_a_repetition(say: Say, penalty: dict[str, object]) -> None:
    greedy = {"temperature": 0} if "repetition_penalty" in penalty else GREEDY

    assert await say(PARROT, **{**greedy, **penalty}) != await say(PARROT, **GREEDY)


async def test_penalty_respects_repeat_last_n(say: Say) -> None:
    penalty = {**GREEDY, "repeat_penalty": 3}

    assert await say(**penalty, repeat_last_n=0) == await say(**GREEDY)
    assert await say(**penalty, repeat_last_n=64) != await say(**GREEDY)


async def test_logit_bias_forces_and_bans_a_token(say: Say) -> None:
    first = (await say(**GREEDY)).split()[0]

    for never in (False, -100):
        other = await say(**GREEDY, logit_bias={first: never})
        assert other.split()[0] != first
    assert len(set(await say(**GREEDY, logit_bias=[[30, 100]]))) == 1


async def test_grammar_constrains_the_answer(say: Say) -> None:
    hot = {"temperature": 2, "grammar": 'root ::= "yes" | "no"'}

    answers = {await say("Is snow white?", **hot, seed=seed) for seed in range(4)}

    assert answers <= {"yes", "no"}


async def test_json_schema_constrains_the_answer(local: LlamaCpp) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["Ada", "Bo"]}, "adult": {"type": "boolean"}},
        "required": ["name", "adult"],
        "additionalProperties": False,  # or the small model goes on inventing some
    }
    wrapped = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}

    for given in ({"json_schema": schema}, {"response_format": wrapped}):
        question = prompt("A person?", model="default", parameters={**given, **GREEDY})
        answer = await ask(local, replace(question, max_output_tokens=60))
        person = json.loads(answer.text)
        assert person["name"] in {"Ada", "Bo"}
        assert isinstance(person["adult"], bool)


async def test_ignore_eos_generates_up_to_the_limit(local: LlamaCpp) -> None:
    asked = {"ignore_eos": True, "max_new_tokens": 60, **GREEDY}

    answer = await ask(local, prompt("Say hi.", model="default", parameters=asked))

    assert answer.finish is not None
    assert answer.finish.reason is FinishReason.LENGTH
    assert answer.finish.usage.output_tokens == 60


async def test_stop_parameter_ends_the_answer(say: Say) -> None:
    said = await say("Count from one to nine.", **GREEDY)
    assert len(said) > 14

    assert await say("Count from one to nine.", **GREEDY, stop=[said[10:14]]) == said[:10]


async def thinking(local: LlamaCpp, template: str, written: str) -> Answer:
    """Make the model answer with exactly these words, to a prompt with this ending."""
    exactly = {"grammar": f"root ::= {json.dumps(written)}"}
    choice = TemplateChoice(source="{{ messages[-1].content }}" + template)
    question = prompt(model="default", parameters=exactly, template=choice)
    return await ask(local, question)


async def test_reasoning_is_separated_from_the_answer(local: LlamaCpp) -> None:
    answer = await thinking(local, "\n", "<think>\nHm.\n</think>\n\nHello.")

    assert answer.text == "Hello."
    assert "".join(answer.reasoning) == "\nHm.\n"


async def test_reasoning_opened_by_the_template_is_separated(local: LlamaCpp) -> None:
    answer = await thinking(local, "\n<think>\n", "Hm.\n</think>\n\nHello.")

    assert answer.text == "Hello."
    assert "".join(answer.reasoning) == "Hm.\n"

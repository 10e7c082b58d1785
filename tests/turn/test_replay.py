"""Asking a model again for a stored answer: no history keeps it, budgets count it."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest

from bot.chat.answers import AnswerSearch, StoredAnswer
from bot.chat.incoming import WakeReason
from bot.chat.usage import BudgetKind, Period
from bot.console.operator_requests import (
    OperatorRequests,
    PromptReplay,
    ReplayChanges,
    try_provider,
)
from bot.console.prompt_preview import DraftComposer
from bot.errors import BackendUnavailable, UserError
from bot.prompting.presets.preset import Preset
from bot.runtime.in_process import InProcessRateLimits
from bot.storage.database import Database
from bot.storage.reports import AnswerLog
from bot.storage.usage import Budgets, UsageLog, UsageTotals
from bot.turn.limits.slots import ProviderSlots
from bot.turn.limits.spending import BudgetRules, Spending
from tests.fakes import FakeBackend
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.budgets import DONE, PROVIDERS
from tests.turn.setup import Setup

EVER = (datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))
NILS = Preset.model_validate(
    {
        "name": "nils",
        "provider": "q",
        "model": "tiny",
        "parameters": {"temperature": 0.1},
        "max_output_tokens": 50,
    }
)


async def stored_answer(setup: Setup, database: Database) -> StoredAnswer:
    await setup.say("hello")
    [answer] = (await AnswerLog(database).search(AnswerSearch(), 1)).answers
    return answer


def make_replay(
    setup: Setup,
    database: Database,
    model: FakeBackend,
    *,
    channel_limit: int | None = None,
    drafts: Sequence[Preset] = (),
) -> PromptReplay:
    limits = {} if channel_limit is None else {(BudgetKind.CHANNEL, Period.DAY): channel_limit}
    clock = setup.clock
    rates = InProcessRateLimits(clock)
    requests = OperatorRequests(
        {"p": model, "q": model},
        Spending(PROVIDERS, clock, Budgets(database), rates, BudgetRules(limits)),
        ProviderSlots(rates, clock, {"p": 1}, 60),
        UsageLog(database, clock),
        clock,
    )
    preview = setup.preview

    async def find_draft(name: str) -> Preset:
        return next((one for one in drafts if one.name == name), None) or preview.resolver.find(
            name
        )

    composer = DraftComposer(preview.sources, preview.resolver, preview.conversations)
    log = AnswerLog(database)
    return PromptReplay(requests, {"nils": NILS}, log, find_draft, composer, lambda preset: preset)


async def test_replay_sends_the_stored_prompt_and_is_kept_in_no_history(
    database: Database,
) -> None:
    setup = Setup(database, ["Hi."])
    answer = await stored_answer(setup, database)
    turns = (await setup.session()).turns
    model = FakeBackend(["Ho.", DONE])

    made = await make_replay(setup, database, model).replay(answer, ReplayChanges())

    [prompt] = model.prompts
    assert replace(prompt, asked_by="telegram:1") == answer.receipt.prompt
    assert (made.generated.text, made.provider) == ("Ho.", "p")
    assert (made.charge.model, made.charge.cost) == ("m", 2_000)
    assert (await setup.session()).turns == turns
    assert setup.texts == ["Hi."]
    found = await AnswerLog(database).search(AnswerSearch(), 9)
    assert [one.number for one in found.answers] == [answer.number]


async def test_replay_counts_as_usage_of_the_operator(database: Database) -> None:
    setup = Setup(database, ["Hi."])
    answer = await stored_answer(setup, database)

    await make_replay(setup, database, FakeBackend(["Ho.", DONE])).replay(answer, ReplayChanges())

    rows = await UsageTotals(database).by_day(*EVER)
    costs = {row.person: row.total.cost for row in rows}
    assert costs["web:console"] == 2_000


async def test_replay_takes_another_preset_s_model_and_other_instructions(
    database: Database,
) -> None:
    setup = Setup(database, ["Hi."])
    answer = await stored_answer(setup, database)
    model = FakeBackend(["Ho."])

    changes = ReplayChanges("nils", "Be Nils.")
    made = await make_replay(setup, database, model).replay(answer, changes)

    [prompt] = model.prompts
    assert (made.provider, prompt.model, prompt.max_output_tokens) == ("q", "tiny", 50)
    assert prompt.parameters == {"temperature": 0.1}
    contents = [one.content for one in prompt.messages]
    stored = [one.content for one in answer.receipt.prompt.messages if one.role != "system"]
    assert contents == ["Be Nils.", *stored]


async def test_prompt_composed_anew_of_what_was_not_changed_is_the_stored_one(
    database: Database,
) -> None:
    marlowe: dict[str, object] = {"name": "marlowe", "role_name": "Marlowe", "system": "Row."}
    nora = {"role_name": "Nora", "system": "You are Nora.", "max_rounds": 2}
    model = FakeBackend(*([f"Aye, {number}."] for number in range(20)))
    setup = Setup(database, backend=model, preset=nora, others=[marlowe])
    resolver = setup.preview.resolver
    both = [resolver.find(one) for one in ("nora", "marlowe")]
    await resolver.set_active("telegram:5", both, "telegram:1")
    for at, (author, text) in enumerate(
        [
            (ALICE, "Nora, Marlowe, good evening"),
            (BOB, "what a night"),
            (BOB, "Marlowe, row us across"),
            (ALICE, "Nora, is he always like this?"),
            (ALICE, "/retry"),
            (BOB, "Marlowe, thank you"),
        ]
    ):
        wake = None if text == "what a night" else WakeReason.MENTION
        await setup.receive(make_incoming(text, key=f"5:{at}", author=author, wake=wake))
        await setup.work()
    answers = (await AnswerLog(database).search(AnswerSearch(), 20)).answers
    assert len(answers) >= 5

    for answer in answers:
        made = make_replay(setup, database, asked := FakeBackend(["Ho."]))
        await made.replay(answer, ReplayChanges(draft=answer.receipt.preset))
        [prompt] = asked.prompts
        assert prompt.messages == answer.receipt.prompt.messages, answer.receipt.answer


async def test_draft_answers_the_stored_message_in_the_place_of_its_preset(
    database: Database,
) -> None:
    setup = Setup(database, ["Hi."], ["Later."])
    answer = await stored_answer(setup, database)
    await setup.say(make_incoming("and later", key="5:9"))
    draft = NILS.model_copy(update={"system": "You are Nils.", "provider": "p"})
    model = FakeBackend(["Ho."])
    replay = make_replay(setup, database, model, drafts=[draft])

    made = await replay.replay(answer, ReplayChanges(draft="nils"))

    [prompt] = model.prompts
    assert made.prompt.messages == prompt.messages
    assert (prompt.messages[0].content, prompt.model) == ("You are Nils.", "tiny")
    assert "hello" in prompt.messages[-1].content
    assert all("and later" not in one.content for one in prompt.messages)


async def test_replay_with_a_draft_says_that_the_history_is_gone(database: Database) -> None:
    setup = Setup(database, ["Hi."])
    answer = await stored_answer(setup, database)
    changed = replace(answer, receipt=replace(answer.receipt, answer="It was edited."))

    with pytest.raises(UserError, match="no longer in the history"):
        await make_replay(setup, database, FakeBackend()).replay(
            changed, ReplayChanges(draft="nora")
        )


async def test_budget_of_the_channel_refuses_a_replay(database: Database) -> None:
    setup = Setup(database, ["Hi."])
    answer = await stored_answer(setup, database)
    model = FakeBackend(["Ho.", DONE])

    with pytest.raises(UserError, match="The budget of this channel"):
        await make_replay(setup, database, model, channel_limit=10).replay(answer, ReplayChanges())

    assert model.prompts == []


async def test_replay_of_what_is_not_set_up_says_so(database: Database) -> None:
    setup = Setup(database, ["Hi."])
    answer = await stored_answer(setup, database)
    made = make_replay(setup, database, FakeBackend())
    replay = replace(made, requests=replace(made.requests, backends={}))

    with pytest.raises(BackendUnavailable, match="'p' is not set up any more"):
        await replay.replay(answer, ReplayChanges())
    with pytest.raises(UserError, match="There is no such preset"):
        await replay.replay(answer, ReplayChanges("nobody"))


async def test_trial_asks_the_model_of_the_provider_s_first_preset(database: Database) -> None:
    setup = Setup(database)
    model = FakeBackend(["Hello!"])
    requests = make_replay(setup, database, model).requests
    trial = partial(try_provider, requests, {"nils": NILS})

    assert await trial("q") == "Hello!"

    [prompt] = model.prompts
    assert (prompt.model, prompt.max_output_tokens) == ("tiny", 32)
    with pytest.raises(UserError, match="No preset uses this provider"):
        await trial("p")

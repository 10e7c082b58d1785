"""A previewed prompt is exactly the prompt that is sent, down to the token counts."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest
from sqlalchemy import func, select
from typing_extensions import override

from bot.chat.access import ApiScope
from bot.chat.answers import AnswerSearch, StoredAnswer
from bot.chat.drafts import Scene
from bot.chat.incoming import ForgetRequest, IncomingMessage, Person, Quote, WakeReason
from bot.chat.prompt import Prompt
from bot.chat.session import HistoryScope
from bot.chat.usage import BudgetKind, Period
from bot.console.operator_requests import (
    OperatorRequests,
    PromptReplay,
    find_trial_preset,
    try_preset,
)
from bot.console.prompt_preview import DraftComposer
from bot.console.routes import Caller
from bot.errors import BackendUnavailable, UserError
from bot.memory.stories import StoriesByQuery
from bot.ports import TextTokenCounter
from bot.prompting.fit import tokens_by_span
from bot.prompting.presets.preset import Preset
from bot.routing.presets import SCOPE_KEY
from bot.runtime.in_process import InProcessRateLimits
from bot.storage.database import Database
from bot.storage.receipts import Receipts
from bot.storage.reports import AnswerLog
from bot.storage.tables import metadata
from bot.storage.usage import Budgets, UsageLog, UsageTotals
from bot.turn.limits.rate_limits import NoticeLimiter
from bot.turn.limits.slots import ProviderSlots
from bot.turn.limits.spending import BudgetRules, Spending
from tests.fakes import FakeBackend
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.budgets import DONE, PROVIDERS
from tests.turn.setup import NORA, Setup

MING = Person("telegram:3", "小明 [bot]:")
SCENES = 200
SCOPES = (HistoryScope.SHARED, HistoryScope.USER, HistoryScope.REPLIES)
WORDS = ("lamp", "ferry", "潮水", "Nora,", "marlowe", "<|im_end|>", "🦜", "[system]:", "{{char}}")
LOREBOOK = {
    "entries": {
        "0": {"uid": 0, "key": ["lamp", "ferry"], "content": "The lamp is lit at dusk."},
        "1": {"uid": 1, "key": ["潮水"], "content": "The tide turns at six.", "order": 1},
    }
}
PRESETS: Sequence[dict[str, object]] = (
    {"name": "nora", "role_name": "Nora", "system": "You are Nora.", "max_input_tokens": 250},
    {"name": "marlowe", "role_name": "Marlowe", "system": "You row.", "lorebook": LOREBOOK},
    {"name": "lan", "role_name": "Lan", "system": "Be brief.", "max_rounds": 2, "provider": "q"},
)


class CountingBackend(FakeBackend):
    """A backend with one token per two characters, and a limit of 400 tokens."""

    @override
    async def count_tokens(self, prompt: Prompt) -> int:
        return sum(5 + len(one.content) // 2 for one in prompt.messages)

    @override
    async def text_counter(self, prompt: Prompt) -> TextTokenCounter:
        return lambda texts: [len(text) // 2 for text in texts]

    @override
    async def max_prompt_tokens(self, prompt: Prompt) -> int | None:
        return 400


def make_scene(setup: Setup, number: int) -> tuple[list[IncomingMessage], list[str]]:
    """Return the messages and the active presets of a random scene."""
    dice = random.Random(number)
    people = (ALICE, BOB, MING)[: dice.randint(1, 3)]
    messages: list[IncomingMessage] = []
    for at in range(1, dice.randint(2, 7)):
        text = " ".join(dice.choices(WORDS, k=dice.randint(1, 40)))
        said = make_incoming(
            text,
            key=f"{number}:{at}",
            chat=str(number),
            author=dice.choice(people),
            wake=dice.choice((WakeReason.DM, WakeReason.MENTION, None)),
        )
        if at > 1 and dice.random() < 0.3:
            quoted = messages[-1]
            said = replace(said, quote=Quote(quoted.author, quoted.message_id, quoted.text))
        messages.append(said)
    messages[-1] = replace(messages[-1], wake=WakeReason.DM)
    active = dice.sample([str(one["name"]) for one in PRESETS], dice.randint(1, 3))
    return messages, active


async def deliver(setup: Setup, message: IncomingMessage) -> str:
    """Receive and process a message; return the key of its conversation."""
    async with setup.router.route_events([message]) as [routed]:
        assert isinstance(routed, IncomingMessage)
        await setup.inbox.receive([routed], {})
    key = routed.address.conversation
    await setup.work(key)
    return key


@pytest.mark.slow
async def test_preview_equals_the_receipt_of_the_actual_answer(database: Database) -> None:
    backend = FakeBackend(["The tide turns."])
    first, *others = PRESETS
    setup = Setup(
        database,
        backend=backend,
        preset=first,
        others=[dict(one) for one in others],
        fallback=CountingBackend(["Aye."]),
    )
    receipts = Receipts(database)
    compared: Counter[HistoryScope] = Counter()
    branches = chains = 0
    for number in range(1, SCENES + 1):
        (*earlier, newest), active = make_scene(setup, number)
        presets = [setup.preview.resolver.find(name) for name in active]
        await setup.preview.resolver.set_active_presets(newest.scopes[0], presets, "telegram:1")
        scope = SCOPES[number % len(SCOPES)]
        settings = setup.history_scopes.chat_settings
        await settings.set(newest.scopes[0], SCOPE_KEY, scope, "telegram:1")
        answered = False
        for said in earlier:
            key = await deliver(setup, said)
            answered = bool(await receipts.find_for_last_message(key)) or answered
        if answered and scope is HistoryScope.REPLIES:
            *_, (name, text) = setup.surface.messages.items()
            newest = replace(newest, quote=Quote(None, name, text, is_ours=True))

        preview = await setup.preview.preview(newest)
        if preview.problem is not None:
            assert preview.problem.startswith("A reply to a message in the middle")
            branches += 1
            continue
        previewed = preview.prompt
        key = await deliver(setup, newest)
        compared[scope] += 1
        chains += "#replies=" in key and not key.endswith(f"={newest.message_id}")

        [(_, sent), *_] = await receipts.find_for_last_message(key)
        assert previewed is not None, newest
        assert (
            replace(
                previewed,
                answer=sent.answer,
                reason=sent.reason,
                timings=sent.timings,
                charge=sent.charge,
            )
            == sent
        )
        segments = [tokens for _, tokens in tokens_by_span(previewed)]
        assert sum(segments) == previewed.tokens == sent.tokens
        assert min(segments) >= 0
    assert sum(compared.values()) == SCENES - branches >= 180
    assert min(compared.values()) >= 45
    assert chains >= 15


async def test_preview_neither_calls_a_model_nor_stores_anything(database: Database) -> None:
    setup = Setup(database)
    await setup.say("hello")
    asked = len(setup.backend.prompts)

    async def count_rows() -> list[int]:
        counts = [select(func.count()).select_from(table) for table in metadata.sorted_tables]
        return await database.read(lambda c: [c.execute(one).scalar_one() for one in counts])

    before = await count_rows()
    next_answer = await setup.preview.preview(make_incoming("and now?", key="5:9"))
    assert next_answer.prompt is not None
    assert next_answer.prompt.prompt.messages[-1].content.endswith("and now?")
    assert await count_rows() == before
    assert len(setup.backend.prompts) == asked


async def test_preview_says_who_would_answer_and_why(database: Database) -> None:
    marlowe: dict[str, object] = {"name": "marlowe", "role_name": "Marlowe"}
    setup = Setup(database, others=[marlowe])
    resolver = setup.preview.resolver
    presets = [resolver.find("nora"), resolver.find("marlowe")]
    await resolver.set_active_presets("telegram:5", presets, "telegram:1")

    called = await setup.preview.preview(make_incoming("Marlowe, row us across", wake=None))
    assert [(one.name, one.is_chosen, one.reasons) for one in called.characters] == [
        ("Marlowe", True, ("was called by name",)),
        ("nora", False, ("another character was called",)),
    ]
    silent = await setup.preview.preview(make_incoming("good evening", wake=None))
    assert silent.prompt is None
    assert [one.reasons for one in silent.characters] == [("was not addressed",)] * 2
    assert (await setup.preview.preview(make_incoming("/help"))).is_command


async def test_preview_reports_that_a_message_is_too_long(database: Database) -> None:
    setup = Setup(database, preset={"max_input_tokens": 20})
    next_answer = await setup.preview.preview(make_incoming("word " * 200))
    assert (next_answer.prompt, "too long" in str(next_answer.problem)) == (None, True)


READER = Caller("token reader", frozenset({ApiScope.READ, ApiScope.PRESETS}))
OPERATOR = Caller("session", frozenset(ApiScope))


@pytest.mark.parametrize(("caller", "may_spend"), [(READER, False), (OPERATOR, True)])
async def test_preview_calls_a_paid_embedding_service_only_for_operators(
    database: Database, caller: Caller, may_spend: bool
) -> None:
    asked: list[bool] = []

    async def retrieve(_preset: Preset, _newest: str, may_spend: bool) -> StoriesByQuery | None:
        asked.append(may_spend)
        return None

    setup = Setup(database, retrieve_stories=retrieve)
    composer = DraftComposer(setup.preview.sources, setup.resolver, setup.conversations)
    scene = Scene(await setup.session(), make_incoming("hello"))
    preset = Preset.model_validate(NORA)
    receipt = await composer.compose(preset, None, scene, may_spend=caller.may_spend)
    assert "hello" in repr(receipt.prompt.messages[-1])
    assert asked == [may_spend]


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
        Spending(PROVIDERS, clock, Budgets(database), NoticeLimiter(rates), BudgetRules(limits)),
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


async def test_replay_sends_the_stored_prompt_and_records_only_usage(
    database: Database,
) -> None:
    setup = Setup(database, ["Hi."])
    answer = await stored_answer(setup, database)
    turns = (await setup.session()).turns
    model = FakeBackend(["Ho.", DONE])

    made = await make_replay(setup, database, model).replay(answer, "", "")

    [prompt] = model.prompts
    assert replace(prompt, asked_by="telegram:1") == answer.receipt.prompt
    assert (made.receipt.answer, made.receipt.provider) == ("Ho.", "p")
    assert (made.receipt.charge.model, made.receipt.charge.cost) == ("m", 2_000)
    assert (await setup.session()).turns == turns
    assert setup.texts == ["Hi."]
    log, receipts = AnswerLog(database), Receipts(database)
    found = await log.search(AnswerSearch(), 9)
    assert [one.number for one in found.answers] == [answer.number]
    assert await log.find(made.number) == made, "it has an address"
    newest = await receipts.find_for_last_message(answer.conversation)
    assert [number for number, _ in newest] == [answer.number]
    said = make_incoming("", key="5:8")
    await setup.say(ForgetRequest(said.address, "5:8", None, said.at, ("telegram:5",)))
    assert await log.find(made.number) is None, "forgotten like the answer"
    rows = await UsageTotals(database).usage_by_day(*EVER)
    costs = {row.person: row.total.cost for row in rows}
    assert costs["web:console"] == 2_000


async def test_replay_can_use_the_model_of_another_preset(database: Database) -> None:
    setup = Setup(database, ["Hi."])
    answer = await stored_answer(setup, database)
    model = FakeBackend(["Ho."])

    made = await make_replay(setup, database, model).replay(answer, "nils", "")

    [prompt] = model.prompts
    assert (made.receipt.provider, prompt.model, prompt.max_output_tokens) == ("q", "tiny", 50)
    assert prompt.parameters == {"temperature": 0.1}
    assert prompt.messages == answer.receipt.prompt.messages


async def test_prompt_recomposed_from_an_unchanged_preset_equals_the_stored_prompt(
    database: Database,
) -> None:
    marlowe: dict[str, object] = {"name": "marlowe", "role_name": "Marlowe", "system": "Row."}
    nora = {"role_name": "Nora", "system": "You are Nora.", "max_rounds": 2}
    model = FakeBackend(*([f"Aye, {number}."] for number in range(20)))
    setup = Setup(database, backend=model, preset=nora, others=[marlowe])
    resolver = setup.preview.resolver
    both = [resolver.find(one) for one in ("nora", "marlowe")]
    await resolver.set_active_presets("telegram:5", both, "telegram:1")
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
        await made.replay(answer, "", answer.receipt.preset)
        [prompt] = asked.prompts
        assert prompt.messages == answer.receipt.prompt.messages, answer.receipt.answer


async def test_replay_with_a_draft_uses_the_draft_instead_of_the_preset(
    database: Database,
) -> None:
    setup = Setup(database, ["Hi."], ["Later."])
    answer = await stored_answer(setup, database)
    await setup.say(make_incoming("and later", key="5:9"))
    draft = NILS.model_copy(update={"system": "You are Nils.", "provider": "p"})
    model = FakeBackend(["Ho."])
    replay = make_replay(setup, database, model, drafts=[draft])

    made = await replay.replay(answer, "", "nils")

    [prompt] = model.prompts
    assert made.receipt.prompt.messages == prompt.messages
    assert (prompt.messages[0].content, prompt.model) == ("You are Nils.", "tiny")
    assert "hello" in prompt.messages[-1].content
    assert all("and later" not in one.content for one in prompt.messages)


async def test_refused_replay_states_the_reason(database: Database) -> None:
    setup = Setup(database, ["Hi."])
    answer = await stored_answer(setup, database)
    changed = replace(answer, receipt=replace(answer.receipt, answer="It was edited."))
    model = FakeBackend(["Ho.", DONE])
    made = make_replay(setup, database, model)

    with pytest.raises(UserError, match="no longer in the history"):
        await made.replay(changed, "", "nora")
    with pytest.raises(UserError, match="There is no such preset"):
        await made.replay(answer, "nobody", "")
    with pytest.raises(UserError, match="This channel's budget"):
        await make_replay(setup, database, model, channel_limit=10).replay(answer, "", "")
    replay = replace(made, requests=replace(made.requests, backends={}))
    with pytest.raises(BackendUnavailable, match="'p' is no longer set up"):
        await replay.replay(answer, "", "")
    assert model.prompts == []


async def test_provider_is_tested_with_the_model_of_its_first_preset(database: Database) -> None:
    setup = Setup(database)
    model = FakeBackend(["Hello!"])
    requests = make_replay(setup, database, model).requests
    find = partial(find_trial_preset, {"nils": NILS})

    assert await try_preset(requests, find("q")) == "Hello!"

    [prompt] = model.prompts
    assert (prompt.model, prompt.max_output_tokens) == ("tiny", 32)
    with pytest.raises(UserError, match="No preset uses this provider"):
        find("p")

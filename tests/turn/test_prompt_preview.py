"""The prompt that is previewed is the one that is sent, to the letter and to the token."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from sqlalchemy import func, select
from typing_extensions import override

from bot.chat.incoming import Person, Quote, Said, WakeReason
from bot.chat.prompt import Prompt
from bot.chat.session import HistoryScope
from bot.ports import TextTokenCounter
from bot.prompting.fit import tokens_by_span
from bot.storage.database import Database
from bot.storage.receipts import Receipts
from bot.storage.tables import metadata
from tests.fakes import FakeBackend
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.setup import Setup

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
    """Counts a token for every two characters, and reads no more than 400 tokens."""

    @override
    async def count_tokens(self, prompt: Prompt) -> int:
        return sum(5 + len(one.content) // 2 for one in prompt.messages)

    @override
    async def text_counter(self, prompt: Prompt) -> TextTokenCounter:
        return lambda texts: [len(text) // 2 for text in texts]

    @override
    async def max_prompt_tokens(self, prompt: Prompt) -> int | None:
        return 400


def make_scene(setup: Setup, number: int) -> tuple[list[Said], list[str]]:
    """Return the messages of a scene, and the presets that are active in it."""
    dice = random.Random(number)
    people = (ALICE, BOB, MING)[: dice.randint(1, 3)]
    messages: list[Said] = []
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


async def deliver(setup: Setup, said: Said) -> str:
    """Let a message be received and processed; return the key of its history."""
    async with setup.router.routed([said]) as [routed]:
        assert isinstance(routed, Said)
        await setup.inbox.receive([routed], {})
    key = routed.address.conversation
    await setup.work(key)
    return key


@pytest.mark.slow
async def test_preview_is_the_receipt_of_the_answer_that_follows(database: Database) -> None:
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
        await setup.preview.resolver.set_active(newest.scopes[0], presets, "telegram:1")
        scope = SCOPES[number % len(SCOPES)]
        await setup.history_scopes.set(newest.scopes[0], scope, "telegram:1")
        answered = False
        for said in earlier:
            key = await deliver(setup, said)
            answered = bool(await receipts.newest(key)) or answered
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

        [(_, sent), *_] = await receipts.newest(key)
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


async def test_preview_asks_and_stores_nothing(database: Database) -> None:
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
    await resolver.set_active("telegram:5", presets, "telegram:1")

    called = await setup.preview.preview(make_incoming("Marlowe, row us across", wake=None))
    assert [(one.name, one.is_chosen, one.reasons) for one in called.characters] == [
        ("Marlowe", True, ("was called by name",)),
        ("nora", False, ("another character was called",)),
    ]
    silent = await setup.preview.preview(make_incoming("good evening", wake=None))
    assert silent.prompt is None
    assert [one.reasons for one in silent.characters] == [("was not addressed",)] * 2
    assert (await setup.preview.preview(make_incoming("/help"))).is_command


async def test_preview_of_a_message_that_is_too_long_says_so(database: Database) -> None:
    setup = Setup(database, preset={"max_input_tokens": 20})
    next_answer = await setup.preview.preview(make_incoming("word " * 200))
    assert next_answer.prompt is None
    assert next_answer.problem is not None
    assert "too long" in next_answer.problem

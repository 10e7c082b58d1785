"""Previews of drafts: who may only read spends nothing on what they are made of."""

from dataclasses import replace
from functools import partial

import pytest

from bot.chat.access import Scope
from bot.chat.drafts import Scene
from bot.chat.usage import EmbeddingPayer
from bot.console.prompt_preview import DraftComposer
from bot.console.routes import Caller
from bot.memory import RetrievedStories
from bot.prompting.presets.preset import Preset
from bot.storage.database import Database
from bot.turn.limits.spending import Spending, embedding_payer
from tests.samples import make_incoming
from tests.turn.setup import NORA, Setup

READER = Caller("token reader", frozenset({Scope.READ, Scope.PRESETS}))
OPERATOR = Caller("session", frozenset(Scope))


@pytest.mark.parametrize(
    ("caller", "person"), [(READER, None), (OPERATOR, make_incoming().author.id)]
)
async def test_only_who_may_operate_pays_for_the_stories_of_a_preview(
    database: Database, caller: Caller, person: str | None
) -> None:
    payers: list[str | None] = []

    async def retrieve(
        _preset: Preset, _newest: str, payer: EmbeddingPayer | None
    ) -> RetrievedStories | None:
        payers.append(payer.charge.person if payer else "nobody")
        return None

    setup = Setup(database, retrieve_stories=retrieve)
    spending = Spending({}, setup.clock)
    sources = replace(
        setup.preview.sources,
        embedding_payer=partial(embedding_payer, spending=spending),
    )
    composer = DraftComposer(sources, setup.resolver, setup.conversations)
    scene = Scene(await setup.session(), make_incoming("hello"))
    preset = Preset.model_validate(NORA)
    receipt = await composer.compose(preset, None, scene, may_spend=caller.may_spend)
    assert "hello" in repr(receipt.prompt.messages[-1])
    assert payers == [person]

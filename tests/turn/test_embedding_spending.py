"""What a search for stories costs counts against the budgets of whoever asked."""

from datetime import UTC, datetime

from bot.chat.story import StoryVector
from bot.chat.usage import BudgetKind, Period
from bot.embedders.openai import OpenAIEmbedder
from bot.embedders.registry import CountedEmbedder
from bot.memory import StoryRetriever
from bot.prompting.presets.preset import Preset
from bot.runtime.in_process import InProcessRateLimits
from bot.settings import EmbeddingSettings
from bot.storage.database import Database
from bot.storage.stories import SqlStories
from bot.storage.usage import Budgets, UsageLog, UsageTotals
from bot.turn.limits.spending import BudgetRules, Spending, embedding_payer, no_embedding_payer
from tests.fakes import FakeClock
from tests.rigs.fake_embeddings import FakeEmbeddings
from tests.samples import make_incoming

EVER = datetime.fromtimestamp(0, UTC), datetime.fromtimestamp(4e9, UTC)
PERSON_A_DAY = (BudgetKind.PERSON, Period.DAY)
SAID = make_incoming("was there a storm?", key="5:1")
NORA = Preset.model_validate(
    {
        "name": "nora",
        "provider": "p",
        "model": "m",
        "persona": "Nora.\n{{RAG-dialogues|token<=200|n<=1}}",
    }
)


async def asked(
    database: Database, limit: int, status: int = 200, *, may_spend: bool = True
) -> tuple[int, int, int]:
    """Ask for stories; return how many were found, what was spent, and what the usage says."""
    clock = FakeClock()
    budgets = Budgets(database)
    rules = BudgetRules({PERSON_A_DAY: limit})
    spending = Spending({}, clock, budgets, InProcessRateLimits(clock), rules)
    async with FakeEmbeddings() as service:
        service.answer = (
            b'{"data": [{"embedding": [1, 2], "index": 0}], "usage": {"total_tokens": 9}}'
        )
        service.status = status
        settings = EmbeddingSettings(
            kind="openai", base_url=service.base_url, model="bge-m3", price=10
        )
        inner = OpenAIEmbedder(settings, clock)
        embedder = CountedEmbedder(inner, settings, UsageLog(database, clock))
        stories = SqlStories(database)
        await stories.replace_stories("nora", ["A storm."], embedder.model_id)
        [vector] = await inner.embed_documents(["A storm."]) if status == 200 else [b""]
        inner.take_tokens()
        if vector:
            await stories.save_vectors("nora", embedder.model_id, [StoryVector("A storm.", vector)])
        retriever = StoryRetriever(embedder, stories, ["nora"])
        payer = embedding_payer(NORA, SAID, spending)
        asked_before = len(service.log)
        found = await retriever.retrieve(
            NORA, SAID.text, payer if may_spend else no_embedding_payer(NORA, SAID)
        )
        await embedder.close()
        assert (len(service.log) > asked_before) == (may_spend and limit >= 90)
    [cap] = spending.caps(SAID, NORA)
    spent = (await budgets.spent([cap])).get(cap.key, 0)
    of_person = await UsageTotals(database).of_person(SAID.author.id, EVER[0])
    return sum(map(len, (found or {}).values())), spent, of_person.cost


async def test_search_is_settled_and_logged_for_who_asked(database: Database) -> None:
    assert await asked(database, 100_000) == (1, 90, 90)


async def test_search_that_a_budget_does_not_allow_is_left_out(database: Database) -> None:
    assert await asked(database, 50) == (0, 0, 0)


async def test_search_that_failed_costs_nothing(database: Database) -> None:
    assert await asked(database, 100_000, status=500) == (0, 0, 0)


async def test_service_is_not_asked_where_nothing_may_be_spent(database: Database) -> None:
    assert await asked(database, 100_000, may_spend=False) == (0, 0, 0)

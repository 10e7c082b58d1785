"""Each row of the outbox is sent once and in order, however the platform responds."""

import asyncio
from dataclasses import replace

import pytest
from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import (
    FIRST_NOTICE_PART,
    REACTION_PART,
    Attachment,
    Face,
    Limits,
    MessageContent,
    OutboxState,
    OutgoingMessage,
    PrivateDelivery,
)
from bot.delivery.sender import derive_nonce
from bot.errors import (
    ContentRefused,
    MessageNotFound,
    OutcomeUnknown,
    PlatformError,
    PlatformFatal,
    RateLimited,
    Refused,
    Unreachable,
    WordsRefused,
)
from bot.storage.database import Database
from bot.texts.text import Text
from tests.delivery.setup import LANE, WITHOUT_NONCES, Delivery, working
from tests.fakes import LIMITS, FakePrivateChats, FakeSurface
from tests.samples import ALICE, make_incoming
from tests.waiting import advance_in_steps, wait_until


async def work_until_settled(delivery: Delivery) -> None:
    """Send once, and search for the message after the settle time."""
    async with working(delivery):
        await wait_until(lambda: delivery.calls("send") == 1)
        await advance_in_steps(delivery.clock, 11)
    await delivery.clock.advance(11)
    await delivery.work()


async def test_notice_is_dropped_if_an_answer_waits_behind_it(database: Database) -> None:
    delivery = Delivery(database)
    await delivery.queue("a")
    await delivery.queue("busy", incoming=make_incoming(key="5:1"), first_part=FIRST_NOTICE_PART)
    await delivery.queue("b", incoming=make_incoming(key="5:2"))
    await delivery.queue(
        "busy again", incoming=make_incoming(key="5:3"), first_part=FIRST_NOTICE_PART
    )
    await delivery.work()
    assert delivery.texts == ["a", "b", "busy again"]
    assert await delivery.states() == [OutboxState.SENT] * 4


@pytest.mark.parametrize("op", ["send", "edit"])
async def test_refused_content_is_sent_again_as_plain_text(database: Database, op: str) -> None:
    delivery = Delivery(database)
    delivery.surface.fail_next(op, ContentRefused("can't parse entities"))
    await delivery.queue("**a**", "b", opening="first" if op == "edit" else None)
    await delivery.work()
    assert delivery.texts == ["**a**", "b"]
    [first, second, *_] = [one for one in delivery.surface.contents if one.text == "**a**"]
    assert (first.is_plain, second.is_plain) == (False, True)


class SilentPrivateChats(FakePrivateChats):
    """Opens no chats, and has no instructions for opening one."""

    requests = 0

    @override
    async def private_chat_instructions(self, person_id: str) -> Text:
        self.requests += 1
        raise Refused("unauthorized")


@pytest.mark.parametrize("opening", [None, "first"])
async def test_private_part_is_retried_if_the_private_chat_cannot_be_found_or_explained(
    database: Database, opening: str | None
) -> None:
    chats = SilentPrivateChats(refuses=True)
    delivery = Delivery(database, private_chats={"telegram": chats})
    await delivery.queue("secret", opening=opening, private=PrivateDelivery(ALICE.id))
    async with working(delivery):
        await wait_until(lambda: chats.requests == 1)
        await advance_in_steps(delivery.clock, 10)
        await wait_until(lambda: chats.requests > 1)
    assert "secret" not in delivery.texts


async def test_notice_replaces_content_that_is_refused_in_every_form(database: Database) -> None:
    delivery = Delivery(database)
    delivery.surface.fail_next("send", ContentRefused("no"), ContentRefused("no"))
    await delivery.queue("a", "b")
    await delivery.work()
    named, following = delivery.texts
    assert named.startswith("⚠ I can't show part of my answer")
    assert following == "b"
    assert await delivery.states() == [OutboxState.SENT] * 2


async def test_text_blocked_by_moderation_is_not_retried_as_plain_text(database: Database) -> None:
    delivery = Delivery(database)
    delivery.surface.fail_next("send", WordsRefused("200000"))
    await delivery.queue("a", "b")
    await delivery.work()
    named, following = delivery.texts
    assert "AutoMod" in named
    assert following == "b"


@pytest.mark.parametrize(
    ("error", "seconds"),
    [(RateLimited(60), 60), (PlatformFatal("who are you?"), 30)],
)
async def test_row_with_a_long_delay_is_left_for_later(
    database: Database, error: PlatformError, seconds: float
) -> None:
    delivery = Delivery(database)
    delivery.surface.fail_next("send", error)
    await delivery.queue("a")
    await delivery.work()
    assert await delivery.states() == [OutboxState.PENDING]
    assert seconds <= await delivery.due_in() <= seconds + 0.5


@pytest.mark.parametrize("error", [RateLimited(2), Unreachable("no route")])
async def test_sender_waits_for_a_row_that_is_due_soon(
    database: Database, error: PlatformError
) -> None:
    delivery = Delivery(database)
    delivery.surface.fail_next("send", error)
    await delivery.queue("a")
    async with working(delivery) as work:
        await wait_until(lambda: delivery.calls("send") == 1)
        await advance_in_steps(delivery.clock, 4)
        await work
    assert delivery.texts == ["a"]


async def test_unreachable_platform_is_retried_with_exponential_backoff(database: Database) -> None:
    delivery = Delivery(database)
    delivery.surface.fail_next("send", *[Unreachable("no route")] * 9)
    await delivery.queue("a")
    pauses: list[int] = []
    while len(pauses) < 9:
        async with working(delivery):
            while await delivery.due_in() <= 0:  # noqa: ASYNC110 # a look at what is kept
                await asyncio.sleep(0.002)
        pauses.append(round(await delivery.due_in()))
        await delivery.clock.advance(pauses[-1])
    await delivery.work()
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert delivery.texts == ["a"]


@pytest.mark.parametrize("is_told", [True, False], ids=["hears of deletions", "does not"])
async def test_missing_answer_is_sent_again_unless_the_platform_reports_deletions(
    database: Database, is_told: bool
) -> None:
    delivery = Delivery(database, replace(WITHOUT_NONCES, reports_deletions=is_told))
    delivery.surface.fail_next("edit", MessageNotFound("message to edit not found"))
    await delivery.queue("whole", opening="first words")
    await delivery.work()
    assert delivery.texts == (["first words"] if is_told else ["first words", "whole"])
    assert await delivery.states() == [OutboxState.SENT, OutboxState.DEAD]


async def test_resent_answer_is_searched_for_if_the_response_is_lost(
    database: Database,
) -> None:
    delivery = Delivery(database, replace(WITHOUT_NONCES, reports_deletions=False))
    await delivery.queue("whole", opening="first words")
    [opening] = (await delivery.sender.claim([LANE])).values()
    sent = await delivery.surface.send(
        OutgoingMessage(opening.address, opening.content, "first", reply_to=opening.reply_to)
    )
    edit = await delivery.outbox.mark_sent(opening, sent)
    assert edit is not None
    delivery.surface.fail_next("edit", MessageNotFound("message to edit not found"))
    delivery.surface.responses_to_lose = 1
    await delivery.sender.deliver_lane(edit)
    await delivery.clock.advance(11)
    await delivery.work()
    assert delivery.texts == ["first words", "whole"]
    assert (delivery.calls("send"), delivery.calls("find")) == (2, 1)


@pytest.mark.parametrize("may_send", [True, False])
async def test_notice_replaces_a_refused_file_if_the_chat_allows_it(
    database: Database, may_send: bool
) -> None:
    delivery = Delivery(database)
    refusals = [Refused("no right to attach files")] * (1 if may_send else 2)
    delivery.surface.fail_next("send", *refusals)
    await delivery.queue("All of it:", file=Attachment("answer.md", "long"))
    await delivery.work()
    assert delivery.surface.files == {}
    shown = [text.partition(" because")[0] for text in delivery.texts]
    assert shown == (["⚠ I can't send files here"] if may_send else [])
    assert await delivery.states() == [OutboxState.SENT if may_send else OutboxState.DEAD]


async def test_edit_of_a_message_that_was_never_sent_is_dropped(database: Database) -> None:
    delivery = Delivery(database, WITHOUT_NONCES)
    delivery.surface.fail_next("send", Refused("blocked"))
    await delivery.queue("a", opening="first")
    await delivery.work()
    assert await delivery.states() == [OutboxState.DEAD, OutboxState.DEAD]
    assert delivery.calls("edit") == 0


class RefusingEdits(FakeSurface):
    """A surface that refuses edits, and raises `failure` for all sends but the first."""

    def __init__(self, limits: Limits, edit: Refused, *sends: PlatformError, lost: int = 0) -> None:
        super().__init__(limits)
        self._edit, self._sends, self._lost = edit, sends, lost

    @override
    async def edit(
        self, address: Address, message_id: str, content: MessageContent, *, interaction: str | None
    ) -> None:
        self.fail_next("send", *self._sends)
        self.responses_to_lose, self._lost, self._sends = self._lost, 0, ()
        raise self._edit


@pytest.mark.parametrize(
    ("words", "refusal", "shown"),
    [
        ((), Refused("no right to react"), ["👍"]),
        (("words",), Refused("no right to react"), ["words"]),
        ((), MessageNotFound("deleted"), []),
    ],
)
async def test_refused_reaction_is_sent_as_text_if_it_is_the_whole_answer(
    database: Database, words: tuple[str, ...], refusal: Refused, shown: list[str]
) -> None:
    delivery = Delivery(database)
    delivery.surface.fail_next("react", refusal)
    await delivery.queue(*words, "👍", first_part=REACTION_PART - len(words))
    await delivery.work()
    assert delivery.texts == shown
    assert [one.reply_to for one in delivery.surface.sent] == ["0"] * len(shown)


@pytest.mark.parametrize("limits", [LIMITS, WITHOUT_NONCES])
@pytest.mark.parametrize("lost", [0, 1])
async def test_refused_edit_is_sent_as_a_new_message(
    database: Database, limits: Limits, lost: int
) -> None:
    surface = RefusingEdits(limits, Refused("another user wrote it"), lost=lost)
    delivery = Delivery(database, surface=surface)
    await delivery.queue("whole", "rest", opening="w")
    async with working(delivery):
        await wait_until(lambda: delivery.calls("send") >= 3)
        await advance_in_steps(delivery.clock, 11)
    await delivery.clock.advance(11)
    await delivery.work()
    assert delivery.texts == ["whole", "rest"]
    assert await delivery.states() == [*[OutboxState.SENT] * 2, *[OutboxState.DEAD] * 2]
    shown = [await delivery.outbox.find_message_id(f"telegram:5:0/{part}") for part in (0, 1)]
    assert shown == [*surface.messages]


@pytest.mark.parametrize(
    ("edit", "sends"), [(MessageNotFound("deleted"), 1), (Refused("no right"), 2)]
)
async def test_refused_answer_is_abandoned(database: Database, edit: Refused, sends: int) -> None:
    delivery = Delivery(database, surface=RefusingEdits(LIMITS, edit, Refused("no right")))
    await delivery.queue("whole", opening="w")
    await delivery.work()
    assert (delivery.texts, delivery.calls("send")) == (["w"], sends)
    assert (await delivery.states())[-1] == OutboxState.DEAD


@pytest.mark.parametrize("arrived", [True, False])
@pytest.mark.parametrize("limits", [LIMITS, WITHOUT_NONCES])
async def test_file_is_delivered_once(database: Database, limits: Limits, arrived: bool) -> None:
    delivery = Delivery(database, limits)
    if arrived:
        delivery.surface.responses_to_lose = 1
    else:
        delivery.surface.fail_next("send", OutcomeUnknown("cut off"))
    file = Attachment("prompt-1.txt", "You are Nora.")
    await delivery.queue("here", file=file)
    await work_until_settled(delivery)
    assert delivery.texts == ["here"]
    assert list(delivery.surface.files.values()) == [file]
    assert len({one.nonce for one in delivery.surface.sent}) == 1
    assert delivery.calls("send") == (1 if arrived else 2)
    assert delivery.calls("edit") == 0


async def test_search_waits_for_the_settle_time_on_platforms_without_nonces(
    database: Database,
) -> None:
    delivery = Delivery(database, WITHOUT_NONCES)
    delivery.surface.fail_next("send", OutcomeUnknown("cut off"))
    await delivery.queue("a", opening="first")
    await delivery.work()
    assert await delivery.states() == [OutboxState.UNKNOWN, OutboxState.PENDING]
    assert await delivery.due_in() == 10


async def test_search_for_a_message_starts_early_if_its_request_ended(
    database: Database,
) -> None:
    delivery = Delivery(database, WITHOUT_NONCES)
    delivery.sender._success_times["telegram:6"] = delivery.clock.monotonic()
    delivery.surface.fail_next("send", *[OutcomeUnknown("500", request_ended=True)] * 5)
    await delivery.queue("poison", "next")
    await deliver(delivery, messages=2, within=10)
    assert await delivery.states() == [OutboxState.DEAD, OutboxState.SENT, OutboxState.SENT]


async def test_webhook_message_is_sent_again_only_after_a_search(database: Database) -> None:
    """The platform supports nonces, but not for webhook messages."""
    delivery = Delivery(database, replace(LIMITS, shows_faces=True, can_retry_with_face=False))
    delivery.surface.fail_next("send", OutcomeUnknown("cut off"))
    await delivery.queue("a", face=Face("Nora"))
    await delivery.work()
    assert await delivery.due_in() == 10
    delivery.surface.fail_next("find", Refused("the history may not be read"))
    await delivery.clock.advance(11)
    await delivery.work()
    assert delivery.calls("send") == 1
    assert await delivery.states() == [OutboxState.DEAD]


async def test_edit_with_an_unknown_outcome_is_repeated(database: Database) -> None:
    delivery = Delivery(database, WITHOUT_NONCES)
    delivery.surface.fail_next("edit", OutcomeUnknown("cut off"))
    await delivery.queue("a", opening="first")
    async with working(delivery) as work:
        await wait_until(lambda: delivery.calls("edit") == 1)
        await advance_in_steps(delivery.clock, 2)
        await work
    assert delivery.texts == ["a"]
    assert delivery.calls("find") == 0


async def test_message_sent_by_a_killed_process_is_found(database: Database) -> None:
    delivery = Delivery(database)
    await delivery.queue("a")
    await delivery.crash()
    delivery.surface.messages["2"] = "a"
    await delivery.work()
    assert delivery.texts == ["a"]
    assert delivery.calls("send") == 0


@pytest.mark.parametrize(
    "error",
    [RateLimited(30), Unreachable("no route"), PlatformFatal("who are you?"), OutcomeUnknown("?")],
)
async def test_outcome_stays_unknown_while_searches_fail(
    database: Database, error: PlatformError
) -> None:
    delivery = Delivery(database)
    await delivery.queue("a")
    await delivery.crash()
    delivery.surface.fail_next("find", error)
    async with working(delivery):
        await wait_until(lambda: delivery.calls("find") == 1)
        await asyncio.sleep(0.05)
    assert await delivery.states() == [OutboxState.UNKNOWN]
    assert delivery.calls("send") == 0


async def test_message_is_sent_again_with_its_nonce_if_search_is_forbidden(
    database: Database,
) -> None:
    delivery = Delivery(database)
    delivery.surface.responses_to_lose = 1
    delivery.surface.fail_next("find", Refused("no right to read the history"))
    await delivery.queue("a")
    async with working(delivery) as work:
        await wait_until(lambda: delivery.calls("send") == 1)
        await advance_in_steps(delivery.clock, 2)
        await work
    assert delivery.texts == ["a"]
    assert await delivery.states() == [OutboxState.SENT]


async def test_row_without_a_nonce_is_dropped_if_search_is_forbidden(database: Database) -> None:
    delivery = Delivery(database, WITHOUT_NONCES)
    await delivery.queue("a", opening="first")
    await delivery.crash()
    delivery.surface.fail_next("find", Refused("the chat is gone"))
    await delivery.work()
    assert delivery.calls("send") == 0
    assert await delivery.states() == [OutboxState.DEAD, OutboxState.DEAD]


async def test_response_to_an_interaction_is_repeated_without_a_search(database: Database) -> None:
    delivery = Delivery(database)
    await delivery.queue("a", incoming=replace(make_incoming(), interaction="app:token"))
    await delivery.crash()
    await delivery.work()
    assert delivery.texts == ["a"]
    assert delivery.calls("find") == 0


async def test_row_with_unknown_outcome_waits_for_a_sender_of_its_platform(
    database: Database,
) -> None:
    delivery = Delivery(database, platforms=())
    await delivery.queue("a")
    await delivery.crash()
    await delivery.work()
    assert await delivery.states() == [OutboxState.SENDING]
    here = Delivery(database)
    await here.work()
    assert await delivery.states() == [OutboxState.SENT]


def test_nonce_is_derived_from_turn_and_part() -> None:
    assert (
        derive_nonce("discord:7", 0) == derive_nonce("discord:7", 0) == "UUIHXVOY55CHZNP3UOSANEIS"
    )
    assert len({derive_nonce(turn, part) for turn in ("a", "b", "a/1") for part in range(3)}) == 9


# --- rows that always fail -----------------------------------------------------------------------


async def deliver(delivery: Delivery, messages: int, within: int) -> None:
    """Advance the clock and deliver due rows until this many messages have been sent."""
    for _ in range(within):
        if len(delivery.texts) == messages:
            return
        working = asyncio.create_task(delivery.work())
        await advance_in_steps(delivery.clock, 1)
        working.cancel()
        await asyncio.wait([working])


async def test_row_that_keeps_failing_while_other_rows_succeed_is_set_aside(
    database: Database,
) -> None:
    delivery = Delivery(database)
    delivery.sender._success_times["telegram:6"] = delivery.clock.monotonic()
    delivery.surface.fail_next("send", *[OutcomeUnknown("502")] * 5)
    await delivery.queue("poison", "next")
    await deliver(delivery, messages=2, within=60)
    assert await delivery.states() == [OutboxState.DEAD, OutboxState.SENT, OutboxState.SENT]
    assert delivery.texts[0] == "next"
    assert delivery.texts[1].startswith("⚠ Part of my answer")


async def test_rate_limits_and_crashes_do_not_count_against_a_row(database: Database) -> None:
    delivery = Delivery(database)
    delivery.sender._success_times["telegram:6"] = delivery.clock.monotonic()
    delivery.surface.fail_next("send", *[RateLimited(0.0)] * 12, OutcomeUnknown("502"))
    await delivery.queue("kept")
    await deliver(delivery, messages=1, within=100)
    assert delivery.texts == ["kept"]
    assert await delivery.states() == [OutboxState.SENT]


async def test_row_is_kept_while_the_platform_accepts_no_messages(database: Database) -> None:
    delivery = Delivery(database)
    delivery.surface.fail_next("send", *[OutcomeUnknown("502")] * 8)
    await delivery.queue("kept")
    await deliver(delivery, messages=1, within=300)
    assert delivery.texts == ["kept"]

"""Fakes that fulfill the contracts of the ports: clock, surface, backend, signals, and others."""

import asyncio
import heapq
import itertools
import struct
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence

from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.operation import ModelHealth
from bot.chat.outgoing import Attachment, Limits, MessageContent, MessageSearch, OutgoingMessage
from bot.chat.prompt import (
    Delta,
    Finish,
    FinishReason,
    GenerationEvent,
    Prompt,
    PromptDescription,
    QueuePosition,
    RateLimitWait,
    ReasoningDelta,
    TemplateChoice,
)
from bot.chat.story import PackedVector
from bot.errors import EmbeddingError, MessageNotFound, OutcomeUnknown, PlatformError, Refused
from bot.platforms.local_platform import LocalPlatform
from bot.ports import Backend, Clock, Embedder, Intake, PrivateChats, Surface, TextTokenCounter
from bot.prompting.fit import estimate_message_tokens
from bot.prompting.text.tokens import get_counter_for_model
from bot.runtime.in_process import InProcessSignals
from bot.texts.text import Text, translatable

CHAT = Address("discord", "1")
LIMITS = Limits(
    max_units=2000,
    unit="characters",
    seconds_between_edits=1.2,
    typing_seconds=10,
    answers_each_message=True,
)
_LOOP_ROUNDS = 20  # enough for every ready task to reach its next wait


class FakeClock(Clock):
    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    @override
    def now(self) -> float:
        return self._now

    @override
    def monotonic(self) -> float:
        return self._now

    @override
    async def sleep(self, seconds: float) -> None:
        wake = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), wake))
        await wake

    @override
    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        wake = asyncio.get_running_loop().create_future()
        wake.add_done_callback(lambda woken: None if woken.cancelled() else callback())
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), wake))

        def call_off() -> None:
            wake.cancel()

        return call_off

    async def advance(self, seconds: float) -> None:
        """Move the clock; each sleeper wakes at its time and runs before the next one wakes."""
        end = self._now + seconds
        await run_ready_tasks()
        while self._sleepers and self._sleepers[0][0] <= end:
            at, _, wake = heapq.heappop(self._sleepers)
            self._now = max(self._now, at)
            if not wake.done():
                wake.set_result(None)
                await run_ready_tasks()
        self._now = end


async def run_ready_tasks() -> None:
    for _ in range(_LOOP_ROUNDS):
        await asyncio.sleep(0)


class FakeSurface(Surface):
    def __init__(self, limits: Limits = LIMITS) -> None:
        self.messages: dict[str, str] = {}
        self.files: dict[str, Attachment] = {}  # by message id
        self.calls: list[tuple[str, str]] = []  # ("edit", "the text"), ...
        self.gate: asyncio.Event | None = None  # if set, calls wait for it
        self.responses_to_lose = 0  # so many sends arrive but raise OutcomeUnknown
        self.sent: list[OutgoingMessage] = []  # of every send that was tried
        self.shown: dict[str, MessageContent] = {}  # by message id
        self.edits, self.unchanged_edits = 0, 0  # that took effect; of these, without a change
        self.contents: list[MessageContent] = []  # of every send and edit
        self.interactions: list[str] = []  # of edits that have one
        self.threads: dict[str, str] = {}  # by message id, the one that its thread is opened from
        self._limits = limits
        self._ids = itertools.count(1)
        self._by_nonce: dict[str, str] = {}
        self._errors: dict[str, deque[PlatformError]] = {}

    def fail_next(self, call: str, *errors: PlatformError) -> None:
        self._errors.setdefault(call, deque()).extend(errors)

    @override
    def limits(self, address: Address) -> Limits:
        return self._limits

    @override
    async def send(self, message: OutgoingMessage) -> str:
        self.sent.append(message)
        self.contents.append(message.content)
        await self._record("send", message.content.text)
        if self._limits.deduplicates_sends and message.nonce in self._by_nonce:
            return self._by_nonce[message.nonce]
        message_id = self._by_nonce[message.nonce] = str(next(self._ids))
        self.messages[message_id] = message.content.text
        self.shown[message_id] = message.content
        if message.file is not None:
            self.files[message_id] = message.file
        if message.thread is not None:
            self.threads[message_id] = message.thread.message_id
        if self.responses_to_lose:
            self.responses_to_lose -= 1
            raise OutcomeUnknown("the response was lost")
        return message_id

    @override
    async def edit(
        self, address: Address, message_id: str, content: MessageContent, *, interaction: str | None
    ) -> None:
        text = content.text
        self.contents.append(content)
        if interaction is not None:
            self.interactions.append(interaction)
        await self._record("edit", text)
        if message_id not in self.messages:
            raise MessageNotFound(f"no message {message_id}")
        self.messages[message_id] = text
        self.edits += 1
        self.unchanged_edits += self.shown.get(message_id) == content
        self.shown[message_id] = content

    @override
    async def delete(self, address: Address, message_id: str) -> None:
        await self._record("delete", message_id)
        self.messages.pop(message_id, None)
        self.files.pop(message_id, None)
        self.threads.pop(message_id, None)

    @override
    async def react(self, address: Address, message_id: str, emoji: str) -> None:
        await self._record("react", f"{message_id} {emoji}")

    @override
    async def typing(self, address: Address) -> None:
        await self._record("typing", "")

    @override
    async def find(self, message: OutgoingMessage, search: MessageSearch) -> str | None:
        await self._record("find", message.content.text)
        ids = [one for one in self.messages if search.after is None or int(one) > int(search.after)]
        wanted = (message.content.text, message.file)
        return next(
            (
                one
                for one in ids
                if (self.messages[one], self.files.get(one)) == wanted
                and one not in search.excluded_ids
            ),
            None,
        )

    async def _record(self, call: str, text: str) -> None:
        self.calls.append((call, text))
        if self.gate is not None:
            await self.gate.wait()
        if self._errors.get(call):
            raise self._errors[call].popleft()


class FakePrivateChats(PrivateChats):
    """Opens private chats with everybody, or refuses to."""

    def __init__(self, *, refuses: bool = False) -> None:
        self._refuses = refuses

    @override
    async def find_private_chat(self, person_id: str) -> Address:
        if self._refuses:
            raise Refused("nobody")
        platform, _, number = person_id.partition(":")
        return Address(platform, f"dm-{number}")

    @override
    async def private_chat_instructions(self, person_id: str) -> Text:
        return translatable("Open a chat with me.")


class FakePlatform(LocalPlatform):
    """A platform with a given surface, to which the test itself passes incoming messages."""

    is_operators = False

    def __init__(self, name: str, surface: Surface) -> None:
        self.name, self.surface = name, surface

    @override
    async def run(self, intake: Intake) -> None:
        """Receive nothing."""


class PrivatePlatform(FakePlatform, FakePrivateChats):
    """A platform that opens private chats, or refuses to."""

    def __init__(self, name: str, surface: Surface, *, refuses: bool = False) -> None:
        FakePlatform.__init__(self, name, surface)
        FakePrivateChats.__init__(self, refuses=refuses)


ScriptStep = (
    str | Finish | ReasoningDelta | QueuePosition | RateLimitWait | asyncio.Event | Exception
)


class FakeBackend(Backend):
    """A model that plays one script per answer and repeats the last; events in it are awaited."""

    def __init__(self, *scripts: Sequence[ScriptStep]) -> None:
        self.prompts: list[Prompt] = []
        self.closed_early = 0  # generators that were closed before their end
        self._scripts = deque(scripts or [["Hello."]])

    @override
    async def generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        self.prompts.append(prompt)
        script = self._scripts.popleft() if len(self._scripts) > 1 else self._scripts[0]
        ended = False
        finish = Finish(FinishReason.STOP)
        try:
            for step in script:
                match step:
                    case str():
                        yield Delta(step)
                    case ReasoningDelta() | QueuePosition() | RateLimitWait():
                        yield step
                    case asyncio.Event():
                        await step.wait()
                    case Exception():
                        ended = True
                        raise step
                    case Finish():
                        finish = step
            yield finish
            ended = True
        finally:
            self.closed_early += not ended

    @override
    async def count_tokens(self, prompt: Prompt) -> int:
        return sum(estimate_message_tokens(prompt.messages, await self.text_counter(prompt)))

    @override
    async def text_counter(self, prompt: Prompt) -> TextTokenCounter:
        counter = get_counter_for_model(prompt.model)
        await counter.load()
        return counter

    @override
    async def describe(self, prompt: Prompt) -> PromptDescription:
        return PromptDescription(prompt.model, {}, "", is_rendered=False)

    @override
    async def check(self) -> str:
        return "a script"

    @override
    async def close(self) -> None:
        pass


class FakeEmbedder(Embedder):
    """An embedder whose vectors count `WORDS`: texts are similar if they share them."""

    WORDS = ("lamp", "storm", "gull", "tea")

    def __init__(self, model_id: str = "words") -> None:
        self._model_id = model_id
        self.is_down = False
        self.documents: list[str] = []  # in the order of the calls
        self.queries: list[str] = []

    @property
    @override
    def model_id(self) -> str:
        return self._model_id

    @override
    async def embed_documents(self, texts: Sequence[str]) -> Sequence[PackedVector]:
        self._require_up()
        self.documents += texts
        return [self._vector(text) for text in texts]

    @override
    async def embed_query(self, text: str) -> PackedVector:
        self._require_up()
        self.queries.append(text)
        return self._vector(text)

    @override
    async def check(self) -> str:
        return "a fake"

    @override
    async def close(self) -> None:
        self.is_down = True

    def _require_up(self) -> None:
        if self.is_down:
            raise EmbeddingError("the fake is down")

    def _vector(self, text: str) -> PackedVector:
        counts = [text.lower().count(word) + 0.01 for word in self.WORDS]
        length = sum(count * count for count in counts) ** 0.5
        return struct.pack("<4f", *(count / length for count in counts))


class FakeRemoteBackend(FakeBackend):
    """A backend that continues cut-off answers, and reports the `health` of its models."""

    health: Sequence[ModelHealth] = ()

    @override
    def can_continue(self, prompt: Prompt) -> bool:
        return True

    @override
    def model_health(self) -> Sequence[ModelHealth]:
        return self.health


class FakeSignals(InProcessSignals):
    """Signals between several processes, with a server that may be unreachable."""

    is_cross_process = True


class CallingFakeBackend(FakeBackend):
    @override
    async def calls_tools(self, model: str, template: TemplateChoice) -> bool:
        return True

"""The interfaces of platforms, backends, embedders and repositories.

Each has a contract test in tests/contracts/ that runs over all of its implementations.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from bot.chat.incoming import Address, Incoming, MediaItem, Request, Said
from bot.chat.operation import ModelHealth, ModelInMemory, RefusedCalls
from bot.chat.outgoing import Limits, MessageContent, MessageSearch, OutboxRow, OutgoingMessage
from bot.chat.prompt import (
    GenerationEvent,
    Prompt,
    PromptDescription,
    PromptToken,
    TemplateChoice,
    ToolSpec,
)
from bot.chat.rate import CallScope, Rate, Waiter
from bot.chat.session import ChatSetting
from bot.chat.story import PackedVector, Story, StoryVector
from bot.errors import BackendUnavailable


class Surface(Protocol):
    """Sends, edits and deletes messages on a platform; all calls may raise any `PlatformError`."""

    def limits(self, address: Address) -> Limits: ...

    async def send(self, message: OutgoingMessage) -> str:
        """Send a message and return its id. It notifies nobody, whatever its text mentions.

        A platform with idempotency keys returns the first message when the same nonce is sent
        again. A file that answers an interaction is shown only to the person who asked: `Refused`
        where that is no longer possible.
        """

    async def edit(
        self, address: Address, message_id: str, content: MessageContent, *, interaction: str | None
    ) -> None:
        """Replace what one of the bot's messages says and shows; may be repeated.

        `interaction` is the press of a button under it, of a message that only one person sees.
        """

    async def delete(self, address: Address, message_id: str) -> None:
        """Delete one of the bot's messages; a message that does not exist is no error."""

    async def typing(self, address: Address) -> None:
        """Show the typing indicator for `limits.typing_seconds`."""

    async def find(self, message: OutgoingMessage, search: MessageSearch) -> str | None:
        """Look for a message as it was sent; return its id, None if it never arrived."""


@runtime_checkable
class DraftingSurface(Protocol):
    """A surface that can show what is being written; all calls may raise any `PlatformError`."""

    async def draft(self, address: Address, draft_id: int, content: MessageContent) -> None:
        """Show or replace a draft, without buttons and with an id other than 0, until a send."""


@runtime_checkable
class BucketSurface(Protocol):
    """A surface on which several chats may share one of the platform's rate-limit buckets.

    Each method returns the key of the bucket a call counts against: the chat's lane, or a key that
    several chats share. It may query the platform and raise any `PlatformError`.
    """

    async def send_bucket(self, message: OutgoingMessage) -> str: ...

    async def edit_bucket(
        self, address: Address, message_id: str, content: MessageContent, *, interaction: str | None
    ) -> str: ...


class Intake(Protocol):
    """Receives the messages of a platform."""

    async def receive(self, messages: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        """Store messages and cursors in one transaction; a message that is known is dropped.

        Only after this returns may the platform be told that the messages arrived. Raises
        `StoreError` if nothing was stored.
        """

    async def cursors(self, prefix: str) -> Mapping[str, str]:
        """Return the stored cursors whose names have this prefix."""


class Platform(Protocol):
    """Receives messages from a chat platform; its `surface` sends the answers."""

    @property
    def name(self) -> str: ...

    surface: Surface

    @property
    def connection_error(self) -> str | None:
        """Why no messages are received at the moment, in a few words; None while connected."""

    async def run(self, intake: Intake) -> None:
        """Receive until cancelled or the end of the input; after `PlatformFatal` no retry helps."""

    async def check(self) -> str:
        """Return the bot's account in a few words; raise `PlatformError` if it cannot log in."""

    async def close(self) -> None:
        """Close the connections, after the last answer is sent."""

    async def is_admin(self, incoming: Request) -> bool:
        """Ask whether the author administers the channel; raise `PlatformError` if unknown."""


@runtime_checkable
class ShardedPlatform(Platform, Protocol):
    """A platform with several connections, which different processes may receive."""

    async def shards(self) -> Sequence[str]:
        """Return the names of the connections; raise `PlatformError` if unknown."""

    async def run_shard(self, shard: str, intake: Intake) -> None:
        """Receive over one connection; as `run`."""


@runtime_checkable
class HistoryReader(Protocol):
    """A platform that can list what was said in a channel."""

    async def read_before(self, said: Said, limit: int) -> Sequence[Said]:
        """Return up to `limit` messages before this one, oldest first, or raise `PlatformError`."""

    async def read_start(self, said: Said) -> Said | None:
        """Return what a message's thread was opened about, if any, or raise `PlatformError`."""


@runtime_checkable
class PrivateChats(Protocol):
    """A platform on which the bot can write to a person in private."""

    async def private_chat(self, person: str) -> Address:
        """Return the private chat with a person, who may refuse it, or raise `PlatformError`."""


@runtime_checkable
class FileSource(Protocol):
    """A platform that keeps the files of messages."""

    async def download(self, item: MediaItem, max_bytes: int) -> bytes:
        """Return a file, or its first `max_bytes`, or raise `PlatformError`."""


@runtime_checkable
class WebhookReceiver(Protocol):
    """A platform whose servers can call this service: any process takes their calls."""

    webhook_path: str | None
    """The path that is called; None: this platform asks its servers itself."""

    def admits_call(self, headers: Mapping[str, str]) -> bool:
        """Return whether a call comes from the platform, by its headers."""

    async def receive_call(self, body: bytes, intake: Intake) -> bool:
        """Store what a call brings; return False if it cannot be understood.

        Raises `StoreError` if nothing was stored, so that the platform calls again, or
        `PlatformError` if the platform does not say what is needed to understand it.
        """


@runtime_checkable
class SilenceExplainer(Protocol):
    """A platform that tells people why their message is not answered."""

    async def explain_silence(self, said: Said, explanation: str) -> None:
        """Show the explanation; may be repeated for the same message."""


TextTokenCounter: TypeAlias = Callable[[Sequence[str]], Sequence[int]]
"""Count the tokens of each text."""


class Backend(Protocol):
    """Generates answers with the models of one provider; what few of them can do has a default."""

    def generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        """Stream an answer: any number of `Delta`, then exactly one `Finish`.

        A backend with a queue may yield `QueuePosition` before the first delta. Closing the
        generator stops the model. Raises `BackendUnavailable` before the first delta,
        `BackendInterrupted` after it.
        """

    async def count_tokens(self, prompt: Prompt) -> int:
        """Return the tokens of the prompt, at most overestimated; raises like `generate`."""

    async def text_counter(self, prompt: Prompt) -> TextTokenCounter:
        """Return what quickly estimates tokens of the prompt's texts; raises like `generate`."""

    async def max_prompt_tokens(self, prompt: Prompt) -> int | None:
        """Context length minus the reply budget, in tokens; None if the provider enforces it."""
        return None

    async def describe(self, prompt: Prompt) -> PromptDescription:
        """Describe what the model is sent for a prompt, or raise `BackendUnavailable`."""

    async def check(self) -> str:
        """Describe what answers in a few words; raise `BackendUnavailable` if nothing does."""

    async def check_models(self, models: Sequence[str]) -> str:
        """Describe what answers with these models, unloaded; else raise `BackendUnavailable`."""
        return await self.check()

    async def list_models(self) -> Sequence[str]:
        """Return the names of the listed models; raises as `check_models` does."""
        return ()

    async def close(self) -> None: ...

    def sees_images(self, model: str) -> bool:
        """Return whether a preset's model sees the images of a prompt."""
        return False

    def is_sample(self, model: str) -> bool:
        """Return whether a preset's model is too small for more than a first try."""
        return False

    def can_continue(self, prompt: Prompt) -> bool:
        """Return whether the model takes the prompt with a beginning of its answer."""
        return False

    async def calls_tools(self, model: str, template: TemplateChoice) -> bool:
        """Return whether a preset's model is offered tools, with the preset's template."""
        return False

    @property
    def can_transcribe(self) -> bool:
        return False

    async def transcribe(self, name: str, audio: bytes) -> str:
        """Return what is said in an audio file, named by format, or raise `BackendUnavailable`."""
        raise BackendUnavailable("it does not transcribe")

    @property
    def can_tokenize(self) -> bool:
        return False

    async def tokenize(self, prompt: Prompt) -> Sequence[PromptToken]:
        """Return the tokens that would be sent to the model; raises like `generate`."""
        raise BackendUnavailable("it does not tokenize")

    async def preload(self, model: str) -> None:
        """Load a model before the first request; raise `BackendUnavailable` if that fails."""
        return

    def use_session_key(self, key: bytes) -> None:
        """Set the key, the same in all processes, that hashes conversations for a router."""
        return

    def model_health(self) -> Sequence[ModelHealth]:
        """Return the results of requests for each model that was called since the start."""
        return ()

    def models_in_memory(self) -> Sequence[ModelInMemory]:
        """Return the models that are loaded in the memory of this machine."""
        return ()


class ToolServer(Protocol):
    """A server of tools that an operator has set up; presets name it."""

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """The tools that may be called now; none while disconnected. Never waits."""

    @property
    def call_seconds(self) -> float:
        """How long a call may take."""

    async def wait_until_tried(self) -> None:
        """Wait for the first connection or its failure, a few seconds at most."""

    async def call(self, name: str, arguments: Mapping[str, object]) -> str:
        """Return the result as text, or raise `ToolServerError`."""


@runtime_checkable
class ConversationMemory(Protocol):
    """A component that keeps data of conversations, such as a prefix cache."""

    async def end_session(self, conversation: str) -> None:
        """Release everything cached for the ended session."""

    async def forget(self, conversation: str) -> None:
        """Delete everything stored about a conversation."""


class Embedder(Protocol):
    """Computes embedding vectors; all calls raise `EmbeddingError`.

    Only about the first 400 tokens of a text count: embedding models are trained on no more.
    """

    @property
    def model_id(self) -> str:
        """Identifies the model and its parameters; vectors of different ids are incomparable."""

    async def embed_documents(self, texts: Sequence[str]) -> Sequence[PackedVector]:
        """Return the vectors of texts that are searched, in their order."""

    async def embed_query(self, text: str) -> PackedVector:
        """Return the vector of a search query."""
        return (await self.embed_documents([text]))[0]

    @property
    def is_metered(self) -> bool:
        """Whether its tokens may cost money."""
        return False

    async def check(self) -> str:
        """Return what computes the vectors, in a few words."""

    async def close(self) -> None: ...


# --- repositories ----------------------------------------------------------------------------
#
# All methods raise `StoreError` while the database is unavailable.


class Delivery(Protocol):
    """Sends the messages in the outbox."""

    def deliver(self, lane: str, row: OutboxRow | None, *, is_urgent: bool = False) -> None:
        """Send a row, or what is due in a lane, at any rate if urgent; never waits."""

    async def wait_until_sent(self, row_id: int) -> str:
        """Wait until any process has sent a row; return the message's id, or raise `Refused`."""


class ChatSettings(Protocol):
    """Settings made in chats. A scope is a guild, a channel or a thread."""

    async def set(
        self, scope: str, key: str, value: str | None, by: str, *, audited: bool = False
    ) -> None:
        """Set a value, or delete it with None; `audited` notes what admins do in the audit log."""

    async def resolve(self, scopes: Sequence[str], key: str) -> ChatSetting | None:
        """Return the value in the first of these scopes that has one."""
        found = await self.get_scopes(scopes)
        for scope in scopes:
            values = found.get(scope, {})
            if key in values:
                return ChatSetting(scope, values[key])
        return None

    async def get_all(self, scopes: Sequence[str], key: str) -> Mapping[str, str]:
        """Return the values by scope, of those scopes that have one."""
        found = await self.get_scopes(scopes)
        return {scope: values[key] for scope, values in found.items() if key in values}

    async def get_scopes(self, scopes: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Return all values of these scopes, by scope and key; none of one that has no value."""


class Stories(Protocol):
    """The stories of characters, with the vectors that they are retrieved by."""

    async def replace_stories(
        self, character: str, texts: Sequence[str], model_id: str
    ) -> Sequence[str]:
        """Replace a character's stories; return each without a vector of this model once."""

    async def save_vectors(
        self, character: str, model_id: str, vectors: Sequence[StoryVector]
    ) -> None:
        """Store vectors; those of stories that do not exist any more are ignored."""

    async def nearest(
        self, character: str, query: PackedVector, model_id: str, limit: int
    ) -> Sequence[Story]:
        """Return the stories nearest to a vector of this model, best first; of equals the first."""


# --- coordination ----------------------------------------------------------------------------


SignalHandler: TypeAlias = Callable[[Sequence[str]], None]


class Signals(Protocol):
    """Publishes keys that are ready or changed to all processes; signals may be lost."""

    def subscribe(
        self, topic: str, handler: SignalHandler, elsewhere: SignalHandler | None = None
    ) -> Callable[[], None]:
        """Call `handler` with the keys of every signal of a topic; return what ends that.

        Handlers must not block or raise. `elsewhere` gets what other processes publish, if given.
        """

    def publish(self, topic: str, keys: Sequence[str]) -> None:
        """Tell the subscribers here at once, and those elsewhere soon; never waits or fails."""

    @property
    def reaches_others(self) -> bool:
        """Whether signals pass between the processes, as far as is known; else polling must do."""

    async def find_problem(self) -> str | None:
        """Ask the server; return why signals do not pass between the processes, None if they do."""


class RateLimits(Protocol):
    """Token buckets, slots and sliding windows of all processes; counts may be lost."""

    async def take(self, rates: Sequence[Rate], max_wait_seconds: float = 0.0) -> float:
        """Take the next moment at which all of these rates allow an event; return how far it is.

        In seconds. If it is later than `max_wait_seconds`, it is not taken and nothing is counted.
        """

    async def acquire(
        self,
        key: str,
        limit: int,
        holder: str,
        lease_seconds: float,
        waiter: Waiter | None = None,
    ) -> int:
        """Hold one of `limit` slots until `release`, or until the lease ends.

        Returns how many slots all processes hold now, this one included; 0: none was free. A
        `waiter` takes its turn among recent waiters; without one, any free slot is taken.
        """

    async def release(self, key: str, holder: str) -> None:
        """Release a slot; one that is not held is ignored."""

    async def take_call(self, scopes: Sequence[CallScope]) -> float:
        """Count a call in all windows of these scopes; return 0, or the seconds to wait."""

    async def seconds_until_call(self, scopes: Sequence[CallScope]) -> float:
        """Return what `take_call` would return, without counting a call."""

    async def refuse_calls(self, scope: str, seconds: float) -> None:
        """Block a scope that the platform refused, and use its learned windows for an hour."""

    async def refusals(self) -> Sequence[RefusedCalls]:
        """Return the scopes that are refused now, the longest waits first; at most a hundred."""


class Clock(Protocol):
    def now(self) -> float:
        """Return the time in Unix seconds."""

    def monotonic(self) -> float:
        """Return seconds since an unspecified moment; never decreases."""

    async def sleep(self, seconds: float) -> None: ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call a function later, without a task; return a function that cancels the call."""

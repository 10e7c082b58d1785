"""The interfaces of platforms, backends, embedders and repositories.

Each has a contract test in tests/contracts/ that runs for all its implementations.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from bot.chat.incoming import Address, Incoming, IncomingMessage, MediaItem, Request
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
from bot.errors import BackendUnavailable, Refused
from bot.texts.text import Text


class Surface(Protocol):
    """Sends, edits and deletes messages on a platform; calls may raise any `PlatformError`."""

    def limits(self, address: Address) -> Limits: ...

    async def send(self, message: OutgoingMessage) -> str:
        """Send a message and return its id. It pings nobody, whatever its text mentions.

        A platform with idempotency keys returns the first message if a nonce is repeated. A file in
        response to an interaction is shown only to its author; raises `Refused` if that is no
        longer possible.
        """

    async def edit(
        self, address: Address, message_id: str, content: MessageContent, *, interaction: str | None
    ) -> None:
        """Replace the text and buttons of one of the bot's messages; repeatable.

        `interaction` is a press of a button under it, for a message that only one person sees.
        """

    async def delete(self, address: Address, message_id: str) -> None:
        """Delete one of the bot's messages; a missing message is not an error."""

    async def react(self, address: Address, message_id: str, emoji: str) -> None:
        """React to any message with an emoji that `limits.reaction` allows; repeatable."""
        raise Refused("this platform has no reactions")

    async def typing(self, address: Address) -> None:
        """Show the typing indicator for `limits.typing_seconds`."""

    async def find(self, message: OutgoingMessage, search: MessageSearch) -> str | None:
        """Search for a message as it was sent; return its id, or None if it never arrived."""


@runtime_checkable
class DraftingSurface(Protocol):
    """A surface that can show unfinished text; calls may raise any `PlatformError`."""

    async def draft(self, address: Address, draft_id: int, content: MessageContent) -> None:
        """Show or replace a draft, without buttons and with a nonzero id, until the next send."""


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
    """Receives messages from a platform."""

    async def receive(self, messages: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        """Store messages and cursors in one transaction; known messages are dropped.

        Only after this returns may messages be acknowledged to the platform. Raises `StoreError` if
        nothing was stored.
        """

    async def cursors(self, prefix: str) -> Mapping[str, str]:
        """Return the stored cursors whose names start with this prefix."""


class Platform(Protocol):
    """Receives messages from a chat platform; its `surface` sends the answers."""

    @property
    def name(self) -> str: ...

    surface: Surface

    @property
    def connection_error(self) -> str | None:
        """Briefly, why no messages are being received; None while connected."""

    async def run(self, intake: Intake) -> None:
        """Receive until cancelled or the input ends; after `PlatformFatal`, do not retry."""

    async def check(self) -> str:
        """Return the bot's account in a few words; raises `PlatformError` if login fails."""

    async def close(self) -> None:
        """Close the connections, after the last answer was sent."""

    async def is_admin(self, incoming: Request) -> bool:
        """Return whether the author is a channel admin; raises `PlatformError` if unknown."""


@runtime_checkable
class ShardedPlatform(Platform, Protocol):
    """A platform with several connections, which different processes may hold."""

    async def shards(self) -> Sequence[str]:
        """Return the connections' names; raises `PlatformError` if unknown."""

    async def run_shard(self, shard: str, intake: Intake) -> None:
        """Receive on one connection, as `run` does."""


@runtime_checkable
class HistoryReader(Protocol):
    """A platform that can list a channel's messages."""

    async def read_before(self, message: IncomingMessage, limit: int) -> Sequence[IncomingMessage]:
        """Return up to `limit` messages before this one, oldest first; raises `PlatformError`."""

    async def read_start(self, message: IncomingMessage) -> IncomingMessage | None:
        """Return the message that started a message's thread, if any; raises `PlatformError`."""

    async def read_roles(self, asked: Request) -> tuple[str, ...]:
        """Return the ids of the author's roles; raises `PlatformError`.

        Messages read from the history, and events replayed after an outage, lack them.
        """


@runtime_checkable
class PrivateChats(Protocol):
    """A platform on which the bot can message people privately."""

    async def private_chat(self, person: str) -> Address:
        """Return the private chat with a person, who may refuse it; raises `PlatformError`."""

    async def how_to_open(self, person: str) -> Text:
        """Tell a person in a group how to open one; raises `PlatformError`."""


@runtime_checkable
class FileSource(Protocol):
    """A platform that stores messages' files."""

    async def download(self, item: MediaItem, max_bytes: int) -> bytes:
        """Return a file, or its first `max_bytes`; raises `PlatformError`."""


@runtime_checkable
class PictureHost(Protocol):
    """A platform that hosts small pictures for characters' faces."""

    async def host_picture(self, png: bytes) -> str:
        """Return a picture's public URL, always the same one; raises `PlatformError`."""

    async def drop_pictures(self, kept: Collection[str]) -> None:
        """Delete pictures not in `kept`, except recent ones; raises `PlatformError`."""


@runtime_checkable
class WebhookReceiver(Protocol):
    """A platform whose servers can call this service; any process may handle the calls."""

    webhook_path: str | None
    """The path that is called; None: this platform asks its servers itself."""

    def admits_call(self, headers: Mapping[str, str]) -> bool:
        """Return whether the headers prove that a call comes from the platform."""

    async def receive_call(self, body: bytes, intake: Intake) -> bool:
        """Store a call's events; return False if it is malformed.

        Raises `StoreError` if nothing was stored, so that the platform calls again, or
        `PlatformError` if the platform does not provide the data needed to parse it.
        """


@runtime_checkable
class SilenceExplainer(Protocol):
    """A platform that tells people why their message is not answered."""

    async def explain_silence(self, message: IncomingMessage, explanation: str) -> None:
        """Show the explanation; repeatable for the same message."""


TextTokenCounter: TypeAlias = Callable[[Sequence[str]], Sequence[int]]
"""Count the tokens of each text."""


class Backend(Protocol):
    """Generates answers with one provider's models; rarely supported methods have a default."""

    def generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        """Stream an answer: any number of `Delta`, then exactly one `Finish`.

        A backend with a queue may yield `QueuePosition` before the first delta. Closing the
        generator stops the model. Raises `BackendUnavailable` before the first delta,
        `BackendInterrupted` after it.
        """

    async def count_tokens(self, prompt: Prompt) -> int:
        """Return the prompt's token count, never underestimated; raises like `generate`."""

    async def text_counter(self, prompt: Prompt) -> TextTokenCounter:
        """Return a fast token estimator for the prompt's texts; raises like `generate`."""

    async def max_prompt_tokens(self, prompt: Prompt) -> int | None:
        """Context length minus the answer's budget, in tokens; None if the provider enforces it."""
        return None

    async def describe(self, prompt: Prompt) -> PromptDescription:
        """Describe the request for a prompt; raises `BackendUnavailable`."""

    async def check(self) -> str:
        """Describe the service in a few words; raises `BackendUnavailable` if it is down."""

    async def check_models(self, models: Sequence[str]) -> str:
        """Check the service and these models without loading them; raises `BackendUnavailable`."""
        return await self.check()

    async def list_models(self) -> Sequence[str]:
        """Return the names of listed models; raises as `check_models` does."""
        return ()

    async def close(self) -> None: ...

    def sees_images(self, model: str) -> bool:
        """Return whether a preset's model accepts images in a prompt."""
        return False

    def is_sample(self, model: str) -> bool:
        """Return whether a preset's model is only good enough for a first try."""
        return False

    def can_continue(self, prompt: Prompt) -> bool:
        """Return whether the model can continue the beginning of an answer in the prompt."""
        return False

    async def calls_tools(self, model: str, template: TemplateChoice) -> bool:
        """Return whether a preset's model can use tools, with the preset's template."""
        return False

    @property
    def can_transcribe(self) -> bool:
        return False

    async def transcribe(self, name: str, audio: bytes) -> str:
        """Return the text spoken in an audio file, named by format; raises `BackendUnavailable`."""
        raise BackendUnavailable("it does not transcribe")

    @property
    def can_moderate(self) -> bool:
        return False

    async def moderate(self, texts: Sequence[str]) -> Sequence[str]:
        """Return why these texts should not be shown: categories, or none if they may be.

        Raises `BackendUnavailable`.
        """
        raise BackendUnavailable("this backend cannot moderate")

    @property
    def can_tokenize(self) -> bool:
        return False

    async def tokenize(self, prompt: Prompt) -> Sequence[PromptToken]:
        """Return the tokens that the model would receive; raises like `generate`."""
        raise BackendUnavailable("it does not tokenize")

    async def preload(self, model: str) -> None:
        """Load a model before the first request; raises `BackendUnavailable` if that fails."""
        return

    def use_session_key(self, key: bytes) -> None:
        """Set the key, equal in all processes, for hashing conversations for a router."""
        return

    def model_health(self) -> Sequence[ModelHealth]:
        """Return the results of requests for each model called since the start."""
        return ()

    def models_in_memory(self) -> Sequence[ModelInMemory]:
        """Return the models loaded in this machine's memory."""
        return ()


class ToolServer(Protocol):
    """A tool server configured by an operator; presets refer to it by name."""

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """The tools that can be called now; empty while disconnected. Never waits."""

    @property
    def call_seconds(self) -> float:
        """The time limit for a call."""

    async def wait_until_tried(self) -> None:
        """Wait until the first connection succeeds or fails, a few seconds at most."""

    async def call(self, name: str, arguments: Mapping[str, object]) -> str:
        """Return the result as text; raises `ToolServerError`."""


@runtime_checkable
class ConversationMemory(Protocol):
    """A component that keeps data about conversations, such as a prefix cache."""

    async def end_session(self, conversation: str) -> None:
        """Release everything cached for the ended session."""

    async def forget(self, conversation: str) -> None:
        """Delete everything stored about a conversation."""


class Embedder(Protocol):
    """Computes embedding vectors; all calls raise `EmbeddingError`.

    Only about the first 400 tokens of a text count, as embedding models are trained on no more.
    """

    @property
    def model_id(self) -> str:
        """Identifies the model and its parameters; vectors with different ids are incomparable."""

    async def embed_documents(self, texts: Sequence[str]) -> Sequence[PackedVector]:
        """Return the vectors of texts to be searched, in order."""

    async def embed_query(self, text: str) -> PackedVector:
        """Return the vector of a search query."""
        return (await self.embed_documents([text]))[0]

    @property
    def is_metered(self) -> bool:
        """Whether its tokens may cost money."""
        return False

    async def check(self) -> str:
        """Return a short description of what computes the vectors."""

    async def close(self) -> None: ...


# --- repositories ----------------------------------------------------------------------------
#
# All methods raise `StoreError` while the database is unavailable.


class Delivery(Protocol):
    """Sends the messages in the outbox."""

    def deliver(self, lane: str, row: OutboxRow | None, *, is_urgent: bool = False) -> None:
        """Send a row (None: the lane's due rows), urgent ones without a free slot; never waits."""

    async def wait_until_sent(self, row_id: int) -> str:
        """Wait until any process has sent a row; return its message id; raises `Refused`."""


class ChatSettings(Protocol):
    """Settings made in chats. A scope is a guild, a channel or a thread."""

    async def set(
        self, scope: str, key: str, value: str | None, by: str, *, audited: bool = False
    ) -> None:
        """Set a value, or delete it with None; `audited` records it in the audit log."""

    async def resolve(self, scopes: Sequence[str], key: str) -> ChatSetting | None:
        """Return the value from the first of these scopes that has one."""
        return ChatSetting.first(await self.get_scopes(scopes), scopes, key)

    async def get_all(self, scopes: Sequence[str], key: str) -> Mapping[str, str]:
        """Return the values by scope, omitting scopes without one."""
        found = await self.get_scopes(scopes)
        return {scope: values[key] for scope, values in found.items() if key in values}

    async def get_scopes(self, scopes: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Return all values by scope and key, omitting scopes without any."""


class Stories(Protocol):
    """Characters' stories, with the vectors for retrieving them."""

    async def replace_stories(
        self, character: str, texts: Sequence[str], model_id: str
    ) -> Sequence[str]:
        """Replace a character's stories; return those without a vector of this model, each once."""

    async def save_vectors(
        self, character: str, model_id: str, vectors: Sequence[StoryVector]
    ) -> None:
        """Store vectors; those of stories that no longer exist are ignored."""

    async def nearest(
        self, character: str, query: PackedVector, model_id: str, limit: int
    ) -> Sequence[Story]:
        """Return the stories nearest to a vector of this model, best first; ties stay in order."""


# --- coordination ----------------------------------------------------------------------------


SignalHandler: TypeAlias = Callable[[Sequence[str]], None]


class Signals(Protocol):
    """Publishes ready or changed keys to all processes; signals may be lost."""

    def subscribe(
        self, topic: str, handler: SignalHandler, elsewhere: SignalHandler | None = None
    ) -> Callable[[], None]:
        """Call `handler` with the keys of each signal on a topic; return a function to stop.

        Handlers must not block or raise. `elsewhere`, if given, gets other processes' signals.
        """

    def publish(self, topic: str, keys: Sequence[str]) -> None:
        """Notify subscribers here at once and those elsewhere soon; never waits or fails."""

    @property
    def reaches_others(self) -> bool:
        """Whether signals between processes seem to work; otherwise polling must suffice."""

    async def find_problem(self) -> str | None:
        """Query the server; return why signals do not reach other processes, or None."""


class RateLimits(Protocol):
    """Token buckets, slots and sliding windows across all processes; counts may be lost."""

    async def take(self, rates: Sequence[Rate], max_wait_seconds: float = 0.0) -> float:
        """Reserve the next time that all these rates allow; return the seconds until then.

        If that is more than `max_wait_seconds`, nothing is reserved or counted.
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

        Returns how many slots all processes now hold, including this one; 0 if none was free. A
        `waiter` takes turns with other recent waiters; without one, any free slot is taken.
        """

    async def release(self, key: str, holder: str) -> None:
        """Release a slot; one that is not held is ignored."""

    async def take_call(self, scopes: Sequence[CallScope]) -> float:
        """Count a call in all windows of these scopes; return 0, or the seconds to wait."""

    async def seconds_until_call(self, scopes: Sequence[CallScope]) -> float:
        """Return what `take_call` would return, without counting a call."""

    async def refuse_calls(self, scope: str, seconds: float) -> None:
        """Block a scope that the platform refused, and apply its learned windows for an hour."""

    async def refusals(self) -> Sequence[RefusedCalls]:
        """Return the currently blocked scopes, longest waits first; at most a hundred."""


class Clock(Protocol):
    def now(self) -> float:
        """Return the time in Unix seconds."""

    def monotonic(self) -> float:
        """Return the seconds since an unspecified moment; never decreases."""

    async def sleep(self, seconds: float) -> None: ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call a function later, without a task; return a function to cancel it."""

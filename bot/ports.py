"""Interfaces (protocols) of platforms, backends, embedders and repositories.

Each has contract tests in tests/contracts/, which run for every implementation.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol, TypeAlias, runtime_checkable

from bot.chat.incoming import Address, Incoming, IncomingMessage, MediaItem, Request
from bot.chat.operation import BlockedCalls, ModelHealth, ModelInMemory
from bot.chat.outgoing import Limits, MessageContent, MessageSearch, OutboxRow, OutgoingMessage
from bot.chat.prompt import (
    GenerationEvent,
    Prompt,
    PromptDescription,
    PromptToken,
    TemplateChoice,
    ToolSpec,
)
from bot.chat.rate import Rate, RateLimitScope, WaitingProcess
from bot.chat.session import ChatSetting
from bot.chat.story import PackedVector, Story, StoryVector
from bot.errors import BackendUnavailable, Refused
from bot.texts.text import Text


class Surface(Protocol):
    """Sends, edits and deletes messages on a platform; calls may raise any `PlatformError`."""

    def limits(self, address: Address) -> Limits: ...

    async def send(self, message: OutgoingMessage) -> str:
        """Send a message and return its id. Mentions in its text notify nobody.

        On a platform with idempotency keys, sending a nonce again returns the id of the first
        message. A file that responds to an interaction is shown only to the person who started the
        interaction; `Refused` is raised if the platform no longer accepts a response.
        """

    async def edit(
        self, address: Address, message_id: str, content: MessageContent, *, interaction: str | None
    ) -> None:
        """Replace the text and buttons of one of the bot's messages; safe to repeat.

        A message that only one person can see is edited through `interaction`, which is that
        person's latest press of a button on it.
        """

    async def delete(self, address: Address, message_id: str) -> None:
        """Delete one of the bot's messages; a missing message is not an error."""

    async def react(self, address: Address, message_id: str, emoji: str) -> None:
        """React with an emoji that `limits.convert_reaction` allows; safe to repeat."""
        raise Refused("this platform has no reactions")

    async def draft(self, address: Address, draft_id: int, content: MessageContent) -> None:
        """Show a draft or replace the one with this id; it stays until the next message is sent.

        `draft_id` must not be zero, and `content` must have no buttons.
        """
        raise Refused("this platform has no drafts")

    async def typing(self, address: Address) -> None:
        """Show the typing indicator for `limits.typing_seconds`."""

    async def find(self, message: OutgoingMessage, search: MessageSearch) -> str | None:
        """Search for a message the bot tried to send; return its id, or None if it is missing."""


@runtime_checkable
class BucketSurface(Protocol):
    """A surface where several chats can share one of the platform's rate-limit buckets.

    Each method returns the key of the bucket that a call counts against, which belongs to one chat
    or is shared by several. The methods may query the platform and raise any `PlatformError`.
    """

    async def select_send_bucket(self, message: OutgoingMessage) -> str: ...

    async def select_edit_bucket(
        self, address: Address, message_id: str, content: MessageContent, *, interaction: str | None
    ) -> str: ...


@runtime_checkable
class Intake(Protocol):
    """Receives messages from a platform."""

    async def receive(self, messages: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        """Store messages and cursors in one transaction; skip messages stored before.

        Acknowledge messages to the platform only after this returns. If it raises `StoreError`,
        nothing was stored.
        """

    async def cursors(self, prefix: str) -> Mapping[str, str]:
        """Return the stored values of all cursors whose names start with a prefix, by name."""


class Platform(Protocol):
    """Receives messages from a chat platform; its `surface` sends the answers."""

    @property
    def name(self) -> str: ...

    surface: Surface

    @property
    def connection_error(self) -> str | None:
        """A short reason why no messages are being received, or None while connected."""

    async def run(self, intake: Intake) -> None:
        """Receive until cancelled or the input ends; callers must not retry on `PlatformFatal`."""

    async def check(self) -> str:
        """Log in and return a short description of the bot's account; raises `PlatformError`."""

    async def close(self) -> None:
        """Close all connections; call this after the last answer was sent."""

    async def is_admin(self, incoming: Request) -> bool:
        """Return whether the author is an admin of the channel; raises `PlatformError`."""


@runtime_checkable
class ShardedPlatform(Platform, Protocol):
    """A platform that receives on several connections, in one process or in several."""

    async def list_shards(self) -> Sequence[str]:
        """Return the names of the connections; raises `PlatformError` if they are unknown."""

    async def run_shard(self, shard: str, intake: Intake) -> None:
        """Receive messages on one connection; otherwise the same as `run`."""


@runtime_checkable
class HistoryReader(Protocol):
    """A platform that can read earlier messages of a channel."""

    async def read_before(self, message: IncomingMessage, limit: int) -> Sequence[IncomingMessage]:
        """Return up to `limit` messages before `message`, oldest first; raises `PlatformError`."""

    async def read_thread_starter(self, message: IncomingMessage) -> IncomingMessage | None:
        """Return the message that started a message's thread, if any; raises `PlatformError`."""

    async def read_author_roles(self, event: Request) -> tuple[str, ...]:
        """Return the ids of the author's roles; raises `PlatformError`.

        Use this for messages read from the channel's history and for events replayed after an
        outage, which arrive without roles.
        """


@runtime_checkable
class PrivateChats(Protocol):
    """A platform on which the bot can message people privately."""

    async def find_private_chat(self, person_id: str) -> Address:
        """Return the private chat with a person; raises `Refused` or another `PlatformError`."""

    async def private_chat_instructions(self, person_id: str) -> Text:
        """Return instructions for a person to open a private chat; raises `PlatformError`."""


@runtime_checkable
class FileSource(Protocol):
    """A platform that stores the files attached to messages."""

    async def download(self, item: MediaItem, max_bytes: int) -> bytes:
        """Return up to the first `max_bytes` of a file; raises `PlatformError`."""


@runtime_checkable
class PictureHost(Protocol):
    """A platform that hosts the small pictures used as avatars of characters."""

    async def host_picture(self, png: bytes) -> str:
        """Upload a picture unless it is hosted already; return its URL; raises `PlatformError`."""

    async def delete_unused_pictures(self, used_urls: Collection[str]) -> None:
        """Delete hosted pictures, except recent ones and `used_urls`; raises `PlatformError`."""


@runtime_checkable
class WebhookReceiver(Protocol):
    """A platform whose servers can call this service; any process may handle the calls."""

    webhook_path: str | None
    """The path of the webhook's URL, or None if this platform polls its servers instead."""

    def is_authentic_call(self, headers: Mapping[str, str]) -> bool:
        """Return whether the headers prove that the platform sent a webhook call."""

    async def receive_call(self, body: bytes, intake: Intake) -> bool:
        """Parse the body of a webhook call and store its events; return False if it is malformed.

        Raises `StoreError` if nothing was stored, and `PlatformError` if parsing needs data that
        the platform does not return. In both cases the platform should repeat the call.
        """


@runtime_checkable
class SilenceExplainer(Protocol):
    """A platform that can show people why their message gets no answer."""

    async def explain_silence(self, message: IncomingMessage, explanation: str) -> None:
        """Show an explanation to the message's author; safe to repeat for the same message."""


TextTokenCounter: TypeAlias = Callable[[Sequence[str]], Sequence[int]]
"""Returns the number of tokens in each text."""


class Backend(Protocol):
    """Generates answers with one provider's models; optional methods have a default."""

    def generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        """Stream an answer: any number of `Delta`, then exactly one `Finish`.

        A backend with a queue may yield `QueuePosition` before the first delta. Closing the
        generator stops the model. Raises `BackendUnavailable` before the first delta, and
        `BackendInterrupted` after the first delta.
        """

    async def count_tokens(self, prompt: Prompt) -> int:
        """Return a prompt's number of tokens, or an upper bound; raises `BackendUnavailable`."""

    async def text_counter(self, prompt: Prompt) -> TextTokenCounter:
        """Return a fast function that estimates token counts; raises `BackendUnavailable`."""

    async def max_prompt_tokens(self, prompt: Prompt) -> int | None:
        """Return the context length minus the tokens for the answer, or None if unknown."""
        return None

    async def describe(self, prompt: Prompt) -> PromptDescription:
        """Return what the model would receive for a prompt; raises `BackendUnavailable`."""

    async def check(self) -> str:
        """Return a short description of the service; raises `BackendUnavailable` if it is down."""

    async def check_models(self, models: Sequence[str]) -> str:
        """Check that the service answers and has these models; else raise `BackendUnavailable`."""
        return await self.check()

    async def list_models(self) -> Sequence[str]:
        """Return the names of the models the provider lists; raises `BackendUnavailable`."""
        return ()

    async def close(self) -> None: ...

    def sees_images(self, model: str) -> bool:
        """Return whether a model accepts images in a prompt."""
        return False

    def is_sample_model(self, model: str) -> bool:
        """Return whether a model is a tiny sample, good enough only for trying out the service."""
        return False

    def can_continue(self, prompt: Prompt) -> bool:
        """Return whether the model can continue a partial answer at the end of the prompt."""
        return False

    async def calls_tools(self, model: str, template: TemplateChoice) -> bool:
        """Return whether a model can call tools when the preset's template is used."""
        return False

    @property
    def can_transcribe(self) -> bool:
        return False

    async def transcribe(self, name: str, audio: bytes) -> str:
        """Return the speech in a file such as "voice.ogg" as text; raises `BackendUnavailable`."""
        raise BackendUnavailable("this backend cannot transcribe")

    @property
    def can_moderate(self) -> bool:
        return False

    async def moderate(self, texts: Sequence[str]) -> Sequence[str]:
        """Return the categories these texts violate, if any; raises `BackendUnavailable`."""
        raise BackendUnavailable("this backend cannot moderate")

    @property
    def can_tokenize(self) -> bool:
        return False

    async def tokenize(self, prompt: Prompt) -> Sequence[PromptToken]:
        """Return the tokens that the model would receive; raises `BackendUnavailable`."""
        raise BackendUnavailable("this backend cannot tokenize")

    async def preload(self, model: str) -> None:
        """Load a model before the first request needs it; raises `BackendUnavailable`."""
        return

    def use_session_key(self, key: bytes) -> None:
        """Set the key for hashing the conversation ids that routers get; all processes share it."""
        return

    def model_health(self) -> Sequence[ModelHealth]:
        """Return recent successes and failures for each model called since the process started."""
        return ()

    def models_in_memory(self) -> Sequence[ModelInMemory]:
        """Return the models loaded in this machine's memory."""
        return ()


class ToolServer(Protocol):
    """A server of tools (MCP) that an operator configured; presets refer to it by name."""

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """The tools that are available now, or none while disconnected; never waits."""

    @property
    def call_timeout_seconds(self) -> float:
        """The time limit for a call."""

    async def wait_for_first_attempt(self) -> None:
        """Wait until the first connection attempt has ended, but at most a few seconds."""

    async def call(self, name: str, arguments: Mapping[str, object]) -> str:
        """Call a tool and return its result as text; raises `ToolServerError`."""


@runtime_checkable
class ConversationMemory(Protocol):
    """A component that keeps data about conversations, such as a prefix cache."""

    async def end_session(self, conversation: str) -> None:
        """Release everything cached for a conversation whose session has ended."""

    async def forget(self, conversation: str) -> None:
        """Delete everything stored about a conversation."""


class Embedder(Protocol):
    """Computes embedding vectors; all calls may raise `EmbeddingError`.

    Only about the first 400 tokens of a text count, because embedding models are trained on short
    texts.
    """

    @property
    def model_id(self) -> str:
        """The id of the model and its parameters; only vectors with the same id can be compared."""

    async def embed_documents(self, texts: Sequence[str]) -> Sequence[PackedVector]:
        """Return a vector for each text to be searched, in the order of the texts."""

    async def embed_query(self, text: str) -> PackedVector:
        """Return the vector of a search query."""
        return (await self.embed_documents([text]))[0]

    @property
    def is_metered(self) -> bool:
        """Whether a provider may charge for the embedded tokens."""
        return False

    async def check(self) -> str:
        """Return a short description of the embedding service or model."""

    async def close(self) -> None: ...


# --- repositories ----------------------------------------------------------------------------
#
# All methods raise `StoreError` while the database is unavailable.


class Delivery(Protocol):
    """Sends the messages in the outbox."""

    def deliver(self, lane: str, row: OutboxRow | None, *, is_urgent: bool = False) -> None:
        """Start sending an outbox row or, if `row` is None, all due rows of the lane (chat)."""

    async def wait_until_sent(self, row_id: int) -> str:
        """Wait until an outbox row is sent; return the message's id, or raise `Refused`."""


class ChatSettings(Protocol):
    """Settings that people change in chats, stored by scope: a guild, a channel or a thread."""

    async def set(
        self, scope: str, key: str, value: str | None, author: str, *, is_audited: bool = False
    ) -> None:
        """Store a value, or delete it if None; `is_audited` also records it in the audit log."""

    async def resolve(self, scopes: Sequence[str], key: str) -> ChatSetting | None:
        """Return the setting from the first of these scopes that has a value, or None."""
        return ChatSetting.find_setting(await self.get_scopes(scopes), scopes, key)

    async def get_all(self, scopes: Sequence[str], key: str) -> Mapping[str, str]:
        """Return a setting's values by scope; scopes without a value are omitted."""
        values_by_scope = await self.get_scopes(scopes)
        return {scope: values[key] for scope, values in values_by_scope.items() if key in values}

    async def get_scopes(self, scopes: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Return all settings' values by scope and key; scopes without values are omitted."""


class Stories(Protocol):
    """Stores characters' stories, and the vectors for finding stories similar to a message."""

    async def replace_stories(
        self, character: str, texts: Sequence[str], model_id: str
    ) -> Sequence[str]:
        """Replace a character's stories; return the texts that have no vector of this model yet."""

    async def save_vectors(
        self, character: str, model_id: str, vectors: Sequence[StoryVector]
    ) -> None:
        """Store vectors of a character's stories; skip stories that no longer exist."""

    async def find_nearest(
        self, character: str, query: PackedVector, model_id: str, limit: int
    ) -> Sequence[Story]:
        """Return up to `limit` stories nearest to a query vector, best first, in stable order."""


# --- coordination ----------------------------------------------------------------------------


KeysHandler: TypeAlias = Callable[[Sequence[str]], None]


class Signals(Protocol):
    """Tells all processes which keys are ready or have changed; signals may be lost."""

    def subscribe(
        self, topic: str, handler: KeysHandler, remote_handler: KeysHandler | None = None
    ) -> Callable[[], None]:
        """Call `handler` with the keys of each signal on a topic.

        Return a function that ends the subscription. Handlers must not block or raise. If
        `remote_handler` is given, it handles the signals from other processes instead of `handler`.
        """

    def publish(self, topic: str, keys: Sequence[str]) -> None:
        """Notify subscribers: at once in this process, soon in others; never waits or raises."""

    @property
    def is_cross_process(self) -> bool:
        """Whether signals between processes seem to work; if not, processes poll."""

    async def find_problem(self) -> str | None:
        """Query the signal server; return why signals do not reach other processes, or None."""


class RateLimits(Protocol):
    """Rate limits shared by all processes; counts can be lost when the store restarts."""

    async def take(self, rates: Sequence[Rate], max_wait_seconds: float = 0.0) -> float:
        """Return the seconds until a call may start; reserve it unless they exceed the maximum."""

    async def acquire_slot(
        self,
        key: str,
        limit: int,
        holder: str,
        lease_seconds: float,
        waiter: WaitingProcess | None = None,
    ) -> int:
        """Take one of `limit` slots until `release_slot` is called or the lease ends.

        Return the number of slots in use by all processes, including this one, or 0 if none was
        free. A `waiter` takes turns with other recent waiters; without one, the call takes any
        free slot.
        """

    async def release_slot(self, key: str, holder: str) -> None:
        """Release the holder's slot; does nothing if the holder has none."""

    async def take_call(self, scopes: Sequence[RateLimitScope]) -> float:
        """Count a call and return 0 or, if any window is full, only return the seconds to wait."""

    async def seconds_until_call(self, scopes: Sequence[RateLimitScope]) -> float:
        """Return the seconds until a call is allowed, like `take_call`, but count nothing."""

    async def block_calls(self, scope: str, seconds: float) -> None:
        """Block calls in a scope for some seconds, because the platform refused a call.

        If the service learns rate limits from refusals, the scope's approximate limits also apply
        for the next hour.
        """

    async def blocked_calls(self) -> Sequence[BlockedCalls]:
        """Return up to a hundred scopes that are blocked now, longest wait first."""


class Clock(Protocol):
    def now(self) -> float:
        """Return the time in Unix seconds."""

    def utc_now(self) -> datetime:
        return datetime.fromtimestamp(self.now(), UTC)

    def monotonic(self) -> float:
        """Return seconds that never decrease, for measuring durations."""

    async def sleep(self, seconds: float) -> None: ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call a function after some seconds, without a task; return a function to cancel it."""

"""The interfaces of platforms, backends, embedders and repositories.

Each has a contract test in tests/contracts/ that runs over all of its implementations.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias, runtime_checkable

from bot.chat.incoming import Address, Incoming, MediaItem, Request, Said
from bot.chat.operation import ModelHealth, ModelInMemory, RefusedCalls
from bot.chat.outgoing import Limits, MessageContent, MessageSearch, OutboxRow, OutgoingMessage
from bot.chat.prompt import GenerationEvent, Prompt, PromptDescription, PromptToken, TemplateChoice
from bot.chat.rate import CallScope, Rate, Waiter
from bot.chat.session import ChatSetting, MessageNote, MessagePlace, SessionTurns, Summary
from bot.chat.story import PackedVector, Story, StoryVector
from bot.chat.tool import ToolCall, ToolRecord, ToolSpec
from bot.chat.usage import AnswerCharge, SpentAmount
from bot.chat.web_channel import WebChannel, WebMessage
from bot.errors import BackendUnavailable

# --- platforms -------------------------------------------------------------------------------


class Surface(Protocol):
    """Sends, edits and deletes messages on a platform; all calls may raise any `PlatformError`."""

    def limits(self, address: Address) -> Limits: ...

    async def send(self, message: OutgoingMessage) -> str:
        """Send a message and return its id. It notifies nobody, whatever its text mentions.

        A platform with idempotency keys returns the first message when the same nonce is sent
        again. A file that answers an interaction is shown only to the person who asked: `Refused`
        where that is no longer possible.
        """
        ...

    async def edit(
        self,
        address: Address,
        message_id: str,
        content: MessageContent,
        *,
        interaction: str | None = None,
    ) -> None:
        """Replace what one of the bot's messages says and shows; may be repeated.

        Args:
            address: its channel.
            message_id: the message.
            content: what it says and shows from now on.
            interaction: the press of a button under it, of a message that only one person sees.
        """
        ...

    async def delete(self, address: Address, message_id: str) -> None:
        """Delete one of the bot's messages; a message that does not exist is no error."""
        ...

    async def typing(self, address: Address) -> None:
        """Show the typing indicator for `limits.typing_seconds`."""
        ...

    async def find(self, message: OutgoingMessage, search: MessageSearch) -> str | None:
        """Look for a message as it was sent; return its id, None if it never arrived."""
        ...


@runtime_checkable
class DraftingSurface(Protocol):
    """A surface that can show what is being written; all calls may raise any `PlatformError`."""

    async def draft(self, address: Address, draft_id: int, content: MessageContent) -> None:
        """Show or replace a draft, which ends when a message is sent; may be repeated.

        Args:
            address: where.
            draft_id: the same for all drafts of one message; not 0.
            content: what is shown; it has no buttons.
        """
        ...


@runtime_checkable
class BucketSurface(Protocol):
    """A surface on which calls for several chats may count in one bucket of the platform.

    Each method returns the key of the bucket that a call counts in: the chat's lane, or what chats
    share. It may ask the platform, and raise any `PlatformError`.
    """

    async def send_bucket(self, message: OutgoingMessage) -> str: ...

    async def edit_bucket(
        self, address: Address, message_id: str, content: MessageContent, *, interaction: str | None
    ) -> str: ...


class Intake(Protocol):
    """Receives the messages of a platform."""

    async def receive(self, messages: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        """Store messages and cursors in one transaction; a message that is known is dropped.

        Only after this returns may the platform be told that the messages arrived.

        Raises:
            StoreError: Nothing was stored.
        """
        ...

    async def cursors(self, prefix: str) -> Mapping[str, str]:
        """Return the stored cursors whose names have this prefix."""
        ...


class RoleLeases(Protocol):
    """Decides which of several processes does what only one may do at a time."""

    async def take(self, role: str, seconds: float) -> bool:
        """Take or renew the lease of a role; return False while another process holds it.

        Raises:
            StoreError: It is not known whether this process holds it.
        """
        ...

    async def release(self, role: str) -> None:
        """Give back a lease, if this process holds it, so that another one need not wait."""
        ...

    async def held(self, prefix: str) -> Sequence[str]:
        """Return the roles with this beginning that any process holds; raises `StoreError`."""
        ...

    def on_release(self, handler: Callable[[Sequence[str]], None]) -> Callable[[], None]:
        """Call `handler` with roles that any process has given back, as far as signals reach.

        It must not block or raise.

        Returns:
            What ends that.
        """
        ...


class Platform(Protocol):
    """Receives messages from a chat platform; its `surface` sends the answers."""

    @property
    def name(self) -> str: ...

    @property
    def surface(self) -> Surface: ...

    @property
    def connection_error(self) -> str | None:
        """Why no messages are received at the moment, in a few words; None while connected."""
        ...

    async def run(self, intake: Intake) -> None:
        """Receive messages until cancelled or until the end of the input.

        Raises:
            PlatformFatal: No retry helps. After any other exception it may be run again.
        """
        ...

    async def check(self) -> str:
        """Return the bot's account in a few words; raise `PlatformError` if it cannot log in."""
        ...

    async def close(self) -> None:
        """Close the connections, after the last answer is sent."""
        ...

    async def is_admin(self, incoming: Request) -> bool:
        """Ask the platform whether the author is an administrator of the channel.

        Raises:
            PlatformError: it does not say.
        """
        ...


@runtime_checkable
class ShardedPlatform(Platform, Protocol):
    """A platform that sends the events of a bot over several connections, each with its channels.

    Each of them may be received by another process.
    """

    async def shards(self) -> Sequence[str]:
        """Return the names of the connections; raise `PlatformError` if they are not known."""
        ...

    async def run_shard(self, shard: str, intake: Intake) -> None:
        """Receive over one of them; as `run`."""
        ...


@runtime_checkable
class HistoryReader(Protocol):
    """A platform that can list what was said in a channel."""

    async def read_before(self, said: Said, limit: int) -> Sequence[Said]:
        """Return people's messages just before this one, oldest first; at most so many are read.

        Raises:
            PlatformError: they cannot be read.
        """
        ...

    async def read_start(self, said: Said) -> Said | None:
        """Return what the thread of a message was opened about, whoever wrote it; None: nothing.

        Raises:
            PlatformError: it cannot be read.
        """
        ...


@runtime_checkable
class PrivateChats(Protocol):
    """A platform on which the bot can write to a person in private."""

    async def private_chat(self, person: str) -> Address:
        """Return where a person, by their id, is written to; they may refuse what is sent.

        Raises:
            PlatformError: there is no such place.
        """
        ...


@runtime_checkable
class FileSource(Protocol):
    """A platform that keeps the files of messages."""

    async def download(self, item: MediaItem, max_bytes: int) -> bytes:
        """Return a file, or so many bytes of its beginning.

        Raises:
            PlatformError: it cannot be had.
        """
        ...


@runtime_checkable
class WebhookReceiver(Protocol):
    """A platform whose servers can call this service: any process takes their calls."""

    @property
    def webhook_path(self) -> str | None:
        """The path that is called; None: this platform asks its servers itself."""
        ...

    def admits_call(self, headers: Mapping[str, str]) -> bool:
        """Return whether a call comes from the platform, by its headers."""
        ...

    async def receive_call(self, body: bytes, intake: Intake) -> bool:
        """Store what a call brings; return False if it cannot be understood.

        Raises:
            StoreError: Nothing was stored: the platform is to call again.
            PlatformError: The platform does not say what is needed to understand it.
        """
        ...


@runtime_checkable
class SilenceExplainer(Protocol):
    """A platform that tells its people why a message is not answered."""

    async def explain_silence(self, said: Said, explanation: str) -> None:
        """Show it; the same message may be explained again."""
        ...


# --- models ----------------------------------------------------------------------------------


TextTokenCounter: TypeAlias = Callable[[Sequence[str]], Sequence[int]]
"""Count the tokens of each text."""


class Backend(Protocol):
    """Generates answers with the models of one provider; what few of them can do has a default."""

    def generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        """Stream an answer: any number of `Delta`, then exactly one `Finish`.

        A backend with a queue may yield `QueuePosition` before the first delta. Closing the
        generator stops the model.

        Raises:
            BackendUnavailable: The model failed before the first delta.
            BackendInterrupted: The model failed after it.
        """
        ...

    async def count_tokens(self, prompt: Prompt) -> int:
        """Return the tokens of the prompt, at most overestimated; raises like `generate`."""
        ...

    async def text_counter(self, prompt: Prompt) -> TextTokenCounter:
        """Return what estimates the tokens of the prompt's texts; raises like `generate`.

        It selects what may fit before the whole prompt is counted, so it shares its tokenizer with
        `count_tokens` where that is quick.
        """
        ...

    async def max_prompt_tokens(self, prompt: Prompt) -> int | None:
        """Context length minus the reply budget, in tokens; None if the provider enforces it."""
        return None

    async def describe(self, prompt: Prompt) -> PromptDescription:
        """Describe what the model is sent for a prompt, without sending it.

        Raises:
            BackendUnavailable: it cannot be determined, for example because the model is gone.
        """
        ...

    async def check(self) -> str:
        """Return what answers here in a few words; raise `BackendUnavailable` if nothing does."""
        ...

    async def check_models(self, models: Sequence[str]) -> str:
        """Return what answers with these models of presets, in a few words; loads none of them.

        Raises:
            BackendUnavailable: nothing answers, or a model is missing; one line for each.
        """
        return await self.check()

    async def list_models(self) -> Sequence[str]:
        """Return the names of the models that it lists; raises as `check_models` does."""
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
        """Return what is said in an audio file; its name tells the service the format.

        Raises:
            BackendUnavailable: there is no text.
        """
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
        """Hash conversations with this key of all processes, for a router in front of servers."""
        return

    def model_health(self) -> Sequence[ModelHealth]:
        """Return how requests went for the models that were asked since the start."""
        return ()

    def models_in_memory(self) -> Sequence[ModelInMemory]:
        """Return the models that are loaded in the memory of this machine."""
        return ()


class Tools(Protocol):
    """The tools of one answer."""

    @property
    def specs(self) -> Sequence[ToolSpec]: ...

    @property
    def records(self) -> Sequence[ToolRecord]:
        """What was called so far."""
        ...

    async def run(self, call: ToolCall) -> str:
        """Run a call and return what the model reads of its result; a mistake is a result, too."""
        ...


class ToolServer(Protocol):
    """A server of tools that an operator has set up; presets name it."""

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """What may be called now; nothing while it is not connected. Never waits."""
        ...

    @property
    def call_seconds(self) -> float:
        """How long a call may take."""
        ...

    async def wait_until_tried(self) -> None:
        """Wait for the first connection or its failure, a few seconds at most."""
        ...

    async def call(self, name: str, arguments: Mapping[str, object]) -> str:
        """Return the text of a result, whatever the server made of it.

        Raises:
            ToolServerError: there is no result.
        """
        ...


@runtime_checkable
class ConversationMemory(Protocol):
    """A component that keeps data of conversations, such as a prefix cache."""

    async def end_session(self, conversation: str) -> None:
        """Release what is cached for the session that has ended."""
        ...

    async def forget(self, conversation: str) -> None:
        """Delete everything that is kept of a conversation."""
        ...


class EmbeddingPayer(Protocol):
    """Whoever the embedding of a text is for: it counts against their budgets."""

    @property
    def conversation(self) -> str: ...

    @property
    def preset(self) -> str: ...

    @property
    def charge(self) -> AnswerCharge:
        """The person and the server; the model and the cost are not known yet."""
        ...

    def paid(self, most: int) -> AbstractAsyncContextManager[SpentAmount]:
        """Reserve what the block may cost, in millionths of a dollar, and settle what it did.

        Raises:
            BudgetUsedUp: a budget does not allow it; nothing was reserved.
            StoreError: the budgets cannot be read.
        """
        ...


class Embedder(Protocol):
    """Computes embedding vectors; all calls raise `EmbeddingError`.

    Only about the first 400 tokens of a text count: embedding models are trained on no more.
    """

    @property
    def model_id(self) -> str:
        """Identifies the model and its parameters; vectors of different ids are incomparable."""
        ...

    async def embed_documents(self, texts: Sequence[str]) -> Sequence[PackedVector]:
        """Return the vectors of texts that are searched, in their order."""
        ...

    async def embed_query(self, text: str) -> PackedVector:
        """Return the vector of a search query."""
        ...

    async def embed_query_for(self, text: str, payer: EmbeddingPayer) -> PackedVector:
        """Return the vector of a search query that somebody pays for, if it costs anything.

        Raises:
            BudgetUsedUp: the payer has nothing left for it.
            StoreError: the budgets cannot be read.
        """
        return await self.embed_query(text)

    def take_tokens(self) -> int:
        """Return the tokens that were embedded since the last call and have to be paid for."""
        return 0

    async def check(self) -> str:
        """Return what computes the vectors, in a few words."""
        ...

    async def close(self) -> None: ...


# --- repositories ----------------------------------------------------------------------------
#
# All methods raise `StoreError` while the database is unavailable.


class Inbox(Intake, Protocol):
    """Messages that were received and are not answered yet."""

    async def find_in_progress(self, address: Address, external_key: str) -> Sequence[Incoming]:
        """Return what was received under a key from the bot's platform, and what was gathered.

        Nothing once it is done.
        """
        ...

    async def waiting(
        self, conversations: Collection[str], limit: int, of_each: int
    ) -> Sequence[Incoming]:
        """Return what is unanswered in these conversations, the newest of it first.

        Args:
            conversations: any number of them.
            limit: the most events in all.
            of_each: the most events of one conversation.
        """
        ...


class MessageNotes(Protocol):
    """What every process may read about messages that one of them has processed."""

    async def add(self, notes: Sequence[MessageNote]) -> None:
        """Store notes."""
        ...

    async def newest(self, key: str, limit: int) -> Sequence[str]:
        """Return the newest notes of a key, oldest first."""
        ...

    async def forget(self, key: str, person_id: str | None = None) -> None:
        """Delete the notes of a key, of one person or of all."""
        ...


class HistoryIndex(Protocol):
    """Where messages stand in the histories of a channel that has several."""

    async def find_received(self, address: Address, external_key: str) -> str | None:
        """Return the conversation of an event that was received; None: it is not kept any more."""
        ...

    async def find(
        self, address: Address, message_ids: Collection[str], *, with_copies: bool = False
    ) -> Sequence[MessagePlace]:
        """Return where these messages of the platform stand, people's first, each oldest first.

        Branches have copies of what precedes them; of answers they are found where that is asked.
        """
        ...

    async def newest_of(self, address: Address, person_id: str) -> str | None:
        """Return the conversation of the channel in which the person has said something last."""
        ...

    async def conversations(self, address: Address) -> Mapping[str, int]:
        """Return the keys of all conversations of the channel, with the number of their turns."""
        ...

    async def begin_branch(self, key: str, place: MessagePlace) -> None:
        """Copy what was said up to a turn to a new conversation; may be repeated."""
        ...


class Outbox(Protocol):
    """What is to be sent, strictly in order within a lane. `not_before` is in Unix seconds.

    Rows are taken under a lease; whoever reports on a row raises `Fenced` once another has it.
    """

    async def due_lanes(self, limit: int, sources: Collection[str]) -> Sequence[str]:
        """Return lanes whose first unsent row is due and held by nobody."""
        ...

    async def take(self, lanes: Sequence[str]) -> Sequence[OutboxRow]:
        """Take the first unsent row of each of these lanes that is due.

        A pending row is committed as being sent before it is given (its `state` still says
        pending); one with an unknown outcome is given as it is, to be reconciled. So is a row whose
        sender's lease has ended.
        """
        ...

    async def mark_sent(self, row: OutboxRow, external_id: str | None) -> OutboxRow | None:
        """Note that it arrived, and take the next row of its lane.

        `external_id` is the message that it became, None for a change of one.
        """
        ...

    async def mark_dead(self, row: OutboxRow, reason: str) -> OutboxRow | None:
        """Note that the platform refused it for good, and take the next row of its lane."""
        ...

    async def send_again(self, row: OutboxRow, reason: str, *, is_gone: bool) -> OutboxRow | None:
        """Give up an edit that was refused, and have its part sent anew as the edit says.

        Args:
            row: the edit.
            reason: why it was refused.
            is_gone: whether its message is gone; else the row of the part keeps that message's id,
                which it is to replace.

        Returns:
            The next row of its lane, which is that part unless it was deleted by us.
        """
        ...

    async def set_aside(self, row: OutboxRow, reason: str, notice: str) -> OutboxRow | None:
        """Give up a row whose outcome stays unknown, queue a notice, take the lane's next row.

        A notice that cannot be delivered either is given up without another one.
        """
        ...

    async def mark_unknown(self, row: OutboxRow, seconds: float) -> None:
        """Note that nobody knows whether it arrived: reconcile it after so long."""
        ...

    async def reschedule(self, row: OutboxRow, seconds: float) -> None:
        """Note that nothing arrived for certain: send it after so long."""
        ...

    async def release_all(self) -> None:
        """Let what this sender held in an earlier life be taken again at once."""
        ...

    async def has_later(self, row: OutboxRow) -> bool:
        """Whether more is to be sent in the lane of a row after it."""
        ...

    async def sent_ids(self, row_ids: Collection[int]) -> Mapping[int, str | None]:
        """The messages that rows became, by row, and None for one that never will.

        What is still to be sent is not in it.
        """
        ...

    async def message_of(self, part: str) -> str | None:
        """The message that a part was sent as, by its name; None if there is none yet."""
        ...

    async def known_ids(self, address: Address) -> Set[str]:
        """The ids of the messages in this chat that are accounted for."""
        ...

    async def hold_lane(self, lane: str) -> float | None:
        """Take a lane without a row for the length of a lease, so that nobody sends there.

        Returns:
            The end of the lease in Unix seconds, which `release_lane` takes; None where somebody
            sends, or the outcome of a row is unknown.
        """
        ...

    async def release_lane(self, lane: str, held: float) -> None:
        """Let senders take a lane again that is still held until then; else change nothing."""
        ...


class Delivery(Protocol):
    """Sends what is in the outbox."""

    def deliver(self, lane: str, row: OutboxRow | None, *, is_urgent: bool = False) -> None:
        """Send a row that was taken, or whatever is due in the lane; never waits.

        Args:
            lane: where it is sent.
            row: what was taken; None: nothing was.
            is_urgent: whether what is due there waits for no rate of the bot.
        """
        ...

    async def wait_until_sent(self, row_id: int) -> str:
        """Wait until this or another process has sent a row; return the message's id.

        Raises `Refused` if it never will be sent.
        """
        ...


class ChatSettings(Protocol):
    """Settings made in chats. A scope is a guild, a channel or a thread."""

    async def set(
        self, scope: str, key: str, value: str | None, by: str, *, audited: bool = False
    ) -> None:
        """Set a value, or delete it with None, and note it in the audit log if that changes it.

        Args:
            scope: where it holds.
            key: which setting.
            value: None: what holds in the wider scope.
            by: the person's id.
            audited: whether it is an act of an admin; never what people say of themselves.
        """
        ...

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
        ...


class WebChannels(Protocol):
    """The channels of the web platform with their messages.

    Every change raises the revision of its channel, in whose order changes are read.
    """

    async def create(self, channel: WebChannel) -> None:
        """Add a channel without messages."""
        ...

    async def update(self, channel: WebChannel) -> None:
        """Replace everything of a channel but its messages."""
        ...

    async def delete(self, channel_id: str) -> None:
        """Delete a channel with its messages; one that does not exist is no error."""
        ...

    async def get(self, channel_id: str) -> WebChannel | None: ...

    async def all(self) -> Sequence[WebChannel]:
        """Return every channel, the oldest first."""
        ...

    async def add(self, channel_id: str, messages: Sequence[WebMessage]) -> None:
        """Append messages; one whose id is known is left as it is.

        Raises:
            Refused: there is no such channel.
        """
        ...

    async def replace(self, channel_id: str, message: WebMessage) -> bool:
        """Replace a message; return False if there is none of its id, or it was deleted."""
        ...

    async def find(self, channel_id: str, message_id: str) -> WebMessage | None:
        """Return a message that was not deleted."""
        ...

    async def newest(self, channel_id: str, limit: int) -> Sequence[WebMessage]:
        """Return the newest messages that were not deleted, oldest first."""
        ...

    async def changed(self, channel_id: str, after: int, limit: int) -> Sequence[WebMessage]:
        """Return what was changed after a revision, in the order of the changes."""
        ...

    def on_change(self, handler: Callable[[Sequence[str]], None]) -> Callable[[], None]:
        """Call a handler with the ids of channels that changed; return what ends that.

        A change of another process may be missed. The handler must not block or raise.
        """
        ...


class Summaries(Protocol):
    """Summaries of turns that do not fit into prompts any more."""

    async def current(self, conversation: str) -> Summary | None:
        """Return the summary of the session; a cheap check, which misses edits of equal length."""
        ...

    async def load_turns(self, conversation: str) -> SessionTurns:
        """Return the whole session, with its summary if the covered turns are unchanged."""
        ...

    async def save(self, conversation: str, new: Summary) -> bool:
        """Replace the summary; return False if turns that it covers were changed since."""
        ...


class Stories(Protocol):
    """The stories of characters, with the vectors that they are retrieved by."""

    async def replace_stories(
        self, character: str, texts: Sequence[str], model_id: str
    ) -> Sequence[str]:
        """Replace a character's stories; return those without a vector of this model.

        A text that occurs twice is one story, at its first position.
        """
        ...

    async def save_vectors(
        self, character: str, model_id: str, vectors: Sequence[StoryVector]
    ) -> None:
        """Store vectors; those of stories that do not exist any more are ignored."""
        ...

    async def nearest(
        self, character: str, query: PackedVector, model_id: str, limit: int
    ) -> Sequence[Story]:
        """Return the stories nearest to a query vector, best first; of equals the earlier.

        Stories without a vector of that model are not found.
        """
        ...


# --- coordination ----------------------------------------------------------------------------


class Signals(Protocol):
    """What one process tells the others and may be lost: which keys are ready, what has changed."""

    def subscribe(
        self,
        topic: str,
        handler: Callable[[Sequence[str]], None],
        elsewhere: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        """Call `handler` with the keys of every signal of a topic; it must not block or raise.

        Args:
            topic: of which signals.
            handler: of all signals, or of those of this process.
            elsewhere: is called instead with the keys that other processes publish.
        """
        ...

    def publish(self, topic: str, keys: Sequence[str]) -> None:
        """Tell the subscribers here at once, and those elsewhere soon; never waits or fails."""
        ...

    @property
    def reaches_others(self) -> bool:
        """Whether signals pass between the processes, as far as is known; else polling must do."""
        ...

    async def find_problem(self) -> str | None:
        """Ask the server; return why signals do not pass between the processes, None if they do."""
        ...


class RateLimits(Protocol):
    """How often something may happen, and how much of it at once, over all processes.

    What is kept may be lost at any time: then more is allowed for a moment.
    """

    async def take(self, rates: Sequence[Rate], max_wait_seconds: float = 0.0) -> float:
        """Take the next moment at which all of these rates allow an event, each once.

        Returns:
            The seconds until that moment; 0: now. If it is later than `max_wait_seconds`, it was
            not taken, and nothing was counted.
        """
        ...

    async def acquire(
        self,
        key: str,
        limit: int,
        holder: str,
        lease_seconds: float,
        waiter: Waiter | None = None,
    ) -> int:
        """Hold one of `limit` places until `release`, or for so long if that never comes.

        Args:
            key: of what there are so many places.
            limit: how many.
            holder: who holds the place.
            lease_seconds: after which a place is free that was not given back.
            waiter: takes its turn among those that found no place lately; None: it holds one as
                soon as one is free.

        Returns:
            How many places are held now by all processes, this one included; 0: none was free.
        """
        ...

    async def release(self, key: str, holder: str) -> None:
        """Give a place back; one that is not held is no error."""
        ...

    async def take_call(self, scopes: Sequence[CallScope]) -> float:
        """Count a call in every window of these scopes.

        Returns:
            0; or the seconds after which it may be allowed: then nothing was counted.
        """
        ...

    async def seconds_until_call(self, scopes: Sequence[CallScope]) -> float:
        """Return what `take_call` would; nothing is counted."""
        ...

    async def refuse_calls(self, scope: str, seconds: float) -> None:
        """Allow no call in a scope for so long, since the platform refused one.

        The learned windows of the scope hold for an hour.
        """
        ...

    async def refusals(self) -> Sequence[RefusedCalls]:
        """Return for what calls are refused now, the longest waits first; at most a hundred."""
        ...


class Clock(Protocol):
    def now(self) -> float:
        """Return the time in Unix seconds."""
        ...

    def monotonic(self) -> float:
        """Return seconds since an unspecified moment; never decreases."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call a function after so long, without a task; return what calls that off."""
        ...

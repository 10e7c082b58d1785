"""Every socket of the house: what a platform, a model, a store must promise to be plugged in.

A contract test per port (tests/contracts/) runs over every implementation there is.
"""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence, Set
from typing import Protocol, runtime_checkable

from bot.chat.incoming import Address, Incoming
from bot.chat.outgoing import Limits, OutboxRow, OutgoingMessage, OutgoingPart
from bot.chat.prompt import GenerationEvent, Prompt, PromptDescription, PromptToken
from bot.chat.receipt import Receipt
from bot.chat.session import (
    ChatSetting,
    Claim,
    InboxMessage,
    PresetVersion,
    Session,
    SessionTurns,
    Summary,
    TurnResult,
)
from bot.chat.story import PackedVector, Story, StoryVector

# --- platforms -------------------------------------------------------------------------------


class Surface(Protocol):
    """Where answers go. Every call may raise any `PlatformError`."""

    def limits(self, address: Address) -> Limits: ...

    async def send(self, message: OutgoingMessage) -> str:
        """Send a message and return its id. It notifies nobody, whatever its text mentions.

        A platform with idempotency keys returns the first message when the same nonce is sent
        again. A file that answers an interaction is shown only to the person who asked: `Refused`
        where that is no longer possible.
        """
        ...

    async def edit(self, address: Address, message_id: str, text: str) -> None:
        """Give a message of ours this text; doing it twice is the same as once."""
        ...

    async def delete(self, address: Address, message_id: str) -> None:
        """Take a message of ours away; one that is gone already is fine."""
        ...

    async def typing(self, address: Address) -> None:
        """Show that an answer is being written, for `limits.typing_seconds`."""
        ...

    async def find(
        self, message: OutgoingMessage, *, after: str | None, known: Set[str]
    ) -> str | None:
        """Look for a message whose outcome is unknown; return its id, None if it never arrived.

        Args:
            message: The message as it was sent; text and file name must match.
            after: Only messages newer than this one are considered.
            known: Ids of messages that are accounted for already.
        """
        ...


class Intake(Protocol):
    """What a platform hands its messages to. When `hear` returns, they are safe on disk."""

    async def receive(self, heard: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        """Store messages and advance cursors in one transaction; a known message is dropped.

        Only after it returned may the platform be told that they arrived. Raises `StoreError`
        when nothing was stored.
        """
        ...

    async def cursors(self, prefix: str) -> Mapping[str, str]:
        """The cursors whose names start so, as last stored."""
        ...


class Platform(Protocol):
    """Where messages come from."""

    @property
    def name(self) -> str: ...

    @property
    def surface(self) -> Surface: ...

    @property
    def connection_error(self) -> str | None:
        """Why it hears nothing just now, in a few words; None while it is connected."""
        ...

    async def run(self, intake: Intake) -> None:
        """Hear until cancelled. Returns when there is nothing more to hear (end of input).

        Raises `PlatformFatal` when no retry helps; any other exception: it may be run again.
        """
        ...

    async def check(self) -> str:
        """Say in a few words who we are here; raises `PlatformError` when we are nobody."""
        ...

    async def close(self) -> None:
        """Let connections go, once the last answer is out."""
        ...

    async def is_admin(self, incoming: Incoming) -> bool:
        """Ask the platform, now, whether the author may change what others see; False on doubt."""
        ...


# --- models ----------------------------------------------------------------------------------


class Backend(Protocol):
    """One provider of models."""

    def generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        """Stream an answer: any number of `Delta`, then exactly one `Finish`.

        Where a line forms in front of the model, `QueuePosition` may come before all of them.
        Raises `BackendUnavailable` before the first delta, `BackendInterrupted` after it. Closing
        the generator stops the model.
        """
        ...

    async def check(self) -> str:
        """Say in a few words what answers here; raises `BackendUnavailable` when nothing does."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class TokenizingBackend(Protocol):
    """What a backend can besides, if it turns prompts into tokens itself."""

    async def tokenize(self, prompt: Prompt) -> Sequence[PromptToken]:
        """The tokens that the model would be sent; raises as `generate` does."""
        ...


@runtime_checkable
class DescribingBackend(Protocol):
    """A backend that can say what it sends to its model."""

    async def describe(self, prompt: Prompt) -> PromptDescription:
        """Describe what the model is sent for a prompt, without sending it.

        Raises:
            BackendUnavailable: it cannot be determined, for example because the model is gone.
        """
        ...


@runtime_checkable
class PreloadingBackend(Protocol):
    """What a backend can besides, if its models take time to load."""

    async def preload(self, model: str) -> None:
        """Get a model ready before anybody asks; raises `BackendUnavailable` when it cannot be."""
        ...


@runtime_checkable
class ConversationMemory(Protocol):
    """What a part must be able to do if it keeps anything of what was said."""

    async def end_session(self, conversation: str) -> None:
        """A new session begins: what belongs to the last one need not be kept at hand."""
        ...

    async def forget(self, conversation: str) -> None:
        """Delete all that is kept of a conversation, for good."""
        ...


@runtime_checkable
class TokenCountingBackend(Protocol):
    """What a backend can besides, if it knows what a prompt costs before it is sent."""

    async def count_tokens(self, prompt: Prompt) -> int:
        """Tokens of the prompt as the model reads it, rather too many than too few.

        Raises as `generate` does.
        """
        ...

    async def max_prompt_tokens(self, prompt: Prompt) -> int | None:
        """The tokens that the model can read and still answer; None: it is not ours to know."""
        ...


class Embedder(Protocol):
    """Turns texts into vectors that lie close together where the texts mean alike.

    Of a long text only the first 400 tokens or so count: a model was trained on no more, and what
    a story is about shows early. All raise `EmbeddingError`.
    """

    @property
    def model_id(self) -> str:
        """What the vectors are stored with; those of another id cannot be compared with ours."""
        ...

    async def embed_documents(self, texts: Sequence[str]) -> Sequence[PackedVector]:
        """Vectors to be found, in the order of the texts."""
        ...

    async def embed_query(self, text: str) -> PackedVector:
        """A vector to look with."""
        ...

    async def check(self) -> str:
        """Say in a few words what makes the vectors."""
        ...

    async def close(self) -> None: ...


# --- what is kept ----------------------------------------------------------------------------
#
# All of it raises `StoreError` while the store is away.


class Inbox(Intake, Protocol):
    """Everything heard and not yet answered."""

    async def pending_conversations(self, limit: int, platforms: Collection[str]) -> Sequence[str]:
        """Conversations there with something unanswered that nobody holds, oldest first."""
        ...


class Conversations(Protocol):
    """Histories, and who may walk them. What takes a claim raises `Fenced` if it is outdated."""

    async def claim(self, conversation: str, owner: str, lease_seconds: float) -> Claim | None:
        """Take a conversation and fence whoever had it; None while somebody else's lease runs."""
        ...

    async def renew(self, claim: Claim, lease_seconds: float) -> None:
        """Hold it for so long from now on."""
        ...

    async def release_all(self, owner: str) -> None:
        """Give back everything that this owner held in an earlier life."""
        ...

    async def release(self, claim: Claim) -> bool:
        """Give it back; True when something unanswered is in its inbox."""
        ...

    async def next_message(self, claim: Claim) -> InboxMessage | None:
        """The oldest unanswered message, counted as under work; None when all is answered."""
        ...

    async def undo_attempt(self, claim: Claim, heard: InboxMessage) -> None:
        """Take back the count of `next`: the process stops on purpose, nobody is to blame."""
        ...

    async def load_session(self, conversation: str, max_turns: int) -> Session:
        """The newest turns of the session that runs now."""
        ...

    async def forget(self, claim: Claim) -> int:
        """Delete everything said in a conversation, in all its sessions, for good; gives its turns.

        What people said of themselves there goes with it.
        """
        ...

    async def open(self, claim: Claim, heard: InboxMessage, opening: OutgoingPart) -> int:
        """Queue a first message of an answer that is still being written; gives its outbox id.

        The same part of the same turn is queued once, whatever process asks and how often.
        """
        ...

    async def finish(self, claim: Claim, message: InboxMessage, result: TurnResult) -> None:
        """Mark the message as answered, append the turns and queue the answer, in one transaction.

        The only way in which an answer reaches anybody. A part that was opened early is edited to
        its final text; one that was opened but is not in the result is deleted.
        """
        ...


class Outbox(Protocol):
    """What is to be said, strictly in order within a lane. `not_before` is in Unix seconds."""

    async def due_lanes(self, limit: int) -> Sequence[str]:
        """Lanes whose first unsent row is due."""
        ...

    async def take(self, lane: str) -> OutboxRow | None:
        """The first unsent row of a lane if it is due, else None.

        A pending row is noted as being sent, durably, before it is given (its `state` still says
        pending); one with an unknown outcome is given as it is, to be reconciled.
        """
        ...

    async def mark_sent(self, row: OutboxRow, external_id: str | None) -> None:
        """It is done; `external_id` is the message that it became, None for a change of one."""
        ...

    async def mark_unknown(self, row: OutboxRow, not_before: float) -> None:
        """Nobody knows whether it arrived: reconcile it then."""
        ...

    async def reschedule(self, row: OutboxRow, not_before: float) -> None:
        """Nothing arrived for certain: send it later."""
        ...

    async def mark_dead(self, row: OutboxRow, why: str) -> None:
        """The platform refused it for good: what stands behind it in its lane goes on."""
        ...

    async def external_id(self, row_id: int) -> str | None:
        """The message that a row became; None until then. Raises `Refused` if it never will."""
        ...

    async def known_ids(self, address: Address) -> Set[str]:
        """The ids of the messages in this chat that are accounted for."""
        ...

    async def expire_sending(self, *, older_than_seconds: float, settle_seconds: float) -> int:
        """Call the outcome of what has been under way for so long unknown.

        Such a row is due once `settle_seconds` have gone by since it was sent. Gives their number.
        """
        ...


class ChatSettings(Protocol):
    """Settings made in chats. A scope is a guild, a channel, a thread."""

    async def set(self, scope: str, key: str, value: str | None, by: str) -> None:
        """Set a value, or unset it with None; `by` is the person's id, kept for the audit."""
        ...

    async def resolve(self, scopes: Sequence[str], key: str) -> ChatSetting | None:
        """The value of the first of these scopes that has one."""
        ...

    async def get_all(self, scopes: Sequence[str], key: str) -> Mapping[str, str]:
        """The values of all of these scopes that have one, by scope."""
        ...


class Receipts(Protocol):
    """What was sent for the answers of late, each by its number."""

    async def newest(self, conversation: str) -> Sequence[tuple[int, Receipt]]:
        """Those of the last message that was answered: one for each character that did."""
        ...

    async def get(self, number: int) -> Receipt | None:
        """None: there never was one, or it was forgotten since."""
        ...


class Summaries(Protocol):
    """What became too old for the histories, in short."""

    async def current(self, conversation: str) -> Summary | None:
        """The summary of the session; cheap: an edit that keeps a turn's length is not seen."""
        ...

    async def load_turns(self, conversation: str) -> SessionTurns:
        """The whole session, with its summary if that still holds to the letter."""
        ...

    async def save(self, conversation: str, made: Summary) -> bool:
        """In the place of the one before; False: what it covers was changed or forgotten since."""
        ...


class PresetVersions(Protocol):
    """Every form that the presets had."""

    async def save(self, editions: Sequence[PresetVersion]) -> Mapping[str, int]:
        """Note the presets as they are now; gives their versions by name.

        What reads as the newest one does keeps its number, anything else gets the next.
        """
        ...

    async def newest(self, name: str) -> PresetVersion | None:
        """None: the service never started with a preset of this name."""
        ...


class Stories(Protocol):
    """The stories of characters, and the vectors that they are found by."""

    async def replace_stories(
        self, character: str, texts: Sequence[str], model_id: str
    ) -> Sequence[str]:
        """Make these a character's stories, in this order; gives those without such a vector.

        A text that stands there twice is one story, where it stands first.
        """
        ...

    async def save_vectors(
        self, character: str, model_id: str, vectors: Sequence[StoryVector]
    ) -> None:
        """Note vectors of stories; one that is not the character's any more is passed over."""
        ...

    async def nearest(
        self, character: str, query: PackedVector, model_id: str, limit: int
    ) -> Sequence[Story]:
        """The stories nearest to a vector of the same model, best first; of equals the earlier.

        Stories that have no vector of that model yet are not found.
        """
        ...


# --- who works on what -----------------------------------------------------------------------


class Coordinator(Protocol):
    """Which keys of a queue are ready, and who has them. Nothing here is truth: it may be wiped.

    All raise `CoordinatorUnavailable` while the server is away; the callers then poll SQL.
    """

    async def notify(self, queue: str, keys: Sequence[str]) -> None:
        """Make keys ready; one that is under work will be ready again when it is done."""
        ...

    async def claim(
        self, queue: str, owner: str, *, limit: int, lease_seconds: float, wait_seconds: float
    ) -> Sequence[str]:
        """Take ready keys, each for one owner; waits for the first one."""
        ...

    async def renew(
        self, queue: str, keys: Sequence[str], owner: str, lease_seconds: float
    ) -> None:
        """Keep what this owner holds; a key that it lost stays lost."""
        ...

    async def release(self, queue: str, key: str, owner: str) -> None:
        """Give a key back; only who holds it can."""
        ...

    async def release_expired(self, queue: str) -> int:
        """Make keys with an expired lease ready again; gives their number."""
        ...


class Clock(Protocol):
    def now(self) -> float:
        """Unix seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None: ...

"""What a message passes between claim and finish, as one value."""

import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

from bot.chat.incoming import Address, Said
from bot.chat.outgoing import Face
from bot.chat.session import InboxMessage, Turn
from bot.commands.answers import AnswerButtons
from bot.commands.handlers import CommandHandlers
from bot.commands.privacy import Forgetting
from bot.media.voice_messages import VoiceMessages
from bot.ports import Clock, ConversationMemory
from bot.replying.live_replies import LiveReplies
from bot.routing.decision_log import DecisionLog
from bot.routing.presets import ActiveCharacters, PresetResolver
from bot.routing.speakers import Dice
from bot.storage.conversations import Conversations
from bot.storage.operation import SqlMessageNotes
from bot.texts.text import Text
from bot.turn.answer import AnswerPipeline
from bot.turn.arrivals import ArrivalSignals
from bot.turn.limits.admin_notices import RefusedChats
from bot.turn.limits.queue_limit import QueueLimit
from bot.turn.limits.rate_limits import CommandLimits, RareNotices
from bot.turn.stops import StopRequests
from bot.value_class import value_class


def _never(_: object) -> bool:
    return False


async def _explain_nothing(_said: Said, _explanation: Text) -> None:
    return


@value_class
class TurnStages:
    """What the worker and its parts share."""

    conversations: Conversations
    memories: Sequence[ConversationMemory]
    """What keeps parts of conversations besides, as backends do."""
    clock: Clock
    resolver: PresetResolver
    commands: CommandHandlers
    pipeline: AnswerPipeline
    replies: LiveReplies
    stops: StopRequests
    buttons: AnswerButtons
    forgetting: Forgetting
    arrivals: ArrivalSignals
    voices: VoiceMessages
    decisions: DecisionLog
    notes: SqlMessageNotes
    dice: Dice = random.random
    explain_silence: Callable[[Said, Text], Awaitable[None]] = _explain_nothing
    """Tells the people of a channel why nobody answers, where the platform shows that."""
    is_paused: Callable[[str], bool] = _never
    """Whether an operator has paused answering in a conversation, by its key."""
    is_void: Callable[[Said], bool] = _never
    """Whether a message is from before a restore, so that nothing is done about it."""
    is_context: Callable[[InboxMessage], bool] = _never
    """Whether a message was answered before a restore, so that it is remembered only."""
    notices: RareNotices = RareNotices()
    """How often the service says in a channel that it is busy."""
    queue_limit: QueueLimit | None = None
    """How many questions may wait in a conversation; None: any number."""
    command_limits: CommandLimits | None = None
    """How many commands each person may send; None: any number."""
    refused_chats: RefusedChats | None = None
    """Where no answers are made for a while; None: nowhere."""

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.now(), UTC)

    def find_speaker(
        self, turn: Turn, address: Address, active: ActiveCharacters
    ) -> tuple[str, Face | None]:
        """Return what tells readers who speaks: a line, or a face where the platform has faces."""
        if turn.preset not in active.names:
            return "", None
        [speaker] = active.pick([turn.preset])
        names = self.resolver.character_names(active.names)
        limits = self.replies.limits(address)
        return active.speaker_line(speaker, names, limits), active.face(speaker, names, limits)

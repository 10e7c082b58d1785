"""Tell people at once that they may not stop an answer: their command waits until it has ended."""

from bot.chat.incoming import Said
from bot.chat.session import Claim
from bot.commands.handlers import describe_stop
from bot.commands.request import StopOutcome
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import Conversations
from bot.replying.live_replies import LiveReplies
from bot.texts.text import language_of, translatable, translate

_MAX_WAITING = 200
"""A command further behind is told in its turn."""


@frozen_dataclass
class StopRefusals:
    """Opens the reply to a /stop while the answer in progress goes on."""

    conversations: Conversations
    replies: LiveReplies

    async def tell(self, claim: Claim, command: Said, outcome: StopOutcome) -> bool:
        """Queue the reply; return whether the command was found among those that wait.

        Raises:
            Fenced: a later claim exists.
            StoreError: the database failed.
        """
        waiting = await self.conversations.waiting(claim, _MAX_WAITING)
        key = command.external_key
        message = next((one for one in waiting if one.incoming.external_key == key), None)
        if message is None:
            return False
        text = translatable("⚠ {problem}", problem=describe_stop(outcome, command))
        shown = translate(text, language_of(command.locale))
        for part in self.replies.final_parts(command.address, shown):
            opened = await self.conversations.open(claim, message, part)
            self.replies.deliver(command.address, opened.row)
        return True

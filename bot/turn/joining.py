"""Join the messages that a client has cut one message into: an album, or a long paste."""

from dataclasses import dataclass, field, replace

from bot.chat.incoming import Said
from bot.chat.outgoing import Limits
from bot.chat.session import Attempt, Claim, InboxMessage
from bot.commands.request import AskedQuestion
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import Clock, Conversations
from bot.prompting.presets.preset import BusyRules
from bot.telemetry.secret_masker import mask_pasted_tokens
from bot.turn.isolation import CRASHES_OF_A_SUSPECT

_FULL_SHARE = 0.98  # clients cut a long text at a space near the limit
_MOST_UNITS = 2  # of one character, whatever the platform counts
_MAX_PARTS = 20
_MAX_WAIT_SECONDS = 5.0
_LOOK_SECONDS = 0.2  # between two looks for the next part


@dataclass(slots=True)
class MessageGroup:
    """What is being processed of a conversation; more may be gathered with it."""

    message: InboxMessage
    between: list[InboxMessage] = field(default_factory=list)
    """What others said between the parts of the message; not gathered yet."""
    asked: AskedQuestion | None = None
    """The question that is being answered."""


@frozen_dataclass
class MessageParts:
    """What belongs to one message in a channel; an ordinary message has no further parts."""

    limits: Limits
    rules: BusyRules

    def seconds_to_wait(self, said: Said) -> float:
        """Return how long after a message its next part may come; 0: there is none."""
        if said.interaction is not None:
            return 0.0
        if said.album is not None:
            return self.rules.album_seconds
        longest = self.limits.max_units  # a longer one was not cut by a client
        if len(said.text) * _MOST_UNITS < longest * _FULL_SHARE:
            return 0.0  # nearly always: its units need not be counted
        is_cut = longest * _FULL_SHARE <= self._units(said.text) <= longest
        return self.rules.paste_seconds if is_cut else 0.0

    def continues(self, whole: Said, newest: InboxMessage, later: InboxMessage) -> bool:
        """Return whether a message is the next part of another one.

        Args:
            whole: what the parts so far say.
            newest: the newest of them.
            later: the message that came after it.
        """
        said, last = later.incoming, newest.incoming
        if not (isinstance(said, Said) and isinstance(last, Said)):
            return False
        if said.author.id != whole.author.id or said.interaction is not None:
            return False
        if whole.album is not None or said.album is not None:
            return said.album == whole.album
        wait = self.seconds_to_wait(last)
        is_text = bool(said.text) and not said.attachments and said.quote is None
        return wait > 0 and is_text and later.received_at - newest.received_at <= wait

    def join(self, whole: Said, newest: InboxMessage, later: InboxMessage) -> Said:
        """Return what the parts say together; the message is named after the first one."""
        said, last = later.incoming, newest.incoming
        if not (isinstance(said, Said) and isinstance(last, Said)):
            return whole
        is_cut_in_a_word = self._units(last.text) >= self.limits.max_units
        texts = [one for one in (whole.text, said.text) if one]
        text = ("" if is_cut_in_a_word else "\n").join(texts)
        masked = mask_pasted_tokens(text)  # a token may have been cut in two
        return replace(
            whole,
            text=masked,
            has_masked_token=whole.has_masked_token or masked != text,
            wake=whole.wake or said.wake,
            quote=whole.quote or said.quote,
            mentions=(*whole.mentions, *said.mentions),
            attachments=(*whole.attachments, *said.attachments),
        )

    def _units(self, text: str) -> int:
        in_utf16 = self.limits.unit == "utf16"
        return len(text.encode("utf-16-le")) // 2 if in_utf16 else len(text)


class PartJoiner:
    """Waits for the parts of a message, in its inbox."""

    def __init__(self, conversations: Conversations, clock: Clock) -> None:
        self._conversations = conversations
        self._clock = clock

    async def join(
        self, claim: Claim, group: MessageGroup, said: Said, parts: MessageParts
    ) -> Said:
        """Return a message with its further parts, for which it waits; most have none.

        What was in flight when two processes died is processed alone.
        """
        newest, until = group.message, self._clock.monotonic() + _MAX_WAIT_SECONDS
        if group.message.crashes >= CRASHES_OF_A_SUSPECT:
            return said
        while isinstance(newest.incoming, Said) and parts.seconds_to_wait(newest.incoming) > 0:
            others: list[InboxMessage] = []
            for message in await self._conversations.following(claim, group.message, _MAX_PARTS):
                if not parts.continues(said, newest, message):
                    others.append(message)
                else:
                    group.between += others
                    others = []
                    said, newest = parts.join(said, newest, message), message
                    gathered = (*group.message.gathered, message)
                    group.message = replace(group.message, gathered=gathered)
            if not isinstance(newest.incoming, Said):
                break
            wait = newest.received_at + parts.seconds_to_wait(newest.incoming) - self._clock.now()
            wait = min(wait, until - self._clock.monotonic())
            if wait <= 0:
                break
            await self._clock.sleep(min(wait, _LOOK_SECONDS))
        first = group.message.incoming
        if said.has_masked_token and isinstance(first, Said):  # so that its author is told
            told = replace(first, has_masked_token=True)
            group.message = replace(group.message, incoming=told)
        if group.message.gathered:
            await self._conversations.record_attempt(claim, group.message, Attempt.BESIDE_OTHERS)
        return said

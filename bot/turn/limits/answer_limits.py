"""Slow people and channels down that ask for too many answers; their messages are kept.

A message over the limit waits for its moment. One whose moment is too far away is not answered:
its author is told when to try again, once, and it stays in the history.
"""

from dataclasses import replace

import structlog

from bot.chat.incoming import Said
from bot.chat.rate import Rate
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import Clock, RateLimits
from bot.replying.stop_flag import StopFlag
from bot.telemetry.metrics import LIMITED_MESSAGES
from bot.texts.text import Text, translatable, translatable_count
from bot.turn.limits.rare_notices import RareNotices

_log = structlog.get_logger(__name__)
_MAX_WAIT_SECONDS = 30.0
_SECONDS_BETWEEN_NOTICES = 600.0


@frozen_dataclass
class Admission:
    """Whether a message is answered, and what its author is told about that."""

    is_refused: bool = False
    notice: Text | None = None
    """None: there is nothing to tell, or it was told already."""


ADMITTED = Admission()


class AnswerLimits:
    """Counts the answers that each person and each channel asks for, before work is done."""

    def __init__(
        self,
        rates: RateLimits,
        clock: Clock,
        *,
        per_person: int,
        per_channel: int,
        seconds: float,
    ) -> None:
        """Set the limits.

        Args:
            rates: what is counted.
            clock: time.
            per_person: so many answers at once; 0: no limit.
            per_channel: the same for everybody in a channel together.
            seconds: in which a person or a channel may have so many answers again.
        """
        self._rates = rates
        self._notices = RareNotices(rates)
        self._clock = clock
        self._per_person = per_person
        self._per_channel = per_channel
        self._seconds = seconds

    async def admit(self, said: Said, stop: StopFlag) -> Admission:
        """Wait until a message may be answered, or until it is stopped."""
        rates = self._rates_of(said)
        if not rates:
            return ADMITTED
        if await self._admits_one_of_several(said):
            return ADMITTED
        wait = await self._rates.take(rates, _MAX_WAIT_SECONDS)
        if wait <= 0:
            return ADMITTED
        is_refused = wait > _MAX_WAIT_SECONDS
        LIMITED_MESSAGES.labels("refused" if is_refused else "slowed").inc()
        _log.info(
            "limited", conversation=said.address.conversation, by=said.charged_person, seconds=wait
        )
        notice = await self._notice(said, rates, wait, is_refused=is_refused)
        if not is_refused and not stop.requested:
            with stop.ends_block():
                await self._clock.sleep(wait)
        return Admission(is_refused, notice)

    async def _admits_one_of_several(self, said: Said) -> bool:
        """Count an answer to several people for the newest of them who may have it at once.

        Whoever asks too much delays nobody else's answer by that.
        """
        people = said.charged_people
        for person in people if len(people) > 1 else ():
            if await self._rates.take(self._rates_of(said, person)) <= 0:
                return True
        return False

    async def admits_voice(self, said: Said) -> bool:
        """Count a voice message before it is written down, which costs as an answer does.

        It counts for itself: the answer to it is counted as any other.
        """
        rates = [replace(one, key=f"voice:{one.key}") for one in self._rates_of(said)]
        if not rates or await self._rates.take(rates) <= 0:
            return True
        LIMITED_MESSAGES.labels("voice").inc()
        _log.info(
            "limited", conversation=said.address.conversation, by=said.author.id, what="voice"
        )
        return False

    def _rates_of(self, said: Said, person: str | None = None) -> list[Rate]:
        """Return the rates that count; in a private chat, the person is the channel."""
        counted = {
            f"person:{person or said.charged_person}": self._per_person,
            f"channel:{said.address.channel}": self._per_channel,
        }
        return [Rate(key, count, self._seconds) for key, count in counted.items() if count]

    async def _notice(
        self, said: Said, rates: list[Rate], wait: float, *, is_refused: bool
    ) -> Text | None:
        """Say what happens to the messages of a channel, once in ten minutes."""
        if not await self._notices.is_due(said.address.channel, _SECONDS_BETWEEN_NOTICES):
            return None
        most, seconds = min(rate.count for rate in rates), f"{self._seconds:g}"
        rule = translatable_count(
            "That is more than one message in {seconds} s.",
            "That is more than {count} messages in {seconds} s.",
            most,
            seconds=seconds,
        )
        if is_refused:
            return translatable(
                "{rule} I have read yours, but will not answer it. Please write again in {wait} s.",
                rule=rule,
                wait=max(1, round(wait)),
            )
        interval = max(rate.interval for rate in rates)
        return translatable(
            "⏳ {rule} I will answer all of them, but more slowly: one every {interval} s.",
            rule=rule,
            interval=f"{interval:g}",
        )

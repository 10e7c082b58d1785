"""Rate limits for answers, commands and notices."""

from dataclasses import KW_ONLY, dataclass, replace

import structlog
from pydantic import BaseModel, Field

from bot.chat.command import ButtonAction, Command, parse_button
from bot.chat.incoming import ButtonPress, IncomingMessage, Request
from bot.chat.rate import Rate
from bot.errors import AlreadyNotified, UserError
from bot.ports import Clock, RateLimits
from bot.runtime.tasks import StopFlag
from bot.telemetry.metrics import LIMITED_MESSAGES
from bot.texts.text import Text, translatable, translatable_count


class LimitSettings(BaseModel, extra="forbid"):
    """Limits on answers, waiting messages, and people's own characters."""

    answers_per_person: int = Field(
        15,
        ge=0,
        description="The number of answers a person gets per period without waiting. Twice as"
        " many commands and button presses are allowed, and at least 30 in 30 s."
        " 0: no limit.",
    )
    answers_per_channel: int = Field(
        15,
        ge=0,
        description="The number of answers a channel gets per period without waiting; 0: no limit.",
    )
    seconds: float = Field(
        30,
        gt=0,
        description="The period, in seconds, for the numbers of answers per person and per "
        "channel. Answers beyond these numbers are spread evenly: with 15 in 30 s, one every 2 s.",
    )
    waiting: int = Field(
        500,
        ge=0,
        description="The maximum number of requests that wait for a provider at its limit, in the"
        " whole installation; further ones are refused as busy. 0: no limit.",
    )
    waiting_in_conversation: int = Field(
        100,
        ge=0,
        description="The maximum number of questions that wait in a conversation; further ones are"
        " stored but not answered, with a notice. 0: no limit.",
    )
    conversations_at_once: int = Field(
        4000,
        ge=1,
        description="The number of conversations a process answers concurrently. Others wait in the"
        " database until a worker is free.",
    )
    characters_per_person: int = Field(
        5, ge=0, description="The number of characters a person may own; 0: none."
    )
    characters_per_server: int = Field(
        50, ge=0, description="The number of characters a server or group may own; 0: none."
    )
    card_bytes: int = Field(
        2 * 2**20,
        ge=1024,
        le=10 * 2**20,
        description="The maximum size of an attached character card, in bytes.",
    )


_SECONDS_BETWEEN_NOTICES = 60.0


@dataclass(eq=False)
class NoticeLimiter:
    """Limits how often the same notice is shown."""

    rate_limits: RateLimits

    async def is_due_in_channel(self, channel: str) -> bool:
        """Return whether a channel may get a notice: at most one per minute, of any kind."""
        return await self.is_due(f"notice:{channel}", _SECONDS_BETWEEN_NOTICES)

    async def is_due(self, name: str, seconds: float) -> bool:
        """Return whether the notice `name` may be shown: at most once in `seconds`."""
        return await self.rate_limits.take([Rate(f"told:{name}", 1, seconds)]) <= 0


_log = structlog.get_logger(__name__)
_MAX_WAIT_SECONDS = 30.0
_SECONDS_BETWEEN_LIMIT_NOTICES = 600.0


@dataclass(eq=False)
class AnswerLimits:
    """Limits the rate of answers per person and channel, before any work is done."""

    rate_limits: RateLimits
    clock: Clock
    settings: LimitSettings

    def __post_init__(self) -> None:
        self._notice_limiter = NoticeLimiter(self.rate_limits)

    async def admit(
        self, message: IncomingMessage, stop_flag: StopFlag
    ) -> tuple[bool, Text | None]:
        """Wait for the rate limit; return whether to answer, and a notice of the limit if due."""
        rates = self._list_rates(message)
        if not rates or await self._charge_any_asker(message):
            return True, None
        wait_seconds = await self.rate_limits.take(rates, _MAX_WAIT_SECONDS)
        if wait_seconds <= 0:
            return True, None
        is_refused = wait_seconds > _MAX_WAIT_SECONDS
        LIMITED_MESSAGES.labels("refused" if is_refused else "slowed").inc()
        conversation, person_id = message.address.conversation, message.charged_person_id
        _log.info("over_rate_limit", conversation=conversation, by=person_id, seconds=wait_seconds)
        notice = await self._find_limit_notice(message, rates, wait_seconds, is_refused=is_refused)
        if not is_refused and not stop_flag.is_requested:
            with stop_flag.stoppable_block():
                await self.clock.sleep(wait_seconds)
        return not is_refused, notice

    async def _charge_any_asker(self, message: IncomingMessage) -> bool:
        """Charge the answer to the newest asker below the limit; return whether there is one."""
        charged_person_ids = message.charged_person_ids
        for person_id in charged_person_ids if len(charged_person_ids) > 1 else ():
            if await self.rate_limits.take(self._list_rates(message, person_id)) <= 0:
                return True
        return False

    async def admits_voice(self, message: IncomingMessage) -> bool:
        """Count a voice message like an answer, and return whether it may be transcribed."""
        rates = [replace(one, key=f"voice:{one.key}") for one in self._list_rates(message)]
        if not rates or await self.rate_limits.take(rates) <= 0:
            return True
        LIMITED_MESSAGES.labels("voice").inc()
        conversation, person_id = message.address.conversation, message.author.id
        _log.info("over_rate_limit", conversation=conversation, by=person_id, what="voice")
        return False

    def _list_rates(self, message: IncomingMessage, person_id: str | None = None) -> list[Rate]:
        """Return the rate limits of the person and of the channel."""
        max_answers_by_key = {
            f"person:{person_id or message.charged_person_id}": self.settings.answers_per_person,
            f"channel:{message.address.channel}": self.settings.answers_per_channel,
        }
        seconds = self.settings.seconds
        return [Rate(key, count, seconds) for key, count in max_answers_by_key.items() if count]

    async def _find_limit_notice(
        self, message: IncomingMessage, rates: list[Rate], wait_seconds: float, *, is_refused: bool
    ) -> Text | None:
        channel = message.address.channel
        if not await self._notice_limiter.is_due(channel, _SECONDS_BETWEEN_LIMIT_NOTICES):
            return None
        lowest_limit, seconds = min(rate.count for rate in rates), f"{self.settings.seconds:g}"
        rule_sentence = translatable_count(
            "That is more than one message in {seconds} s.",
            "That is more than {count} messages in {seconds} s.",
            lowest_limit,
            seconds=seconds,
        )
        if is_refused:
            return translatable(
                "{rule} I have read your message, but will not answer it. Please write again in"
                " {wait} s.",
                rule=rule_sentence,
                wait=max(1, round(wait_seconds)),
            )
        interval_seconds = max(rate.interval_seconds for rate in rates)
        return translatable(
            "⏳ {rule} I will answer all of them, but more slowly: one every {interval} s.",
            rule=rule_sentence,
            interval=f"{interval_seconds:g}",
        )


_SECONDS_BETWEEN_UNREADABLE_NOTICES = 20.0
_COMMANDS_PER_ANSWER = 2
_MIN_COMMAND_BURST = 30
_MIN_BURST_REFILL_SECONDS = 30.0
_UNLIMITED_ACTIONS = frozenset(
    {ButtonAction.STOP, ButtonAction.DELETE, ButtonAction.FORGET, ButtonAction.KEEP_DATA}
)


@dataclass(eq=False)
class CommandLimits:
    """Limits the rate of each person's commands and presses, across all channels."""

    rate_limits: RateLimits
    _: KW_ONLY
    commands_per_person: int
    """The burst size: how many commands and presses are allowed at once."""
    seconds: float
    """The time in which a used-up burst refills."""

    def __post_init__(self) -> None:
        self._notice_limiter = NoticeLimiter(self.rate_limits)

    @classmethod
    def from_settings(cls, rate_limits: RateLimits, settings: LimitSettings) -> "CommandLimits":
        """Allow two commands or presses per allowed answer, but at least 30 in 30 s."""
        count, seconds = _COMMANDS_PER_ANSWER * settings.answers_per_person, settings.seconds
        if count / seconds < _MIN_COMMAND_BURST / _MIN_BURST_REFILL_SECONDS:
            count, seconds = _MIN_COMMAND_BURST, _MIN_BURST_REFILL_SECONDS
        return cls(rate_limits, commands_per_person=count, seconds=seconds)

    async def admit(self, message: IncomingMessage, command: Command) -> None:
        """Count a command; over the limit, raise `UserError`, or `AlreadyNotified` on repeats."""
        if command.name == "stop":
            return
        request_kind = "deletions" if command.name == "forget" else "commands"
        refusal = await self._find_refusal(message, request_kind)
        if refusal is None:
            return
        channel = message.address.channel
        # Only a native command waits for its own response.
        if message.interaction is not None or await self._notice_limiter.is_due_in_channel(channel):
            raise UserError(refusal)
        raise AlreadyNotified

    async def should_report_unreadable_message(self, message: IncomingMessage) -> bool:
        """Return whether to tell an author that the message has no readable content."""
        kinds = ",".join(sorted({one.kind for one in message.attachments}))
        name = f"unreadable:{message.address.channel}:{message.author.id}:{kinds}"
        should_report = await self._notice_limiter.is_due(name, _SECONDS_BETWEEN_UNREADABLE_NOTICES)
        if should_report and not message.is_private:
            should_report = await self._notice_limiter.is_due_in_channel(message.address.channel)
        if not should_report:
            LIMITED_MESSAGES.labels("unreadable").inc()
        return should_report

    async def find_press_refusal(self, press: ButtonPress) -> Text | None:
        """Count a press; return the reason for refusing it, or None if it is allowed."""
        button_data = parse_button(press)
        if button_data is None or button_data.action in _UNLIMITED_ACTIONS:
            return None
        return await self._find_refusal(press, "commands")

    async def _find_refusal(self, request: Request, request_kind: str) -> Text | None:
        rate = Rate(f"{request_kind}:{request.author.id}", self.commands_per_person, self.seconds)
        wait_seconds = await self.rate_limits.take([rate])
        if wait_seconds <= 0:
            return None
        LIMITED_MESSAGES.labels(request_kind).inc()
        conversation, person_id = request.address.conversation, request.author.id
        _log.info("over_rate_limit", conversation=conversation, by=person_id, what=request_kind)
        rule = translatable_count(
            "That is more than one command or button in {seconds} s.",
            "That is more than {count} commands or buttons in {seconds} s.",
            self.commands_per_person,
            seconds=f"{self.seconds:g}",
        )
        wait_seconds = max(1, round(wait_seconds))
        return translatable("{rule} Please try again in {wait} s.", rule=rule, wait=wait_seconds)

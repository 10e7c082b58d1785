"""Refuse commands and presses of people who send too many of them: each costs reads and calls.

What stops an answer or deletes something is never held back by other commands or presses.
"""

import structlog

from bot.chat.button import ButtonAction, read_button
from bot.chat.command import Command
from bot.chat.incoming import Pressed, Request, Said
from bot.chat.rate import Rate
from bot.errors import ToldAlready, UserError
from bot.ports import RateLimits
from bot.telemetry.metrics import LIMITED_MESSAGES
from bot.texts.text import Text, translatable, translatable_count
from bot.turn.limits.rare_notices import RareNotices

_log = structlog.get_logger(__name__)
_SECONDS_BETWEEN_UNREADABLE = 20.0
_PER_ANSWER = 2
_ALWAYS_ADMITTED = 30
_ALWAYS_SECONDS = 30.0
_NEVER_REFUSED = frozenset(
    {ButtonAction.STOP, ButtonAction.DELETE, ButtonAction.FORGET, ButtonAction.KEEP}
)
_STOP = "stop"
_FORGET = "forget"


class CommandLimits:
    """Counts the commands and presses of each person, over all channels and processes."""

    def __init__(self, rates: RateLimits, *, per_person: int, seconds: float) -> None:
        """Set the limit.

        Args:
            rates: what is counted.
            per_person: so many commands and presses at once.
            seconds: in which a person may have so many again.
        """
        self._rates = rates
        self._notices = RareNotices(rates)
        self._per_person = per_person
        self._seconds = seconds

    @classmethod
    def beside_answers(cls, rates: RateLimits, *, answers: int, seconds: float) -> "CommandLimits":
        """Admit twice as many commands and presses as answers, and always 30 in 30 s.

        Who may have few answers a day may still open menus: those ask no model.
        """
        count = _PER_ANSWER * answers
        if count / seconds < _ALWAYS_ADMITTED / _ALWAYS_SECONDS:
            count, seconds = _ALWAYS_ADMITTED, _ALWAYS_SECONDS
        return cls(rates, per_person=count, seconds=seconds)

    async def admit(self, said: Said, command: Command) -> None:
        """Count a command before it is run.

        Raises:
            UserError: its author sends too many.
            ToldAlready: the same, and the author knows.
        """
        if command.name == _STOP:
            return
        kind = "deletions" if command.name == _FORGET else "commands"
        refusal = await self._refusal(said, kind)
        if refusal is None:
            return
        # Only a native command waits for a response of its own.
        if said.interaction is not None or await self._notices.is_due_in(said.address.channel):
            raise UserError(refusal)
        raise ToldAlready

    async def tells_unreadable(self, said: Said) -> bool:
        """Return whether the author of a message is told that nothing in it can be read.

        Who sends many in a row is told once in a while: each notice keeps others waiting where a
        platform takes few messages.
        """
        kinds = ",".join(sorted({one.kind for one in said.attachments}))
        name = f"unreadable:{said.address.channel}:{said.author.id}:{kinds}"
        is_told = await self._notices.is_due(name, _SECONDS_BETWEEN_UNREADABLE)
        if is_told and not said.is_private:
            is_told = await self._notices.is_due_in(said.address.channel)
        if not is_told:
            LIMITED_MESSAGES.labels("unreadable").inc()
        return is_told

    async def press_refusal(self, pressed: Pressed) -> Text | None:
        """Count a press before anything is read for it; return why it is refused."""
        data = read_button(pressed)
        if data is None or data.action in _NEVER_REFUSED:
            return None
        return await self._refusal(pressed, "commands")

    async def _refusal(self, asked: Request, kind: str) -> Text | None:
        rate = Rate(f"{kind}:{asked.author.id}", self._per_person, self._seconds)
        wait = await self._rates.take([rate])
        if wait <= 0:
            return None
        LIMITED_MESSAGES.labels(kind).inc()
        _log.info("limited", conversation=asked.address.conversation, by=asked.author.id, what=kind)
        rule = translatable_count(
            "That is more than one command or button in {seconds} s.",
            "That is more than {count} commands or buttons in {seconds} s.",
            self._per_person,
            seconds=f"{self._seconds:g}",
        )
        wait = max(1, round(wait))
        return translatable("{rule} Please try again in {wait} s.", rule=rule, wait=wait)

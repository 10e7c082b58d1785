"""/recap: privately summarize what somebody missed in a channel."""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import dropwhile

import structlog

from bot.chat.command import CommandOption
from bot.chat.incoming import Address, IncomingMessage
from bot.chat.outgoing import Limits
from bot.chat.session import StoredTurn
from bot.commands.request import CommandRequest, CommandResult, private_command
from bot.errors import BackendError, UserError
from bot.memory.summaries import Summarizer
from bot.routing.decide import MODEL_NOT_ALLOWED, AccessRules
from bot.texts.text import join_texts, marked, translatable, translatable_count

_DURATION = re.compile(r"(\d{1,4}) ?(m|min|minutes?|h|hours?|d|days?|w|weeks?)")
_UNIT_SECONDS = {"m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DAYS_AGO_BY_WORD = {"today": timedelta(), "yesterday": timedelta(days=1)}
_DEFAULT_PERIOD = timedelta(days=1)
_CITATION = re.compile(r"\[(\d{1,3})\]")
_RECAP_USAGE_NOTICE = translatable(
    "Send /recap alone, or with a start time: 30m, 2h, 3d, 1w, today or yesterday (UTC)."
)
_NOTHING_NEW_NOTICE = translatable("There's nothing new here since then.")
_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class Recaps:
    """Summarizes what a person missed in the conversation where they ask for it."""

    summarizer: Summarizer
    access_rules: AccessRules
    find_limits: Callable[[Address], Limits]
    check_text: Callable[[IncomingMessage, str, str], Awaitable[str]]
    """Returns the provider's text or, if a check refuses it, the sentence to show instead."""

    @private_command(
        "recap",
        marked("summarize privately what you missed; `/recap 2h` or `yesterday` sets the start"),
        CommandOption(
            "since", marked("30m, 2h, 3d or yesterday; by default since you last wrote"), False
        ),
    )
    async def recap(self, request: CommandRequest) -> CommandResult:
        """Summarize new messages with the active preset's model, charged to the author."""
        message, preset = request.incoming, request.active.first.preset
        message = replace(message, address=message.address.recap_source_address)
        start_time, new_turns = await self._find_new_turns(message, request)
        if not new_turns:
            return CommandResult(_NOTHING_NEW_NOTICE)
        if not await self.access_rules.may_use(message, "model"):
            raise UserError(MODEL_NOT_ALLOWED)
        try:
            text, covered_turns = await self.summarizer.recap(preset, new_turns, message)
        except BackendError as error:
            conversation = message.address.conversation
            _log.warning("recap_failed", conversation=conversation, reason=str(error))
            raise UserError(error.notice) from None
        text = await self.check_text(message, preset.provider, text)
        links = [self._message_link(message, one.turn.message_id) for one in covered_turns]
        citations = {number: f"[#{number}]({link})" for number, link in enumerate(links, 1) if link}
        heading = translatable_count(
            "1 message here since {moment} UTC:",
            "{count} messages here since {moment} UTC:",
            sum(one.turn.role == "user" for one in new_turns),
            moment=f"{start_time:%Y-%m-%d %H:%M}",
        )
        text = _CITATION.sub(lambda found: citations.get(int(found[1]), ""), text)
        lines: list[str] = [heading, text]
        if first_link := next(filter(None, links), None):
            lines.append(translatable("What you missed begins here: {link}", link=first_link))
        if omitted_count := len(new_turns) - len(covered_turns):
            omitted_line = translatable_count(
                "1 older message is omitted.", "{count} older messages are omitted.", omitted_count
            )
            lines.append(omitted_line)
        return CommandResult(join_texts(lines))

    async def _find_new_turns(
        self, message: IncomingMessage, request: CommandRequest
    ) -> tuple[datetime, Sequence[StoredTurn]]:
        """Return a start time and the turns since then, without turns by people who opted out."""
        cutoff = _parse_start_time(request.argument, request.now)
        load_turns = self.summarizer.summaries.load_turns_since
        conversation, person = message.address.conversation, message.author.id
        cutoff_timestamp = cutoff.timestamp() if cutoff else None
        start, turns = await load_turns(conversation, person, cutoff_timestamp)
        if start is None:
            cutoff = request.now - _DEFAULT_PERIOD
            start, turns = await load_turns(conversation, person, cutoff.timestamp())
        if cutoff:  # drop answers to questions before `start`
            turns = list(dropwhile(lambda one: one.turn.role == "assistant", turns))
        readable_turns = await self.summarizer.filter_turns([one.turn for one in turns])
        object_ids = {id(one) for one in readable_turns}
        new_turns = [one for one in turns if id(one.turn) in object_ids]
        has_new_messages = any(
            not one.turn.is_from(message.author) for one in new_turns if one.turn.speaker
        )
        has_new_messages = has_new_messages or (cutoff is not None and message.is_private)
        start_time = datetime.fromtimestamp(start or 0, UTC)
        return start_time, new_turns if has_new_messages else ()

    def _message_link(self, message: IncomingMessage, message_id: str | None) -> str:
        """Return the link to a message in the same channel, or "" if it has none."""
        if message.is_private or not (message_id or "").isdecimal():
            return ""
        chat = message.address.chat.removeprefix("-100")  # Telegram's links omit it
        link_parts = {"server": message.scopes[-1].rpartition(":")[2], "chat": chat}
        template = self.find_limits(message.address).message_link_template
        return template.format(**link_parts, message=message_id)


def _parse_start_time(argument: str, now: datetime) -> datetime | None:
    """Return the time for "2h" or "yesterday", None for "", and raise `UserError` otherwise."""
    text = " ".join(argument.lower().split())
    if not text:
        return None
    if text in _DAYS_AGO_BY_WORD:
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        return midnight - _DAYS_AGO_BY_WORD[text]
    if (duration := _DURATION.fullmatch(text)) is None:
        raise UserError(_RECAP_USAGE_NOTICE)
    return now - timedelta(seconds=int(duration[1]) * _UNIT_SECONDS[duration[2][0]])

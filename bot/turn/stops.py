"""Stop answers that are being made: /stop overtakes the messages before it.

The command is stored in the inbox like any other and answered in its turn. Before that, a signal
tells the process that is making the answer; where a signal is lost, the answer goes on.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from bot.chat.incoming import Incoming, Said
from bot.commands.request import StopOutcome
from bot.ports import Signals
from bot.replying.stop_flag import StopFlag
from bot.routing.command_specs import parse

_TOPIC = "stops"
_COMMAND = "stop"
_MAX_OUTCOMES = 1000
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Said).decode


@dataclass(frozen=True, slots=True)
class _AnswerInProgress:
    asked: Said
    flag: StopFlag


class StopRequests:
    """Finds the answer that a /stop means, and stops it for who asked, and for admins."""

    def __init__(self, signals: Signals, is_admin: Callable[[Said], Awaitable[bool]]) -> None:
        """Listen to the signals of all processes; `is_admin` decides about others' answers."""
        self._signals = signals
        self._is_admin = is_admin
        self._answers: dict[str, _AnswerInProgress] = {}
        self._outcomes: OrderedDict[tuple[str, str], StopOutcome] = OrderedDict()
        self._to_decide: asyncio.Queue[Said] = asyncio.Queue()
        signals.subscribe(_TOPIC, self._receive)

    def announce(self, messages: Sequence[Incoming]) -> None:
        """Tell every process of the /stop commands among these messages."""
        stops = [
            _encode(one).decode() for one in messages if isinstance(one, Said) and _is_stop(one)
        ]
        if stops:
            self._signals.publish(_TOPIC, stops)

    @contextlib.contextmanager
    def answering(self, asked: Said) -> Iterator[StopFlag]:
        """Let the answer to a message be stopped while the block runs."""
        conversation, flag = asked.address.conversation, StopFlag()
        self._answers[conversation] = _AnswerInProgress(asked, flag)
        try:
            yield flag
        finally:
            del self._answers[conversation]

    def outcome_of(self, command: Said) -> StopOutcome:
        """Return what a /stop has brought about, once it is answered itself."""
        return self._outcomes.pop(_key(command), StopOutcome.NOTHING)

    async def run(self) -> None:
        """Decide about the commands of people who did not ask the question, until cancelled."""
        while True:
            command = await self._to_decide.get()
            self._decide(command, allowed=await self._is_admin(command))

    def _receive(self, commands: Sequence[str]) -> None:
        for each in commands:
            command = _decode(each)
            answer = self._answers.get(command.address.conversation)
            if answer is None:
                continue
            if command.author.id == answer.asked.author.id:
                self._decide(command, allowed=True)
            else:
                self._to_decide.put_nowait(command)

    def _decide(self, command: Said, *, allowed: bool) -> None:
        answer = self._answers.get(command.address.conversation)
        if answer is None:  # it has ended meanwhile
            return
        if allowed:
            answer.flag.request()
        outcome = StopOutcome.STOPPED if allowed else StopOutcome.REFUSED
        self._outcomes[_key(command)] = outcome
        if len(self._outcomes) > _MAX_OUTCOMES:
            self._outcomes.popitem(last=False)


def _is_stop(incoming: Said) -> bool:
    if not incoming.text.startswith("/") or incoming.wake is None or incoming.author_is_bot:
        return False
    command = parse(incoming.text)
    return command is not None and command.name == _COMMAND


def _key(command: Said) -> tuple[str, str]:
    return command.address.source, command.external_key

"""Sum up what has become too old for the history: in the background, never before an answer.

A summary is made anew of the last one and the turns that were left out since; where a turn under it
was edited or forgotten, it counts no more and is made anew from the beginning.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing

import structlog

from bot.chat.prompt import Delta, Finish, Message, Prompt, QueuePosition, ReasoningDelta
from bot.chat.session import StoredTurn, Summary, fingerprint_turns
from bot.errors import BackendError, StoreError
from bot.ports import Backend, ConversationMemory, Summaries
from bot.prompting.draft.draft import PromptPart
from bot.prompting.presets.preset import Preset
from bot.summaries.prompt import instruction, transcript, worth_reading
from bot.telemetry.metrics import record_usage

_log = structlog.get_logger(__name__)
_LEAST_TURNS = 6  # so many must be new to it before a summary is made anew
_AT_ONCE = 2


class Summarizer:
    """Makes summaries for the presets that want them; asked twice, it does the newest only."""

    def __init__(self, summaries: Summaries, backends: Mapping[str, Backend]) -> None:
        self._summaries = summaries
        self._backends = backends
        self._wanted: dict[str, tuple[Preset, int]] = {}
        self._busy: set[str] = set()
        self._rung = asyncio.Event()

    async def part(self, preset: Preset, conversation: str) -> PromptPart | None:
        """What goes into a prompt; None while there is no summary that still holds."""
        if preset.summary is None:
            return None
        summary = await self._summaries.current(conversation)
        if summary is None:
            return None
        return PromptPart("summary", f"What was said before, in short:\n{summary.text}")

    def want(self, preset: Preset, conversation: str, kept: int) -> None:
        """Have all but the newest `kept` turns summed up some time soon."""
        if preset.summary is not None:
            self._wanted[conversation] = preset, kept
            self._rung.set()

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(self._work(), name="summarize")

    async def _work(self) -> None:
        while True:
            await self._rung.wait()
            free = [one for one in self._wanted if one not in self._busy]
            if not free:
                self._rung.clear()
                continue
            conversation = free[0]
            preset, kept = self._wanted.pop(conversation)
            self._busy.add(conversation)
            try:
                await self.sum_up(preset, conversation, kept)
            except (BackendError, StoreError) as error:
                _log.warning("not_summed_up", conversation=conversation, reason=str(error))
            finally:
                self._busy.remove(conversation)
                self._rung.set()

    async def sum_up(self, preset: Preset, conversation: str, kept: int) -> None:
        """Bring the summary up to all but the newest `kept` turns, unless it nearly is."""
        sources = await self._summaries.load_turns(conversation)
        old = sources.turns[: max(0, len(sources.turns) - kept)]
        summary = sources.summary
        covered = sum(one.id <= summary.covers_to for one in old) if summary else 0
        if len(old) - covered < _LEAST_TURNS:
            return
        while covered < len(old):
            some = worth_reading(old[covered:], preset.max_input_tokens)
            covered += len(some)
            summary = Summary(
                session=sources.session,
                covers_to=old[covered - 1].id,
                fingerprint=fingerprint_turns(old[:covered]),
                text=await self._written(preset, conversation, summary, some),
            )
            if not await self._summaries.save(conversation, summary):
                return

    async def _written(
        self, preset: Preset, conversation: str, before: Summary | None, some: Sequence[StoredTurn]
    ) -> str:
        wanted = preset.summary
        provider = (wanted and wanted.provider) or preset.provider
        model = (wanted and wanted.model) or preset.model
        tokens = wanted.max_output_tokens if wanted else None
        asked = Prompt(
            messages=(
                Message("system", instruction(tokens)),
                Message("user", transcript(before.text if before else "", some)),
            ),
            model=model,
            conversation=f"{conversation}:summary",
            max_output_tokens=tokens,
        )
        backend = self._backends[provider]
        said: list[str] = []
        try:
            async with aclosing(backend.generate(asked)) as stream:
                async for event in stream:
                    match event:
                        case Delta(text):
                            said.append(text)
                        case Finish(_, usage):
                            record_usage(usage)
                        case ReasoningDelta() | QueuePosition():
                            pass
        finally:
            if isinstance(backend, ConversationMemory):  # it is asked this once
                await backend.forget(asked.conversation)
        text = "".join(said).strip()
        if not text:
            raise BackendError(f"an empty summary by {provider}")
        return text

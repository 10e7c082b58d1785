"""Who sits where in a model's memory, so that every turn pays for its own tokens only.

A conversation comes back to its place, or to another that its saved state is read into. A new one
begins where the longest beginning of its prompt has been read already: characters of one channel,
and conversations with one preset, share it.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog

from bot.backends.llama_cpp.engines.engine import Engine, EngineFailed, EngineRefused
from bot.backends.llama_cpp.slot_files import Saved, SavedPlaces, Whose

_log = structlog.get_logger(__name__)
_WORTH_SAVING = 64  # tokens; fewer are read again as fast
_SAVE_ALL_SECONDS = 20.0
_WORTH_COPYING = 16  # a beginning that is shorter than this part of its state stays where it is


@dataclass(frozen=True, slots=True)
class Seat:
    """A place for the length of one answer."""

    place: int
    own: bool  # all that it holds is this conversation's


@dataclass(slots=True)
class _Place:
    number: int
    whose: Whose | None = None  # nobody's: may be taken; what it holds can still be a beginning
    ids: "array[int]" = field(default_factory=lambda: array("i"))  # the prompt that it has read
    saved: bool = True  # there is nothing in it that is not on disk, or worth to be
    used: int = 0
    busy: bool = False
    secret: bool = False  # to be erased before anybody else sits here

    def empty(self) -> None:
        self.whose, self.ids, self.saved, self.used = None, array("i"), True, 0


class Places:
    """The places of one engine. At most as many seats as there are places may be asked for."""

    def __init__(self, engine: Engine, saved: SavedPlaces) -> None:
        self._engine = engine
        self._saved = saved
        self._places = [_Place(number) for number in range(engine.places)]
        self._deaths = engine.deaths
        self._moving = asyncio.Lock()  # one at a time changes who sits where
        self._uses = 0

    @asynccontextmanager
    async def seat(self, whose: Whose, ids: Sequence[int]) -> AsyncIterator[Seat]:
        """Have a place while the block asks this prompt."""
        asked = array("i", ids)
        async with self._moving:
            await self._settle()
            place, own = await self._place_for(whose, asked)
            self._uses += 1
            place.busy, place.used = True, self._uses
            place.ids, place.saved = asked, False
        try:
            yield Seat(place.number, own)
        finally:
            place.busy = False

    async def leave(self, conversation: str) -> None:
        """Let a conversation's places be taken: what it said so far is not asked again."""
        async with self._moving:
            for place in self._of(conversation):
                place.whose = None
                place.saved = True
            await _to_its_end(self._saved.forget, conversation)

    async def forget(self, conversation: str) -> None:
        """Erase and delete everything of a conversation."""
        async with self._moving:
            for place in self._of(conversation):
                place.empty()
                place.secret = True
            await _to_its_end(self._saved.forget, conversation)
            await self._settle()

    async def save_all(self) -> None:
        """Save every place that is somebody's, before the engine ends."""
        try:
            async with asyncio.timeout(_SAVE_ALL_SECONDS), self._moving:
                self._notice_deaths()
                for place in self._places:
                    await self._save(place)
        except TimeoutError:
            _log.warning("places_not_saved", reason="the engine does not react")

    def _of(self, conversation: str) -> list[_Place]:
        return [each for each in self._places if each.whose and each.whose[0] == conversation]

    async def _settle(self) -> None:
        self._notice_deaths()
        for place in self._places:
            if place.secret and not place.busy:
                try:
                    await self._engine.erase(place.number)
                except EngineFailed as error:  # if it died, so did the place
                    _log.warning("place_not_erased", place=place.number, reason=str(error))
                else:
                    place.secret = False

    def _notice_deaths(self) -> None:
        if self._deaths != self._engine.deaths:
            self._deaths = self._engine.deaths
            for place in self._places:
                place.empty()
                place.secret = False

    async def _place_for(self, whose: Whose, asked: "array[int]") -> tuple[_Place, bool]:
        """Choose a place and bring the best beginning into it."""
        free = [each for each in self._places if not each.busy]
        sitting = next((each for each in self._places if each.whose == whose), None)
        if sitting is not None and not sitting.busy:
            return sitting, True
        place = min(free, key=lambda each: _order(each, asked))
        await self._save(place)
        if sitting is not None:  # asked twice at once: the second is a guest
            place.whose = None
            return place, False
        saved = self._saved.of(whose)
        own = saved is not None and await self._restore(place, saved)
        if not own:
            await self._bring_beginning(place, asked, free)
        place.whose = whose
        return place, own

    async def _bring_beginning(
        self, place: _Place, asked: "array[int]", free: Sequence[_Place]
    ) -> None:
        """Copy what somebody else's place has of this prompt, if that is more than `place` has."""
        most = max(_WORTH_SAVING - 1, common_beginning(place.ids, asked))
        best: _Place | Saved | None = None
        sources: list[_Place | Saved] = [*free, *self._saved.all()]
        for source in sources:
            common = common_beginning(source.ids, asked)
            if common > most and common * _WORTH_COPYING > len(source.ids):
                most, best = common, source
        if isinstance(best, _Place):
            await self._save(best)
            best = self._saved.of(best.whose) if best.whose else None
        if best is not None:
            await self._restore(place, best)

    async def _save(self, place: _Place) -> None:
        if place.whose is None or place.saved or not self._saved.enabled:
            return
        if len(place.ids) >= _WORTH_SAVING:
            try:
                tokens = await self._engine.save(place.number, self._saved.part(place.whose))
                if tokens >= _WORTH_SAVING:  # fewer than asked: it was stopped while it read
                    known = place.ids[:tokens]
                    await _to_its_end(self._saved.keep, place.whose, known)
            except (EngineFailed, OSError) as error:  # it will have to be read again
                _log.warning("place_not_saved", place=place.number, reason=str(error))
                return
        place.saved = True

    async def _restore(self, place: _Place, saved: Saved) -> bool:
        try:
            await self._engine.restore(place.number, saved.file)
        except EngineFailed as error:
            _log.warning("place_not_restored", place=place.number, reason=str(error))
            if isinstance(error, EngineRefused):
                self._saved.drop(saved.file)
            place.empty()
            return False
        place.ids = saved.ids
        return True


async def _to_its_end(work: Callable[..., object], *given: object) -> None:
    """Delete or name files beside the loop: those of hundreds of megabytes take their time to go.

    A thread goes on when nobody waits for it any more, and would bring back what is forgotten next.
    """
    working = asyncio.create_task(asyncio.to_thread(work, *given))
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise


def common_beginning(one: "array[int]", other: "array[int]") -> int:
    """How many ids two prompts share at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _order(place: _Place, asked: "array[int]") -> tuple[bool, int, int]:
    """Nobody's place goes first, the one that holds most of the prompt; then the least used."""
    nobody = place.whose is None
    return not nobody, -common_beginning(place.ids, asked) if nobody else 0, place.used

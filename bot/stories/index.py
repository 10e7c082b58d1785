"""Give every story its vector, in the background: only those that are new, changed, or another's.

Answers meanwhile come with the stories that have one already.
"""

from collections.abc import Mapping, Sequence

import structlog

from bot.chat.story import StoryVector
from bot.errors import EmbeddingError, StoreError
from bot.ports import Clock, Embedder, Stories

_log = structlog.get_logger(__name__)
_AT_ONCE = 32  # some seconds of work, lost if the process ends
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0


async def index_stories(
    libraries: Mapping[str, Sequence[str]], embedder: Embedder, stories: Stories, clock: Clock
) -> None:
    """Learn the stories of each character; those that fail are tried again until they work."""
    learner = _Learner(embedder, stories)
    pause = _FIRST_PAUSE_SECONDS
    waiting = list(libraries)
    while waiting:
        waiting = [name for name in waiting if not await learner.learned(name, libraries[name])]
        if waiting:
            await clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


class _Learner:
    def __init__(self, embedder: Embedder, stories: Stories) -> None:
        self._embedder = embedder
        self._stories = stories

    async def learned(self, character: str, texts: Sequence[str]) -> bool:
        try:
            await self._learn(character, texts)
        except (EmbeddingError, StoreError) as error:
            _log.warning("stories_not_learned", character=character, reason=str(error))
            return False
        return True

    async def _learn(self, character: str, texts: Sequence[str]) -> None:
        model_id = self._embedder.model_id
        lacking = await self._stories.replace_stories(character, texts, model_id)
        for start in range(0, len(lacking), _AT_ONCE):
            some = lacking[start : start + _AT_ONCE]
            made = zip(some, await self._embedder.embed_documents(some), strict=True)
            await self._stories.save_vectors(
                character, model_id, [StoryVector(*one) for one in made]
            )
            done = start + len(some)
            _log.info("stories_learned", character=character, done=done, of=len(lacking))

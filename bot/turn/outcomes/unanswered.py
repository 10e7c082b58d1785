"""Remember the questions whose answers failed, so that /retry can answer them.

What was said before a question and gathered with it is kept with it.

A failed turn leaves no trace in the history. What is kept here is lost with the process.
"""

from collections import OrderedDict
from collections.abc import Sequence

from bot.chat.incoming import Said
from bot.chat.session import Turn

_MAX_CONVERSATIONS = 1000


class UnansweredQuestions:
    """The newest question of each conversation, until it is answered."""

    def __init__(self) -> None:
        self._questions: OrderedDict[str, tuple[Said, Sequence[Turn]]] = OrderedDict()

    def note(self, question: Said, earlier: Sequence[Turn] = ()) -> None:
        """Remember a question that is about to be answered, and what was gathered before it."""
        conversation = question.address.conversation
        self._questions[conversation] = question, earlier
        self._questions.move_to_end(conversation)
        if len(self._questions) > _MAX_CONVERSATIONS:
            self._questions.popitem(last=False)

    def drop(self, conversation: str) -> None:
        """Forget the question of a conversation: it was answered, or nobody may see it again."""
        self._questions.pop(conversation, None)

    def get(self, conversation: str) -> Said | None:
        """Return the question that was not answered, if there is one."""
        return self._find(conversation)[0]

    def earlier(self, conversation: str) -> Sequence[Turn]:
        """Return what was gathered before that question."""
        return self._find(conversation)[1]

    def _find(self, conversation: str) -> tuple[Said | None, Sequence[Turn]]:
        return self._questions.get(conversation, (None, ()))

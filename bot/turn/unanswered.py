"""Remember the questions whose answers failed, so that /retry can answer them.

A failed turn leaves no trace in the history. What is kept here is lost with the process.
"""

from collections import OrderedDict

from bot.chat.incoming import Said

_MAX_CONVERSATIONS = 1000


class UnansweredQuestions:
    """The newest question of each conversation, until it is answered."""

    def __init__(self) -> None:
        self._questions: OrderedDict[str, Said] = OrderedDict()

    def note(self, question: Said) -> None:
        """Remember a question that is about to be answered."""
        conversation = question.address.conversation
        self._questions[conversation] = question
        self._questions.move_to_end(conversation)
        if len(self._questions) > _MAX_CONVERSATIONS:
            self._questions.popitem(last=False)

    def drop(self, conversation: str) -> None:
        """Forget the question of a conversation: it was answered, or nobody may see it again."""
        self._questions.pop(conversation, None)

    def get(self, conversation: str) -> Said | None:
        """Return the question that was not answered, if there is one."""
        return self._questions.get(conversation)

"""Check an answer before it is shown: for banned words, by moderation, and by plug-ins."""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import structlog

from bot.errors import BackendUnavailable, PluginFailed
from bot.ports import Backend
from bot.runtime.plugins import HOOKS, Refusal, check_answer
from bot.telemetry.metrics import CHECKED_ANSWERS
from bot.texts.text import StoredPattern, marked, supported_language, translatable, translate
from bot.value_class import value_class

_log = structlog.get_logger(__name__)
_REFUSAL_SENTENCE = translatable("I'd rather not say that here. Let's talk about something else.")
_BANNED_WORDS_NOTE = marked("withheld: contains a word banned in this chat")
_MODERATION_NOTE = StoredPattern(marked("withheld by moderation ({provider}): {categories}"))
_WITHHELD_NOTE = marked("withheld: moderation failed")
_UNCHECKED_NOTE = marked("shown unchecked: moderation failed")
_PLUGIN_NOTE = StoredPattern(marked("withheld by the plug-in {plugin}: {reason}"))
_MODERATION_TIMEOUT_SECONDS = 5.0
_CHARS_PER_MODERATION = 300
"""The number of new characters that are sent to moderation at a time."""
_OVERLAP_CHARS = 300
"""The number of preceding characters that are sent along as context."""
_MAX_PIECE_CHARS = 2000  # moderation of longer texts is less accurate
_SENTENCE_END = re.compile(r"[.!?。！？\n]\s*")
_MAX_REASON_CHARS = 200
_MAX_SPACES = 3  # between the words of a phrase
# Scripts from this letter on (Thai, CJK, Korean) write words without spaces or attach endings.
_UNSPACED_SCRIPTS_START = "\u0e00"
_SPACED_LETTER = rf"(?![{_UNSPACED_SCRIPTS_START}-\U0010ffff])[^\W_]"


@value_class
class BannedWords:
    """A pattern that matches banned words, and the length of its longest possible match."""

    pattern: re.Pattern[str]
    max_match_chars: int

    def occur_in(self, text: str, start: int = 0, *, is_complete: bool = True) -> bool:
        """Return whether a text contains a banned word, ignoring the end of a partial text."""
        matches = self.pattern.finditer(text, start)
        return any(is_complete or one.end() < len(text) for one in matches)


@lru_cache(maxsize=256)
def parse_banned_words(phrase_lines: str) -> BannedWords | None:
    """Parse one phrase per line; a final "*" matches any ending. Return None for no phrases."""
    phrases = [one.split() for one in phrase_lines.splitlines() if one.strip("* ")]
    if not phrases:
        return None
    max_match_chars = max(sum(map(len, one)) + _MAX_SPACES * (len(one) - 1) for one in phrases)
    pattern = "|".join(map(_build_phrase_pattern, phrases))
    return BannedWords(re.compile(pattern, re.IGNORECASE), max_match_chars)


def _build_phrase_pattern(phrase: Sequence[str]) -> str:
    text = rf"\s{{1,{_MAX_SPACES}}}".join(map(re.escape, phrase))
    is_prefix = text.endswith(r"\*")
    text = text.removesuffix(r"\*")
    first_char, last_char = phrase[0][0], phrase[-1][-1]
    begin = rf"(?<!{_SPACED_LETTER})" if first_char < _UNSPACED_SCRIPTS_START else ""
    end = "" if is_prefix or last_char >= _UNSPACED_SCRIPTS_START else rf"(?!{_SPACED_LETTER})"
    return begin + text + end


def translate_refusal_sentence(locale: str | None) -> str:
    """Return the sentence that replaces a refused answer."""
    return translate(_REFUSAL_SENTENCE, supported_language(locale))


@dataclass(eq=False)
class AnswerCheck:
    """Checks an answer, and shows each part of its text once that part has passed."""

    words: BannedWords | None
    moderator_id: str = ""
    """The name of the provider that moderates; empty: no moderation."""
    backend: Backend | None = None
    withholds_unchecked_answers: bool = False

    def __post_init__(self) -> None:
        self._plugin_failures: list[str] = []
        self.note = ""
        """The result of the check, in English, for the receipt."""
        self.is_refused = False
        self._show: Callable[[str], None] | None = None
        self._text = ""
        self._shown_end = self._moderated_end = 0

    def wrap_show_callbacks(
        self, show: Callable[[str], None], replace_shown_text: Callable[[str], None]
    ) -> tuple[Callable[[str], None], Callable[[str], None]]:
        """Wrap the two callbacks, so that they show only checked text."""

        def show_checked_text(text: str) -> None:
            begin = max(0, len(self._text) - self._held_back_chars)
            self._text += text
            if self.words is not None and self.words.occur_in(self._text, begin, is_complete=False):
                self._refuse_answer(_BANNED_WORDS_NOTE, "words")
            self._show_approved_text()

        def replace_checked_text(text: str) -> None:
            self._text = text
            self._shown_end = min(len(text), self._shown_end)
            self._moderated_end = min(len(text), self._moderated_end)
            replace_shown_text(text[: self._shown_end])

        self._show = show
        return show_checked_text, replace_checked_text

    async def moderate_new_text(self) -> None:
        """Send the text so far to moderation if enough of it is new."""
        if self._is_moderated and len(self._text) - self._moderated_end >= _CHARS_PER_MODERATION:
            matches = [*_SENTENCE_END.finditer(self._text, self._moderated_end)]
            end, moderated_end = len(self._text), matches[-1].end() if matches else len(self._text)
            await self._moderate_texts(
                [self._text[max(0, self._moderated_end - _OVERLAP_CHARS) : end]]
            )
            self._moderated_end = moderated_end
            self._show_approved_text()

    @property
    def notes_text(self) -> str:
        """The results of the checks, in English, for the receipt."""
        return "; ".join([*self._plugin_failures, *([self.note] if self.note else [])])

    async def apply_hooks(self, text: str) -> str:
        """Return a complete text after the changes of all plug-ins, skipping plug-ins that fail."""
        for name, hook in HOOKS["check_answer"].items():
            if self.is_refused or not text:
                break
            try:
                result = await check_answer(name, hook, text)
            except PluginFailed as error:
                self._plugin_failures.append(str(error))
                continue
            if isinstance(result, Refusal):
                reason = result.reason[:_MAX_REASON_CHARS]
                self._refuse_answer(_PLUGIN_NOTE.with_values(plugin=name, reason=reason), "plugin")
            else:
                text = result
        return text

    async def refuses(self, text: str) -> bool:
        """Check a complete text; return whether the answer is refused."""
        if not self.is_refused and self.words is not None and self.words.occur_in(text):
            self._refuse_answer(_BANNED_WORDS_NOTE, "words")
        if self._is_moderated:
            starts = range(0, len(text), _MAX_PIECE_CHARS)
            pieces = [text[max(0, at - _OVERLAP_CHARS) : at + _MAX_PIECE_CHARS] for at in starts]
            await self._moderate_texts(pieces)
        return self.is_refused

    @property
    def _is_moderated(self) -> bool:
        return self.backend is not None and not self.note

    @property
    def _held_back_chars(self) -> int:
        return self.words.max_match_chars + 1 if self.words is not None else 0

    def _show_approved_text(self) -> None:
        end = len(self._text) - self._held_back_chars
        if self._is_moderated:
            end = min(end, self._moderated_end)
        if HOOKS["check_answer"]:  # plug-ins check only the complete answer
            end = 0
        if self._show is not None and not self.is_refused and end > self._shown_end:
            self._show(self._text[self._shown_end : end])
            self._shown_end = end

    async def _moderate_texts(self, texts: Sequence[str]) -> None:
        assert self.backend is not None  # noqa: S101 -- see `_is_moderated`
        try:
            async with asyncio.timeout(_MODERATION_TIMEOUT_SECONDS):
                categories = await self.backend.moderate(texts)
        except (BackendUnavailable, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            _log.warning("answer_not_checked", provider=self.moderator_id, reason=reason)
            if self.withholds_unchecked_answers:
                self._refuse_answer(_WITHHELD_NOTE, "withheld_unchecked")
            else:
                self.note = _UNCHECKED_NOTE
                CHECKED_ANSWERS.labels("unchecked").inc()
            return
        if categories:
            note_values = {"provider": self.moderator_id, "categories": ", ".join(categories)}
            self._refuse_answer(_MODERATION_NOTE.with_values(**note_values), "moderation")

    def _refuse_answer(self, note: str, metric_label: str) -> None:
        if not self.is_refused:
            self.note, self.is_refused = note, True
            CHECKED_ANSWERS.labels(metric_label).inc()

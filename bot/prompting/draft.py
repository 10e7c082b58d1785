"""The draft of a prompt, as parts with sections and priorities."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

from bot.chat.prompt import Image, Message, Prompt
from bot.chat.receipt import DroppedItem, PromptSpan
from bot.chat.story import Story
from bot.prompting.text.incremental_map import map_new_items
from bot.texts.text import Text, to_translatable, translatable
from bot.value_class import value_class

_SEPARATOR = "\n\n"


@value_class
class PromptPart:
    """A text in the system or newest message, such as a story or a lorebook entry."""

    section: str
    """The section that lists this part in receipts: "system", "lore", "stories", "quote", ..."""
    text: str
    name: str = ""
    """The title of the story or lorebook entry."""
    score: float | None = None
    """The part's similarity to the search query that found it."""
    priority: int = 0
    """Parts with lower priority are dropped first; of equal ones, later parts are dropped first."""
    is_required: bool = False
    memory_id: int = 0
    """The id of the memory in this part, or 0 if this part is not a memory."""


@value_class
class HistoryUnit:
    """Messages that are kept or dropped together: a question with its answers."""

    messages: tuple[Message, ...]
    lore_name_pairs: tuple[tuple[Message, str], ...] = ()
    """All messages, each with the name of its lore entry or ""; empty if nothing was inserted."""

    @property
    def messages_with_lore(self) -> Sequence[Message]:
        return [message for message, _ in self.lore_name_pairs] or self.messages


@value_class
class Draft:
    """A prompt's sections; stable sections come first, so that backends can cache the prefix."""

    empty_prompt: Prompt
    """The prompt without its messages."""
    system: tuple[PromptPart, ...]
    """Instructions, persona, and lore with a fixed position."""
    pinned_messages: tuple[Message, ...]
    """Messages at the start of every conversation."""
    summary: PromptPart | None
    """The summary of turns that are too old for the history."""
    history: tuple[HistoryUnit, ...]
    """The conversation's earlier questions and answers, oldest first."""
    context: tuple[PromptPart, ...]
    """Parts that change with every message, before the newest message's text."""
    newest_message: Message
    images: tuple[Image, ...] = ()
    closing_messages: tuple[Message, ...] = ()
    """Messages after the newest one; if the last is the assistant's, the answer starts with it."""
    stories: tuple[Story, ...] = ()
    """The stories in the system text, in the order of the text."""
    left_out_items: tuple[DroppedItem, ...] = ()
    """Items that were already dropped before the token budget was applied."""
    cache: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def prompt(self) -> Prompt:
        return replace(self.empty_prompt, messages=self.messages)

    @property
    def messages(self) -> tuple[Message, ...]:
        messages = [*_build_system_messages(self.system), *self.pinned_messages]
        if self.summary:
            messages.append(Message("system", self.summary.text))
        for unit in self.history:
            messages += unit.messages_with_lore
        messages.append(_build_newest_message(self))
        return (*messages, *self.closing_messages)

    @property
    def required_messages(self) -> tuple[Message, ...]:
        system = tuple(part for part in self.system if part.is_required)
        context = tuple(part for part in self.context if part.is_required)
        required_draft = replace(self, system=system, context=context, summary=None, history=())
        return required_draft.messages

    def without_story(self, story: Story) -> "Draft":
        """Return the draft after removing a story from its system text."""
        story_block = f"###\n{story.text}"
        parts = (replace(part, text=part.text.replace(story_block, "", 1)) for part in self.system)
        stories = tuple(one for one in self.stories if one is not story)
        return replace(self, system=tuple(parts), stories=stories)

    @property
    def layout(self) -> tuple[PromptSpan, ...]:
        spans = [*_list_spans(self.system, 0, self.stories)]
        message_index = 1 if spans else 0
        message_counts = {"pinned": len(self.pinned_messages), "summary": 1 if self.summary else 0}
        for section, count in message_counts.items():
            if count:
                spans.append(PromptSpan(section, message_index, count))
                message_index += count
        for name, runs in groupby(self._find_named_run_lengths(), key=itemgetter(0)):
            count = sum(length for _, length in runs)
            spans.append(PromptSpan("lore" if name else "history", message_index, count, name=name))
            message_index += count
        return (*spans, *self._list_newest_spans(message_index))

    def _list_newest_spans(self, message_index: int) -> Sequence[PromptSpan]:
        spans = [*_list_spans(self.context, message_index), PromptSpan("newest", message_index)]
        if self.closing_messages:
            spans.append(PromptSpan("post_history", message_index + 1, len(self.closing_messages)))
        return spans

    def _find_named_run_lengths(self) -> Iterator[tuple[str, int]]:
        """Yield (name, 1) per inserted entry, and ("", length) per run of other messages."""
        for unit in self.history:
            if unit.lore_name_pairs:
                yield from ((name, 1) for _, name in unit.lore_name_pairs)
            else:
                yield "", len(unit.messages)


def group_history(
    messages: Iterable[Message],
    *,
    are_questions: Sequence[bool] = (),
    cache: dict[Hashable, Any] | None = None,
    key: Hashable = None,
) -> tuple[HistoryUnit, ...]:
    """Group a history (oldest first) into units: a question with its answers.

    `are_questions` marks the questions, because other characters' answers are user messages, too;
    by default, all messages except the assistant's are questions. With the session's `cache`, units
    are reused from the last prompt of the character `key`.
    """
    history = tuple(messages)
    are_questions = are_questions or [one.role != "assistant" for one in history]
    unit_starts = [index for index, flag in enumerate(are_questions) if flag or index == 0]
    groups = [history[index:end] for index, end in pairwise([*unit_starts, len(history)])]
    cache = {} if cache is None else cache
    return map_new_items(cache, ("units", key), None, groups, HistoryUnit)


def get_story_title(story: Story) -> str:
    """Return a story's first line, which is its title in receipts."""
    return story.text.partition("\n")[0]


def _list_spans(
    parts: Iterable[PromptPart], message_index: int, stories: Sequence[Story] = ()
) -> Iterator[PromptSpan]:
    for part in parts:
        position = 0
        for story in stories if stories and part.section in {"system", "persona"} else ():
            story_start = part.text.find(story.text, position)
            if story_start < 0:  # a prompter changed the text
                continue
            if story_start > position:
                yield PromptSpan(part.section, message_index, 1, story_start - position)
            title = get_story_title(story)
            yield PromptSpan("stories", message_index, 1, len(story.text), title, story.score)
            position = story_start + len(story.text)
        char_count = len(part.text) + len(_SEPARATOR) - position
        yield PromptSpan(
            part.section, message_index, 1, char_count, part.name, part.score, part.memory_id
        )


def _build_system_messages(parts: Sequence[PromptPart]) -> list[Message]:
    text = _SEPARATOR.join(part.text for part in parts)
    return [Message("system", text)] if text else []


def _build_newest_message(draft: Draft) -> Message:
    if not draft.context and not draft.images:
        return draft.newest_message
    texts = [part.text for part in draft.context]
    content = _SEPARATOR.join([*texts, draft.newest_message.content])
    if not draft.images:
        return replace(draft.newest_message, content=content)
    return replace(draft.newest_message, content=content, parts=(content, *draft.images))


_SECTION_NAMES = {
    "system": translatable("system"),
    "persona": translatable("persona"),
    "lore": translatable("lore"),
    "stories": translatable("stories"),
    "pinned": translatable("pinned messages"),
    "summary": translatable("summary"),
    "history": translatable("history"),
    "people": translatable("people"),
    "thread": translatable("thread"),
    "observed": translatable("background"),
    "quote": translatable("quote"),
    "file": translatable("file"),
    "memory": translatable("memory"),
    "plugin": translatable("plug-in"),
    "post_history": translatable("closing instructions"),
    "newest": translatable("newest message"),
}


def find_section_name(section: str) -> Text:
    return _SECTION_NAMES.get(section) or to_translatable(section)

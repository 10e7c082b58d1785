"""Build the part of a prompt that lists memories, one per line, before the newest message."""

from datetime import UTC, datetime

from bot.chat.memory import RankedMemories, RankedMemory, SubjectKind
from bot.chat.receipt import DroppedItem
from bot.prompting.compose.inputs import PromptInputs
from bot.prompting.draft import PromptPart
from bot.prompting.speakers import clean_name
from bot.prompting.text.confusables import strip_hidden_text
from bot.texts.text import marked

_MAX_MEMORIES = 20
_DEFAULT_TOKEN_BUDGET = 1600
_BYTES_PER_TOKEN = 3  # as in Chinese; English has more bytes per token
_MAX_MEMORY_CHARS = 500
_PRIVATE_REASON = marked("told in private")
_OVER_BUDGET_REASON = marked("over the budget")
_BRACKET_REPLACEMENTS = str.maketrans("[]", "()")


def build_memories(
    inputs: PromptInputs, ranked_memories: RankedMemories
) -> tuple[list[PromptPart], list[DroppedItem]]:
    """Return parts for the best memories within the budget, and items that count the others."""
    limit = inputs.max_input_tokens
    tokens_left = limit * ranked_memories.budget_share if limit else _DEFAULT_TOKEN_BUDGET
    parts: list[PromptPart] = []
    for ranked_memory in ranked_memories.memories[:_MAX_MEMORIES]:
        text = _format_memory(inputs, ranked_memory)
        tokens_left -= len(text.encode(errors="replace")) / _BYTES_PER_TOKEN + 1
        if tokens_left < 0:
            break
        source, memory_id = _describe_source(inputs, ranked_memory), ranked_memory.memory.id
        parts.append(
            PromptPart("memory", text, source, ranked_memory.score, priority=1, memory_id=memory_id)
        )
    dropped_items = []
    if over_budget_count := len(ranked_memories.memories) - len(parts):
        dropped_items.append(DroppedItem("memory", "", _OVER_BUDGET_REASON, over_budget_count))
    if private_count := ranked_memories.omitted_private_count:
        dropped_items.append(DroppedItem("memory", "", _PRIVATE_REASON, private_count))
    return parts, dropped_items


def _format_memory(inputs: PromptInputs, ranked_memory: RankedMemory) -> str:
    memory = ranked_memory.memory
    text = " ".join(strip_hidden_text(memory.text).split())[:_MAX_MEMORY_CHARS]
    has_subject_name = memory.subject.kind in {SubjectKind.PERSON, SubjectKind.CHARACTER}
    subject_phrase = f" of {_find_subject_name(inputs, ranked_memory)}" if has_subject_name else ""
    teller = memory.told_by
    source = f" ({_find_speaker_label(inputs, teller.id, teller.name)} told you)" if teller else ""
    return f"[You remember{subject_phrase}] {text.translate(_BRACKET_REPLACEMENTS)}{source}"


def _describe_source(inputs: PromptInputs, ranked_memory: RankedMemory) -> str:
    """Describe a memory for receipts: its subject, author, and day, and why it was recalled."""
    memory = ranked_memory.memory
    told_date = datetime.fromtimestamp(memory.since, UTC).date().isoformat()
    author = _find_speaker_label(inputs, memory.said_by, "")
    author_text = f", {author}" if author else ""
    subject_name = _find_subject_name(inputs, ranked_memory)
    return f"#{memory.id} {subject_name}{author_text}, {told_date}: {ranked_memory.reason}"


def _find_subject_name(inputs: PromptInputs, ranked_memory: RankedMemory) -> str:
    subject = ranked_memory.memory.subject
    if subject.key == inputs.preset.name:
        return "yourself"
    return _find_speaker_label(inputs, subject.key, subject.name or subject.kind)


def _find_speaker_label(inputs: PromptInputs, speaker_key: str, name: str) -> str:
    labels = inputs.speakers
    return labels.people.get(speaker_key) or labels.characters.get(speaker_key) or clean_name(name)

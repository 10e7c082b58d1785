"""Build the background of the newest message: observed lines, the quoted message, and files.

The background contains no instructions. Observed lines are messages between people since the last
answer. They form one block with its own token budget, which does not count toward `max_rounds`.
"""

from collections.abc import Callable, Sequence

from bot.chat.receipt import DroppedItem
from bot.chat.session import AttachedFiles, Turn, describe_attachments
from bot.prompting.compose.inputs import PromptInputs
from bot.prompting.draft import PromptPart
from bot.prompting.text.confusables import strip_hidden_text
from bot.texts.text import marked

_OBSERVED_HEADING = "[Background: said here since your last message; do not answer it]"
_THREAD_TITLE_HEADING = "[The title of this thread]"
_MAX_OBSERVED_LINES = 50
_MAX_LINE_CHARS = 500
_MAX_QUOTE_CHARS = 300
_PROMPT_TO_BACKGROUND_RATIO = 7  # the block may use about 15 % of the prompt
_DEFAULT_TOKEN_BUDGET = 2000
_BYTES_PER_TOKEN = 3  # as in Chinese; English has more bytes per token
_TOO_OLD_REASON = marked("too old: newer messages took the space")


def build_background(
    observed_turns: Sequence[Turn], inputs: PromptInputs, files: AttachedFiles, *, uses_tags: bool
) -> tuple[list[PromptPart], list[DroppedItem]]:
    """Return the background's parts (observed lines, quote, files), and the omitted items."""
    message = inputs.incoming
    if not (
        observed_turns or message.thread_title or message.quote or files.texts or files.unread_files
    ):
        return [], []  # the usual case
    labels, preset_name = inputs.speakers, inputs.preset.name

    def tag(turn: Turn, text: str) -> str:
        return labels.tag_text(labels.find_label(turn, preset_name), text) if uses_tags else text

    lines = _select_fitting_lines(observed_turns, tag, inputs.max_input_tokens)
    parts = []
    thread_title = message.thread_title
    if thread_title and (title := " ".join(strip_hidden_text(thread_title.text).split())):
        title_block = f"{_THREAD_TITLE_HEADING}\n> {title[:_MAX_QUOTE_CHARS]}"
        parts.append(PromptPart("thread", title_block, priority=1))
    if lines:
        parts.append(PromptPart("observed", "\n".join([_OBSERVED_HEADING, *lines])))
    if quote := _quote_replied_to_message(inputs):
        parts.append(PromptPart("quote", quote, priority=1))
    parts += _build_attachment_parts(files, inputs.max_input_tokens)
    omitted_count = len(observed_turns) - len(lines)
    omitted_items = [DroppedItem("observed", "", _TOO_OLD_REASON, omitted_count)]
    return parts, omitted_items if omitted_count else []


def split_observed_turns(
    turns: Sequence[Turn], count_from_new_message: int = 0
) -> tuple[list[Turn], list[Turn]]:
    """Split turns into history and the lines observed since the last answer (oldest first).

    The last `count_from_new_message` turns are the new message and other characters' answers to it.
    """
    new_turns_start = last_answer_end = len(turns) - count_from_new_message
    while last_answer_end and turns[last_answer_end - 1].role == "user":
        last_answer_end -= 1
    turns_since_answer = turns[last_answer_end:new_turns_start]
    questions = [turn for turn in turns_since_answer if not turn.is_observed]
    history = [*turns[:last_answer_end], *questions, *turns[new_turns_start:]]
    return history, [turn for turn in turns_since_answer if turn.is_observed]


def _select_fitting_lines(
    turns: Sequence[Turn], tag: Callable[[Turn, str], str], max_tokens: int | None
) -> list[str]:
    """Return the newest turns that fit, oldest first, each as quoted lines."""
    tokens_left = max_tokens // _PROMPT_TO_BACKGROUND_RATIO if max_tokens else _DEFAULT_TOKEN_BUDGET
    tokens_left -= _estimate_tokens(_OBSERVED_HEADING)
    fitting_lines: list[str] = []
    for turn in reversed(turns[-_MAX_OBSERVED_LINES:]):
        text = turn.text
        shortened_text = text if len(text) <= _MAX_LINE_CHARS else text[:_MAX_LINE_CHARS] + "…"
        lines = tag(turn, shortened_text).splitlines() or [""]
        quote = "\n".join(f"> {line}" for line in lines)
        tokens_left -= _estimate_tokens(quote)
        if tokens_left < 0:
            break
        fitting_lines.append(quote)
    return fitting_lines[::-1]


def _build_attachment_parts(files: AttachedFiles, max_input_tokens: int | None) -> list[PromptPart]:
    max_tokens = max_input_tokens // 2 if max_input_tokens else _DEFAULT_TOKEN_BUDGET * 20
    max_bytes = max_tokens * _BYTES_PER_TOKEN // max(1, len(files.texts))
    parts = []
    for file in files.texts:
        data = strip_hidden_text(file.text).encode(errors="replace")
        text = data[:max_bytes].decode(errors="ignore")
        note = "\n[the rest is omitted]" if file.is_file_truncated or len(data) > max_bytes else ""
        quote = "\n".join(f"> {line}" for line in text.splitlines())
        label = f"file {file.name}".strip()
        parts.append(PromptPart("file", f"[{label}]\n{quote}{note}", name=file.name, priority=2))
    if files.unread_files:
        descriptions = " ".join(describe_attachments([file.item for file in files.unread_files]))
        parts.append(PromptPart("file", f"You cannot see or read: {descriptions}", priority=2))
    return parts


def _estimate_tokens(line: str) -> int:
    """Estimate a line's tokens, erring on the high side; the tokenizer may not be loaded yet."""
    return len(line.encode(errors="replace")) // _BYTES_PER_TOKEN + 1


def _quote_replied_to_message(inputs: PromptInputs) -> str:
    """Return the message being replied to as a quote, or "" if it is the previous turn."""
    quoted_message, session = inputs.incoming.quote, inputs.session
    if quoted_message is None or not quoted_message.text:
        return ""
    quote = quoted_message.text
    # If several characters answer, a message starts with a line that names the speaker.
    quote_texts = {quote.strip(), quote.strip().partition("\n")[2].strip()}
    last_turn = session.turns[-1] if session.turns else None
    if last_turn and not last_turn.is_observed and last_turn.text.strip() in quote_texts:
        return ""
    shortened_quote = quote if len(quote) <= _MAX_QUOTE_CHARS else quote[:_MAX_QUOTE_CHARS] + "…"
    lines = strip_hidden_text(shortened_quote).splitlines()
    if quoted_message.author is not None and not quoted_message.is_ours:
        lines.insert(0, f"{inputs.speakers.people[quoted_message.author.id]} wrote:")
    return "\n".join(f"> {line}" for line in lines)

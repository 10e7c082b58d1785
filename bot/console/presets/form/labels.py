"""What the form of a preset calls its fields, and how it groups them."""

from collections.abc import Mapping, Sequence

from bot.texts.text import Text, marked, translatable

LONG_TEXTS = frozenset({
    "system", "persona", "personality", "scenario", "greeting", "post_history_instructions",
    "story_string", "template", "system_template", "user_template", "assistant_template",
})  # fmt: skip
"""The keys whose texts have several lines."""

NOT_IN_FORM = frozenset({
    "name", "version",  # what the preset is, not how it answers
    "parameters.n", "parameters.best_of",  # one answer is asked for
})  # fmt: skip

GROUPS: Sequence[tuple[Text, Sequence[str]]] = (
    (translatable("Who answers"), ("provider", "model")),
    (
        translatable("Character"),
        ("role_name", "description", "persona", "personality", "scenario", "system", "greeting",
         "alternate_greetings", "group_greetings", "post_history_instructions", "avatar", "aliases",
         "user_name_in_message", "macros"),
    ),
    (
        translatable("Answers"),
        ("max_input_tokens", "max_output_tokens", "parameters.temperature", "parameters.top_p",
         "stop_sequences", "filter_chars", "long_answer", "stream", "buttons"),
    ),
    (
        translatable("When it answers"),
        ("talkativeness", "cooldown_seconds", "context", "scope", "wake.mention", "wake.reply",
         "wake.names", "wake.sticky", "wake.always", "wake.chance", "wake.words", "busy.mode"),
    ),
)  # fmt: skip
"""What is in no group comes last."""

CHOICES: Sequence[str] = (
    marked("default"), marked("add"), marked("not add"),
    marked("channel"), marked("user"), marked("thread"), marked("reply chain"),
    marked("addressed"), marked("all"),
    marked("collect"), marked("interrupt"), marked("queue"),
    marked("parts"), marked("file"), marked("hidden"), marked("folded"),
    marked("system"), marked("assistant"),
    marked("before char"), marked("after char"), marked("note top"), marked("note bottom"),
    marked("at depth"), marked("examples top"), marked("examples bottom"), marked("outlet"),
    marked("and any"), marked("not all"), marked("not any"), marked("and all"),
)  # fmt: skip
"""What values to choose from are called, with spaces for their underscores."""

LABELS: Mapping[str, Text] = {
    "provider": translatable("Provider"),
    "model": translatable("Model"),
    "role_name": translatable("Name of the character"),
    "description": translatable("Description"),
    "persona": translatable("Persona"),
    "personality": translatable("Personality"),
    "scenario": translatable("Scenario"),
    "system": translatable("System text"),
    "greeting": translatable("Greeting"),
    "alternate_greetings": translatable("Further greetings"),
    "group_greetings": translatable("Greetings among several characters"),
    "post_history_instructions": translatable("Instructions behind the newest message"),
    "avatar": translatable("Address of the picture"),
    "aliases": translatable("Further names"),
    "user_name_in_message": translatable("Name the speakers"),
    "macros": translatable("Fill in macros of cards"),
    "max_input_tokens": translatable("Tokens of the prompt, at most"),
    "max_output_tokens": translatable("Tokens of the answer, at most"),
    "parameters.temperature": translatable("Temperature"),
    "parameters.top_p": translatable("Top-p"),
    "stop_sequences": translatable("Stop at"),
    "filter_chars": translatable("Remove from answers"),
    "long_answer": translatable("Long answers"),
    "stream": translatable("Show answers while they are written"),
    "buttons": translatable("Buttons under answers"),
    "talkativeness": translatable("Talkativeness"),
    "cooldown_seconds": translatable("Rests for (seconds)"),
    "context": translatable("Reads"),
    "scope": translatable("One history for each"),
    "wake.mention": translatable("Answers when mentioned"),
    "wake.reply": translatable("Answers replies"),
    "wake.names": translatable("Answers to its names"),
    "wake.sticky": translatable("Goes on in threads"),
    "wake.always": translatable("Answers everything"),
    "wake.chance": translatable("Chance of answering the rest"),
    "wake.words": translatable("Words that wake it"),
    "busy.mode": translatable("Messages during an answer"),
}
"""By the name of the field; what has none is called by its key."""

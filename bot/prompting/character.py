"""A role-playing character for other programs, with ChatHaruhi's interface.

Use it with `from bot.prompting.character import Character`.
"""

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any, Self

from bot.chat.incoming import Person
from bot.chat.story import Story, Vector
from bot.errors import CharacterError
from bot.ports import TextTokenCounter
from bot.prompting.embedding import DEFAULT_EMBEDDER, FunctionEmbedder, StoryIndex
from bot.prompting.haruhi import (
    CharacterData,
    decode_floats,
    find_builtin_role_name,
    load_builtin_role,
    load_hub_role,
    read_jsonl,
    read_rows,
    strip_dialogue_brackets,
    write_jsonl,
)
from bot.prompting.persona import build_roleplay_prompt, parse_persona
from bot.prompting.speakers import EchoFilter, SpeakerLabels, clean_name, label_speakers
from bot.prompting.text.tokens import count_tokens
from bot.value_class import value_class

Messages = list[dict[str, str]]

_TAG_MODES = ("default", "add", "not_add")


@value_class
class TranscriptLine:
    speaker: str | None
    """The speaker's name, or None for the character itself."""
    text: str


ChatModel = Callable[[Messages], str]
AsyncChatModel = Callable[[Messages], Awaitable[str]]


class Character:
    """Plays a role and keeps the conversation's history.

    Args:
        role_name: the character's name or, if there is no persona, a built-in role ("haruhi").
        persona: the system prompt; it may contain `{{role}}`, `{{user}}`, and placeholders for
        stories (persona.py).
        user_name: the value of `{{user}}` until someone else talks to the character.
        texts: the character's stories.
        vecs: the stories' vectors from `embedding`, as numbers or in ChatHaruhi's base64 form.
        llm: the model for `chat`; without a model, `chat` returns None.
        llm_async: the model for `async_chat`.
        embedding: a function from text to vector, or a `FunctionEmbedder` with different functions
        for queries and stories.
        token_counter: "cl100k", a function that counts a text's tokens, or None for no limit.
        max_input_token: the limit for system prompt, history, and question together; the oldest
        history is dropped first.
        user_name_in_message: "add" tags every line with its speaker's name, "not_add" tags no
            line, and "default" tags every line once a second person talks.
        transfer_haruhi_2_zero: whether to remove ChatHaruhi 2's brackets 「」 from stories.

    Raises `CharacterError`, a ValueError, if an argument is missing or malformed.
    """

    def __init__(
        self,
        role_name: str,
        persona: str | None = None,
        *,
        user_name: str | None = None,
        texts: Sequence[str] | None = None,
        vecs: Sequence[Vector | str] | None = None,
        llm: ChatModel | None = None,
        llm_async: AsyncChatModel | None = None,
        embedding: FunctionEmbedder | Callable[[str], Vector] = DEFAULT_EMBEDDER,
        token_counter: Callable[[str], int] | str | None = "cl100k",  # noqa: S107
        max_input_token: int | None = 1600,
        user_name_in_message: str = "default",
        transfer_haruhi_2_zero: bool = True,
    ) -> None:
        if not role_name:
            raise CharacterError(
                "a character needs a `role_name`, which is part of the system prompt"
            )
        if not persona:
            data = load_builtin_role(role_name)
            role_name = find_builtin_role_name(role_name) or role_name
            persona = data.persona
            texts, vecs = (data.texts, None) if texts is None else (texts, vecs)
        self.role_name = role_name
        self.persona = persona
        self.user_name = user_name
        self.llm = llm
        self.llm_async = llm_async
        self._embedder = _to_embedder(embedding)
        vectors = [decode_floats(one) if isinstance(one, str) else one for one in vecs or ()]
        self._stories = StoryIndex(texts or (), None if vecs is None else vectors, self._embedder)
        self._clean_story = strip_dialogue_brackets if transfer_haruhi_2_zero else str
        self._parsed_persona = parse_persona(persona)
        self._count_tokens = _to_text_counter(token_counter)
        self._max_tokens = None if token_counter is None else max_input_token
        if str(user_name_in_message).lower() not in _TAG_MODES:
            raise CharacterError(
                f"user_name_in_message={user_name_in_message!r}: use one of {', '.join(_TAG_MODES)}"
            )
        self._name_tag_mode = user_name_in_message.lower()
        self._lines: list[TranscriptLine] = []
        self._participants = {user_name: None} if user_name else {}  # in their order
        self._pending_question: TranscriptLine | None = None
        self._chat_lock = asyncio.Lock()
        for problem in self._parsed_persona.problems:
            warnings.warn(problem, stacklevel=2)

    @classmethod
    def from_jsonl(
        cls, path: str | Path, role_name: str, *, column: str | None = None, **options: Any
    ) -> Self:
        """Load a file written by `save_to_jsonl` or ChatHaruhi; raise `CharacterError` if invalid.

        The vectors in `column` (by default the first) are used if the column has the embedding's
        name, or if an embedding or a column is passed. Otherwise, vectors are computed.
        """
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:  # not UTF-8, or not a path
            raise CharacterError(f"{path} cannot be read: {error}") from error
        try:
            data = read_rows(read_jsonl(text), column)
        except CharacterError as error:
            raise error.prefixed_with(path) from error
        return cls._create_from_data(data, role_name, column, options)

    @classmethod
    def from_hub(
        cls, dataset: str, role_name: str, *, column: str | None = None, **options: Any
    ) -> Self:
        """Load `owner/dataset[/role]` from the data set hub; otherwise like `from_jsonl`."""
        return cls._create_from_data(load_hub_role(dataset, column), role_name, column, options)

    @property
    def texts(self) -> tuple[str, ...]:
        return self._stories.texts

    @property
    def vecs(self) -> Sequence[Vector]:
        """The vector of each story, as passed to the constructor or computed on first use."""
        return self._stories.vectors

    @property
    def history(self) -> Sequence[TranscriptLine]:
        """The lines so far, oldest first, without an unanswered question."""
        return tuple(self._lines)

    def get_message(self, user: str, text: str) -> Messages:
        """Return the system prompt, as much history as fits, and the question.

        The question becomes part of the history when `append_message` is called.
        """
        self._participants.setdefault(user)
        self.user_name = user or self.user_name
        self._pending_question = TranscriptLine(user, text)
        question = self._to_messages([self._pending_question])[0]
        system_prompt = build_roleplay_prompt(
            self._parsed_persona,
            self._search_stories(text) if self.texts else None,
            role_name=self.role_name,
            user_name=clean_name(self.user_name or ""),
            message=text,
            max_input_tokens=self._max_tokens,
            counter=self._count_tokens,
        ).text
        history = self._to_messages(self._lines)
        if self._max_tokens is not None:
            required_texts = [system_prompt, question["content"]]
            tokens_left = self._max_tokens - sum(self._count_tokens(required_texts))
            counts = self._count_tokens([line["content"] for line in reversed(history)])
            fitting_totals = takewhile(lambda total: total <= tokens_left, accumulate(counts))
            history = history[len(history) - len(list(fitting_totals)) :]
        return [{"role": "system", "content": system_prompt}, *history, question]

    def append_message(self, response: str, speaker: str | None = None) -> None:
        """Add the answer to the last question or, if `speaker` is given, another person's line."""
        if self._pending_question:
            self._lines.append(self._pending_question)
            self._pending_question = None
        if speaker is None:  # models tend to start with their own tag
            role_label = self.role_name if self._should_tag_speakers() else None
            echo_filter = EchoFilter(role_label, self._label_speakers().people.values())
            response = echo_filter.feed(response) + echo_filter.finish()
        self._lines.append(TranscriptLine(speaker, response))

    def chat(self, user: str, text: str) -> str | None:
        """Return the answer, or None without a model; a failure leaves the history unchanged."""
        messages = self.get_message(user, text)
        if self.llm is None:
            return None
        self.append_message(self.llm(messages))
        return self._lines[-1].text

    async def async_chat(self, user: str, text: str) -> str | None:
        """Return the answer, or None without a model; concurrent calls are answered in order."""
        async with self._chat_lock:
            # The first search may take seconds, because it embeds all stories.
            messages = await asyncio.to_thread(self.get_message, user, text)
            if self.llm_async is None:
                return None
            self.append_message(await self.llm_async(messages))
            return self._lines[-1].text

    def save_to_jsonl(self, path: str | Path) -> None:
        """Write the persona, stories, and vectors in ChatHaruhi's JSONL format."""
        text = write_jsonl(self.persona, self.texts, self.vecs, self._embedder.name)
        Path(path).write_text(text, encoding="utf-8")

    @classmethod
    def _create_from_data(
        cls, data: CharacterData, role_name: str, column: str | None, options: dict[str, Any]
    ) -> Self:
        embedding = options.get("embedding", DEFAULT_EMBEDDER)
        is_custom_embedder = not isinstance(embedding, FunctionEmbedder)
        embedder = _to_embedder(embedding)
        uses_data_vectors = is_custom_embedder or column is not None or embedder.name == data.column
        if uses_data_vectors and data.column:
            embedder = replace(embedder, name=data.column)
        options = {**options, "embedding": embedder}
        vectors = data.vectors if uses_data_vectors else None
        return cls(role_name, data.persona, texts=data.texts, vecs=vectors, **options)

    def _to_messages(self, lines: Sequence[TranscriptLine]) -> Messages:
        labels, has_speaker_tags = self._label_speakers(), self._should_tag_speakers()
        messages = []
        for line in lines:
            label = labels.people.get(line.speaker or "", self.role_name)
            role = "assistant" if line.speaker is None else "user"
            text = labels.tag_text(label, line.text) if has_speaker_tags else line.text
            messages.append({"role": role, "content": text})
        return messages

    def _label_speakers(self) -> SpeakerLabels:
        """Label all speakers by name, because this library has no user ids."""
        speakers = (line.speaker for line in self._lines if line.speaker is not None)
        people = [Person(name, name) for name in (*self._participants, *speakers)]
        return label_speakers(people, {self.role_name: self.role_name})

    def _should_tag_speakers(self) -> bool:
        has_several_participants = self._name_tag_mode == "default" and len(self._participants) > 1
        return self._name_tag_mode == "add" or has_several_participants

    def _search_stories(self, message: str) -> dict[str, list[Story]]:
        stories = {}
        for query, limit in self._parsed_persona.list_story_queries(message).items():
            hits = self._stories.search(query, limit)
            stories[query] = [replace(story, text=self._clean_story(story.text)) for story in hits]
        return stories


def _to_embedder(embedding: FunctionEmbedder | Callable[[str], Vector]) -> FunctionEmbedder:
    if isinstance(embedding, FunctionEmbedder):
        return embedding
    return FunctionEmbedder(embedding, embedding)


def _to_text_counter(token_counter: Callable[[str], int] | str | None) -> TextTokenCounter:
    match token_counter:
        case None:
            return lambda texts: [0 for _ in texts]
        case "cl100k" | "default":
            return count_tokens
        case str():
            raise CharacterError(
                f"token_counter={token_counter!r}: pass 'cl100k', a function of a text, or None"
            )
        case count:
            return lambda texts: [count(text) for text in texts]

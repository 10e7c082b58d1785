"""A character to talk to, as ChatHaruhi 3.0 describes it; needs no platform, server or database.

    from bot.prompting.character.character import Character

    nora = Character("Nora", persona="You keep the lighthouse on Gull Rock.", llm=ask_my_model)
    print(nora.chat(user="Ana", text="Are you ever lonely out here?"))

`llm` gets OpenAI's messages and gives a text. Without one, send `get_message(user, text)` yourself
and hand the answer to `append_message`. A preset with the same persona says the same to its model.
"""

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from typing_extensions import TypedDict, Unpack

from bot.chat.story import Story
from bot.errors import CharacterError
from bot.prompting.character.embedding import NANO_E5, FunctionEmbedder, Vector
from bot.prompting.character.story_index import StoryIndex
from bot.prompting.character.transcript import Line, Messages, Transcript
from bot.prompting.personas.builtin_roles import builtin_role_name, load_builtin_role, load_hub_role
from bot.prompting.personas.haruhi_rows import (
    CharacterData,
    decode_floats,
    read_jsonl,
    read_rows,
    write_jsonl,
)
from bot.prompting.personas.haruhi_text import strip_dialogue_brackets
from bot.prompting.personas.persona import build_roleplay_prompt, parse_persona
from bot.prompting.speakers.clean_name import clean_name
from bot.prompting.text.token_counter import TextTokenCounter, count_tokens

Model = Callable[[Messages], str]
AsyncModel = Callable[[Messages], Awaitable[str]]


class Options(TypedDict, total=False):
    """What every way to make a character takes; `Character` explains them."""

    user_name: str | None
    llm: Model | None
    llm_async: AsyncModel | None
    embedding: FunctionEmbedder | Callable[[str], Vector]
    token_counter: Callable[[str], int] | str | None
    max_input_token: int | None
    user_name_in_message: str
    transfer_haruhi_2_zero: bool


class Character:
    """Plays a role, with what was said so far as its history.

    Args:
        role_name: who is played; alone, a role that is known by name ("haruhi").
        persona: may hold places for stories (persona.py), `{{role}}` and `{{user}}`.
        user_name: who talks to it; the last one who did is the one that `{{user}}` names.
        texts: its stories.
        vecs: a vector for each of them, by `embedding`, as numbers or in ChatHaruhi's base64;
            without, they are made when needed.
        llm: answers `chat`; without one it returns None.
        llm_async: answers `async_chat`.
        embedding: text to vector, to find stories by what they mean; a `FunctionEmbedder` where
            queries and stories are embedded differently.
        token_counter: "cl100k", a function, or None: nothing is limited.
        max_input_token: what system prompt, history and question may take; the history gives way.
        user_name_in_message: "add": every line tells its speaker; "not_add": none does;
            "default": all do from when a second person talks.
        transfer_haruhi_2_zero: stories lose the brackets of ChatHaruhi 2, 「」.

    Raises:
        CharacterError: a ValueError that says what is missing.
    """

    def __init__(
        self,
        role_name: str,
        persona: str | None = None,
        *,
        user_name: str | None = None,
        texts: Sequence[str] | None = None,
        vecs: Sequence[Vector | str] | None = None,
        llm: Model | None = None,
        llm_async: AsyncModel | None = None,
        embedding: FunctionEmbedder | Callable[[str], Vector] = NANO_E5,
        token_counter: Callable[[str], int] | str | None = "cl100k",  # noqa: S107
        max_input_token: int | None = 1600,
        user_name_in_message: str = "default",
        transfer_haruhi_2_zero: bool = True,
    ) -> None:
        if not role_name:
            raise CharacterError("a character needs a `role_name`: the system prompt is made of it")
        if not persona:
            data = load_builtin_role(role_name)
            role_name = builtin_role_name(role_name) or role_name
            persona = data.persona
            texts, vecs = (data.texts, None) if texts is None else (texts, vecs)
        self.role_name = role_name
        self.persona = persona
        self.user_name = user_name
        self.llm = llm
        self.llm_async = llm_async
        self._embedder = _to_embedder(embedding)
        vectors = None if vecs is None else [_numbers(vector) for vector in vecs]
        self._stories = StoryIndex(texts or (), vectors, self._embedder)
        self._shown = strip_dialogue_brackets if transfer_haruhi_2_zero else str
        self._read = parse_persona(persona)
        self._count = _counter(token_counter)
        self._max_tokens = None if token_counter is None else max_input_token
        self._said = Transcript(role_name, user_name_in_message)
        if user_name:
            self._said.meet(user_name)
        self._asked: Line | None = None
        self._answering = asyncio.Lock()
        for problem in self._read.problems:
            warnings.warn(problem, stacklevel=2)

    @classmethod
    def from_jsonl(
        cls,
        path: str | Path,
        role_name: str,
        *,
        column: str | None = None,
        **options: Unpack[Options],
    ) -> Self:
        """Load what `save_to_jsonl` or ChatHaruhi wrote.

        Its vectors (those in `column`, or in the first one that there is) are taken if they are
        named like `embedding`, or if you bring an embedding or name a column: then they are its.
        """
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:  # no text, or no path at all
            raise CharacterError(f"{path} cannot be read: {error}") from error
        return cls._of(read_rows(read_jsonl(text), str(path), column), role_name, column, options)

    @classmethod
    def from_hub(
        cls, dataset: str, role_name: str, *, column: str | None = None, **options: Unpack[Options]
    ) -> Self:
        """Load `owner/dataset` or `owner/dataset/role` with the library `datasets`, if it is here.

        The vectors are taken as in `from_jsonl`.
        """
        return cls._of(load_hub_role(dataset, column), role_name, column, options)

    @property
    def texts(self) -> tuple[str, ...]:
        return self._stories.texts

    @property
    def vecs(self) -> Sequence[Vector]:
        """A vector for each text; to ask for them may make them."""
        return self._stories.vectors

    @property
    def history(self) -> Sequence[Line]:
        """What was said, oldest first, without the question that is still open."""
        return tuple(self._said.lines)

    def get_message(self, user: str, text: str) -> Messages:
        """What a model is asked: the system prompt, what fits of the history, and this question.

        The question becomes part of the history with the answer, by `append_message`.
        """
        self._said.meet(user)
        self.user_name = user or self.user_name
        self._asked = Line(user, text)
        question = self._said.written([self._asked])[0]
        system = build_roleplay_prompt(
            self._read,
            self._found(text) if self.texts else None,
            role_name=self.role_name,
            user_name=clean_name(self.user_name or ""),
            newest=text,
            max_input_tokens=self._max_tokens,
            count=self._count,
        ).text
        left = None
        if self._max_tokens is not None:
            left = self._max_tokens - sum(self._count([system, question["content"]]))
        history = self._said.newest(left, self._count)
        return [{"role": "system", "content": system}, *history, question]

    def append_message(self, response: str, speaker: str | None = None) -> None:
        """Note the answer to the last `get_message`, or what another `speaker` put in."""
        if self._asked:
            self._said.lines.append(self._asked)
            self._asked = None
        text = self._said.without_echo(response) if speaker is None else response
        self._said.lines.append(Line(speaker, text))

    def chat(self, user: str, text: str) -> str | None:
        """Ask the `llm`; a failed one leaves the history as it was."""
        messages = self.get_message(user, text)
        if self.llm is None:
            return None
        self.append_message(self.llm(messages))
        return self._said.lines[-1].text

    async def async_chat(self, user: str, text: str) -> str | None:
        """Ask the `llm_async`; several calls at once are answered one after the other."""
        async with self._answering:
            # The first search may take seconds: every story gets its vector then.
            messages = await asyncio.to_thread(self.get_message, user, text)
            if self.llm_async is None:
                return None
            self.append_message(await self.llm_async(messages))
            return self._said.lines[-1].text

    def save_to_jsonl(self, path: str | Path) -> None:
        """Write persona, stories and their vectors, in the form that the data set hub takes."""
        text = write_jsonl(self.persona, self.texts, self.vecs, self._embedder.name)
        Path(path).write_text(text, encoding="utf-8")

    @classmethod
    def _of(cls, data: CharacterData, role_name: str, column: str | None, options: Options) -> Self:
        embedding = options.get("embedding", NANO_E5)
        brought = not isinstance(embedding, FunctionEmbedder)
        embedder = _to_embedder(embedding)
        theirs = brought or column is not None or embedder.name == data.column
        if theirs and data.column:
            embedder = replace(embedder, name=data.column)
        options = {**options, "embedding": embedder}
        return cls(
            role_name,
            data.persona,
            texts=data.texts,
            vecs=data.vectors if theirs else None,
            **options,
        )

    def _found(self, newest: str) -> dict[str, list[Story]]:
        return {
            query: [
                replace(story, text=self._shown(story.text))
                for story in self._stories.search(query, limit)
            ]
            for query, limit in self._read.story_queries(newest).items()
        }


def _to_embedder(embedding: FunctionEmbedder | Callable[[str], Vector]) -> FunctionEmbedder:
    if isinstance(embedding, FunctionEmbedder):
        return embedding
    return FunctionEmbedder(embedding, embedding)


def _numbers(vector: Vector | str) -> Vector:
    return decode_floats(vector) if isinstance(vector, str) else vector


def _counter(token_counter: Callable[[str], int] | str | None) -> TextTokenCounter:
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

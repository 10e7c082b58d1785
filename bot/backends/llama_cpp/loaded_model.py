"""Generate with a loaded local model, from the rendered prompt to the answer's events."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from bot.backends.chat_completions.reasoning import (
    ReasoningFormat,
    detect_format,
    separate_reasoning,
    with_unclosed_tag,
)
from bot.backends.chat_completions.stop_strings import collect_stop_strings
from bot.backends.llama_cpp.engine import (
    Engine,
    EngineConfig,
    EngineFailed,
    GenerationRequest,
    run_engine,
    select_engine,
)
from bot.backends.llama_cpp.fair_queue import FairQueue
from bot.backends.llama_cpp.images import check_placeholders
from bot.backends.llama_cpp.sampling import to_sampling_parameters
from bot.backends.llama_cpp.slots import SlotOwner, SlotPool, SlotStore, state_fingerprint
from bot.backends.llama_cpp.tool_calls import PRESERVED_CALL_MARKERS, Parameters, separate_calls
from bot.backends.model_files.gguf import SpecialTokens, read_special_tokens
from bot.backends.model_files.store import DEFAULT_MODEL_FILE
from bot.chat.prompt import GenerationEvent, Prompt, PromptToken
from bot.errors import BackendUnavailable
from bot.runtime.clock import SystemClock
from bot.templates.control_tokens import TextSpan, break_control_tokens
from bot.templates.renderer import RenderedPrompt
from bot.value_class import value_class

_SEPARATOR = "\n"  # no tokenizer merges it with following text


class Tokenizer:
    """Tokenizes prompts so that people's texts yield no control tokens.

    Every method may raise `EngineFailed`.
    """

    def __init__(self, engine: Engine, special_tokens: SpecialTokens) -> None:
        self._engine = engine
        self._tokens = special_tokens
        self._prefix_and_separator_ids: tuple[list[int], list[int]] | None = None

    async def to_token_ids(self, spans: Sequence[TextSpan]) -> list[int]:
        return [token for token, _ in await self._tokenize_prompt(spans)]

    async def to_safe_text(self, spans: Sequence[TextSpan]) -> str:
        """Return the prompt as text, with control tokens in people's messages broken up."""
        prefix_ids, _ = await self._detect_prefix_and_separator_ids()
        trusted_text = "".join(span.text for span in spans if span.trusted)
        control_tokens, added_tokens = self._tokens.control_tokens, self._tokens.added_tokens
        added_texts = (one for one in added_tokens.values() if one.strip() and one in trusted_text)
        special_texts = [*control_tokens.values(), *added_texts]
        text = "".join(
            span.text if span.trusted else break_control_tokens(span.text, special_texts)
            for span in spans
        )
        for token in prefix_ids:  # the engine adds it again
            text = text.removeprefix(control_tokens.get(token, ""))
        return text

    async def explain_tokens(self, spans: Sequence[TextSpan]) -> list[PromptToken]:
        """Return the prompt's tokens with their texts, and whether each is a control token."""
        token_trust_pairs = await self._tokenize_prompt(spans)
        texts = await self._find_token_texts({token for token, _ in token_trust_pairs})
        return [
            PromptToken(token, texts[token], token in self._tokens.control_tokens, is_trusted)
            for token, is_trusted in token_trust_pairs
        ]

    async def _tokenize_prompt(self, spans: Sequence[TextSpan]) -> list[tuple[int, bool]]:
        prefix_ids, _ = await self._detect_prefix_and_separator_ids()
        token_lists = await self._tokenize_spans(spans)
        pairs = zip(token_lists, spans, strict=True)
        token_trust_pairs = [(token, span.trusted) for tokens, span in pairs for token in tokens]
        if [token for token, _ in token_trust_pairs[: len(prefix_ids)]] == prefix_ids:
            return token_trust_pairs
        return [*((token, True) for token in prefix_ids), *token_trust_pairs]

    async def _tokenize_spans(self, spans: Sequence[TextSpan]) -> Sequence[list[int]]:
        trusted_positions = [i for i, span in enumerate(spans) if span.trusted]
        untrusted_positions = [i for i, span in enumerate(spans) if not span.trusted]
        trusted_texts = [(spans[i].text, i > 0) for i in trusted_positions]
        trusted_ids = await self._tokenize(trusted_texts, parse_special=True)
        trusted_added_ids = self._tokens.added_tokens.keys() & set[int]().union(*trusted_ids)
        ids_by_position = dict(zip(trusted_positions, trusted_ids, strict=True))
        untrusted_texts = []
        for i in untrusted_positions:
            previous_ids = ids_by_position.get(i - 1, [])
            follows_control_token = (
                bool(previous_ids) and previous_ids[-1] in self._tokens.control_tokens
            )
            untrusted_texts.append((spans[i].text, i > 0 and not follows_control_token))
        untrusted_ids = await self._tokenize_untrusted(untrusted_texts, trusted_added_ids)
        ids_by_position |= zip(untrusted_positions, untrusted_ids, strict=True)
        return [ids_by_position[i] for i in range(len(spans))]

    async def _tokenize_untrusted(
        self, texts: Sequence[tuple[str, bool]], trusted_added_ids: set[int]
    ) -> list[list[int]]:
        """Tokenize people's texts so that they contain no control tokens or `trusted_added_ids`."""
        forbidden_ids = trusted_added_ids | self._tokens.control_tokens.keys()
        token_texts = {**self._tokens.control_tokens, **self._tokens.added_tokens}
        token_lists = await self._tokenize(texts, parse_special=False)
        for index, (text, is_continuation) in enumerate(texts):
            if bad_ids := forbidden_ids.intersection(token_lists[index]):
                safe_text = break_control_tokens(text, [token_texts[token] for token in bad_ids])
                (ids,) = await self._tokenize([(safe_text, is_continuation)], parse_special=False)
                token_lists[index] = [token for token in ids if token not in forbidden_ids]
        return token_lists

    async def _tokenize(
        self, texts: Sequence[tuple[str, bool]], *, parse_special: bool
    ) -> list[list[int]]:
        """Tokenize texts; each flag says whether the text directly continues the previous one."""
        _, separator_ids = await self._detect_prefix_and_separator_ids()
        separator, skip_count = _SEPARATOR if separator_ids else "", len(separator_ids)
        inputs = [separator + text if is_continuation else text for text, is_continuation in texts]
        token_lists = await self._engine.tokenize(inputs, parse_special=parse_special)
        pairs = zip(token_lists, texts, strict=True)
        return [ids[skip_count:] if is_continuation else ids for ids, (_, is_continuation) in pairs]

    async def _detect_prefix_and_separator_ids(self) -> tuple[list[int], list[int]]:
        """Return the start token that the tokenizer adds to prompts, and the ids of a separator.

        Both lists may be empty. The separator is needed if the tokenizer adds a space before every
        text: inside a prompt, it is put in front of a text, and its ids are removed afterwards.
        """
        if self._prefix_and_separator_ids is None:
            texts = ["x", _SEPARATOR]
            x_ids, separator_ids = await self._engine.tokenize(texts, parse_special=False)
            (all_ids,) = await self._engine.tokenize(["x"], parse_special=False, add_special=True)
            adds_prefix = len(all_ids) > len(x_ids) and all_ids[1 : 1 + len(x_ids)] == x_ids
            token_texts = await self._find_token_texts(set(x_ids))
            adds_space = bool(x_ids) and token_texts[x_ids[0]].startswith(" ")
            prefix_ids = all_ids[:1] if adds_prefix else []
            self._prefix_and_separator_ids = prefix_ids, separator_ids if adds_space else []
        return self._prefix_and_separator_ids

    async def _find_token_texts(self, token_ids: set[int]) -> dict[int, str]:
        special_texts = {**self._tokens.control_tokens, **self._tokens.added_tokens}
        texts: dict[int, str] = {}
        for token in token_ids:
            if token in special_texts:
                texts[token] = special_texts[token]
            else:
                texts[token] = await self._engine.detokenize(token)
        return texts


_DEFAULT_MODEL_SAMPLING = {"repeat_penalty": 1.1}  # without this, every third answer repeats itself
_DEFAULT_MODEL_OUTPUT_TOKENS = 400  # beyond that, such a small model writes nothing useful


@value_class
class LoadedModel:
    path: Path
    engine_name: str
    engine: Engine
    tokens: SpecialTokens
    reasoning: ReasoningFormat
    tokenizer: Tokenizer
    slots: SlotPool
    queue: FairQueue
    projector: Path | None

    @property
    def has_vision(self) -> bool:
        return self.projector is not None

    async def tokenize_prompt(self, rendering: RenderedPrompt) -> list[int]:
        restart_count = self.engine.restart_count
        try:
            try:
                return await self.tokenizer.to_token_ids(rendering.spans)
            except EngineFailed:
                if not await self.engine.has_crashed(restart_count):
                    raise
                await self.engine.wait_until_ready()
                return await self.tokenizer.to_token_ids(rendering.spans)
        except EngineFailed as error:
            raise BackendUnavailable(f"{self.path.stem} cannot tokenize: {error}") from error

    async def generate(
        self, prompt: Prompt, rendering: RenderedPrompt, encoded_images: Sequence[str]
    ) -> AsyncGenerator[GenerationEvent, None]:
        stop_strings = self._find_stop_strings(prompt, rendering)
        engine_stop_strings = (
            self._find_engine_stop_strings(rendering)
            if self.reasoning.special_tokens
            else stop_strings
        )
        answer = self._generate(prompt, rendering, engine_stop_strings, encoded_images)
        reasoning = with_unclosed_tag(self.reasoning, rendering.spans)
        answer_events = separate_reasoning(answer, reasoning, stop_strings)
        if rendering.tool_call_format is not None:
            parameters = tool_parameters_by_name(prompt)
            answer_events = separate_calls(answer_events, rendering.tool_call_format, parameters)
        async with aclosing(answer_events) as events:
            async for event in events:
                yield event

    async def _generate(
        self,
        prompt: Prompt,
        rendering: RenderedPrompt,
        stop_strings: Sequence[str],
        encoded_images: Sequence[str],
    ) -> AsyncGenerator[GenerationEvent, None]:
        sampling, max_tokens = to_sampling_parameters(prompt, self.engine_name), prompt.output_limit
        if self.path.name == DEFAULT_MODEL_FILE:
            sampling = {**_DEFAULT_MODEL_SAMPLING, **sampling}
            max_tokens = max_tokens or _DEFAULT_MODEL_OUTPUT_TOKENS
        slot_owner = SlotOwner(prompt.conversation, prompt.character)
        prompt_ids = await self.tokenize_prompt(rendering)  # approximate if there are images
        try:
            text = await self.tokenizer.to_safe_text(rendering.spans) if encoded_images else ""
            check_placeholders(text, encoded_images, self.path.stem)
            async with self.slots.lease(slot_owner, prompt_ids) as (slot_number, is_exclusive):
                request = GenerationRequest(
                    prompt_ids,
                    stop_strings,
                    sampling,
                    max_tokens,
                    slot_number,
                    can_shift_cache=is_exclusive and not self.has_vision,  # images cannot shift
                    preserved_tokens=(
                        *self.reasoning.special_tokens,
                        *(PRESERVED_CALL_MARKERS if rendering.tool_call_format is not None else ()),
                    ),
                    text=text,
                    encoded_images=encoded_images,
                )
                async with aclosing(self.engine.generate(request)) as events:
                    async for event in events:
                        yield event
        except EngineFailed as error:
            raise BackendUnavailable(f"{self.path.stem} failed: {error}") from error

    def _find_stop_strings(self, prompt: Prompt, rendering: RenderedPrompt) -> tuple[str, ...]:
        stop_strings = (*collect_stop_strings(prompt), *rendering.stop, *self.tokens.end_tokens)
        return tuple(dict.fromkeys(word for word in stop_strings if word))

    def _find_engine_stop_strings(self, rendering: RenderedPrompt) -> tuple[str, ...]:
        """Return the stop strings for the engine, without those that end reasoning."""
        end_tokens = self.reasoning.closing_tokens
        end_strings = dict.fromkeys((*rendering.stop, *self.tokens.end_tokens))
        return tuple(word for word in end_strings if word and word not in end_tokens)


def tool_parameters_by_name(prompt: Prompt) -> dict[str, Parameters]:
    calls = (call for each in prompt.tool_exchanges for call in each.calls)
    empty_parameters: dict[str, Parameters] = {call.name: {} for call in calls}
    return empty_parameters | {one.name: one.parameters for one in prompt.tools}


@asynccontextmanager
async def load_model(config: EngineConfig) -> AsyncIterator[LoadedModel]:
    """Load a model; raise `ChildProcessFailed`, or `SettingsError` if it cannot run here."""
    settings, clock = config.settings, SystemClock()
    config.slots_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with run_engine(config) as engine:
        special_tokens = await asyncio.to_thread(read_special_tokens, config.model)
        slot_store = SlotStore(
            config.slots_folder,
            await asyncio.to_thread(_state_fingerprint, config, engine.version),
            clock,
            max_bytes=settings.saved_mib * 2**20,
            max_age_seconds=settings.saved_days * 86_400,
        )
        await asyncio.to_thread(slot_store.load_saved_slots)
        yield LoadedModel(
            config.model,
            select_engine(settings) or settings.engine,
            engine,
            special_tokens,
            detect_format(special_tokens.chat_template, special_tokens.token_texts),
            Tokenizer(engine, special_tokens),
            SlotPool(engine, slot_store),
            FairQueue(engine.slot_count, settings.most_waiting, clock),
            config.projector,
        )


def _state_fingerprint(config: EngineConfig, engine_name: str) -> str:
    if config.projector is not None:
        engine_name = f"{engine_name} {state_fingerprint(config.projector, engine_name)}"
    return state_fingerprint(config.model, engine_name)

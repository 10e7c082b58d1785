"""What llama.cpp's server is asked: a prompt as token ids, or with images as text."""

from bot.backends.chat_completions.wire import encode_streaming_request
from bot.backends.llama_cpp.engines.engine import IMAGE, Question
from bot.templates.control_tokens import break_control_tokens

_LEAST_MOVED_TOKENS = 32  # in one piece


def to_wire(question: Question, model: str, media_mark: str = "") -> bytes:
    """Write the body for `/completions` of llama.cpp: the prompt as token ids.

    One with images goes as text, in which the server's `media_mark` stands for each.
    """
    body: dict[str, object] = {
        "stream_options": {"include_usage": True},
        **question.sampling,
        "stop": list(question.stop),
        # A control token has no text unless it is asked for; a stop without text is never found.
        "preserved_tokens": list(dict.fromkeys([*question.stop, *question.shown])),
        "model": model,
        "prompt": _seen(question, media_mark) if question.images else list(question.ids),
        "cache_prompt": True,
    }
    if question.max_output_tokens is not None:
        body["max_tokens"] = question.max_output_tokens
    if question.place is not None:
        body["id_slot"] = question.place
        # Where the oldest turns were dropped, the rest moves up instead of being read again. It
        # stays as it was read, after those turns, so it may serve their own conversation only.
        body["n_cache_reuse"] = _LEAST_MOVED_TOKENS if question.own else 0
    return encode_streaming_request(body)


def _seen(question: Question, media_mark: str) -> dict[str, object]:
    text = break_control_tokens(question.text, [media_mark]).replace(IMAGE, media_mark)
    return {"prompt_string": text, "multimodal_data": list(question.images)}

"""Turn what a preset says about sampling into llama.cpp's own words."""

from bot.backends.completions import parameters
from bot.chat.prompt import Prompt

_LIMITS = ("max_tokens", "max_completion_tokens", "n_predict")


def to_sampling(prompt: Prompt) -> dict[str, object]:
    """What the engine's samplers are set to; a parameter that is null is left out.

    Raises:
        BackendUnavailable: the parameters ask for several answers.
    """
    sent = {name: value for name, value in parameters(prompt).items() if name not in _LIMITS}
    sent |= _schema(sent.pop("response_format", None))
    return {name: value for name, value in sent.items() if value is not None}


def output_limit(prompt: Prompt) -> int | None:
    """The lowest limit of an answer's tokens that the preset gives in any of its names."""
    limits = [prompt.max_output_tokens, *(prompt.parameters.get(name) for name in _LIMITS)]
    return min((each for each in limits if isinstance(each, int) and each > 0), default=None)


def _schema(response_format: object) -> dict[str, object]:
    """What `/chat/completions` makes of `response_format`, which `/completions` does not know."""
    match response_format:
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return {"json_schema": schema}
        case {"type": "json_object", **rest}:
            return {"json_schema": rest.get("schema", {"type": "object"})}
        case _:
            return {}

"""Import SillyTavern's chat-completion presets: parameters, and the prompts around a chat."""

from collections.abc import Iterator, Mapping, Sequence

from bot.frozen_dataclass import frozen_dataclass
from bot.importers.sillytavern.instruct import Json
from bot.importers.sillytavern.samplers import keys_of_sampler
from bot.prompting.text.json_fields import JsonFields

_HISTORY = "chatHistory"
_AT_DEPTH = 1  # the `injection_position` of prompts within the chat
_ROLES = ("system", "user", "assistant")
_NAMES_BEHAVIORS = {-1: "not_add", 2: "add"}
_POSITION_AT_DEPTH = 4  # SillyTavern's number in lorebooks
_DEFAULT_DEPTH = 4
_MODELS = {
    "openai": ("openai", "openai_model"),
    "claude": ("anthropic", "claude_model"),
    "openrouter": ("open_router", "openrouter_model"),
    "mistralai": ("mistral_ai", "mistralai_model"),
    "makersuite": ("gemini", "google_model"),
    "groq": ("groq", "groq_model"),
    "deepseek": ("deepseek", "deepseek_model"),
    "moonshot": ("moonshot", "moonshot_model"),
}
"""By their names of services: our provider, and the key with the model."""


def keys_of_chat_completion(
    data: Json, source: str, provider: str | None = None
) -> tuple[dict[str, object], list[str]]:
    """Return the keys of a preset with these prompts and parameters, and notes.

    The file's model is used if its service is the given provider.
    """
    read = JsonFields(data, source, lenient=True)
    keys, notes = keys_of_sampler(data, source)
    if answer := read.integer("openai_max_tokens"):
        keys["max_output_tokens"] = max(1, answer)
    context = read.integer("openai_max_context")
    if context and context > (answer or 0):
        keys["max_input_tokens"] = context - (answer or context // 4)
    behavior = read.integer("names_behavior")
    keys["user_name_in_message"] = _NAMES_BEHAVIORS.get(behavior or 0, "default")
    keys |= _prompt_keys(list(_ordered_prompts(data)))
    service = read.text("chat_completion_source")
    own_provider, model_key = _MODELS.get(service, ("", ""))
    model = read.text(model_key) if model_key else read.text("custom_model")
    if model and provider == own_provider:
        keys["model"] = model
    elif service and model:
        of = f"--provider {own_provider}" if own_provider else "--provider and the key `model`"
        notes.append(f"the model {model} of {service} is left out: choose it with {of}")
    return keys, notes


@frozen_dataclass
class _ChatPrompt:
    identifier: str
    role: str
    text: str
    depth: int | None
    """Within the chat, counted from its end; None: before or after the chat."""


def _prompt_keys(prompts: Sequence[_ChatPrompt]) -> dict[str, object]:
    names = [each.identifier for each in prompts]
    middle = names.index(_HISTORY) if _HISTORY in names else len(prompts)
    fixed = [(index, each) for index, each in enumerate(prompts) if each.text.strip()]
    outside = [(index, each) for index, each in fixed if each.depth is None]
    before = [each for index, each in outside if index < middle]
    after = [each for index, each in outside if index > middle]
    system = "\n\n".join(each.text.strip() for each in before if each.role == "system")
    inside = [_lore_entry(each) for _, each in fixed if each.depth is not None]
    keys: dict[str, object] = {
        "system": system or None,
        "messages": [
            {"role": each.role, "content": each.text} for each in before if each.role != "system"
        ],
        "post_history_instructions": "\n\n".join(each.text.strip() for each in after) or None,
        "macros": True,
    }
    return keys | ({"lorebook": {"entries": inside}} if inside else {})


def _ordered_prompts(data: Json) -> Iterator[_ChatPrompt]:
    """Yield the enabled prompts in the order of the file's last list, SillyTavern's general one."""
    known = {
        str(each.get("identifier")): each
        for each in _objects(data.get("prompts"))
        if each.get("identifier")
    }
    orders = [each.get("order") for each in _objects(data.get("prompt_order"))]
    order = _objects(orders[-1]) if orders else []
    names = [str(each.get("identifier")) for each in order if each.get("enabled", True)]
    for name in names if order else known:
        prompt = known.get(name)
        if prompt is None:
            continue
        read = JsonFields(prompt, name, lenient=True)
        role = read.text("role")
        is_inside = read.integer("injection_position") == _AT_DEPTH
        depth = read.integer("injection_depth")
        yield _ChatPrompt(
            name,
            role if role in _ROLES else "system",
            "" if read.flag("marker") else read.text("content"),
            (_DEFAULT_DEPTH if depth is None else depth) if is_inside else None,
        )


def _lore_entry(prompt: _ChatPrompt) -> Json:
    return {
        "keys": [],
        "content": prompt.text,
        "name": prompt.identifier,
        "constant": True,
        "enabled": True,
        "insertion_order": 0,
        "extensions": {
            "position": _POSITION_AT_DEPTH,
            "depth": prompt.depth,
            "role": _ROLES.index(prompt.role),
            "ignore_budget": True,
        },
    }


def _objects(value: object) -> list[Json]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []

"""Import SillyTavern's chat-completion presets: parameters, and the prompts around a chat."""

from collections.abc import Iterator, Mapping
from typing import get_args

from bot.importers.sillytavern.instruct import Json
from bot.importers.sillytavern.regex_scripts import scripts_of
from bot.importers.sillytavern.samplers import keys_of_sampler
from bot.prompting.presets.preset import MarkerName
from bot.prompting.text.json_fields import JsonFields

_AT_DEPTH = 1  # the `injection_position` of prompts within the chat
_ROLES = ("system", "user", "assistant")
_NAMES_BEHAVIORS = {-1: "not_add", 2: "add"}
_DEFAULT_DEPTH = 4
_EVERYBODY = 100001  # the `character_id` of the order that holds for all characters
_MARKERS = frozenset(get_args(MarkerName))
_PLACES = frozenset({"chatHistory", "dialogueExamples"})
_OVERRIDABLE = frozenset({"main", "jailbreak"})
_FORMATS = {
    "charPersonality": "personality_format",
    "scenario": "scenario_format",
    "worldInfoBefore": "wi_format",
    "worldInfoAfter": "wi_format",
}
"""The keys with the text around what a marker stands for."""
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
    prompts = list(_ordered_prompts(data, read))
    service = read.text("chat_completion_source")
    if service == "claude" and read.text("assistant_prefill").strip():
        prompts.append({"role": "assistant", "content": read.text("assistant_prefill")})
    scripts, script_notes = scripts_of(data.get("extensions"))
    keys |= {"prompts": prompts, "macros": True, "regex_scripts": scripts}
    notes += script_notes
    own_provider, model_key = _MODELS.get(service, ("", ""))
    model = read.text(model_key) if model_key else read.text("custom_model")
    if model and provider == own_provider:
        keys["model"] = model
    elif service and model:
        of = f"--provider {own_provider}" if own_provider else "--provider and the key `model`"
        notes.append(f"the model {model} of {service} is left out: choose it with {of}")
    return keys, notes


def _ordered_prompts(data: Json, settings: JsonFields) -> Iterator[Json]:
    """Yield the enabled prompts in the order of the list for all characters, else the last one."""
    known = {
        str(each.get("identifier")): each
        for each in _objects(data.get("prompts"))
        if each.get("identifier")
    }
    lists = _objects(data.get("prompt_order"))
    lists = [each for each in lists if each.get("character_id") == _EVERYBODY] or lists
    order = _objects(lists[-1].get("order")) if lists else []
    names = [str(each.get("identifier")) for each in order if each.get("enabled", True)]
    for name in names if order else known:
        triggers = known.get(name, {}).get("injection_trigger")
        if isinstance(triggers, list) and triggers and "normal" not in triggers:
            continue  # a prompt for swipes or continuations alone
        if name in known or name in _MARKERS:
            prompt = _prompt(name, JsonFields(known.get(name, {}), name, lenient=True), settings)
            if prompt.get("marker") or str(prompt["content"]).strip():
                yield prompt


def _prompt(identifier: str, read: JsonFields, settings: JsonFields) -> Json:
    role = read.text("role")
    prompt: dict[str, object] = {
        "role": role if role in _ROLES else "system",
        "content": "" if read.flag("marker") else read.text("content"),
        "name": read.text("name"),
    }
    is_fixed = identifier in _OVERRIDABLE and read.flag("forbid_overrides")
    if identifier in _MARKERS and not is_fixed:
        prompt["marker"] = identifier
        if identifier in _FORMATS:
            prompt["content"] = settings.text(_FORMATS[identifier])
    if read.integer("injection_position") == _AT_DEPTH and identifier not in _PLACES:
        depth, order = read.integer("injection_depth"), read.integer("injection_order")
        prompt["depth"] = _DEFAULT_DEPTH if depth is None else max(0, depth)
        prompt["order"] = 100 if order is None else order
    return prompt


def _objects(value: object) -> list[Json]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []

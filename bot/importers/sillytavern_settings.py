"""Convert SillyTavern's samplers, regex scripts, and chat completion presets to preset keys."""

import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from pydantic import ValidationError

from bot.importers.instruct_templates import Json
from bot.prompting.macros import find_unknown_macros
from bot.prompting.presets.preset import MarkerName, Preset
from bot.prompting.presets.regex_scripts import RegexScript
from bot.prompting.text.jsonc import JsonFields
from bot.texts.text import Text, translatable

_SAMPLERS = tomllib.loads((Path(__file__).parent / "samplers.toml").read_text("utf-8"))
_SAMPLER_ORDER_KEYS = ("order", "sampler_order", "sampler_priority", "samplers")


def convert_sampler_preset(data: Json) -> tuple[dict[str, object], list[str]]:
    """Convert a sampler preset to preset keys; also return notes about what was omitted."""
    fields = JsonFields(data)
    parameters: dict[str, object] = {}
    notes: list[str] = []
    for name, sampler in _SAMPLERS["parameters"].items():
        numbers = (value for each in sampler["names"] if (value := fields.number(each)) is not None)
        number, (low, high) = next(numbers, None), sampler["range"]
        if number is None:
            continue
        if low <= number <= high:
            parameters[name] = int(number) if "whole" in sampler else number
            details = ((detail, fields.number(detail)) for detail in sampler.get("details", ()))
            parameters |= {key: one for key, one in details if one is not None and one >= 0}
        elif number > 0:
            notes.append(f"{name} {number:g} is omitted: it must be from {low:g} to {high:g}")
    breakers_value = data.get("dry_sequence_breakers") if "dry_multiplier" in parameters else None
    if sequence_breakers := _read_text_list(breakers_value):
        parameters["dry_sequence_breakers"] = list(sequence_breakers)
    if grammar := fields.text("grammar_string").strip() or fields.text("grammar").strip():
        parameters["grammar"] = grammar
    unsupported_samplers = _SAMPLERS["unsupported"].items()
    samplers = [
        name for name, off_value in unsupported_samplers if data.get(name) not in (None, off_value)
    ]
    samplers += [
        f"{name} (the engine's own is used)" for name in _SAMPLER_ORDER_KEYS if data.get(name)
    ]
    notes += [f"{', '.join(samplers)} omitted: no engine here supports them"] if samplers else []
    return {"parameters": parameters, **_read_token_limits(fields)}, notes


def _read_text_list(value: object) -> Sequence[str]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return ()
    return JsonFields({"list": value}).texts("list")


def _read_token_limits(fields: JsonFields) -> dict[str, object]:
    """Return token limits; `max_length` limits the context if `genamt` is set, else the answer."""
    context_tokens, answer_tokens = fields.integer("max_length"), fields.integer("genamt")
    if answer_tokens is None:
        context_tokens, answer_tokens = fields.integer("max_context"), context_tokens
    return _token_limits(context_tokens, answer_tokens)


def _token_limits(context_tokens: int | None, answer_tokens: int | None) -> dict[str, object]:
    keys: dict[str, object] = {}
    answer_tokens = max(0, answer_tokens or 0)
    if answer_tokens:
        keys["max_output_tokens"] = answer_tokens
    if context_tokens and context_tokens > answer_tokens:
        keys["max_input_tokens"] = context_tokens - (answer_tokens or context_tokens // 4)
    return keys


_CHARACTER_PLACEMENT = 2  # the character's messages, in `placement`
_MAX_SCRIPTS = 200
_HIDDEN_HTML = re.compile(
    r"<(style|script|head)\b.*?(</\1\s*>|\Z)|<!--.*?(-->|\Z)", re.IGNORECASE | re.DOTALL
)
# HTML tags. Scripts search a model's answers for other tags, such as <plan>.
_HTML_TAG = re.compile(
    r"(?<!\$)</?(a|abbr|article|aside|b|blockquote|body|br|button|center|code|details|div|em"
    r"|fieldset|font|footer|form|h[1-6r]|head|header|html|i|iframe|img|input|label|legend|li|link|main|meta|nav|ol"
    r"|p|pre|progress|q|s|script|section|small|span|strong|style|sub|summary|sup|svg|table|tbody|td"
    r"|th|thead|tr|u|ul|!doctype)(?![\w-])[^<>]*>",
    re.IGNORECASE,
)
_CODE_FENCE = re.compile(r"^```\w*\n?|\n?```$", re.MULTILINE)
_REGEX_LITERAL = re.compile(r"/(.+)/([a-zA-Z]*)", re.DOTALL)
_BARE_SLASH = re.compile(r"(\\.)|/", re.DOTALL)


def read_regex_scripts(extensions: object) -> tuple[list[dict[str, object]], list[str]]:
    """Return the regex scripts in a card's or preset's extensions, and notes on omitted ones."""
    scripts: list[dict[str, object]] = []
    omitted_names: list[str] = []
    for row in JsonFields(extensions).list_of_objects("regex_scripts")[:_MAX_SCRIPTS]:
        fields = JsonFields(row)
        if fields.flag("disabled"):
            continue
        name = " ".join(fields.text("scriptName").split())[:40] or "?"
        script = _read_script(fields, name)
        try:
            RegexScript.model_validate(script)
        except ValidationError:
            omitted_names.append(name)
        else:
            scripts.append(script)
    names = ", ".join(dict.fromkeys(omitted_names))
    return scripts, [f"regular expression scripts that will not run: {names}"] if names else []


def _read_script(fields: JsonFields, name: str) -> dict[str, object]:
    """Convert a regex script, reducing its HTML to text; omit `find` if it has no effect here."""
    placements = fields.values.get("placement")
    is_active = fields.flag("markdownOnly") or not fields.flag("promptOnly")
    is_active = is_active and isinstance(placements, list) and _CHARACTER_PLACEMENT in placements
    regex, replacement = fields.text("findRegex"), fields.text("replaceString")
    pattern, flags = match.groups() if (match := _REGEX_LITERAL.fullmatch(regex)) else (regex, "")
    regex = f"/{_BARE_SLASH.sub(lambda slash: slash[1] or chr(92) + '/', pattern)}/{flags}"
    has_known_macros = not set(find_unknown_macros([replacement])) - {"match"}
    skips_answer = (fields.integer("minDepth") or 0) > 0
    if not (is_active and has_known_macros) or skips_answer or fields.number("substituteRegex"):
        return {"name": name}
    trim_texts = fields.texts("trimStrings")
    return {"name": name, "find": regex, "replace": _without_html(replacement), "trim": trim_texts}


def _without_html(text: str) -> str:
    if not _HTML_TAG.search(text):
        return text
    remaining_text = _HTML_TAG.sub("", _HIDDEN_HTML.sub("", _CODE_FENCE.sub("", text)))
    lines = (line.strip() for line in remaining_text.splitlines())
    return "\n".join(line for line in lines if line)


_POSITION_AT_DEPTH = 1  # the `injection_position` of prompts within the chat
_ROLES = ("system", "user", "assistant")
_NAMES_BEHAVIORS = {-1: "not_add", 2: "add"}
_DEFAULT_DEPTH = 4
_ALL_CHARACTERS_ID = 100001  # the `character_id` of the order for all characters
_MARKER_NAMES = frozenset(get_args(MarkerName))
_FIXED_DEPTH_MARKERS = frozenset({"chatHistory", "dialogueExamples"})
_CARD_OVERRIDABLE_PROMPTS = frozenset({"main", "jailbreak"})
_FORMAT_KEYS_BY_MARKER = {
    "charPersonality": "personality_format",
    "scenario": "scenario_format",
    "worldInfoBefore": "wi_format",
    "worldInfoAfter": "wi_format",
}
"""For each prompt marker, the key of the format string for its content."""


def convert_chat_completion_preset(data: Json) -> tuple[dict[str, object], list[str]]:
    """Convert a chat completion preset to our keys; also return notes about what was omitted."""
    fields = JsonFields(data)
    keys, notes = convert_sampler_preset(data)
    keys |= _token_limits(fields.integer("openai_max_context"), fields.integer("openai_max_tokens"))
    behavior = fields.integer("names_behavior")
    keys["user_name_in_message"] = _NAMES_BEHAVIORS.get(behavior or 0, "default")
    prompts = list(_ordered_prompts(fields))
    service_name = fields.text("chat_completion_source")
    if service_name == "claude" and fields.text("assistant_prefill").strip():
        prompts.append({"role": "assistant", "content": fields.text("assistant_prefill")})
    scripts, script_notes = read_regex_scripts(data.get("extensions"))
    keys |= {"prompts": prompts, "macros": True, "regex_scripts": scripts}
    if model := fields.text(f"{service_name}_model"):
        notes.append(f"the model {model} is omitted: set your model with the key `model`")
    return keys, [*notes, *script_notes]


def _ordered_prompts(settings: JsonFields) -> Iterator[Json]:
    """Yield the enabled prompts in the order for all characters or, if missing, the last order."""
    prompts = settings.list_of_objects("prompts")
    prompts_by_name = {str(each["identifier"]): each for each in prompts if each.get("identifier")}
    orders = settings.list_of_objects("prompt_order")
    orders = [each for each in orders if each.get("character_id") == _ALL_CHARACTERS_ID] or orders
    order_entries = JsonFields(orders[-1]).list_of_objects("order") if orders else []
    names = [str(each.get("identifier")) for each in order_entries if each.get("enabled", True)]
    for name in names if order_entries else prompts_by_name:
        triggers = prompts_by_name.get(name, {}).get("injection_trigger")
        if isinstance(triggers, list) and triggers and "normal" not in triggers:
            continue  # a prompt that is only for swipes or continuations
        if name in prompts_by_name or name in _MARKER_NAMES:
            prompt = _convert_prompt(name, JsonFields(prompts_by_name.get(name)), settings)
            if prompt.get("marker") or str(prompt["content"]).strip():
                yield prompt


def _convert_prompt(identifier: str, fields: JsonFields, settings: JsonFields) -> Json:
    role = fields.text("role")
    prompt: dict[str, object] = {
        "role": role if role in _ROLES else "system",
        "content": "" if fields.flag("marker") else fields.text("content"),
        "name": fields.text("name"),
    }
    forbids_override = identifier in _CARD_OVERRIDABLE_PROMPTS and fields.flag("forbid_overrides")
    if identifier in _MARKER_NAMES and not forbids_override:
        prompt["marker"] = identifier
        if identifier in _FORMAT_KEYS_BY_MARKER:
            prompt["content"] = settings.text(_FORMAT_KEYS_BY_MARKER[identifier])
    if (
        fields.integer("injection_position") == _POSITION_AT_DEPTH
        and identifier not in _FIXED_DEPTH_MARKERS
    ):
        depth, order = fields.integer("injection_depth"), fields.integer("injection_order")
        prompt["depth"] = _DEFAULT_DEPTH if depth is None else max(0, depth)
        prompt["order"] = 100 if order is None else order
    return prompt


_MAX_LISTED_MACROS = 40
_MAX_BOOK_PROBLEMS = 20


def ignored_content_notes(preset: Preset) -> Sequence[Text]:
    """Return a note about each kind of unsupported feature in a preset."""
    notes: list[Text] = []
    if preset.has_macros and (unknown_macros := find_unknown_macros(_preset_texts(preset))):
        names = [f"{{{{{name}}}}}" for name in unknown_macros[:_MAX_LISTED_MACROS]]
        names += ["…"] * (len(unknown_macros) > _MAX_LISTED_MACROS)
        listed_names = ", ".join(names)
        notes.append(translatable("unsupported macros stay unchanged: {names}", names=listed_names))
    book = preset.parsed_lorebook
    entries = book.entries if book else ()
    unused_entries = [one for one in entries if one.vectorized and not (one.keys or one.constant)]
    if unused_entries:
        notes.append(
            translatable(
                "{number} lorebook entries without keys are never used: only SillyTavern finds them"
                " by similarity (vectorized); give them keys",
                number=len(unused_entries),
            )
        )
    return [*notes, *(book.problems[:_MAX_BOOK_PROBLEMS] if book else ())]


def _preset_texts(preset: Preset) -> Iterator[str]:
    yield from filter(None, (preset.system, preset.persona, preset.personality, preset.scenario))
    yield from filter(None, (preset.story_string, preset.post_history_instructions))
    yield from filter(None, (*preset.greetings, *preset.group_greetings))
    yield from (message.text for message in preset.messages)
    yield from (prompt.content for prompt in preset.prompts)
    book = preset.parsed_lorebook
    for entry in book.entries if book else ():
        yield from (entry.content, *entry.keys, *entry.secondary_keys)

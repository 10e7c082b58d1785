"""Import SillyTavern's samplers, regular expression scripts and chat completion presets."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from pydantic import ValidationError

from bot.importers.instruct_templates import Json
from bot.prompting.macros import unknown_macros
from bot.prompting.presets.preset import MarkerName
from bot.prompting.presets.regex_scripts import RegexScript
from bot.prompting.text.jsonc import JsonFields

_RANGES: Mapping[str, tuple[float, float, tuple[str, ...]]] = {
    "temperature": (0, 5, ("temp", "temperature")),
    "top_p": (0, 1, ("top_p",)),
    "top_k": (0, 1e6, ("top_k",)),
    "min_p": (0, 1, ("min_p",)),
    "typical_p": (0, 1, ("typical_p", "typical")),
    "repeat_penalty": (0, 10, ("rep_pen", "repetition_penalty")),
    # 0 is no limit there, and off here
    "repeat_last_n": (1, 1e6, ("rep_pen_range", "repetition_penalty_range")),
    "presence_penalty": (
        -2, 2, ("presence_pen", "presence_penalty", "repetition_penalty_presence")
    ),
    "frequency_penalty": (
        -2, 2, ("freq_pen", "frequency_penalty", "repetition_penalty_frequency")
    ),
    "top_n_sigma": (0, 100, ("nsigma", "top_n_sigma")),
    "seed": (0, 2**63, ("seed",)),
}  # fmt: skip
"""Our parameters: the range, and the names that they have there."""

_WHOLE = frozenset({"top_k", "repeat_last_n", "seed"})
_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("dry_multiplier", ("dry_base", "dry_allowed_length", "dry_penalty_last_n")),
    ("xtc_probability", ("xtc_threshold",)),
)
"""Samplers that are off without their first number."""

_UNSUPPORTED: Mapping[str, float] = {
    "tfs": 1,
    "tail_free_sampling": 1,
    "top_a": 0,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "smoothing_factor": 0,
    "no_repeat_ngram_size": 0,
    "penalty_alpha": 0,
    "skew": 0,
    "math1_quad": 0,
    "guidance_scale": 1,
}
"""Samplers that our engines lack, with the number that switches them off."""

_ORDERS = ("order", "sampler_order", "sampler_priority", "samplers")


def keys_of_sampler(data: Json, source: str) -> tuple[dict[str, object], list[str]]:
    """Return the keys of a preset with these parameters, and notes."""
    read = JsonFields(data, source, lenient=True)
    parameters: dict[str, object] = {}
    notes: list[str] = []
    for name, (low, high, theirs) in _RANGES.items():
        given = next((value for each in theirs if (value := read.number(each)) is not None), None)
        if given is None:
            continue
        if low <= given <= high:
            parameters[name] = int(given) if name in _WHOLE else given
        elif given > 0:
            notes.append(f"{name} {given:g} is left out: it must be from {low:g} to {high:g}")
    parameters |= _dynamic_temperature(read) | _sampler_groups(read) | _mirostat(read)
    if grammar := read.text("grammar_string").strip() or read.text("grammar").strip():
        parameters["grammar"] = grammar
    omitted = [
        name
        for name, off in _UNSUPPORTED.items()
        if (value := read.number(name)) is not None and value != off
    ]
    if omitted:
        notes.append(f"{', '.join(omitted)} left out: no engine here has them")
    if any(data.get(key) for key in _ORDERS):
        notes.append("the order of the samplers is left out: the engine's own is used")
    return {"parameters": parameters, **_limits(read)}, notes


def _dynamic_temperature(read: JsonFields) -> dict[str, object]:
    low, high = read.number("min_temp"), read.number("max_temp")
    if not (read.flag("dynatemp") and low is not None and high is not None and 0 <= low <= high):
        return {}
    exponent = read.number("dynatemp_exponent")
    return {
        "temperature": (low + high) / 2,
        "dynatemp_range": (high - low) / 2,
        **({} if exponent is None else {"dynatemp_exponent": exponent}),
    }


def _sampler_groups(read: JsonFields) -> dict[str, object]:
    found: dict[str, object] = {}
    for switch, others in _GROUPS:
        if not (amount := read.number(switch)) or amount < 0:
            continue
        found[switch] = amount
        numbers = ((name, read.number(name)) for name in others)
        found |= {name: value for name, value in numbers if value is not None and value >= 0}
    breakers = read.values.get("dry_sequence_breakers")
    if "dry_multiplier" in found and (texts := _texts(breakers)):
        found["dry_sequence_breakers"] = texts
    return found


def _texts(value: object) -> list[str]:
    """Return a list of texts that may be written as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return []
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _mirostat(read: JsonFields) -> dict[str, object]:
    mode = read.number("mirostat_mode") or read.number("mirostat")
    if mode not in {1, 2}:
        return {}
    others = {name: read.number(name) for name in ("mirostat_tau", "mirostat_eta")}
    return {"mirostat": int(mode), **{key: one for key, one in others.items() if one is not None}}


def _limits(read: JsonFields) -> dict[str, object]:
    """Return the limits in tokens: `max_length` is the context beside `genamt`, else the answer."""
    context, answer = read.integer("max_length"), read.integer("genamt")
    if answer is None:
        context, answer = read.integer("max_context"), context
    keys: dict[str, object] = {}
    if answer and answer > 0:
        keys["max_output_tokens"] = answer
    if context and context > (answer or 0):
        keys["max_input_tokens"] = context - (answer or context // 4)
    return keys


_PEOPLE, _CHARACTER = 1, 2  # their numbers in `placement`
_MAX_SCRIPTS = 200
_MAX_NAMED = 20
_HIDDEN_HTML = re.compile(
    r"<(style|script|head)\b.*?(</\1\s*>|\Z)|<!--.*?(-->|\Z)", re.IGNORECASE | re.DOTALL
)
# Other tags, such as <plan>, are what scripts find in a model's answer.
_TAG = re.compile(
    r"(?<!\$)</?(a|abbr|article|aside|b|blockquote|body|br|button|center|code|details|div|em"
    r"|fieldset|font|footer|form|h[1-6r]|head|header|html|i|iframe|img|input|label|legend|li|link|main|meta|nav|ol"
    r"|p|pre|progress|q|s|script|section|small|span|strong|style|sub|summary|sup|svg|table|tbody|td"
    r"|th|thead|tr|u|ul|!doctype)(?![\w-])[^<>]*>",
    re.IGNORECASE,
)
_FENCE = re.compile(r"^```\w*\n?|\n?```$", re.MULTILINE)
_LITERAL = re.compile(r"/(.+)/([a-zA-Z]*)", re.DOTALL)
_BARE_SLASH = re.compile(r"(\\.)|/", re.DOTALL)


def scripts_of(extensions: object) -> tuple[list[dict[str, object]], list[str]]:
    """Return the scripts in the extensions of a card or preset, and notes on those left out.

    A chat shows no HTML: of a replacement with tags only its text is kept.
    """
    given = extensions.get("regex_scripts") if isinstance(extensions, Mapping) else None
    rows = [row for row in given if isinstance(row, Mapping)] if isinstance(given, list) else []
    scripts: list[dict[str, object]] = []
    left_out: list[str] = []
    plain: list[str] = []
    for row in rows[:_MAX_SCRIPTS]:
        read = JsonFields(row, "", lenient=True)
        if read.flag("disabled"):
            continue
        name = " ".join(read.text("scriptName").split())[:40] or "?"
        script = _script(row, name)
        try:
            RegexScript.model_validate(script)
        except ValidationError:
            left_out.append(name)
            continue
        if script["replace"] != read.text("replaceString"):
            plain.append(name)
        scripts.append(script)
    left_out += ["…"] * (len(rows) > _MAX_SCRIPTS)
    notes = _note("regular expression scripts that are not run", left_out)
    return scripts, notes + _note("of the HTML of these scripts only the text is shown", plain)


def _script(row: Json, name: str) -> dict[str, object]:
    """Return a script; without `find` if it is of no use here."""
    read = JsonFields(row, "", lenient=True)
    value = row.get("placement")
    places = value if isinstance(value, list) else []
    trims = row.get("trimStrings")
    trims = trims if isinstance(trims, list) else []
    in_answer = read.flag("markdownOnly") or not read.flag("promptOnly")
    in_answer = in_answer and _CHARACTER in places
    # Without either flag a message is changed for good: an answer when it comes.
    in_prompt = read.flag("promptOnly") or (_PEOPLE in places and not read.flag("markdownOnly"))
    find, replace = read.text("findRegex"), read.text("replaceString")
    pattern, flags = found.groups() if (found := _LITERAL.fullmatch(find)) else (find, "")
    find = f"/{_BARE_SLASH.sub(lambda slash: slash[1] or chr(92) + '/', pattern)}/{flags}"
    is_usable = (in_answer or in_prompt) and {_PEOPLE, _CHARACTER} & {*places}
    is_filled = not set(unknown_macros([replace])) - {"match"}
    if not (is_usable and is_filled) or read.number("substituteRegex"):
        return {"name": name}
    script: dict[str, object] = {
        "name": name,
        "find": find,
        "replace": _without_html(replace) if in_answer else replace,
        "trim": [text for text in trims if isinstance(text, str)],
        "where": "both" if in_answer and in_prompt else "answer" if in_answer else "prompt",
        "people": _PEOPLE in places,
    }
    depths = {"min_depth": read.integer("minDepth"), "max_depth": read.integer("maxDepth")}
    return script | {
        key: depth for key, depth in depths.items() if depth is not None and depth >= 0
    }


def _without_html(text: str) -> str:
    if not _TAG.search(text):
        return text
    plain = _TAG.sub("", _HIDDEN_HTML.sub("", _FENCE.sub("", text)))
    lines = (line.strip() for line in plain.splitlines())
    return "\n".join(line for line in lines if line)


def _note(title: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    unique = list(dict.fromkeys(names))
    shown = ", ".join(unique[:_MAX_NAMED]) + (", …" if len(unique) > _MAX_NAMED else "")
    return [f"{title}: {shown}"]


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
"""The keys with the text around the content of a marker."""
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
"""Our provider and the key with the model, by their name of a service."""


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

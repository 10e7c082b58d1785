"""Import the sampling settings of SillyTavern, KoboldAI and NovelAI."""

import json
from collections.abc import Mapping

from bot.importers.sillytavern.instruct import Json
from bot.prompting.text.json_fields import JsonFields

_NAMES: Mapping[str, tuple[str, ...]] = {
    "temperature": ("temp", "temperature"),
    "top_p": ("top_p",),
    "top_k": ("top_k",),
    "min_p": ("min_p",),
    "typical_p": ("typical_p", "typical"),
    "repeat_penalty": ("rep_pen", "repetition_penalty"),
    "repeat_last_n": ("rep_pen_range", "repetition_penalty_range"),
    "presence_penalty": ("presence_pen", "presence_penalty", "repetition_penalty_presence"),
    "frequency_penalty": ("freq_pen", "frequency_penalty", "repetition_penalty_frequency"),
    "top_n_sigma": ("nsigma", "top_n_sigma"),
    "seed": ("seed",),
}
"""Our parameters, with the names that they have there."""

_WHOLE = frozenset({"top_k", "repeat_last_n", "seed"})
_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 5),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "typical_p": (0, 1),
    "top_k": (0, 1e6),
    "repeat_penalty": (0, 10),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "top_n_sigma": (0, 100),
    "repeat_last_n": (1, 1e6),  # 0 is no limit there, and off here
    "seed": (0, 2**63),
}
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
"""What our engines do not have, with the number that switches it off."""

_ORDERS = ("order", "sampler_order", "sampler_priority", "samplers")


def keys_of_sampler(data: Json, source: str) -> tuple[dict[str, object], list[str]]:
    """Return the keys of a preset with these parameters, and notes."""
    read = JsonFields(data, source, lenient=True)
    parameters: dict[str, object] = {}
    notes: list[str] = []
    for name, theirs in _NAMES.items():
        given = next((value for each in theirs if (value := read.number(each)) is not None), None)
        if given is None:
            continue
        low, high = _RANGES[name]
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

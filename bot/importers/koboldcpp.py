"""Import koboldcpp's chat adapters: the texts before and after each role."""

import json
from collections.abc import Mapping

from bot.importers.string_template_extraction import extract_string_templates
from bot.prompting.text.json_fields import JsonFields
from bot.templates import JinjaTemplate

_DEFAULTS = {"user_start": "\n### Instruction:\n", "assistant_start": "\n### Response:\n"}
_ROLES = ("system", "user", "assistant")


def keys_of_adapter(data: Mapping[str, object], source: str) -> tuple[dict[str, object], list[str]]:
    """Return the keys of a preset that renders koboldcpp's prompts, and notes.

    Missing texts have koboldcpp's defaults: those of Alpaca, also around a system message.
    """
    read = JsonFields(data, source)
    starts = {
        role: read.text(f"{role}_start")
        if data.get(f"{role}_start") is not None
        else _DEFAULTS.get(f"{role}_start", _DEFAULTS["user_start"])
        for role in _ROLES
    }
    ends = {role: read.text(f"{role}_end") for role in _ROLES}
    opening = read.text("assistant_gen") or starts["assistant"]
    blocks = "".join(
        f"{{%- {'if' if role == 'system' else 'elif'} message.role == '{role}' -%}}"
        f"{{{{- {json.dumps(starts[role])} ~ message.content ~ {json.dumps(ends[role])} -}}}}"
        for role in _ROLES
    )
    jinja = (
        f"{{%- for message in messages -%}}{blocks}{{%- endif -%}}{{%- endfor -%}}"
        f"{{%- if add_generation_prompt -%}}{{{{- {json.dumps(opening)} -}}}}{{%- endif -%}}"
    )
    extracted = extract_string_templates(JinjaTemplate(jinja))
    exact = extracted is not None and extracted.exact
    ends_of_answers = (ends["assistant"], starts["user"])
    stops = (each.strip().partition("\n")[0] for each in ends_of_answers)
    keys: dict[str, object] = {
        "stop_sequences": list(dict.fromkeys(each for each in stops if each)),
        **({"parameters": extracted.templates} if exact and extracted else {"template": jinja}),
    }
    notes = ["converted to string templates" if exact else "converted to a Jinja template"]
    if read.text("tools_start") or read.text("tools_end"):
        notes.append("the texts around tools are left out: no message of a chat has that role")
    return keys, notes

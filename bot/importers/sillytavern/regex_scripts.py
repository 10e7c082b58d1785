"""Import the scripts of SillyTavern's extension Regex, from cards and presets."""

import re
from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from bot.importers.sillytavern.instruct import Json
from bot.prompting.cards.macros import unknown_macros
from bot.prompting.presets.regex_scripts import RegexScript
from bot.prompting.text.json_fields import JsonFields

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

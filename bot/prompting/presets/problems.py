"""Describe a preset's problems: a single key, or a whole text with line numbers."""

import difflib
import json
import typing
from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from bot.prompting.lorebook.files import PlacedPresetError
from bot.prompting.presets.fields import Parameters
from bot.prompting.presets.preset import Preset
from bot.prompting.text.jsonc import JsonDocument, JsonSyntaxError, read_json
from bot.runtime.validation_errors import describe_problem
from bot.texts.text import Text, translatable, translatable_count
from bot.value_class import value_class

MAX_PROBLEMS = 100
"""The most mistakes to describe; each takes some tenths of a millisecond."""

_NO_OBJECT = translatable("a preset is one JSON object: {example}", example="{...}")


@value_class
class PresetProblem:
    line: int
    text: str


@value_class
class CheckedPreset:
    preset: Preset | None
    """None: there are problems."""
    problems: Sequence[PresetProblem] = ()
    document: JsonDocument | None = None
    """None: the text is not a JSON object."""

    @property
    def value(self) -> dict[str, object] | None:
        """The JSON, even with problems; None if the text is not an object."""
        found = self.document and self.document.value
        return found if isinstance(found, dict) else None


def check_preset(text: str) -> CheckedPreset:
    """Parse a preset's text and collect all problems, ordered by line."""
    try:
        document = read_json(text)
    except JsonSyntaxError as error:
        return CheckedPreset(None, [PresetProblem(error.line, error.problem)])
    if not isinstance(document.value, dict):
        return CheckedPreset(None, [PresetProblem(1, _NO_OBJECT)])
    try:
        return CheckedPreset(Preset.model_validate(document.value), document=document)
    except ValidationError as error:
        return CheckedPreset(None, preset_problems(error, document), document)


def preset_problems(error: ValidationError, document: JsonDocument) -> Sequence[PresetProblem]:
    """Describe a document's first problems, ordered by line."""
    found = [(document.line_of(_path_of(one)), one) for one in error.errors()]
    found.sort(key=lambda one: one[0])
    problems = [PresetProblem(line, _describe(one)) for line, one in found[:MAX_PROBLEMS]]
    if more := found[MAX_PROBLEMS:]:
        told = translatable_count("1 more problem", "{count} more problems", len(more))
        problems.append(PresetProblem(more[0][0], told))
    return problems


def _describe(problem: ErrorDetails) -> Text:
    path = problem["loc"]
    key = _dotted(path)
    match problem["type"]:
        case "extra_forbidden":
            hint = _nearest_name(path)
            return translatable("unknown key {key}{hint}", key=repr(key), hint=hint)
        case "missing":
            return translatable("the key {key} is missing", key=repr(key))
        case "value_error":
            return translatable("{key}: {reason}", key=key, reason=describe_problem(problem))
        case _:
            message = describe_problem(problem)
            return translatable(
                "{key}: {message}, not {given}",
                key=key,
                message=message,
                given=_shown(problem["input"]),
            )


def _path_of(problem: ErrorDetails) -> tuple[str | int, ...]:
    """Return a problem's path, including the part within a value checked by one validator."""
    error = problem.get("ctx", {}).get("error")
    return (*problem["loc"], *(error.path if isinstance(error, PlacedPresetError) else ()))


def _dotted(path: Iterable[str | int]) -> str:
    """("messages", 0, "role") -> messages[0].role."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


def _nearest_name(path: tuple[str | int, ...]) -> Text:
    unknown = str(path[-1])
    known = _keys_at(path[:-1])
    parameters = list(Parameters.__annotations__) if len(path) == 1 else []
    wanted = unknown.lower().replace("-", "_")
    match difflib.get_close_matches(wanted, known + parameters, n=1):
        case [near] if near in parameters:
            inside = f"'parameters': {{\"{near}\": ...}}"
            return translatable("; did you mean {name}?", name=inside)
        case [near]:
            return translatable("; did you mean {name}?", name=repr(near))
        case _:
            return translatable("; known keys: {names}", names=", ".join(known))


def _keys_at(path: tuple[str | int, ...]) -> list[str]:
    model: type[BaseModel] = Preset
    for step in path:
        if isinstance(step, str):
            model = _model_in(model.model_fields[step].annotation)
    return list(model.model_fields)


def _model_in(annotation: object) -> type[BaseModel]:
    """tuple[Wake, ...] -> Wake."""
    while not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        annotation = typing.get_args(annotation)[0]
    return annotation


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."

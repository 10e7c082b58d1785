"""Import Ollama's Modelfiles as presets, and export presets as Modelfiles."""

import difflib
import unicodedata
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import override

from bot.errors import PresetError
from bot.importers.go_to_jinja import jinja_from_go
from bot.importers.string_template_extraction import extract_string_templates
from bot.prompting.presets.files import validate_preset
from bot.prompting.presets.preset import DEFAULT_MODEL, Preset
from bot.templates import JinjaTemplate, StringTemplate
from bot.texts.text import EMPTY, translatable
from bot.value_class import value_class

_COMMANDS = {"from", "license", "template", "system", "adapter", "draft", "renderer", "parser"} | {
    "parameter", "message", "requires"
}  # fmt: skip
_ROLES = {"system", "user", "assistant"}
_BAD_COMMAND = translatable(
    'command must be one of "from", "license", "template", "system", "adapter", "parameter",'
    ' or "message"'  # as in v0.5.7: the newer commands are for ollama's own engine
)
_BAD_ROLE = translatable('message role must be one of "system", "user", or "assistant"')
_UNEXPECTED_END = translatable("unexpected EOF")
_QUOTES = ('"""', '"')
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_PARAMETER_CHARACTERS = _LETTERS | frozenset("0123456789_")


class ModelfileCommand(NamedTuple):
    """One instruction of a Modelfile; `str()` gives the line that ollama would write."""

    name: str
    """Ollama's name: FROM is `model`, a PARAMETER has its own name."""

    args: str

    @override
    def __str__(self) -> str:
        match self.name:
            case "model":
                return f"FROM {self.args}"
            case (
                "license" | "template" | "system" | "adapter" | "draft"
                | "renderer" | "parser" | "requires"
            ):  # fmt: skip
                return f"{self.name.upper()} {_quoted(self.args)}"
            case "message":
                role, _, text = self.args.partition(": ")
                return f"MESSAGE {role} {_quoted(text)}"
            case _:
                return f"PARAMETER {self.name} {_quoted(self.args)}"


@value_class
class Modelfile:
    """The commands of a Modelfile, in the order of the file."""

    commands: list[ModelfileCommand]

    @property
    def formatted(self) -> str:
        """Return ollama's canonical text, which does not always parse to the same commands."""
        return "".join(f"{command}\n" for command in self.commands)


def parse_modelfile(text: str) -> Modelfile:
    """Parse a Modelfile.

    Raises:
        PresetError: a syntax error with ollama's text, or there is no FROM.
    """
    commands = _ModelfileParser(text.removeprefix("\ufeff")).parse()
    if not any(command.name == "model" for command in commands):
        raise PresetError(translatable("no FROM line"))
    return Modelfile(commands)


class _ParserState(Enum):
    BETWEEN_COMMANDS = auto()
    NAME = auto()
    PARAMETER = auto()
    ROLE = auto()
    VALUE = auto()
    COMMENT = auto()


class _ArgumentBuffer:
    """The argument of a command so far; it continues over lines while its quotes are open."""

    def __init__(self) -> None:
        self._characters: list[str] = []
        self._start_of_text = self._end_of_text = 0  # without white space

    def add(self, character: str) -> None:
        if not character.isspace():
            if not self._end_of_text:
                self._start_of_text = len(self._characters)
            self._end_of_text = len(self._characters) + 1
        self._characters.append(character)

    @property
    def is_open(self) -> bool:
        """Tell whether quotes are still open, in constant time: it is asked at each line end."""
        size = len(self._quotes)
        end = "".join(self._characters[self._end_of_text - size : self._end_of_text])
        long_enough = self._end_of_text - self._start_of_text >= 2 * size
        return not (long_enough and end == self._quotes)

    @property
    def unquoted(self) -> str:
        size = len(self._quotes)
        return "".join(self._characters[self._start_of_text + size : self._end_of_text - size])

    @property
    def _quotes(self) -> str:
        head = "".join(self._characters[self._start_of_text : self._start_of_text + 3])
        return next((quotes for quotes in _QUOTES if head.startswith(quotes)), "")


class _ModelfileParser:
    """Ollama's state machine; it reads one character at a time."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._state = _ParserState.BETWEEN_COMMANDS
        self._line = 1
        self._buffer: list[str] = []
        self._value = _ArgumentBuffer()
        self._name = ""
        self._role = ""
        self._commands: list[ModelfileCommand] = []

    def parse(self) -> list[ModelfileCommand]:
        for character in self._text:
            self._line += character in "\r\n"  # CR LF counts twice, as in ollama
            match self._state:
                case _ParserState.BETWEEN_COMMANDS:
                    self._between(character)
                case _ParserState.NAME:
                    self._in_name(character)
                case _ParserState.PARAMETER:
                    self._in_word(character, _PARAMETER_CHARACTERS)
                case _ParserState.ROLE:
                    self._in_word(character, _LETTERS)
                case _ParserState.VALUE:
                    self._in_value(character)
                case _ParserState.COMMENT:
                    if character in "\r\n":
                        self._state = _ParserState.BETWEEN_COMMANDS
        self._finish()
        return self._commands

    def _between(self, character: str) -> None:
        if character == "#":
            self._state = _ParserState.COMMENT
        elif character not in " \t\r\n":
            self._buffer = [character] if _is_printable(character) else []
            self._state = _ParserState.NAME

    def _in_name(self, character: str) -> None:
        if character in _LETTERS:
            self._buffer.append(character)
            return
        name = "".join(self._buffer).lower()
        if character not in " \t" or name not in _COMMANDS:
            raise PresetError(
                translatable("(line {line}): {problem}", line=self._line, problem=_BAD_COMMAND)
            )
        self._buffer = []
        self._name = "model" if name == "from" else name
        self._state = {"parameter": _ParserState.PARAMETER, "message": _ParserState.ROLE}.get(
            name, _ParserState.VALUE
        )

    def _in_word(self, character: str, allowed: frozenset[str]) -> None:
        """Handle a character of a parameter name or of a message role."""
        if character in allowed:
            self._buffer.append(character)
            return
        word = "".join(self._buffer)
        if character not in " \t":
            raise PresetError(translatable("{problem}: {word}", problem=_UNEXPECTED_END, word=word))
        if self._state is _ParserState.PARAMETER:
            self._name = word
        elif word in _ROLES:
            self._role = word
        else:
            raise PresetError(
                translatable("(line {line}): {problem}", line=self._line, problem=_BAD_ROLE)
            )
        self._buffer = []
        self._state = _ParserState.VALUE

    def _in_value(self, character: str) -> None:
        if character in "\r\n" and not self._value.is_open:
            self._add_command()
            self._state = _ParserState.BETWEEN_COMMANDS
        elif character in " \t\r\n" or _is_printable(character):  # others are dropped, as in ollama
            self._value.add(character)

    def _add_command(self) -> None:
        value = self._value.unquoted
        if self._role:
            value = f"{self._role}: {value}"
        self._commands.append(ModelfileCommand(self._name, value))
        self._role = ""
        self._value = _ArgumentBuffer()

    def _finish(self) -> None:
        match self._state:
            case _ParserState.BETWEEN_COMMANDS | _ParserState.COMMENT:
                return
            case _ParserState.VALUE:
                if self._value.is_open:
                    raise PresetError(_UNEXPECTED_END)
                self._add_command()
            case _ParserState.NAME | _ParserState.PARAMETER | _ParserState.ROLE:
                raise PresetError(_UNEXPECTED_END)


def _is_printable(character: str) -> bool:
    """Tell whether Go would print a character; characters unknown to Python count as printable."""
    return character.isprintable() or unicodedata.category(character) == "Cn"


def _quoted(text: str) -> str:
    if "\n" in text or text.startswith(" ") or text.endswith(" "):
        return f'"""{text}"""' if '"' in text else f'"{text}"'
    return text


__all__ = [
    "Modelfile",
    "ModelfileCommand",
    "import_notes",
    "modelfile_from_preset",
    "parse_modelfile",
    "preset_from_modelfile",
]

_MESSAGE_ROLES = ("system", "user", "assistant")
_STRING_TEMPLATES = (*(f"{role}_template" for role in _MESSAGE_ROLES), "end_template")

# How ollama's api.Options reads each parameter.
_SAMPLING: dict[str, type] = {
    "temperature": float,
    "top_p": float,
    "min_p": float,
    "typical_p": float,
    "tfs_z": float,
    "repeat_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "mirostat_tau": float,
    "mirostat_eta": float,
    "top_k": int,
    "seed": int,
    "repeat_last_n": int,
    "mirostat": int,
    "num_predict": int,
    "num_ctx": int,
    "penalize_newline": bool,
}
_ENGINE = frozenset(
    {"f16_kv", "logits_all", "low_vram", "main_gpu", "num_batch", "num_gpu", "num_keep"}
    | {"num_thread", "numa", "use_mlock", "use_mmap", "vocab_only", "num_gqa"}
    | {"draft_num_predict"}
)
_REMOVED = frozenset({"penalize_newline", "tfs_z"})  # by llama.cpp; ollama ignores them
_OMITTED_COMMANDS = {
    "adapter": "merge the adapter into the GGUF",
    "draft": "a draft model only speeds the engine up",
    "license": "keep the Modelfile beside the model",
    "parser": "it is a part of ollama's own code",
    "renderer": "it is a part of ollama's own code",
    "requires": "it is a version of ollama",
}
_COMMAND_OF = frozenset({"model", "template", "system", "message", "stop"}) | set(_OMITTED_COMMANDS)
_USUAL_CONTEXT = 4096  # tokens, without `num_ctx`
_ANSWER_FRACTION = 4  # of a context without `num_predict`: what stays free for the answer
_BOOLS = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}


def preset_from_modelfile(
    text: str, name: str, model_path: str | Path, *, provider: str = "local"
) -> Preset:
    """Convert a Modelfile to a preset; `import_notes` tells what a preset cannot hold.

    TEMPLATE becomes string templates in `parameters` if they render exactly the same, else Jinja in
    `template`. RodelAgent's own example, whose `<s>` its string templates drop, becomes both;
    `template` takes precedence. `num_ctx` is the context: the prompt may take what `num_predict`
    leaves of it, or three quarters.

    Raises:
        PresetError: a syntax error with ollama's text, or an invalid parameter.
        TemplateError: TEMPLATE cannot be translated.
    """
    modelfile = parse_modelfile(text)
    values = {command.name: command.args for command in modelfile.commands}
    data: dict[str, Any] = {
        "name": name,
        "provider": provider,
        "model": str(model_path),
        "system": values.get("system") or None,
        "messages": [_message(args) for args in _arguments(modelfile, "message")],
        "stop_sequences": _arguments(modelfile, "stop"),
        "parameters": _parameters(values),
        **_token_budget(values),
    }
    if template := values.get("template"):
        source = jinja_from_go(template)
        found = extract_string_templates(JinjaTemplate(source))
        data["parameters"] |= found.templates if found else {}
        data["template"] = None if found and found.exact else source
    return validate_preset(data, f"Modelfile of {name!r}")


def import_notes(modelfile: Modelfile) -> list[str]:
    """List what the preset expresses differently than the Modelfile, or not at all."""
    names = {command.name for command in modelfile.commands}
    notes = [
        f"PARAMETER {name} is left out: it configures the engine, not the preset"
        for name in sorted(names & _ENGINE)
    ]
    notes += [
        f"PARAMETER {name} is left out: no engine has it any more"
        for name in sorted(names & _REMOVED)
    ]
    if "num_ctx" in names:
        notes.append(
            "PARAMETER num_ctx became max_input_tokens, less what the answer may take; how much the"
            " engine holds is the provider's context_tokens"
        )
    notes += [
        f"{name.upper()} is left out: {reason}"
        for name, reason in _OMITTED_COMMANDS.items()
        if name in names
    ]
    return notes


def modelfile_from_preset(preset: Preset) -> str:
    """Convert a preset to a Modelfile; keys that only Troupe has are left out.

    Raises:
        PresetError: a Modelfile cannot express something in the preset.
    """
    if preset.template is not None and preset.template != "model":
        raise PresetError(
            translatable(
                "preset {preset}: its template is not made of string templates, so it"
                " cannot become a Modelfile's TEMPLATE; remove `template` to export"
                " the rest",
                preset=repr(preset.name),
            )
        )
    if preset.model == DEFAULT_MODEL:
        raise PresetError(
            translatable(
                "preset {preset}: its model is the one of the provider's settings;"
                " set `model` to a name or a file, which becomes FROM",
                preset=repr(preset.name),
            )
        )
    commands = list(_commands(preset))
    text = "".join(f"{_format_command(command)}\n" for command in commands)
    for written, parsed in zip(commands, parse_modelfile(text).commands, strict=False):
        if written != parsed:
            raise PresetError(
                translatable(
                    "preset {preset}: ollama cannot parse this {command} back: it drops"
                    ' unprintable characters, and """ before a line break ends a text:'
                    " {arguments}",
                    preset=repr(preset.name),
                    command=written.name,
                    arguments=repr(written.args),
                )
            )
    return text


def _commands(preset: Preset) -> Iterator[ModelfileCommand]:
    yield ModelfileCommand("model", preset.model)
    parameters: Mapping[str, Any] = preset.parameters
    if any(parameters.get(key) is not None for key in _STRING_TEMPLATES):
        yield ModelfileCommand("template", _go_template(parameters))
    if preset.system:
        yield ModelfileCommand("system", preset.system)
    for key, value in parameters.items():
        if key not in _STRING_TEMPLATES and value is not None:
            yield _parameter(preset, key, value)
    if preset.max_input_tokens is not None:
        answer = parameters.get("max_tokens") or preset.max_input_tokens // (_ANSWER_FRACTION - 1)
        yield ModelfileCommand("num_ctx", str(preset.max_input_tokens + int(answer)))
    for stop in preset.stop_sequences:
        yield ModelfileCommand("stop", stop)
    for message in preset.messages:
        if any(part.type == "image" for part in message.content):
            raise PresetError(
                translatable(
                    "preset {preset}: a Modelfile's MESSAGE cannot hold images",
                    preset=repr(preset.name),
                )
            )
        yield ModelfileCommand("message", f"{message.role}: {message.text}")


def _parameter(preset: Preset, key: str, value: object) -> ModelfileCommand:
    name = "num_predict" if key == "max_tokens" else key
    if name not in _SAMPLING:
        raise PresetError(
            translatable(
                "preset {preset}: ollama has no parameter {key}; remove it",
                preset=repr(preset.name),
                key=repr(key),
            )
        )
    return ModelfileCommand(name, str(value).lower() if isinstance(value, bool) else str(value))


def _go_template(parameters: Mapping[str, Any]) -> str:
    """Write StringTemplate's rendering in Go: a block for each message, joined by newlines."""
    template = StringTemplate(**{key: parameters.get(key) for key in _STRING_TEMPLATES})
    blocks = ""
    for role in _MESSAGE_ROLES:
        parts = template.templates[role].split("{{" + role + "}}")
        text = "{{ .Content }}".join(_escape_braces(part) for part in parts)
        blocks += f'{{{{ {"else " if blocks else ""}if eq .Role "{role}" }}}}{text}'
    return (
        f"{{{{ range .Messages }}}}{blocks}{{{{ else }}}}unknown{{{{ end }}}}\n{{{{ end }}}}"
        f"{_escape_braces(template.end_template)}"
    )


def _escape_braces(text: str) -> str:
    return text.replace("{{", '{{ "{{" }}')


def _format_command(command: ModelfileCommand) -> str:
    """Write a command so that it can be parsed again: ollama's own form omits necessary quotes."""
    name, args = command
    match name:
        case "model":
            return f"FROM {_quote_if_needed(args)}"
        case "template" | "system":
            return f"{name.upper()} {_quote_if_needed(args)}"
        case "message":
            role, _, text = args.partition(": ")
            return f"MESSAGE {role} {_quote_if_needed(text)}"
        case _:
            return f"PARAMETER {name} {_quote_if_needed(args)}"


def _quote_if_needed(text: str) -> str:
    return f'"""{text}"""' if "\n" in text or '"' in text or text != text.strip() else text


def _arguments(modelfile: Modelfile, name: str) -> list[str]:
    return [command.args for command in modelfile.commands if command.name == name]


def _message(args: str) -> dict[str, str]:
    role, _, content = args.partition(": ")
    return {"role": role, "content": content}


def _parameters(values: Mapping[str, str]) -> dict[str, Any]:
    """Parse the sampling parameters as ollama's api.Options does."""
    parameters: dict[str, Any] = {}
    for name, text in values.items():
        if name in _REMOVED:
            continue
        if name in _SAMPLING:
            parameters[name] = _number(name, text)
        elif name not in _ENGINE | _COMMAND_OF:
            near = difflib.get_close_matches(name, [*_SAMPLING, *_ENGINE, "stop"], n=1, cutoff=0.75)
            hint = translatable("; did you mean {name}?", name=repr(near[0])) if near else EMPTY
            raise PresetError(
                translatable("unknown parameter {name}{hint}", name=repr(name), hint=hint)
            )
    context = parameters.pop("num_ctx", _USUAL_CONTEXT)
    if parameters.get("repeat_last_n", 0) < 0:  # -1 means the whole context
        parameters["repeat_last_n"] = context
    max_tokens = parameters.pop("num_predict", None)
    if max_tokens is not None and max_tokens > 0:  # -1 and -2 mean no limit
        parameters["max_tokens"] = max_tokens
    return parameters


def _token_budget(values: Mapping[str, str]) -> dict[str, int]:
    """Return the prompt's share of the context, if the Modelfile says how large that is."""
    context, answer = (
        int(_number(name, values.get(name, "0"))) for name in ("num_ctx", "num_predict")
    )
    if context <= 0:
        return {}
    if not 0 < answer < context:
        answer = context // _ANSWER_FRACTION
    return {"max_input_tokens": max(1, context - answer)}


def _number(name: str, text: str) -> float | bool:
    kind = _SAMPLING[name]
    try:
        return _BOOLS[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        raise PresetError(
            translatable(
                "PARAMETER {name}: invalid {kind} value {text}",
                name=name,
                kind=kind.__name__,
                text=repr(text),
            )
        ) from None

"""Import Ollama's Modelfiles as presets, and export presets as Modelfiles."""

import difflib
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import override

from bot.errors import PresetError, TemplateError
from bot.importers.go_to_jinja import jinja_from_go
from bot.prompting.presets.fields import STRING_TEMPLATES
from bot.prompting.presets.files import validate_preset
from bot.prompting.presets.preset import DEFAULT_MODEL, Preset
from bot.templates import JinjaTemplate, StringTemplate
from bot.texts.text import EMPTY_TEXT, translatable
from bot.value_class import value_class

_OMITTED_COMMANDS = frozenset({"adapter", "draft", "license", "parser", "renderer", "requires"})
_COMMANDS = _OMITTED_COMMANDS | {"from", "template", "system", "parameter", "message"}
_ROLES = ("system", "user", "assistant")
_UNKNOWN_COMMAND_ERROR = translatable(
    'command must be one of "from", "license", "template", "system", "adapter", "parameter",'
    ' or "message"'  # as in v0.5.7; newer commands concern only ollama's own engine
)
_UNKNOWN_ROLE_ERROR = translatable('message role must be one of "system", "user", or "assistant"')
_UNEXPECTED_END_ERROR = translatable("unexpected EOF")
_QUOTES = ('"""', '"')
_BLANKS, _REST_OF_LINE = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)+"), re.compile(r"[^\r\n]*")
_LETTERS, _PARAMETER_CHARACTERS = re.compile("[a-zA-Z]*"), re.compile("[a-zA-Z0-9_]*")


class ModelfileCommand(NamedTuple):
    """A command of a Modelfile; `str()` returns it as ollama writes it."""

    name: str
    """Ollama's name for it: `model` for FROM, and the parameter's name for PARAMETER."""

    argument: str

    @override
    def __str__(self) -> str:
        return self.format_line(_quote)

    def format_line(self, quote: Callable[[str], str]) -> str:
        """Return the command as a line, with its argument quoted by `quote`."""
        match self.name:
            case "model":
                return f"FROM {self.argument if quote is _quote else quote(self.argument)}"
            case "message":
                role, _, text = self.argument.partition(": ")
                return f"MESSAGE {role} {quote(text)}"
            case name if name in _COMMANDS:
                return f"{name.upper()} {quote(self.argument)}"
            case name:
                return f"PARAMETER {name} {quote(self.argument)}"


@value_class
class Modelfile:
    commands: list[ModelfileCommand]

    @property
    def text(self) -> str:
        """The Modelfile as ollama would write it; it may parse to different commands."""
        return "".join(f"{command}\n" for command in self.commands)


def parse_modelfile(text: str) -> Modelfile:
    """Parse a Modelfile; raise `PresetError` if it is invalid."""
    commands = list(_ModelfileParser(text.removeprefix("\ufeff")).parse())
    if not any(command.name == "model" for command in commands):
        raise PresetError.translatable("no FROM line")
    return Modelfile(commands)


class _ModelfileParser:
    """Parses commands with the states of Ollama's parser, and reports the same errors."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def parse(self) -> Iterator[ModelfileCommand]:
        while self._skip_match(_BLANKS) < len(self._text):
            yield self._read_command()

    def _skip_match(self, pattern: re.Pattern[str]) -> int:
        pattern_match = pattern.match(self._text, self._position)
        self._position = pattern_match.end() if pattern_match else self._position
        return self._position

    def _read_command(self) -> ModelfileCommand:
        first_character = self._text[self._position]
        self._position += 1
        name, next_character = self._read_word(_LETTERS)
        name = (name if not _is_printable(first_character) else first_character + name).lower()
        if next_character not in " \t" or name not in _COMMANDS:
            raise self._error(_UNKNOWN_COMMAND_ERROR)
        if name == "parameter":
            return ModelfileCommand(self._read_argument(_PARAMETER_CHARACTERS), self._read_value())
        if name == "message":
            role = self._read_argument(_LETTERS)
            if role not in _ROLES:
                raise self._error(_UNKNOWN_ROLE_ERROR)
            return ModelfileCommand(name, f"{role}: {self._read_value()}")
        return ModelfileCommand("model" if name == "from" else name, self._read_value())

    def _read_word(self, char_pattern: re.Pattern[str]) -> tuple[str, str]:
        """Read a word; return it and the character after it."""
        begin = self._position
        end = self._skip_match(char_pattern)
        if end == len(self._text):
            raise PresetError(_UNEXPECTED_END_ERROR)
        self._position += 1
        return self._text[begin:end], self._text[end]

    def _read_argument(self, char_pattern: re.Pattern[str]) -> str:
        word, next_character = self._read_word(char_pattern)
        if next_character not in " \t":
            raise PresetError.translatable(
                "{problem}: {word}", problem=_UNEXPECTED_END_ERROR, word=word
            )
        return word

    def _read_value(self) -> str:
        """Read an argument; if it starts with quotes, it may span several lines."""
        lines = [self._read_line().lstrip()]
        line = lines[0].rstrip()
        opening_quotes = next((each for each in _QUOTES if line.startswith(each)), "")
        quote_size = len(opening_quotes)
        if line.endswith(opening_quotes) and len(line) >= 2 * quote_size:
            return line[quote_size : len(line) - quote_size]
        while self._position < len(self._text):
            lines += [self._text[self._position - 1], self._read_line()]
            if lines[-1].rstrip().endswith(opening_quotes):
                return "".join(lines).rstrip()[quote_size:-quote_size]
        raise PresetError(_UNEXPECTED_END_ERROR)

    def _read_line(self) -> str:
        """Read the rest of the line with its line break; drop the characters that ollama drops."""
        begin = self._position
        text = self._text[begin : self._skip_match(_REST_OF_LINE)]
        self._position += 1
        return "".join(one for one in text if one in " \t" or _is_printable(one))

    def _error(self, problem: str) -> PresetError:
        seen_text = self._text[: self._position]
        line = 1 + seen_text.count("\r") + seen_text.count("\n")  # CR LF counts twice, as in ollama
        return PresetError.translatable("(line {line}): {problem}", line=line, problem=problem)


def _is_printable(character: str) -> bool:
    """Return whether Go considers a character printable; True if Python does not know it."""
    return character.isprintable() or unicodedata.category(character) == "Cn"


def _quote(text: str) -> str:
    if "\n" in text or text.startswith(" ") or text.endswith(" "):
        return f'"""{text}"""' if '"' in text else f'"{text}"'
    return text


# The type of each parameter in ollama's api.Options.
_PARAMETER_TYPES: dict[str, type[int] | type[float]] = {
    **dict.fromkeys(("temperature", "top_p", "min_p", "typical_p"), float),
    **dict.fromkeys(("repeat_penalty", "presence_penalty", "frequency_penalty"), float),
    **dict.fromkeys(("mirostat_tau", "mirostat_eta"), float),
    **dict.fromkeys(("top_k", "seed", "repeat_last_n", "mirostat", "num_predict", "num_ctx"), int),
}
_ENGINE_PARAMETERS = frozenset(
    {"f16_kv", "logits_all", "low_vram", "main_gpu", "num_batch", "num_gpu", "num_keep"}
    | {"num_thread", "numa", "use_mlock", "use_mmap", "vocab_only", "num_gqa"}
    | {"draft_num_predict", "penalize_newline", "tfs_z"}
)
"""Parameters that configure ollama's engine, and two that it now ignores."""

_NON_NUMERIC_COMMANDS = _OMITTED_COMMANDS | {"model", "template", "system", "message", "stop"}
_DEFAULT_CONTEXT_TOKENS = 4096  # tokens, if `num_ctx` is missing
_CONTEXT_PER_ANSWER = 4  # the answer gets a quarter of the context if `num_predict` is missing


def preset_from_modelfile(
    text: str, name: str, model: str | Path, *, provider: str = "local"
) -> Preset:
    """Convert a Modelfile to a preset; raise `PresetError` or `TemplateError` if that fails.

    TEMPLATE becomes string templates in `parameters` if these render the same, and otherwise Jinja
    in `template`. Both are set if the string templates differ only by a BOS token; `template` is
    then used. `max_input_tokens` is the context size `num_ctx` minus the tokens for the answer.
    """
    modelfile = parse_modelfile(text)
    arguments = {command.name: command.argument for command in modelfile.commands}
    data: dict[str, Any] = {
        "name": name,
        "provider": provider,
        "model": str(model),
        "system": arguments.get("system") or None,
        "messages": [_parse_message(one) for one in _find_arguments(modelfile, "message")],
        "stop_sequences": _find_arguments(modelfile, "stop"),
        "parameters": _parse_parameters(arguments),
        **_token_budget(arguments),
    }
    if template := arguments.get("template"):
        jinja_source = jinja_from_go(template)
        string_templates, is_exact = extract_string_templates(JinjaTemplate(jinja_source))
        data["parameters"] |= string_templates
        data["template"] = None if is_exact else jinja_source
    return validate_preset(data, f"Modelfile of {name!r}")


def modelfile_notes(modelfile: Modelfile) -> list[str]:
    """Return notes about what the preset lacks or expresses differently than the Modelfile."""
    names = {command.name for command in modelfile.commands}
    commands = [name.upper() for name in sorted(names & _OMITTED_COMMANDS)]
    commands += [f"PARAMETER {name}" for name in sorted(names & _ENGINE_PARAMETERS)]
    notes = [f"{', '.join(commands)} omitted: presets have no equivalent"] if commands else []
    if "num_ctx" in names:
        notes.append(
            "PARAMETER num_ctx, minus the tokens for the answer, became max_input_tokens; the "
            "engine's context size is set by the provider's context_tokens"
        )
    return notes


def modelfile_from_preset(preset: Preset) -> str:
    """Convert a preset to a Modelfile; raise `PresetError` if that is impossible."""
    if preset.template is not None and preset.template != "model":
        raise PresetError.translatable(
            "preset {preset}: its template is not built from string templates, so it"
            " cannot be exported as a Modelfile's TEMPLATE; remove `template` to export"
            " everything else",
            preset=repr(preset.name),
        )
    if preset.model == DEFAULT_MODEL:
        raise PresetError.translatable(
            "preset {preset}: its model comes from the provider's settings; set `model` to a name"
            " or a file, which becomes FROM",
            preset=repr(preset.name),
        )
    commands = list(_list_commands(preset))
    text = "".join(f"{command.format_line(_quote_if_needed)}\n" for command in commands)
    for command, parsed_command in zip(commands, parse_modelfile(text).commands, strict=False):
        if command != parsed_command:
            raise PresetError.translatable(
                "preset {preset}: ollama would read this {command} differently: it drops"
                ' unprintable characters, and ends a text at """ before a line break:'
                " {arguments}",
                preset=repr(preset.name),
                command=command.name,
                arguments=repr(command.argument),
            )
    return text


def _list_commands(preset: Preset) -> Iterator[ModelfileCommand]:
    yield ModelfileCommand("model", preset.model)
    parameters: Mapping[str, Any] = preset.parameters
    if any(parameters.get(key) is not None for key in STRING_TEMPLATES):
        yield ModelfileCommand("template", _build_go_template(parameters))
    if preset.system:
        yield ModelfileCommand("system", preset.system)
    for key, value in parameters.items():
        if key not in STRING_TEMPLATES and value is not None:
            yield _make_parameter_command(preset, key, value)
    if preset.max_input_tokens is not None:
        answer = parameters.get("max_tokens") or preset.max_input_tokens // (
            _CONTEXT_PER_ANSWER - 1
        )
        yield ModelfileCommand("num_ctx", str(preset.max_input_tokens + int(answer)))
    for stop in preset.stop_sequences:
        yield ModelfileCommand("stop", stop)
    for message in preset.messages:
        if any(part.type == "image" for part in message.content):
            raise PresetError.translatable(
                "preset {preset}: a Modelfile's MESSAGE cannot contain images",
                preset=repr(preset.name),
            )
        yield ModelfileCommand("message", f"{message.role}: {message.text}")


def _make_parameter_command(preset: Preset, key: str, value: object) -> ModelfileCommand:
    name = "num_predict" if key == "max_tokens" else key
    if name not in _PARAMETER_TYPES:
        raise PresetError.translatable(
            "preset {preset}: ollama has no parameter {key}; remove it",
            preset=repr(preset.name),
            key=repr(key),
        )
    return ModelfileCommand(name, str(value))


def _build_go_template(parameters: Mapping[str, Any]) -> str:
    """Return a Go template that renders like `StringTemplate`, with a block per message."""
    template = StringTemplate(**{key: parameters.get(key) for key in STRING_TEMPLATES})
    role_blocks = ""
    for role in _ROLES:
        parts = template.templates[role].split("{{" + role + "}}")
        text = "{{ .Content }}".join(_escape_go_braces(part) for part in parts)
        role_blocks += f'{{{{ {"else " if role_blocks else ""}if eq .Role "{role}" }}}}{text}'
    return (
        f"{{{{ range .Messages }}}}{role_blocks}{{{{ else }}}}unknown{{{{ end }}}}\n{{{{ end }}}}"
        f"{_escape_go_braces(template.end_template)}"
    )


def _escape_go_braces(text: str) -> str:
    return text.replace("{{", '{{ "{{" }}')


def _quote_if_needed(text: str) -> str:
    """Quote a text if it could not be parsed without quotes; ollama omits some necessary quotes."""
    return f'"""{text}"""' if "\n" in text or '"' in text or text != text.strip() else text


def _find_arguments(modelfile: Modelfile, name: str) -> list[str]:
    return [command.argument for command in modelfile.commands if command.name == name]


def _parse_message(argument: str) -> dict[str, str]:
    role, _, content = argument.partition(": ")
    return {"role": role, "content": content}


def _parse_parameters(arguments: Mapping[str, str]) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    for name, text in arguments.items():
        if name in _PARAMETER_TYPES:
            parameters[name] = _parse_number(name, text)
        elif name not in _ENGINE_PARAMETERS | _NON_NUMERIC_COMMANDS:
            names = difflib.get_close_matches(name, [*_PARAMETER_TYPES, "stop"], n=1, cutoff=0.75)
            hint = (
                translatable("; did you mean {name}?", name=repr(names[0])) if names else EMPTY_TEXT
            )
            raise PresetError.translatable(
                "unknown parameter {name}{hint}", name=repr(name), hint=hint
            )
    context_tokens = parameters.pop("num_ctx", _DEFAULT_CONTEXT_TOKENS)
    if parameters.get("repeat_last_n", 0) < 0:  # -1 means the whole context
        parameters["repeat_last_n"] = context_tokens
    max_tokens = parameters.pop("num_predict", None)
    if max_tokens is not None and max_tokens > 0:  # -1 and -2 mean no limit
        parameters["max_tokens"] = max_tokens
    return parameters


def _token_budget(arguments: Mapping[str, str]) -> dict[str, int]:
    context_tokens, answer_tokens = (
        int(_parse_number(name, arguments.get(name, "0"))) for name in ("num_ctx", "num_predict")
    )
    if context_tokens <= 0:
        return {}
    if not 0 < answer_tokens < context_tokens:
        answer_tokens = context_tokens // _CONTEXT_PER_ANSWER
    return {"max_input_tokens": max(1, context_tokens - answer_tokens)}


def _parse_number(name: str, text: str) -> float:
    number_type = _PARAMETER_TYPES[name]
    try:
        return number_type(text)
    except ValueError:
        raise PresetError.translatable(
            "PARAMETER {name}: invalid {kind} value {text}",
            name=name,
            kind=number_type.__name__,
            text=repr(text),
        ) from None


# Engines add the BOS token themselves, so RodelAgent's document omits it.
_BOS_TOKENS = ("<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>", "[gMASK]<sop>")

# Private-use characters serve as message texts: everything around them is from the template.
_SYSTEM, _USER, _ASSISTANT, _USER_2, _ASSISTANT_2, _USER_3 = map(chr, range(0xE000, 0xE006))
_PROBE_ROLES = {_SYSTEM: "system", _ASSISTANT: "assistant", _ASSISTANT_2: "assistant"}


def extract_string_templates(template: JinjaTemplate) -> tuple[dict[str, str], bool]:
    """Return equivalent string templates by preset parameter, and whether they are exact.

    They are exact if they render alternating conversations, with or without a system message, like
    the template. They are not exact if they omit a BOS token that the template has before each
    exchange. If there are no equivalent string templates, the result is empty.
    """
    try:
        single_prompt = _render(template, _USER)
        bos_token = next((token for token in _BOS_TOKENS if single_prompt.startswith(token)), "")
        chat_prompt = _render(template, _USER, _ASSISTANT, _USER_2).replace(bos_token, "")
        prompt_with_system = _render(template, _SYSTEM, _USER).replace(bos_token, "")
        bare_prompt = single_prompt.replace(bos_token, "")
        blocks = _split_blocks(
            bare_prompt, chat_prompt, prompt_with_system, requires_newline=not bos_token
        )
        if blocks is None:
            return {}, False
        alternating_texts = (_USER, _ASSISTANT, _USER_2, _ASSISTANT_2, _USER_3)
        is_exact = all(
            _render(template, *texts) == StringTemplate(**blocks).render(_probe_messages(texts))
            for texts in ((_USER,), alternating_texts, (_SYSTEM, *alternating_texts))
        )
    except TemplateError:  # the template rejects one of the conversations
        return {}, False
    return (blocks, is_exact) if is_exact or bos_token else ({}, False)


def _render(template: JinjaTemplate, *texts: str) -> str:
    return template.render(_probe_messages(texts), add_generation_prompt=True)


def _probe_messages(texts: tuple[str, ...]) -> list[dict[str, str]]:
    return [{"role": _PROBE_ROLES.get(text, "user"), "content": text} for text in texts]


def _split_blocks(
    single_prompt: str, chat_prompt: str, prompt_with_system: str, *, requires_newline: bool
) -> dict[str, str] | None:
    prefix, _, suffix = single_prompt.partition(_USER)
    text_until_answer, answer, tail = chat_prompt.removeprefix(prefix + _USER).partition(_ASSISTANT)
    question = prefix + _USER_2 + suffix
    answer_suffix = tail.removesuffix(question)
    has_newline = answer_suffix.endswith("\n") or not requires_newline
    if not answer or not tail.endswith(question) or not has_newline:
        return None
    end = _find_block_end(text_until_answer, suffix)
    if end is None:
        return None
    answer_prefix, answer_suffix = text_until_answer[end + 1 :], answer_suffix.removesuffix("\n")
    blocks = {
        "user_template": prefix + "{{user}}" + suffix[:end],
        "assistant_template": answer_prefix + "{{assistant}}" + answer_suffix,
        "end_template": suffix[end + 1 :],
    }
    system_block = prompt_with_system.removesuffix("\n" + single_prompt)
    if _SYSTEM in system_block and system_block != prompt_with_system:
        return {"system_template": system_block.replace(_SYSTEM, "{{system}}"), **blocks}
    return blocks


def _find_block_end(text_until_answer: str, text_until_prompt_end: str) -> int | None:
    """Return the index in `text_until_prompt_end` where the user's block ends, or None without end.

    The end is the first run of newlines, if `text_until_answer` begins with the same
    text up to there.
    """
    position = text_until_prompt_end.find("\n")
    while text_until_prompt_end[position + 1 : position + 2] == "\n":
        position += 1
    block = text_until_prompt_end[: position + 1]
    has_tail = bool(text_until_prompt_end[position + 1 :].strip())
    return position if position >= 0 and has_tail and text_until_answer.startswith(block) else None

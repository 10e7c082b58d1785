r"""Convert TeX formulas to plain Unicode text for chats: `\frac{a}{b^2}` becomes `a/b²`."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

_TEX_TABLES = tomllib.loads(Path(__file__).with_name("tex.toml").read_text("utf-8"))
_SYMBOLS: Mapping[str, str] = {
    **dict(pair.split("=", 1) for pair in _TEX_TABLES["symbols"].split()),
    "quad": "  ",
    "qquad": "    ",
}
_COMMANDS_WITHOUT_SYMBOL = frozenset(_TEX_TABLES["without_sign"].split())
_STYLE_COMMANDS = frozenset(_TEX_TABLES["styles"].split())
_DOUBLE_STRUCK_LETTERS = {"R": "ℝ", "N": "ℕ", "Z": "ℤ", "Q": "ℚ", "C": "ℂ", "P": "ℙ", "E": "𝔼"}
_SUPERSCRIPTS = dict(
    zip(
        "0123456789+-=()niabcdefghjklmoprstuvwxyzTVW",
        "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱᵃᵇᶜᵈᵉᶠᵍʰʲᵏˡᵐᵒᵖʳˢᵗᵘᵛʷˣʸᶻᵀⱽᵂ",
        strict=True,
    )
)
_SUBSCRIPTS = dict(
    zip("0123456789+-=()aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ", strict=True)
)
_TOKEN = re.compile(r"\\(?:begin|end)\{[a-zA-Z*]+\}|\\[A-Za-z]+\*?|\\.|[{}^_&~]|\s+|.", re.DOTALL)
_SELF_CONTAINED_OPERAND = re.compile(r"\w*|\(.*\)", re.DOTALL)
_SPACES = re.compile(r"[ \t]+")
_MAX_NESTING_DEPTH = 12


def tex_to_unicode(tex: str) -> str:
    """Return a TeX formula as Unicode text; unknown commands are shown by name."""
    tokens = _TOKEN.findall(tex)
    text = _TexConverter(tokens).convert_until(None, 0)
    lines = [_SPACES.sub(" ", line).strip() for line in text.split("\n")]
    return "\n".join(line for line in lines if line) or tex.strip()


class _TexConverter:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._position = 0

    def convert_until(self, end_token: str | None, depth: int) -> str:
        """Convert everything up to `end_token`; None: up to the end of the formula."""
        pieces: list[str] = []
        while self._position < len(self._tokens):
            token = self._next_token()
            if token == end_token:
                break
            pieces.append(self._convert_token(token, depth))
        return "".join(pieces)

    def _next_token(self) -> str:
        token = self._tokens[self._position]
        self._position += 1
        return token

    def _convert_argument(self, depth: int) -> str:
        while self._position < len(self._tokens) and self._tokens[self._position].isspace():
            self._position += 1
        if self._position == len(self._tokens):
            return ""
        return self._convert_token(self._next_token(), depth + 1)

    def _convert_token(self, token: str, depth: int) -> str:
        if depth > _MAX_NESTING_DEPTH:
            return token
        match token:
            case "{":
                return self.convert_until("}", depth + 1)
            case "}":
                return ""
            case "^":
                return _to_script_chars(self._convert_argument(depth), _SUPERSCRIPTS, "^")
            case "_":
                return _to_script_chars(self._convert_argument(depth), _SUBSCRIPTS, "_")
            case "&" | "~":
                return " "
            case "\\\\":
                return "\n"
            case _ if token.startswith(("\\begin", "\\end")):
                return "\n"
            case _:
                return self._convert_command(token, depth) if token.startswith("\\") else token

    def _convert_command(self, token: str, depth: int) -> str:
        name = token[1:].rstrip("*")
        if name in {"frac", "dfrac", "tfrac", "cfrac"}:
            first_argument = self._convert_argument(depth)
            return f"{_parenthesize(first_argument)}/{_parenthesize(self._convert_argument(depth))}"
        if name == "binom":
            first_argument = self._convert_argument(depth)
            return f"C({first_argument}, {self._convert_argument(depth)})"
        if name == "sqrt":
            root_degree = ""
            if self._tokens[self._position : self._position + 1] == ["["]:
                self._position += 1
                root_degree = _to_script_chars(
                    self.convert_until("]", depth + 1), _SUPERSCRIPTS, ""
                )
            return f"{root_degree}√{_parenthesize(self._convert_argument(depth))}"
        if name == "mathbb":
            argument = self._convert_argument(depth)
            return _DOUBLE_STRUCK_LETTERS.get(argument, argument)
        if name in _STYLE_COMMANDS:
            return self._convert_argument(depth)
        if name in _COMMANDS_WITHOUT_SYMBOL:
            return ""
        if name in _SYMBOLS:
            return _SYMBOLS[name]
        return name if name.isalpha() else {",": " ", ";": " ", ":": " ", "!": ""}.get(name, name)


def _to_script_chars(text: str, characters: Mapping[str, str], tex_mark: str) -> str:
    """Return text in superscript or subscript characters or, without them, after `tex_mark`."""
    if text and all(character in characters for character in text):
        return "".join(characters[character] for character in text)
    return f"{tex_mark}{text}" if len(text) == 1 else f"{tex_mark}({text})"


def _parenthesize(text: str) -> str:
    return text if _SELF_CONTAINED_OPERAND.fullmatch(text) else f"({text})"

"""The parts of a Go template that a prompt can be made of."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Field:
    """`.Function.Name` of the dot, or `$tool.Function.Name` of a variable; `$` is the root."""

    variable: str | None
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Literal:
    value: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Function:
    name: str


@dataclass(frozen=True, slots=True)
class Chain:
    """`(index .Messages 0).Content`."""

    pipe: "Pipe"
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pipe:
    """`$x := first | second "argument"`; a command is what is called and its arguments."""

    commands: tuple[tuple["Operand", ...], ...]
    variables: tuple[str, ...] = ()
    declares: bool = False  # `:=`, against `=`
    line: int = 0


Operand = Field | Literal | Function | Chain | Pipe


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Action:
    pipe: Pipe


@dataclass(frozen=True, slots=True)
class Jump:
    word: str  # break or continue


@dataclass(frozen=True, slots=True)
class Branch:
    """`if`, `range` or `with`."""

    word: str
    pipe: Pipe
    body: tuple["Node", ...]
    otherwise: tuple["Node", ...]


Node = Text | Action | Jump | Branch

"""The parts of a Go template that a prompt can be made of."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GoField:
    """`.GoFunction.Name` of the dot, or `$tool.GoFunction.Name` of a variable; `$` is the root."""

    variable: str | None
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GoLiteral:
    value: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class GoFunction:
    name: str


@dataclass(frozen=True, slots=True)
class GoChain:
    """`(index .Messages 0).Content`."""

    pipe: "GoPipe"
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GoPipe:
    """`$x := first | second "argument"`; a command is what is called and its arguments."""

    commands: tuple[tuple["GoOperand", ...], ...]
    variables: tuple[str, ...] = ()
    declares: bool = False  # `:=`, against `=`
    line: int = 0


GoOperand = GoField | GoLiteral | GoFunction | GoChain | GoPipe


@dataclass(frozen=True, slots=True)
class GoText:
    text: str


@dataclass(frozen=True, slots=True)
class GoAction:
    pipe: GoPipe


@dataclass(frozen=True, slots=True)
class GoJump:
    word: str  # break or continue


@dataclass(frozen=True, slots=True)
class GoBranch:
    """`if`, `range` or `with`."""

    word: str
    pipe: GoPipe
    body: tuple["GoNode", ...]
    otherwise: tuple["GoNode", ...]


GoNode = GoText | GoAction | GoJump | GoBranch

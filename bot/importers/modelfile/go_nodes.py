"""The syntax tree of a Go template, as far as prompts need it."""

from bot.frozen_dataclass import frozen_dataclass


@frozen_dataclass
class GoField:
    """A field of the dot (`.Function.Name`) or of a variable (`$tool.Function.Name`)."""

    variable: str | None
    """None for the dot; `$` is the root."""

    names: tuple[str, ...] = ()


@frozen_dataclass
class GoLiteral:
    """A string, a number, `true`, `false` or `nil`."""

    value: str | int | float | bool | None


@frozen_dataclass
class GoFunction:
    """The name of a function."""

    name: str


@frozen_dataclass
class GoChain:
    """A field of a parenthesized pipeline, such as `(index .Messages 0).Content`."""

    pipe: "GoPipe"
    names: tuple[str, ...]


@frozen_dataclass
class GoPipe:
    """A pipeline, such as `$x := first | second "argument"`."""

    commands: tuple[tuple["GoOperand", ...], ...]
    """Each command is a function or value, followed by its arguments."""

    variables: tuple[str, ...] = ()

    declares: bool = False
    """True for `:=`, false for `=`."""

    line: int = 0


GoOperand = GoField | GoLiteral | GoFunction | GoChain | GoPipe


@frozen_dataclass
class GoText:
    """Text outside the braces."""

    text: str


@frozen_dataclass
class GoAction:
    """A pipeline that prints its value or sets a variable."""

    pipe: GoPipe


@frozen_dataclass
class GoJump:
    """`break` or `continue`."""

    keyword: str


@frozen_dataclass
class GoBranch:
    """`if`, `range` or `with`, with its body and its `else` part."""

    keyword: str
    pipe: GoPipe
    body: tuple["GoNode", ...]
    else_body: tuple["GoNode", ...]


GoNode = GoText | GoAction | GoJump | GoBranch

"""What ollama hands to a template: the fields of its values by Go's names, and ours for them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TypedExpression:
    """A Jinja expression and the Go type of what it yields."""

    source: str
    type: str = "any"


# Go's name -> our key and the type behind it. `list of x` and `map of x` are written out.
FIELDS: dict[str, dict[str, tuple[str, str]]] = {
    "message": {
        "Role": ("role", "text"),
        "Content": ("content", "text"),
        "Thinking": ("thinking", "text"),
        "ToolName": ("tool_name", "text"),
        "Images": ("images", "list of any"),
        "ToolCalls": ("tool_calls", "list of call"),
    },
    "call": {"ID": ("id", "text"), "Function": ("function", "called")},
    "called": {
        "Index": ("index", "number"),
        "Name": ("name", "text"),
        "Arguments": ("arguments", "object"),
    },
    "tool": {"Type": ("type", "text"), "Function": ("function", "declared")},
    "declared": {
        "Name": ("name", "text"),
        "Description": ("description", "text"),
        "Parameters": ("parameters", "schema"),
    },
    "schema": {
        "Type": ("type", "text"),
        "Required": ("required", "list of text"),
        "Properties": ("properties", "map of property"),
    },
    "property": {
        "Type": ("type", "text"),
        "Description": ("description", "text"),
        "Enum": ("enum", "list of text"),
    },
}

JSON_TYPES = frozenset({"tool", "list of tool", "declared"})
"""Ollama prints these as JSON; their keys come in the order in which they were given."""


def element(type_name: str) -> str:
    """`list of tool` -> `tool`."""
    return type_name.partition(" of ")[2] or "any"

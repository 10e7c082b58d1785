"""The types of the values that ollama passes to a template: Go's field names and our keys."""

from bot.frozen_dataclass import frozen_dataclass


@frozen_dataclass
class TypedExpression:
    """A Jinja expression and the Go type of its value."""

    source: str
    type: str = "any"


# Type -> Go's field name -> our key and the type of its value. Lists and maps are written
# `list of x` and `map of x`.
FIELDS_BY_TYPE: dict[str, dict[str, tuple[str, str]]] = {
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
"""Types that ollama prints as JSON, with the keys in their original order."""


def element_type(type_name: str) -> str:
    """Return the element type of a list or map type: `tool` for `list of tool`."""
    return type_name.partition(" of ")[2] or "any"

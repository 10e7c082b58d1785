"""Say in plain words what pydantic found wrong with a value that a person wrote."""

from typing import Final

from pydantic_core import ErrorDetails

from bot.texts.text import marked, translatable

_WORDS: Final = {
    **dict.fromkeys(
        ("int_parsing", "int_type", "int_from_float", "int_parsing_size"),
        marked("should be a whole number (an integer)"),
    ),
    **dict.fromkeys(("float_parsing", "float_type", "finite_number"), marked("should be a number")),
    **dict.fromkeys(("bool_parsing", "bool_type"), marked("should be true or false")),
    "greater_than_equal": marked("should be {ge} or more"),
    "greater_than": marked("should be more than {gt}"),
    "less_than_equal": marked("should be {le} or less"),
    "less_than": marked("should be less than {lt}"),
    **dict.fromkeys(("literal_error", "enum"), marked("should be {expected}")),
    **dict.fromkeys(("string_type", "path_type"), marked("should be a text")),
    **dict.fromkeys(
        ("list_type", "tuple_type", "set_type", "frozen_set_type"), marked("should be a list")
    ),
    **dict.fromkeys(
        ("dict_type", "model_type", "model_attributes_type"), marked("should be an object {{...}}")
    ),
}
"""By pydantic's type of the error; the names in braces are in its context."""


def describe_problem(problem: ErrorDetails) -> str:
    """Return what the value should be, as the end of a sentence: "should be a number".

    The value itself is not quoted: it may be a secret in the wrong place.
    """
    words = _WORDS.get(problem["type"])
    if words is not None:
        return translatable(words, **problem.get("ctx", {}))
    message = problem["msg"].removeprefix("Value error, ")
    return message.removeprefix("Input ").removeprefix("String ")

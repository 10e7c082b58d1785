"""Describe pydantic's validation errors in plain words."""

from typing import Final

from pydantic_core import ErrorDetails

from bot.texts.text import error_text, marked, translatable, translatable_count

_MESSAGES_BY_ERROR_TYPE: Final = {
    **dict.fromkeys(
        ("int_parsing", "int_type", "int_from_float", "int_parsing_size"),
        marked("should be a whole number (an integer)"),
    ),
    **dict.fromkeys(("float_parsing", "float_type", "finite_number"), marked("should be a number")),
    **dict.fromkeys(("bool_parsing", "bool_type"), marked("should be true or false")),
    "number": marked("must be a number"),
    "whole": marked("must be a whole number"),
    "range": marked("must be between {low} and {high}"),
    "one_number": marked("must be {low}"),
    "too_long": marked("should have at most {max_length} items"),
    "string_too_long": marked("should have at most {max_length} characters"),
    "greater_than_equal": marked("should be {ge} or more"),
    "greater_than": marked("should be more than {gt}"),
    "less_than_equal": marked("should be {le} or less"),
    "less_than": marked("should be less than {lt}"),
    **dict.fromkeys(("literal_error", "enum"), marked("should be {expected}")),
    **dict.fromkeys(("string_type", "path_type"), marked("should be text")),
    **dict.fromkeys(
        ("list_type", "tuple_type", "set_type", "frozen_set_type"), marked("should be a list")
    ),
    **dict.fromkeys(
        ("dict_type", "model_type", "model_attributes_type"), marked("should be an object {{...}}")
    ),
}
"""Texts by pydantic's error type; the names in braces come from the error's context."""


def describe_validation_error(problem: ErrorDetails) -> str:
    """Describe an error, as in "should be a number", without the value, which may be secret."""
    if problem["type"] == "string_too_short":
        return translatable_count(
            "should have at least 1 character",
            "should have at least {count} characters",
            problem["ctx"]["min_length"],
        )
    words = _MESSAGES_BY_ERROR_TYPE.get(problem["type"])
    if words is not None:
        return translatable(words, **problem.get("ctx", {}))
    if problem["type"] == "value_error":
        return error_text(problem["ctx"]["error"])
    message = problem["msg"]
    return message.removeprefix("Input ").removeprefix("String ")

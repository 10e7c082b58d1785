"""The sampling parameters of a preset, with the range of each number."""

from typing import Annotated

from pydantic import AfterValidator, ConfigDict
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

MAX_LIST_ITEMS = 256


def _within(low: float, high: float, *, whole: bool = False) -> AfterValidator:
    span = f"must be between {low:g} and {high:g}" if low < high else f"must be {low:g}"

    def check(value: object) -> object:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PydanticCustomError("number", "must be a number")
        if not low <= value <= high:  # NaN as well
            raise PydanticCustomError("range", "{span}", {"span": span})
        if whole and value != int(value):
            raise PydanticCustomError("whole", "must be a whole number")
        return value

    return AfterValidator(check)


def _check_length(value: object) -> object:
    if isinstance(value, list | tuple) and len(value) > MAX_LIST_ITEMS:
        raise PydanticCustomError("length", f"should have at most {MAX_LIST_ITEMS} items")
    return value


class Parameters(TypedDict, total=False):
    """Parameters that are sent to the model; keys not named here are the provider's to check."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc] # pydantic reads it

    system_template: str | None
    user_template: str | None
    assistant_template: str | None
    end_template: str | None
    temperature: Annotated[object, _within(0, 5)]
    top_p: Annotated[object, _within(0, 1)]
    min_p: Annotated[object, _within(0, 1)]
    top_k: Annotated[object, _within(-1, 1_000_000, whole=True)]
    frequency_penalty: Annotated[object, _within(-2, 2)]
    presence_penalty: Annotated[object, _within(-2, 2)]
    repeat_penalty: Annotated[object, _within(0, 10)]
    max_tokens: Annotated[object, _within(0, 1_000_000, whole=True)]  # 0: the provider's limit
    seed: Annotated[object, _within(-(2**63), 2**64, whole=True)]
    max_completion_tokens: Annotated[object, _within(0, 1_000_000, whole=True)]
    n: Annotated[object, _within(1, 1)]  # one answer is shown, so one is requested
    best_of: Annotated[object, _within(1, 1)]
    stop: Annotated[object, AfterValidator(_check_length)]

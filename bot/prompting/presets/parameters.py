"""What a preset hands to its model to sample by; a number that makes no sense is refused."""

from typing import Annotated

from pydantic import AfterValidator, ConfigDict
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

MOST_WORDS = 256


def _within(low: float, high: float, *, whole: bool = False) -> AfterValidator:
    span = f"must be between {low:g} and {high:g}" if low < high else f"must be {low:g}"

    def check(value: object) -> object:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PydanticCustomError("number", "must be a number")
        if not low <= value <= high:  # so is NaN
            raise PydanticCustomError("range", "{span}", {"span": span})
        if whole and value != int(value):
            raise PydanticCustomError("whole", "must be a whole number")
        return value

    return AfterValidator(check)


def _few_words(value: object) -> object:
    if isinstance(value, list | tuple) and len(value) > MOST_WORDS:
        raise PydanticCustomError("length", f"should have at most {MOST_WORDS} items")
    return value


class Parameters(TypedDict, total=False):
    """What goes to the model as it is; the provider decides about keys that are not named here."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc] # pydantic's way to say so

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
    max_tokens: Annotated[object, _within(0, 1_000_000, whole=True)]  # 0: the provider's own limit
    seed: Annotated[object, _within(-(2**63), 2**64, whole=True)]
    max_completion_tokens: Annotated[object, _within(0, 1_000_000, whole=True)]
    n: Annotated[object, _within(1, 1)]  # one answer is shown, so one is asked for
    best_of: Annotated[object, _within(1, 1)]
    stop: Annotated[object, AfterValidator(_few_words)]

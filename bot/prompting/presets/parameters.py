"""The sampling parameters of a preset, with the range of each number."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from typing_extensions import TypedDict

from bot.texts.text import Text, translatable

MAX_LIST_ITEMS = 256

# What proxies such as LiteLLM read from a request: where to send it, and with which credentials.
_OF_OPERATOR = frozenset({
    "api_base", "api_key", "api_type", "api_version", "authorization", "base_url", "credentials",
    "custom_llm_provider", "default_headers", "endpoint", "extra_body", "extra_headers",
    "extra_query", "headers", "model_list", "organization", "proxies", "proxy", "user_config",
})  # fmt: skip
_OF_CLOUDS = ("aws_", "azure_", "vertex_")

# What lets another model answer, calls or keeps something, or changes the cost, and no budget
# sees it: of OpenAI, OpenRouter and LiteLLM. What is charged for a search stands in no usage.
_BESIDE_THE_ACCOUNTS = frozenset({
    "content_policy_fallbacks", "context_window_fallback_dict", "context_window_fallbacks",
    "default_fallbacks", "fallbacks", "function_call", "functions", "messages", "model",
    "model_info", "models", "plugins", "route", "store", "tool_choice", "tools",
    "web_search_options",
})  # fmt: skip
_OF_PROXIES = ("litellm_", "mock_", "input_cost_", "output_cost_")


def parameter_problem(name: str) -> Text | None:
    """Return why no preset may have a parameter of this name; None if it may."""
    plain = name.strip().casefold().replace("-", "_")
    if plain in _OF_OPERATOR or plain.startswith(_OF_CLOUDS):
        return translatable(
            "{name} belongs to the operator, who sets addresses and keys of"
            " providers in TROUPE_PROVIDERS; remove it",
            name=repr(name),
        )
    if plain in _BESIDE_THE_ACCOUNTS or plain.startswith(_OF_PROXIES):
        return translatable(
            "{name} would change which model answers, what it calls or what it"
            " costs, unseen by budgets; a preset has the keys {keys} for that",
            name=repr(name),
            keys="model, fallbacks, tools, mcp_servers",
        )
    return None


@dataclass(frozen=True)
class _Within:
    """A number within a range, or null; the value stays as it was written."""

    low: float
    high: float
    whole: bool = False

    def check(self, value: object) -> object:
        """Return the value; raises `PydanticCustomError` where it is not such a number."""
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PydanticCustomError("number", "must be a number")
        if not self.low <= value <= self.high:  # NaN as well
            raise self._out_of_range()
        if self.whole and value != int(value):
            raise PydanticCustomError("whole", "must be a whole number")
        return value

    def _out_of_range(self) -> PydanticCustomError:
        span = {"low": f"{self.low:g}", "high": f"{self.high:g}"}
        if self.low < self.high:
            return PydanticCustomError("range", "must be between {low} and {high}", span)
        return PydanticCustomError("one_number", "must be {low}", span)

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        kind = "integer" if self.whole else "number"
        number = {"type": kind, "minimum": self.low, "maximum": self.high}
        return {"anyOf": [number, {"type": "null"}]}


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
    temperature: Annotated[object, _Within(0, 5)]
    top_p: Annotated[object, _Within(0, 1)]
    min_p: Annotated[object, _Within(0, 1)]
    top_k: Annotated[object, _Within(-1, 1_000_000, whole=True)]
    frequency_penalty: Annotated[object, _Within(-2, 2)]
    presence_penalty: Annotated[object, _Within(-2, 2)]
    repeat_penalty: Annotated[object, _Within(0, 10)]
    max_tokens: Annotated[object, _Within(0, 1_000_000, whole=True)]  # 0: the provider's limit
    seed: Annotated[object, _Within(-(2**63), 2**64, whole=True)]
    max_completion_tokens: Annotated[object, _Within(0, 1_000_000, whole=True)]
    n: Annotated[object, _Within(1, 1)]  # one answer is shown, so one is requested
    best_of: Annotated[object, _Within(1, 1)]
    stop: Annotated[object, AfterValidator(_check_length)]

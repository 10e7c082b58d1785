"""What the API says about answers."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from bot.chat.console.answers import AnswerSearch, StoredAnswer
from bot.chat.usage import MICROS
from bot.prompting.draft.token_shares import prompt_tokens, tokens_by_section

_EXCERPT_CHARS = 200
_MAX_NUMBER = 2**62


class AnswerQuery(BaseModel):
    """Which answers are wanted; what is empty is no condition."""

    model_config = ConfigDict(allow_inf_nan=False)

    channel: str = Field("", max_length=500, description="The key of a conversation.")
    preset: str = Field("", max_length=500)
    person: str = Field("", max_length=500, description="Such as telegram:5.")
    model: str = Field("", max_length=500, description="The model or its provider.")
    cost: float | Literal[""] = Field("", description="At least, in US dollars.")
    seconds: float | Literal[""] = Field("", description="At least.")
    cut_off: bool = Field(False, description="Only those that did not end by themselves.")
    left_out: bool = Field(False, description="Only those for which something was left out.")
    text: str = Field("", max_length=500, description="In the answer or the newest message.")
    before: int | None = Field(None, ge=0, lt=_MAX_NUMBER, description="Only smaller numbers.")

    @field_validator("channel", "preset", "person", "model", "text")
    @classmethod
    def _without_nul(cls, given: str) -> str:
        return given.replace("\0", "").strip()  # PostgreSQL has none

    def to_search(self) -> AnswerSearch:
        return AnswerSearch(
            conversation=self.channel,
            preset=self.preset,
            person=self.person,
            model=self.model,
            min_cost=None if self.cost == "" else _to_micros(self.cost),
            min_seconds=None if self.seconds == "" else self.seconds,
            cut_off=self.cut_off,
            left_out=self.left_out,
            text=self.text,
            before=self.before,
        )


def _to_micros(dollars: float) -> int:
    return round(min(max(dollars, 0.0), 1e9) * MICROS)


class ComparedAnswer(BaseModel):
    other: int = Field(ge=0, lt=_MAX_NUMBER)


class AnswerRow(BaseModel):
    """One answer in the list."""

    number: int
    at: float = Field(description="In Unix seconds.")
    channel: str
    person: str | None
    preset: str
    preset_version: int | None
    provider: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    limit: int | None = Field(description="The token budget of the prompt.")
    queued_seconds: float
    first_word_seconds: float | None
    seconds: float
    reason: str | None = Field(description="Why it ended; null: it was interrupted.")
    left_out: int = Field(description="How many items were left out of the prompt.")
    cost: float | None = Field(description="In US dollars; null: not known.")
    excerpt: str = Field(description="The beginning of the answer.")


class AnswerList(BaseModel):
    """A page of answers, newest first."""

    answers: list[AnswerRow]
    next_before: int | None = Field(description="What to search before for the next page.")


class LeftOutItem(BaseModel):
    section: str
    name: str
    why: str
    count: int
    tokens: int | None
    score: float | None


class AnswerDetail(AnswerRow):
    """One answer, and what it was made of."""

    answer: str
    sections: dict[str, int] = Field(description="The tokens of each section of the prompt.")
    dropped: list[LeftOutItem]
    parameters: dict[str, object]
    stop: list[str]


class ShownMessage(BaseModel):
    role: str
    content: str


class ShownToken(BaseModel):
    id: int
    text: str
    control: bool
    trusted: bool


class PromptQuery(BaseModel):
    form: Literal["text", "messages", "tokens"] = "messages"


class ShownPrompt(BaseModel):
    """A prompt in the form that was asked for; the others are empty."""

    text: str = ""
    messages: list[ShownMessage] = []
    tokens: list[ShownToken] = []


def answer_row(one: StoredAnswer) -> AnswerRow:
    receipt = one.receipt
    cost = receipt.charge.cost
    return AnswerRow(
        number=one.number,
        at=one.at,
        channel=one.conversation,
        person=receipt.charge.person,
        preset=receipt.preset,
        preset_version=receipt.preset_version,
        provider=receipt.provider,
        model=receipt.charge.model or receipt.prompt.model,
        prompt_tokens=prompt_tokens(receipt),
        cached_tokens=receipt.usage.cached_tokens,
        output_tokens=receipt.usage.output_tokens,
        limit=receipt.limit,
        queued_seconds=receipt.timings.queued_seconds,
        first_word_seconds=receipt.timings.first_word_seconds,
        seconds=receipt.timings.seconds,
        reason=receipt.reason.value if receipt.reason else None,
        left_out=sum(item.count for item in receipt.dropped),
        cost=None if cost is None else cost / MICROS,
        excerpt=receipt.answer[:_EXCERPT_CHARS],
    )


def answer_detail(one: StoredAnswer) -> AnswerDetail:
    receipt = one.receipt
    return AnswerDetail(
        **answer_row(one).model_dump(),
        answer=receipt.answer,
        sections=tokens_by_section(receipt),
        dropped=[
            LeftOutItem(
                section=item.section,
                name=item.name,
                why=item.why,
                count=item.count,
                tokens=item.tokens,
                score=item.score,
            )
            for item in receipt.dropped
        ],
        parameters=dict(receipt.prompt.parameters),
        stop=list(receipt.prompt.stop),
    )

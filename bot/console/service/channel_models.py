"""What the API says about one channel."""

from typing import Literal

from pydantic import BaseModel, Field


class ScopeRow(BaseModel):
    """A thread, a channel or a server, and which presets were chosen for it."""

    scope: str
    kind: Literal["thread", "channel", "server"]
    presets: list[str] = Field(description="Empty: nobody has chosen any; it is inherited.")
    by: str
    at: float | None = Field(description="In Unix seconds; null: nobody has chosen any.")


class PersonRow(BaseModel):
    """Somebody who has spoken in a channel."""

    id: str
    name: str
    label: str = Field(description="What prompts call this person.")


class SessionRow(BaseModel):
    """What was said between two /new."""

    number: int
    turns: int
    began_at: float = Field(description="In Unix seconds.")
    ended_at: float


class BudgetRow(BaseModel):
    """A budget that answers in a channel count against."""

    kind: str
    period: str
    spent: float = Field(description="In US dollars.")
    limit: float


class ChannelDetail(BaseModel):
    """One conversation: who answers, and why; whose history it is, and what it may cost."""

    channel: str
    active: list[str] = Field(description="The presets that answer.")
    active_from: str | None = Field(description="The scope that says so; null: the default.")
    scopes: list[ScopeRow] = Field(description="The narrowest first.")
    history_scope: str = Field(description="Whose messages share one history.")
    history_scope_from: str | None
    observes: bool = Field(description="Whether what is not said to the bot is remembered.")
    observes_from: str | None
    people: list[PersonRow]
    sessions: list[SessionRow]
    budgets: list[BudgetRow]


class PresetChoice(BaseModel):
    """What /preset use, add, remove and reset change, in one scope of a channel."""

    scope: str = Field(min_length=1, max_length=300)
    action: Literal["use", "add", "remove", "reset"]
    preset: str = Field("", max_length=500, description="Its name; not needed for reset.")


class ForgottenChannel(BaseModel):
    """A conversation that is being forgotten: its worker does that in its turn."""

    channel: str

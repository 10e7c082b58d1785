"""What the API says about the operation."""

from pydantic import BaseModel, Field


class LeaseRow(BaseModel):
    """A role that only one process has at a time."""

    role: str
    owner: str
    seconds_left: float = Field(description="Negative: nobody has it.")


class ProviderRow(BaseModel):
    """A provider that is set up."""

    name: str
    kind: str
    model: str | None
    presets: list[str] = Field(description="The presets that it answers for.")
    max_in_flight: int | None = Field(None, description="How many requests are made at once.")


class NodeRow(BaseModel):
    """A process of the installation."""

    owner: str
    roles: str
    version: str
    seen_seconds: float = Field(description="How long ago it reported itself.")
    is_silent: bool = Field(description="Whether it has missed several reports.")
    leases: list[str] = Field(description="What only one process does at a time.")
    conversations: int = Field(description="How many it is answering.")


class PauseRow(BaseModel):
    """Where nothing is answered."""

    scope: str
    by: str
    at: float = Field(description="In Unix seconds.")


class ModelHealthRow(BaseModel):
    """How the newest requests of a process for a model went."""

    provider: str
    model: str
    paused: bool = Field(description="Its circuit breaker is open: one trial at a time is made.")
    requests: int = Field(description="The newest ones that are remembered.")
    failed: int
    process: str = Field("", description="Which process; empty: the one that answers.")


class LoadedModelRow(BaseModel):
    """A model in the memory of a machine."""

    provider: str
    model: str
    slots: int
    busy: int = Field(description="Slots in which an answer is generated now.")
    held: int = Field(description="Slots with the history of a conversation.")
    waiting: int = Field(description="Requests in its queue.")
    process: str = Field("", description="Which process; empty: the one that answers.")


class WaitRow(BaseModel):
    """A rate limit that makes somebody wait."""

    scope: str = Field(description="What is limited: calls of a platform, or a provider.")
    seconds: float | None = Field(description="How long still; null: until a slot is free.")
    waiting: int | None = Field(description="Requests of this process that wait; null: unknown.")


class StepRow(BaseModel):
    """One step of the processing of a message."""

    at: str = Field(description="In ISO 8601, UTC; empty: not known.")
    level: str
    event: str
    details: dict[str, str]


class ErrorRow(BaseModel):
    """A message with warnings or errors in the log of a process."""

    error_id: str = Field(description="What its author was told.")
    turn: str
    at: str
    event: str
    reason: str
    process: str = Field("", description="Which process; empty: the one that answers.")


class ErrorDetail(BaseModel):
    error_id: str
    turn: str
    steps: list[StepRow]


class TrialResult(BaseModel):
    """What a provider answered when it was tried."""

    provider: str
    works: bool
    answer: str = Field(description="Or why it does not work.")


class OperationState(BaseModel):
    """What the service is doing."""

    parts: dict[str, str] = Field(description='"ok" for what works, else why it does not.')
    conversations: int = Field(description="With unanswered messages.")
    held: int = Field(description="Of them, those that are being answered.")
    oldest_seconds: float | None = Field(description="How long the oldest of them waits.")
    lanes: int = Field(description="Chats with messages that are not sent yet.")
    unsent: int = Field(description="Those messages.")
    leases: list[LeaseRow]
    providers: list[ProviderRow]
    health: list[ModelHealthRow]
    loaded: list[LoadedModelRow]
    waits: list[WaitRow]
    errors: list[ErrorRow]
    nodes: list[NodeRow]
    pauses: list[PauseRow]
    dead_letters: int = Field(description="What was set aside; `troupe dead-letters` shows it.")

"""What the forms of the playground send."""

from typing import Annotated

from pydantic import BaseModel, Field

MessageId = Annotated[str, Field(pattern="^[A-Za-z0-9-]{8,64}$")]
MessageText = Annotated[str, Field(min_length=1, max_length=100_000)]
ShortName = Annotated[str, Field(max_length=80)]


class NewChannel(BaseModel):
    name: ShortName = ""
    look: ShortName = ""


class ConversationCopy(BaseModel):
    conversation: str = Field(min_length=1, max_length=300)


class NewPerson(BaseModel):
    name: ShortName


class ChosenLook(BaseModel):
    channel_look: ShortName = ""


class MessageDraft(BaseModel):
    """What is being written, and as whom."""

    author: str = Field(max_length=200)
    text: str = Field("", max_length=100_000)
    reply_to: str = Field("", max_length=64)


class NewMessage(BaseModel):
    author: str = Field(max_length=200)
    text: MessageText
    key: MessageId
    reply_to: str = Field("", max_length=64)


class ChangedMessage(BaseModel):
    text: MessageText


class ButtonPress(BaseModel):
    author: str = Field("", max_length=200)
    data: str = Field(min_length=1, max_length=200)
    value: str | None = Field(None, max_length=200)
    key: MessageId | None = None


class ComposerQuery(BaseModel):
    """What the composer of the page is opened for."""

    reply: str = ""
    edit: str = ""
    author: str = ""

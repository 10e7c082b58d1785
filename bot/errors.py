"""The error tree. Each class exists because some `except` treats it differently.

TroupeError                 base of all our errors; the text names the problem and the remedy
├── SettingsError           the operator must change something before the service can start
│   └── PresetError         ... in a preset; the text names file, key and line
├── CharacterError          a character cannot be built or loaded; also a ValueError, for callers
│                           that use `bot` as a library
├── TemplateError           a chat template cannot be parsed or rendered
│   ├── TemplateLimitExceeded   ... it used too much CPU time or memory and was stopped
│   └── RenderUnavailable   ... because of the machine, not the template: try again
├── UserError               the person in the chat must change something; the text is shown to them
│   ├── PrivateError        ... and only they should see the text, such as a refusal
│   ├── BudgetUsedUp        ... or wait: a budget is used up; a cheaper model may answer
│   └── AgeUnconfirmed      ... and confirm their age; their question is kept until then
├── RequestRefused          the console refuses a request; `status` is the HTTP status
├── AlreadyNotified         the person is over a limit and got a notice: send nothing
├── Fenced                  another worker has claimed this conversation: discard the result
├── StoreError              the database failed
│   ├── UnknownEncryptionKey
│   └── Undecodable         one row cannot be decoded: skip it and process the others
├── EmbeddingError          no vector was computed: answer without stories, retry later
├── ToolServerError         an MCP server returned no result: the model answers without it
├── PluginFailed            a plug-in raised or took too long: continue without it, and log it
├── PlatformError           a chat platform refused a call or could not be reached
│   ├── PlatformFatal       ... for the whole bot: missing intent; no retry helps
│   │   └── TokenRejected   ... wrong token, which may be replaced in its file or accepted later
│   ├── RateLimited         ... for now; has the seconds to wait and the kind of calls
│   ├── Unreachable         nothing was sent: retry
│   ├── OutcomeUnknown      the message may have been sent: reconcile, never resend blindly
│   └── Refused             ... permanently for this message: blocked, deleted, forbidden
│       ├── MessageNotFound ... because the message to change no longer exists
│       ├── ContentRefused  ... because of its content: plainer content may be accepted
│       │   └── WordsRefused    ... because of its words, by a moderation rule
│       ├── ResponseRefused ... as a response to a command or button: send it to the chat
│       └── AnswerRefused   ... for the first message of an answer: stop generating it
└── BackendError            the model failed; `notice` is the text shown in the chat
    ├── BackendUnavailable  ... before the first token: a retry or another model may help
    │   └── ContextExceeded ... the prompt is too long; its backend has learned the limit
    └── BackendInterrupted  ... after the first token: keep the partial answer and mark it
        └── ToolResultsTooLong  ... because tool results were too long: retry with less history

Declared next to the only code that raises and catches them, as subclasses of those above:

RequestFailed, HttpStatusError, NoModelList                         backends/chat_completions
EngineFailed, EngineRefused                                         backends/llama_cpp/engine.py
InvalidRequest                                                      llama_cpp/bindings_request.py
NotModified, NotEditable, ChatMoved, MemberNotFound, PollingConflict  platforms/telegram/api.py
ReplyNotFound                                                       platforms/telegram/api.py
WebhookNotFound, ChannelNotFound, ThreadExists, AlreadyAcknowledged platforms/discord/rest
UnknownRole, UnsupportedCapability                                  templates/lmdeploy.py
JsonSyntaxError                                                     prompting/text/jsonc.py
LocatedPresetError                                                   prompting/lorebook/files.py
ConnectionFailed, InvalidAddress, AddressRefused                    runtime/http_client.py
ChildProcessFailed                                                  runtime/subprocesses.py
ConversionFailed                                                    media/attachment_reader.py
FetchFailed, FetchRefused                                           media/fetching.py
ToolFailed                                                          tools.py
"""

from typing import Literal, Self, TypeAlias

from typing_extensions import override

from bot.texts.text import error_text, translatable

RefusedScope: TypeAlias = Literal["route", "chat", "bot"]
"""The scope of a rate limit: one kind of call in a chat, the whole chat, or the whole bot."""


class TroupeError(Exception):
    """The base class; catch it to show the text without a traceback."""

    @classmethod
    def translatable(cls, pattern: str, **values: object) -> Self:
        """Create an error whose text can be translated; `pattern` has a `{name}` per value."""
        return cls(translatable(pattern, **values))

    def prefixed_with(self, prefix: object) -> Self:
        """Return a copy of the error whose text starts with a file or key, as in "file: text"."""
        return self.translatable("{file}: {problem}", file=prefix, problem=error_text(self))

    @property
    def text(self) -> str:
        """The text for people; can be translated, unlike `str(error)`."""
        return error_text(self)


class SettingsError(TroupeError):
    pass


class PresetError(SettingsError):
    pass


class CharacterError(TroupeError, ValueError):
    pass


class TemplateError(TroupeError):
    pass


class TemplateLimitExceeded(TemplateError):
    pass


class RenderUnavailable(TemplateError):
    pass


class UserError(TroupeError):
    pass


class PrivateError(UserError):
    pass


class BudgetUsedUp(UserError):
    pass


class AgeUnconfirmed(UserError):
    pass


class RequestRefused(TroupeError):
    """The console refuses an HTTP request; `status` is the status of its response."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class AlreadyNotified(TroupeError):
    pass


class Fenced(TroupeError):
    pass


class StoreError(TroupeError):
    sql_state: str | None = None
    """PostgreSQL's error code (SQLSTATE), such as 55P03; None for other errors."""


class UnknownEncryptionKey(StoreError):
    def __init__(self) -> None:
        super().__init__(
            "a text in the database is encrypted with a key that this process does not have; add"
            " that key to TROUPE_ENCRYPTION_KEYS (or TROUPE_ENCRYPTION_KEYS_FILE) again"
        )


class Undecodable(StoreError):
    pass


class EmbeddingError(TroupeError):
    pass


class ToolServerError(TroupeError):
    pass


class PluginFailed(TroupeError):
    pass


class PlatformError(TroupeError):
    pass


class PlatformFatal(PlatformError):
    pass


class TokenRejected(PlatformFatal):
    pass


class RateLimited(PlatformError):
    def __init__(self, retry_after_seconds: float, scope: RefusedScope = "chat") -> None:
        super().__init__(f"rate limited for {retry_after_seconds:.1f} s")
        self.retry_after_seconds = retry_after_seconds
        self.scope = scope


class Unreachable(PlatformError):
    pass


class OutcomeUnknown(PlatformError):
    def __init__(self, message: str, *, request_ended: bool = False) -> None:
        super().__init__(message)
        self.request_ended = request_ended
        """Whether the request has ended, so the platform cannot accept it later."""


class Refused(PlatformError):
    pass


class MessageNotFound(Refused):
    pass


class ContentRefused(Refused):
    pass


class WordsRefused(ContentRefused):
    pass


class ResponseRefused(Refused):
    pass


class AnswerRefused(Refused):
    """The first message of an answer was refused, so the answer should not be generated."""


class BackendError(TroupeError):
    def __init__(self, message: str, notice: str = "") -> None:
        super().__init__(message)
        self.notice = notice or translatable(
            "I could not reach the model. Please try again in a moment."
        )

    @property
    @override
    def text(self) -> str:
        return self.notice


class BackendUnavailable(BackendError):
    pass


class ContextExceeded(BackendUnavailable):
    """The prompt is too long for the model; its backend has learned the limit."""


class BackendInterrupted(BackendError):
    def __init__(self, message: str, notice: str = "", *, can_continue: bool = False) -> None:
        super().__init__(message, notice)
        self.can_continue = can_continue
        """Whether the model can be asked immediately to continue its partial answer."""


class ToolResultsTooLong(BackendInterrupted):
    """Tool results made the prompt too long; the backend now knows the model's limit."""

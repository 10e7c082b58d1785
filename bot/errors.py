"""What can go wrong, as one tree; a class exists because some `except` treats it differently.

TroupeError                 everything we raise on purpose; its text names the thing and the remedy
├── SettingsError           the operator must mend something before the service can start
│   └── PresetError         ... in a preset: file, key and line are named
├── CharacterError          a character cannot be made or loaded; a ValueError, too, for callers
│                           who use the library without the rest of the house
├── TemplateError           a chat template cannot be read or rendered
├── UserError               the person in the chat must mend something; the text is shown to them
├── Fenced                  another worker holds this conversation now: drop what was made
├── StoreError              the database did not take or give something
├── EmbeddingError         a text got no vector: answer without stories, and try again later
├── CoordinatorUnavailable         Redis is away: fall back to polling SQL
├── PlatformError           a chat platform said no
│   ├── PlatformFatal       ... to us as a whole: wrong token, missing intent; no retry helps
│   ├── RateLimited         ... for now; `retry_after_seconds` says how long
│   ├── Unreachable         nothing was sent; try again
│   ├── OutcomeUnknown      it may or may not have been sent: reconcile, never re-send blindly
│   └── Refused             ... to this message for good: blocked, deleted, not allowed
│       └── Vanished        ... because the message to change is not there any more
└── BackendError            the model gave no answer; `notice` is what the chat is told
    ├── BackendUnavailable  ... before the first word: another try or another model may help
    └── BackendInterrupted  ... after it had begun: keep the partial text and mark it
"""


class TroupeError(Exception):
    """The root: catch it to show its text without a traceback."""


class SettingsError(TroupeError):
    pass


class PresetError(SettingsError):
    pass


class CharacterError(TroupeError, ValueError):
    pass


class TemplateError(TroupeError):
    pass


class UserError(TroupeError):
    pass


class Fenced(TroupeError):
    pass


class StoreError(TroupeError):
    pass


class EmbeddingError(TroupeError):
    pass


class CoordinatorUnavailable(TroupeError):
    pass


class PlatformError(TroupeError):
    pass


class PlatformFatal(PlatformError):
    pass


class RateLimited(PlatformError):
    def __init__(self, retry_after_seconds: float) -> None:
        super().__init__(f"rate limited for {retry_after_seconds:.1f} s")
        self.retry_after_seconds = retry_after_seconds


class Unreachable(PlatformError):
    pass


class OutcomeUnknown(PlatformError):
    pass


class Refused(PlatformError):
    pass


class MessageNotFound(Refused):
    pass


class BackendError(TroupeError):
    def __init__(self, message: str, notice: str = "") -> None:
        super().__init__(message)
        self.notice = notice or "I could not reach the model. Please try again in a moment."


class BackendUnavailable(BackendError):
    pass


class BackendInterrupted(BackendError):
    pass

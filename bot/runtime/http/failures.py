"""Why there is no response, or no rest of it."""

from bot.errors import TroupeError


class ConnectionFailed(TroupeError):
    """There is no response, or no rest of it; the text says why."""

    def __init__(self, reason: str, *, sent: bool = True, was_idle: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent
        """The request, or a part of it, may have arrived."""
        self.was_idle = was_idle
        """A kept-alive connection ended before the response: perhaps before the request."""


class InvalidAddress(ConnectionFailed):
    """The server's address is not a valid URL."""

    def __init__(self) -> None:
        super().__init__("the server's address is not a valid URL", sent=False)


class AddressRefused(ConnectionFailed):
    """The server's name leads to an address that may not be asked."""

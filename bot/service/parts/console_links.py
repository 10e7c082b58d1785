"""Links to pages of the console."""

from bot.console.login import make_login_link
from bot.ports import Clock, ConsoleTokens


class ConsoleLinks:
    """Makes links once the console is served.

    Attributes:
        address: where browsers open the console; None while it is not served.
    """

    def __init__(self, tokens: ConsoleTokens, clock: Clock) -> None:
        self._tokens = tokens
        self._clock = clock
        self.address: str | None = None

    async def make_login_link(self) -> str:
        """Return a link that logs in to the console once."""
        return await make_login_link(self._tokens, self._clock, self.address or "")

    def answer(self, number: int) -> str | None:
        """Return the address of the page of an answer; None while no console is served."""
        return self.address and f"{self.address.rstrip('/')}/answers/{number}"

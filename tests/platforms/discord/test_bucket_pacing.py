"""Test over simulated hours that no request exceeds a limit or is sent too soon after a 429.

The server counts 5 requests in 5 s for each route of a channel, like Discord. Clients ask
`BucketLimits` before each request, like `RestClient`.
"""

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from hypothesis import example, given, settings
from hypothesis import strategies as st

from bot.platforms.discord.rest import BucketLimits

LIMIT, WINDOW_SECONDS = 5, 5.0
HOURS = 3
ROUTES = ("POST /channels/{}/messages", "PATCH /channels/{}/messages/{}")


@dataclass
class StrictServer:
    """A server that counts requests in fixed windows, and answers some with a global 429."""

    refusals: dict[int, float]
    """The wait in seconds after a global 429, by the number of the request that gets it."""
    violations: list[str] = field(default_factory=list)
    count: int = 0
    told_until: float = 0.0
    """The time until which a global 429 forbids all requests."""
    _windows: dict[tuple[str, str], list[float]] = field(
        default_factory=lambda: defaultdict(lambda: [0.0, 0.0])
    )

    def receive(self, route: str, channel: str, now: float) -> "Response":
        """Return the headers of the response, and the wait after a global 429; 0: no 429."""
        self.count += 1
        if now < self.told_until:
            self.violations.append(f"{now:.1f}: before {self.told_until:.1f}")
        window = self._windows[route, channel]
        if now >= window[1]:
            window[:] = [0, now + WINDOW_SECONDS]
        window[0] += 1
        if window[0] > LIMIT:
            self.violations.append(f"{now:.1f}: {window[0]:.0f} of {route} in {channel}")
        headers = {
            "x-ratelimit-bucket": route[:5],
            "x-ratelimit-limit": str(LIMIT),
            "x-ratelimit-remaining": str(max(0, LIMIT - int(window[0]))),
            "x-ratelimit-reset-after": str(window[1] - now),
        }
        return headers, self.refusals.get(self.count, 0.0)


@dataclass(frozen=True, order=True)
class Caller:
    """A client that sends requests one by one, like a lane of the outbox or live edits."""

    number: int
    route: str
    channel: str
    gaps: tuple[float, ...]  # seconds between a response and the next request, again and again
    latency: float  # seconds until the response is there


callers = st.lists(
    st.tuples(
        st.sampled_from(ROUTES),
        st.sampled_from("12"),
        st.lists(st.floats(0, 3) | st.just(0.0), min_size=1, max_size=12),
        st.floats(0.01, 2),
    ),
    min_size=1,
    max_size=5,
)
refusals = st.dictionaries(st.integers(1, 5000), st.floats(0.5, 300), max_size=6)


Response: TypeAlias = tuple[dict[str, str], float]


def simulate(running: list[Caller], server: StrictServer, limits: BucketLimits) -> None:
    """Let all callers send their requests for some simulated hours."""
    order = itertools.count()
    gaps: dict[Caller, Iterator[float]] = {one: itertools.cycle(one.gaps) for one in running}
    agenda: list[tuple[float, int, Caller, Response | None]]
    agenda = [(next(gaps[one]), next(order), one, None) for one in running]
    heapq.heapify(agenda)
    while agenda and agenda[0][0] < HOURS * 3600:
        now, _, caller, response = heapq.heappop(agenda)
        bucket = limits.get_bucket(caller.route, caller.channel, now)
        if response is not None:
            headers, refused = response
            limits.apply_headers(bucket, caller.route, caller.channel, headers, now)
            if refused:
                limits.block_all_until(now + refused)
                server.told_until = max(server.told_until, now + refused)
            # At least a tenth of a second: the edits of one answer never follow at once.
            heapq.heappush(agenda, (now + max(0.1, next(gaps[caller])), next(order), caller, None))
        elif (wait := limits.seconds_until_free(bucket, now)) > 0:
            heapq.heappush(agenda, (now + wait, next(order), caller, None))
        else:
            bucket.count_request(now)
            answer = server.receive(caller.route, caller.channel, now)
            heapq.heappush(agenda, (now + caller.latency, next(order), caller, answer))


@settings(max_examples=10, deadline=None, derandomize=True)  # a random search takes minutes
@given(planned=callers, refused=refusals)
@example(  # the bucket's name comes by another channel while requests are in flight
    [(ROUTES[1], "1", [0.0], 1.0), (ROUTES[1], "2", [0.0], 1.5), (ROUTES[1], "2", [0.0], 2.0)], {}
)
@example(  # a window ends while a response is on its way: the next request begins another
    [(ROUTES[1], "2", [1.0, 0.0, 0.0, 2.0], 1.75)] * 2, {}
)
def test_no_request_exceeds_a_limit_in_several_hours(
    planned: list[tuple[str, str, list[float], float]], refused: dict[int, float]
) -> None:
    running = [
        Caller(number, route, channel, tuple(gaps), latency)
        for number, (route, channel, gaps, latency) in enumerate(planned)
    ]
    server = StrictServer(refused)
    simulate(running, server, BucketLimits())
    assert server.count > 100
    assert server.violations == []

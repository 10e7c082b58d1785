"""Measure how soon a stop ends the model's request: from the press or `/stop` to the closed socket.

    python -m tests.bench.stop --rounds 20

The service runs as a process with both platforms and a model on loopback. A round asks, waits until
the answer is shown and the model stands still in its middle, and stops it. Times are seconds by one
clock, that of the process of the servers: from the moment a platform sends the event to the moment
the model's server notices that its connection was closed. The target is 0.3 s.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tests.support.chats import STOP, Conversation, running_platforms
from tests.support.model_server import ModelServer
from tests.support.service_process import ServiceProcess
from tests.waiting import wait_until

_PATIENCE_SECONDS = 60.0
_TARGET_SECONDS = 0.3


async def measure(rounds: int, redis: str) -> dict[str, list[float]]:
    """Return the times of every way to stop an answer."""
    with tempfile.TemporaryDirectory() as folder:
        async with running_platforms() as platforms, ModelServer() as model:
            service = ServiceProcess(Path(folder), platforms, model)
            if redis:
                service.settings["TROUPE_REDIS_URL"] = redis
            places = {"Discord": platforms.channel, "Telegram": platforms.telegram_group}
            ways: dict[str, Callable[[Conversation], Awaitable[None]]] = {
                "Stop button": _press,
                "/stop": _write,
            }
            await service.start_and_wait()
            try:
                return {
                    f"{platform}, {way}": [
                        await _stop_once(model, open_place(), stop) for _ in range(rounds)
                    ]
                    for platform, open_place in places.items()
                    for way, stop in ways.items()
                }
            finally:
                await service.stop()


async def _stop_once(
    model: ModelServer,
    where: Conversation,
    stop: Callable[[Conversation], Awaitable[None]],
) -> float:
    halfway, hung_up = model.halfway, model.hung_up
    model.gate.clear()
    try:
        where.ask("aa01", 40)
        await wait_until(
            lambda: model.halfway > halfway and [STOP] in where.buttons(), _PATIENCE_SECONDS
        )
        begun = time.time()
        await stop(where)
        await wait_until(lambda: model.hung_up > hung_up, _PATIENCE_SECONDS)
    finally:
        model.gate.set()
    await wait_until(lambda: [STOP] not in where.buttons(), _PATIENCE_SECONDS)
    return model.hung_up_at - begun


async def _press(where: Conversation) -> None:
    await where.press(STOP)


async def _write(where: Conversation) -> None:
    where.tell("/stop")


def _line(name: str, times: Sequence[float]) -> str:
    late = sum(one > _TARGET_SECONDS for one in times)
    ms = [1000 * one for one in sorted(times)]
    return (
        f"{name:24} median {statistics.median(ms):6.1f} ms   most {ms[-1]:6.1f} ms"
        f"   above {_TARGET_SECONDS} s: {late} of {len(ms)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--redis", default="", help="the URL of a server; none without")
    given = parser.parse_args()
    for name, times in asyncio.run(measure(given.rounds, given.redis)).items():
        print(_line(name, times))  # noqa: T201


if __name__ == "__main__":
    main()

"""Run the child process of the engine `llama_cpp_python`."""

import argparse
import asyncio
import os
import signal
from pathlib import Path

from aiohttp import web

from bot.backends.llama_cpp.bindings_child import native
from bot.backends.llama_cpp.bindings_child.batching import Batcher
from bot.backends.llama_cpp.bindings_child.server import BindingsServer


def main() -> None:
    """Serve one model until terminated by the parent."""
    given = _arguments()
    os.umask(0o077)  # saved slots hold conversations
    opened = native.open_model(
        given.model,
        slots=given.parallel,
        context_tokens=given.context_tokens,
        threads=given.threads,
        gpu_layers=given.gpu_layers,
    )
    with opened as (vocabulary, cache):
        batcher = Batcher(cache, given.parallel)
        server = BindingsServer(vocabulary, cache, batcher, given.parallel, given.slots_folder)
        key = given.key_file.read_text(encoding="ascii")
        given.socket.unlink(missing_ok=True)  # left by a process that was killed
        asyncio.run(_serve(server.app(key), batcher, given.socket))


async def _serve(app: web.Application, batcher: Batcher, socket: Path) -> None:
    """Serve until terminated; raises what ended the decoding thread."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.to_thread(batcher.run))
            await web.UnixSite(runner, socket).start()
            print("serving at", socket, flush=True)  # noqa: T201 # the log of this child
            await ended.wait()
            await runner.cleanup()
            batcher.close()
    finally:
        await runner.cleanup()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--key-file", type=Path, required=True)
    parser.add_argument(
        "--slots-folder", type=Path, required=True, help="the folder of saved slots"
    )
    parser.add_argument("--context-tokens", type=int, required=True, help="of each slot")
    parser.add_argument("--parallel", type=int, required=True, help="slots")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--gpu-layers", default="auto", help="a number, or auto")
    return parser.parse_args()


if __name__ == "__main__":
    main()

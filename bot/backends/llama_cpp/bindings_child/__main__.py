"""Run the child process of the engine `llama_cpp_python`."""

import argparse
import os
from pathlib import Path

from aiohttp import web

from bot.backends.llama_cpp.bindings_child.served_model import load_model
from bot.backends.llama_cpp.bindings_child.server import BindingsServer

_CANCEL_AFTER_SECONDS = 0.2


def main() -> None:
    """Serve one model until terminated by the parent."""
    given = _arguments()
    os.umask(0o077)  # saved slots hold conversations
    model = load_model(
        given.model,
        context_tokens=given.context_tokens,
        threads=given.threads,
        gpu_layers=given.gpu_layers,
    )
    app = BindingsServer(model, given.slots_folder).app(given.key_file.read_text(encoding="ascii"))
    web.run_app(
        app,
        path=given.socket,
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=_CANCEL_AFTER_SECONDS,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--key-file", type=Path, required=True)
    parser.add_argument(
        "--slots-folder", type=Path, required=True, help="the folder of saved slots"
    )
    parser.add_argument("--context-tokens", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--gpu-layers", default="auto", help="a number, or auto")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Run llama.cpp's own server from the wheel, as a child process of a test."""

import signal
import sys
from pathlib import Path

import xllamacpp


def main(
    model: str, port: str, slots: str, context_tokens: str, key: str = "", template: str = ""
) -> None:
    """Serve on loopback until killed; every slot gets the given context size."""
    params = xllamacpp.CommonParams()
    params.model.path, params.port = model, int(port)
    params.n_parallel, params.n_ctx = int(slots), int(slots) * int(context_tokens)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.chat_template, params.verbosity, params.fit_params = "chatml", 2, False
    if template:  # a file, whose template has tools
        params.chat_template, params.use_jinja = Path(template).read_text("utf-8"), True
    if key:
        params.api_keys = [key]
    server = xllamacpp.Server(params)
    print("serving at", server.listening_address, flush=True)  # noqa: T201 # to this child's log
    while True:
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
